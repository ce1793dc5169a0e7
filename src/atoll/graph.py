"""Graphs of one or many parties in one block-diagonal block, and the sparse kernels everything runs on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


class Sparse:
    """A constant sparse matrix kept in CSR together with its transpose; `matrix @ dense` is differentiable in `dense`.

    torch's own CSR backward rebuilds the transpose in every call; holding both makes the backward pass one product.
    """

    def __init__(self, matrix: sp.csr_array) -> None:
        self.shape: tuple[int, int] = matrix.shape
        self.forward = _csr(matrix)
        self.transposed = _csr(sp.csr_array(matrix.T.tocsr()))

    def __matmul__(self, dense: Tensor) -> Tensor:
        return _Product.apply(self, dense)


class _Product(torch.autograd.Function):
    """Y = M·X and its gradient Mᵀ·G."""

    @staticmethod
    def forward(ctx: Any, matrix: Sparse, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return matrix.forward @ dense

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transposed @ gradients[0]


def _csr(matrix: sp.csr_array) -> Tensor:
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int32)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=matrix.shape,
        check_invariants=False,
    )


@dataclass(frozen=True, eq=False)
class Graph:
    """Nodes with features, edges, labels and splits; the blocks of P ≥ 1 parties stand one after the other.

    Party p owns the rows `ptr[p]:ptr[p + 1]`; no edge joins two parties. A whole graph is the case P = 1.
    Everything derived (normalised adjacency, sparse products) is computed once, on first use.
    """

    x: sp.csr_array | Tensor  # (N, d) features, float32: CSR where they are sparse, else a dense tensor
    edge_index: Tensor  # (2, E) int64, source → target; both directions where undirected; no loops, no repeats
    y: Tensor  # (N,) int64 class, −1 where unlabelled
    train: Tensor  # (N,) bool
    val: Tensor  # (N,) bool
    test: Tensor  # (N,) bool
    num_classes: int
    ids: Tensor  # (N,) int64: the node's index in the whole graph
    ptr: Tensor  # (P + 1,) int64: where each party's rows begin

    @property
    def num_nodes(self) -> int:
        return self.y.shape[0]

    @property
    def num_features(self) -> int:
        return self.x.shape[1]

    @property
    def parties(self) -> int:
        return self.ptr.shape[0] - 1

    @cached_property
    def sizes(self) -> list[int]:
        """Nodes of each party."""
        return self.ptr.diff().tolist()

    @cached_property
    def party(self) -> Tensor:
        """(N,) which party each row belongs to."""
        return torch.repeat_interleave(torch.arange(self.parties), self.ptr.diff())

    def select(self, parties: Sequence[int]) -> Graph:
        """The graph of some of the parties, in the given order."""
        if list(parties) == list(range(self.parties)):
            return self
        starts, ends = self.ptr[:-1].tolist(), self.ptr[1:].tolist()
        rows = torch.cat([torch.arange(starts[p], ends[p]) for p in parties])
        sizes = torch.tensor([ends[p] - starts[p] for p in parties], dtype=torch.int64)
        return replace(self.rows(rows), ptr=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))

    def rows(self, rows: Tensor) -> Graph:
        """The induced subgraph of distinct rows as one block (P = 1)."""
        position = torch.full((self.num_nodes,), -1, dtype=torch.int64)
        position[rows] = torch.arange(len(rows))
        edges = position[self.edge_index]
        kept = (edges >= 0).all(0)
        x = self.x[rows] if isinstance(self.x, Tensor) else self.x[rows.numpy()]
        return Graph(
            x=x,
            edge_index=edges[:, kept],
            y=self.y[rows],
            train=self.train[rows],
            val=self.val[rows],
            test=self.test[rows],
            num_classes=self.num_classes,
            ids=self.ids[rows],
            ptr=torch.tensor([0, len(rows)]),
        )


def stack(graphs: Sequence[Graph]) -> Graph:
    """The parties' graphs one after the other, block-diagonal; each may itself hold several parties."""
    offsets = np.cumsum([0, *(graph.num_nodes for graph in graphs)])
    xs = [graph.x for graph in graphs]
    x = torch.cat(xs) if isinstance(xs[0], Tensor) else sp.csr_array(sp.vstack(xs, format="csr"))
    return Graph(
        x=x,
        edge_index=torch.cat([graph.edge_index + int(start) for graph, start in zip(graphs, offsets, strict=False)], 1),
        y=torch.cat([graph.y for graph in graphs]),
        train=torch.cat([graph.train for graph in graphs]),
        val=torch.cat([graph.val for graph in graphs]),
        test=torch.cat([graph.test for graph in graphs]),
        num_classes=graphs[0].num_classes,
        ids=torch.cat([graph.ids for graph in graphs]),
        ptr=torch.cat([torch.zeros(1, dtype=torch.int64)] + [graph.ptr[1:] + int(start) for graph, start in zip(graphs, offsets, strict=False)]),
    )
