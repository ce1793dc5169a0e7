"""Attention over edges: scores, softmax by target and weighted sums of all heads at once, with a hand-written backward pass."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.kernels import Blocks, Sparse, csr, like, multiply


class Attention:
    """The places where every node looks at its neighbours and itself, once for each head: H copies, block-diagonal.

    Node i of head h is row h·N + i. Places are sorted by head, target and source.
    """

    def __init__(self, adjacency: sp.csr_array, heads: int) -> None:
        nodes = adjacency.shape[0]
        looped = sp.csr_array(adjacency + sp.eye_array(nodes, format="csr"))
        looped.sort_indices()
        places = looped.nnz
        starts = np.concatenate([[0], *(looped.indptr[1:].astype(np.int64) + head * places for head in range(heads))])
        columns = np.concatenate([looped.indices.astype(np.int64) + head * nodes for head in range(heads)])
        rows = heads * nodes
        self.pattern = Sparse(sp.csr_array((np.ones(heads * places, np.float32), columns, starts), shape=(rows, rows)))
        self.offsets = torch.from_numpy(starts)
        self.source = torch.from_numpy(columns)
        self.target = torch.repeat_interleave(torch.arange(rows), self.offsets.diff())
        ones, order = np.ones(heads * places, np.float32), self.pattern.order.numpy()
        back = self.pattern.transposed.crow_indices().numpy()
        self.arriving = csr(sp.csr_array((ones, np.arange(heads * places), starts), shape=(rows, heads * places)))
        self.leaving = csr(sp.csr_array((ones, order, back), shape=(rows, heads * places)))

    def counts(self, blocks: Blocks) -> list[int]:
        """Places of each party in one head."""
        counts: list[int] = self.offsets[[0, *(end for _, end in blocks.ranges)]].diff().tolist()
        return counts

    def matrix(self, values: Tensor) -> Tensor:
        """The values at their places."""
        return like(self.pattern.forward, values)

    def transposed(self, values: Tensor) -> Tensor:
        """The values at their places, transposed."""
        return like(self.pattern.transposed, values.index_select(0, self.pattern.order))


def attend(rows: Tensor, source: Tensor, target: Tensor, places: Attention, kept: Tensor | None = None) -> Tensor:
    """y_i = Σ_j α_ij·x_j with α_i = softmax_j(leaky(source_j + target_i)), dropout on α; rows (H·N, C), scores (H·N,)."""
    result: Tensor = _Attend.apply(rows, source, target, places, kept)  # type: ignore[no-untyped-call]
    return result


def elu(rows: Tensor) -> Tensor:
    """x where x > 0, else exp x − 1. torch's own rounds a tensor's last few numbers otherwise than the rest."""
    return rows.relu() + rows.clamp(max=0).expm1()


class _Attend(torch.autograd.Function):
    """Attention of every place at once; the backward pass needs one product at the pattern's places and segment sums."""

    slope = 0.2

    @staticmethod
    def forward(ctx: Any, rows: Tensor, source: Tensor, target: Tensor, places: Attention, kept: Tensor | None) -> Tensor:
        raw = source.index_select(0, places.source).add_(target.index_select(0, places.target))
        scores = F.leaky_relu(raw, _Attend.slope)
        peak = torch.segment_reduce(scores, "max", offsets=places.offsets, unsafe=True)
        scores.sub_(peak.index_select(0, places.target)).exp_()
        total = multiply(places.arriving, scores[:, None]).flatten()
        share = scores.div_(total.index_select(0, places.target))  # α
        ctx.save_for_backward(rows, raw, share, kept)
        ctx.places = places
        return multiply(places.matrix(share if kept is None else share * kept), rows)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, raw, share, kept = ctx.saved_tensors
        places, gradient = ctx.places, gradients[0].contiguous()
        of_rows = multiply(places.transposed(share if kept is None else share * kept), gradient)
        empty = places.matrix(torch.zeros_like(share))
        of_share = torch.sparse.sampled_addmm(empty, gradient, rows.t(), beta=0.0).values()
        if kept is not None:
            of_share.mul_(kept)
        of_scores = of_share.mul_(share)  # through the softmax: α·(∂α − Σ_j α_j·∂α_j)
        inner = multiply(places.arriving, of_scores[:, None]).flatten()
        of_scores.addcmul_(share, inner.index_select(0, places.target), value=-1)
        of_raw = torch.ops.aten.leaky_relu_backward(of_scores, raw, _Attend.slope, False)
        of_source = multiply(places.leaving, of_raw[:, None]).flatten()
        of_target = multiply(places.arriving, of_raw[:, None]).flatten()
        return of_rows, of_source, of_target, None, None
