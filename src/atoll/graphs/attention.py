"""Attention over edges: scores, softmax by target and weighted sums of all heads at once, with a hand-written backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.sparse import SparseMatrix, csr, multiply, with_values


class Attention:
    """The entries of attention: every node attends to its neighbors and itself, once per head: H copies, block-diagonal.

    Node i of head h is row h·N + i. Entries are sorted by head, target and source. With `more` (N, N) a neighbor counts as much
    as the sum of both matrices says: its exp(score) is multiplied by that before the softmax is normalized.
    """

    def __init__(self, adjacency: sp.csr_array, heads: int, more: sp.csr_array | None = None) -> None:
        nodes = adjacency.shape[0]
        looped = sp.csr_array(adjacency + sp.eye_array(nodes, format="csr"))
        if more is not None:
            looped = sp.csr_array(looped + more)
        looped.sort_indices()
        entries = looped.nnz
        indptr = np.concatenate([[0], *(looped.indptr[1:].astype(np.int64) + head * entries for head in range(heads))])
        columns = np.concatenate([looped.indices.astype(np.int64) + head * nodes for head in range(heads)])
        rows = heads * nodes
        self.pattern = SparseMatrix(sp.csr_array((np.ones(heads * entries, np.float32), columns, indptr), shape=(rows, rows)))
        self.weights = None if more is None else torch.from_numpy(np.tile(looped.data.astype(np.float32), heads))  # of entries
        self.offsets = torch.from_numpy(indptr)
        self.source = torch.from_numpy(columns)
        self.target = torch.repeat_interleave(torch.arange(rows), self.offsets.diff())
        ones, order = np.ones(heads * entries, np.float32), self.pattern.transposed_order.numpy()
        back = self.pattern.transposed.crow_indices().numpy()
        self.sum_by_target = csr(sp.csr_array((ones, np.arange(heads * entries), indptr), shape=(rows, heads * entries)))
        self.sum_by_source = csr(sp.csr_array((ones, order, back), shape=(rows, heads * entries)))

    def counts(self, blocks: Blocks) -> list[int]:
        """(P,) entries of each party in one head."""
        counts: list[int] = self.offsets[[0, *(end for _, end in blocks.ranges)]].diff().tolist()
        return counts

    def matrix(self, values: Tensor) -> Tensor:
        """The matrix of these values, one per entry."""
        return with_values(self.pattern.forward, values)

    def transposed(self, values: Tensor) -> Tensor:
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
        peak = torch.segment_reduce(scores, "max", offsets=attention.offsets, unsafe=True)
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
        empty = attention.matrix(torch.zeros_like(share))
        of_share = torch.sparse.sampled_addmm(empty, gradient, rows.t(), beta=0.0).values()
        if kept is not None:
            of_share.mul_(kept)
        of_scores = of_share.mul_(share)  # through the softmax: α·(∂α − Σ_j α_j·∂α_j)
        inner = multiply(attention.sum_by_target, of_scores[:, None]).flatten()
        of_scores.addcmul_(share, inner.index_select(0, attention.target), value=-1)
        of_raw = torch.ops.aten.leaky_relu_backward(of_scores, raw, _Attend.slope, False)
        of_source = multiply(attention.sum_by_source, of_raw[:, None]).flatten()
        of_target = multiply(attention.sum_by_target, of_raw[:, None]).flatten()
        return of_rows, of_source, of_target, None, None
