"""Attention over edges: scores, softmax by target and weighted sums of all heads at once, with a hand-written backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.blocks import Blocks
from atoll.graphs.compressed import Compressed
from atoll.graphs.sparse import SparseMatrix, Stored, csr, multiply, with_values


class Attention:
    """The entries of attention: every node attends to its neighbors and itself, once per head: H copies, block-diagonal.

    Node i of head h is row h·N + i. Entries are sorted by head, target and source. With `more` (N, N) a neighbor counts as much
    as the sum of both matrices says: its exp(score) is multiplied by that before the softmax is normalized.
    """

    def __init__(self, adjacency: sp.csr_array, heads: int, more: sp.csr_array | None = None, device: torch.device = CPU) -> None:
        nodes = adjacency.shape[0]
        looped = sp.csr_array(adjacency + sp.eye_array(nodes, format="csr"))
        if more is not None:
            looped = sp.csr_array(looped + more)
        looped.sort_indices()
        entries = looped.nnz
        indptr = np.concatenate([[0], *(looped.indptr[1:].astype(np.int64) + head * entries for head in range(heads))])
        columns = np.concatenate([looped.indices.astype(np.int64) + head * nodes for head in range(heads)])
        rows = heads * nodes
        whole = sp.csr_array((np.ones(heads * entries, np.float32), columns, indptr), shape=(rows, rows))
        self.pattern = SparseMatrix(whole, device=device)
        self.weights = None if more is None else torch.from_numpy(np.tile(looped.data.astype(np.float32), heads)).to(device)
        self.ends = looped.indptr  # of the rows of one head
        self.offsets = torch.from_numpy(indptr).to(device)
        self.source = torch.from_numpy(columns).to(device)
        self.target = torch.repeat_interleave(torch.arange(rows), torch.from_numpy(np.diff(indptr))).to(device)
        ones, backward = np.ones(heads * entries, np.float32), self.pattern.transpose(np.arange(heads * entries, dtype=np.int32))
        order, back = backward.data, backward.indptr
        shape = (rows, heads * entries)
        self.sum_by_target = csr(sp.csr_array((ones, np.arange(heads * entries), indptr), shape=shape), device)
        self.sum_by_source = csr(sp.csr_array((ones, order, back), shape=shape), device)

    def counts(self, blocks: Blocks) -> list[int]:
        """(P,) entries of each party in one head."""
        counts: list[int] = np.diff(self.ends[[0, *(end for _, end in blocks.ranges)]]).tolist()
        return counts

    def matrix(self, values: Tensor) -> Stored:
        """The matrix of these values, one per entry."""
        return with_values(self.pattern.forward, values)

    def transposed(self, values: Tensor) -> Stored:
        """The transpose of that matrix."""
        return with_values(self.pattern.transposed, values.index_select(0, self.pattern.transposed_order))


def attend(rows: Tensor, source: Tensor, target: Tensor, attention: Attention, kept: Tensor | None = None) -> Tensor:
    """y_i = Σ_j α_ij·x_j with α_i = softmax_j(leaky(source_j + target_i)), dropout on α; rows (H·N, C), scores (H·N,).

    Where the entries have weights w_ij, α_ij is proportional to w_ij·exp(leaky(source_j + target_i)).
    """
    result: Tensor = _Attend.apply(rows, source, target, attention, kept)  # type: ignore[no-untyped-call]
    return result


def elu(rows: Tensor) -> Tensor:
    """x where x > 0, else exp x − 1. torch rounds a tensor's tail differently, so results would depend on position."""
    return rows.relu() + rows.clamp(max=0).expm1()


class _Attend(torch.autograd.Function):
    """Attention of all entries at once; the backward pass takes one product sampled at the pattern and sums by segment."""

    slope = 0.2

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, target: Tensor, attention: Attention, kept: Tensor | None) -> Tensor:
        raw = source.index_select(0, attention.source).add_(target.index_select(0, attention.target))
        scores = F.leaky_relu(raw, _Attend.slope)
        peak = _highest(scores, attention)
        scores.sub_(peak.index_select(0, attention.target)).exp_()
        if attention.weights is not None:
            scores.mul_(attention.weights)
        total = multiply(attention.sum_by_target, scores[:, None]).flatten()
        share = scores.div_(total.index_select(0, attention.target))  # α
        ctx.save_for_backward(rows, raw, share, kept)
        ctx.attention = attention
        return multiply(attention.matrix(share if kept is None else share * kept), rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, raw, share, kept = ctx.saved_tensors
        attention, gradient = ctx.attention, gradients[0].contiguous()
        of_rows = multiply(attention.transposed(share if kept is None else share * kept), gradient)
        of_share = _sampled(gradient, rows, attention)
        if kept is not None:
            of_share.mul_(kept)
        of_scores = of_share.mul_(share)  # through the softmax: α·(∂α − Σ_j α_j·∂α_j)
        inner = multiply(attention.sum_by_target, of_scores[:, None]).flatten()
        of_scores.addcmul_(share, inner.index_select(0, attention.target), value=-1)
        of_raw = torch.ops.aten.leaky_relu_backward(of_scores, raw, _Attend.slope, False)
        of_source = multiply(attention.sum_by_source, of_raw[:, None]).flatten()
        of_target = multiply(attention.sum_by_target, of_raw[:, None]).flatten()
        return of_rows, of_source, of_target, None, None


def _highest(scores: Tensor, attention: Attention) -> Tensor:
    """(H·N,) the highest score of the entries of each row, all of which have some."""
    if scores.device == CPU:
        return torch.segment_reduce(scores, "max", offsets=attention.offsets, unsafe=True)
    lowest = scores.new_full((len(attention.offsets) - 1,), -torch.inf)
    return lowest.scatter_reduce_(0, attention.target, scores, "amax")


def _sampled(left: Tensor, right: Tensor, attention: Attention) -> Tensor:
    """(entries,) the entries of left·rightᵀ at the pattern."""
    pattern = attention.pattern.forward
    if isinstance(pattern, Compressed):
        return (left.index_select(0, attention.target) * right.index_select(0, attention.source)).sum(1)
    empty = with_values(pattern, left.new_zeros(len(attention.source)))
    entries: Tensor = torch.sparse.sampled_addmm(empty, left, right.t(), beta=0.0).values()
    return entries
