"""One propagation of a network: from the rows that it reads to the rows that it computes.

On a whole graph both are all nodes. In a mini-batch, or in a block of an evaluation, fewer rows are computed than read, and a
layer's matrix is rectangular. Its weights are those of the whole graph: with d_i neighbors of node i, of which s_i are sampled,

    Â_ij·d_i / s_i for a sampled neighbor j, Â_ii for the node itself,

and likewise for D⁻¹·A (so it is the mean over the sampled neighbors) and A + I. With all neighbors it is the matrix itself.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, Protocol, overload

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.attention import Attention
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.neighbors import Floats, Ints, NeighborLists
from atoll.graphs.sparse import SparseMatrix
from atoll.graphs.symmetric_matrices import Looped


class Hop(Protocol):
    """What a layer needs of a graph: the division of its rows into parties, before and after, and the matrices between."""

    @property
    def blocks(self) -> Blocks:
        """How the rows that are read are divided into parties."""
        ...

    @property
    def out_blocks(self) -> Blocks:
        """How the rows that are computed are divided into parties."""
        ...

    @property
    def sizes(self) -> list[int]:
        """The rows of each party that are read."""
        ...

    @property
    def features(self) -> Features:
        """The features of the rows that are read."""
        ...

    @property
    def normalized_adjacency(self) -> SparseMatrix:
        """D^(-1/2)·(A + I)·D^(-1/2)."""
        ...

    @property
    def mean_adjacency(self) -> SparseMatrix:
        """D⁻¹·A."""
        ...

    @property
    def unlooped_adjacency(self) -> SparseMatrix:
        """D_in^(-1/2)·A·D_out^(-1/2)."""
        ...

    @property
    def summed_adjacency(self) -> SparseMatrix:
        """A + I."""
        ...

    @property
    def beside_attention(self) -> SparseMatrix | None:
        """What is added to what attention gives; None for nothing."""
        ...

    def attention(self, heads: int) -> Attention:
        """The entries of attention, over the rows that are read."""
        ...

    @overload
    def targets(self, rows: Tensor) -> Tensor: ...
    @overload
    def targets(self, rows: Features | Tensor) -> Features | Tensor: ...
    def targets(self, rows: Features | Tensor) -> Features | Tensor:
        """Of the rows that are read, those that are computed."""
        ...


class AllNodes:
    """What makes a whole graph a hop from all nodes to all nodes, and the lists that other hops are made of."""

    edge_index: Tensor
    edge_weight: Tensor | None
    y: Tensor
    ids: Tensor
    active: Tensor | None = None  # (P,) which parties take the step that a graph is for; None for all

    @cached_property
    def neighbors(self) -> NeighborLists:
        """Each node's neighbors, in less memory than a matrix takes."""
        if given := self.__dict__.get("_adjacency"):
            return NeighborLists.of_matrix(sp.csr_array(given.arrays, shape=given.shape))
        if "_parties" in self.__dict__:
            cut: Any = self.__dict__["_cut"]
            return cut.graph.neighbors.cut(cut.starts.numpy(), cut.ends.numpy())  # type: ignore[no-any-return]
        return NeighborLists(self.edge_index, self.edge_weight, len(self.ids))

    @cached_property
    def looped(self) -> Looped | None:
        """The pattern of A + I, where it can be had of the edges alone: they are sorted, go both ways and have no weights."""
        sortable = self.edge_weight is None and self.edge_index.is_cpu
        return Looped.of(self.edge_index, len(self.ids)) if sortable else None

    @property
    def out_blocks(self) -> Blocks:
        """How the rows are divided into parties."""
        blocks: Blocks = self.blocks  # type: ignore[attr-defined]
        return blocks

    def hop(self, index: int) -> Hop:
        """The graph as a network's propagation `index` = 0, 1, … sees it: the graph itself."""
        return self  # type: ignore[return-value]

    @overload
    def targets(self, rows: Tensor) -> Tensor: ...
    @overload
    def targets(self, rows: Features | Tensor) -> Features | Tensor: ...
    def targets(self, rows: Features | Tensor) -> Features | Tensor:
        """All rows."""
        return rows


class SampledHop:
    """A hop from some rows of a graph to fewer of them, over all or some of their edges.

    Attributes:
        index: (n,) the rows of the graph that are read, ascending.
    """

    beside_attention: SparseMatrix | None = None

    def __init__(
        self,
        lists: NeighborLists,
        x: sp.csr_array | Tensor,
        ptr: Ints,
        rows: Ints,
        out: Ints,
        columns: Ints | NDArray[np.int32],
        counts: Ints,
        positions: Ints,
        device: torch.device = CPU,
    ) -> None:
        """`rows`: those that are read, ascending; `out`: where the computed ones stand among them; `columns`: likewise the
        sampled neighbors of each computed one, `counts` of them; `positions`: where these stand in the lists."""
        self.lists, self.x, self.rows, self.out = lists, x, rows, out
        self.columns, self.counts, self.positions = columns, counts, positions
        self.device = device
        cuts = np.searchsorted(rows, ptr)
        self.blocks = Blocks(np.diff(cuts).tolist(), device)
        self.out_blocks = Blocks(np.diff(np.searchsorted(out, cuts)).tolist(), device)

    @property
    def index(self) -> Tensor:
        """(n,) the rows of the graph that are read."""
        return torch.from_numpy(self.rows).to(self.device)

    @property
    def sizes(self) -> list[int]:
        """The rows of each party that are read."""
        return self.blocks.sizes

    @cached_property
    def features(self) -> Features:
        """The features of the rows that are read."""
        return Features.of(self.x[self.index] if isinstance(self.x, Tensor) else self.x[self.rows], self.blocks)

    @cached_property
    def normalized_adjacency(self) -> SparseMatrix:
        """D^(-1/2)·(A + I)·D^(-1/2) with the degrees of the whole graph; or of another matrix that stands for it."""
        if self.lists.diagonal is not None:
            return self._looped(self.weights, self.lists.diagonal[self.rows[self.out]])
        scale = (self.lists.in_weight[self.rows] + 1) ** -0.5
        return self._looped(self.weights * np.repeat(scale[self.out], self.counts) * scale[self.columns], scale[self.out] ** 2)

    @cached_property
    def summed_adjacency(self) -> SparseMatrix:
        """A + I."""
        return self._looped(self.weights, np.ones(len(self.out)))

    @cached_property
    def mean_adjacency(self) -> SparseMatrix:
        """D⁻¹·A."""
        total = self.lists.in_weight[self.rows[self.out]]
        return self._matrix(self.weights / np.repeat(np.where(total > 0, total, 1), self.counts), self.columns, self.counts)

    @cached_property
    def unlooped_adjacency(self) -> SparseMatrix:
        """D_in^(-1/2)·A·D_out^(-1/2)."""
        into, out_of = (np.where(total > 0, total, np.inf) ** -0.5 for total in (self.lists.in_weight, self.lists.out_weight))
        scale = np.repeat(into[self.rows[self.out]], self.counts) * out_of[self.rows][self.columns]
        return self._matrix(self.weights * scale, self.columns, self.counts)

    def attention(self, heads: int) -> Attention:
        """A square pattern over the rows that are read: those that are not computed attend to themselves only."""
        counts = np.zeros(len(self.rows), np.int64)
        counts[self.out] = self.counts
        indptr = np.concatenate([[0], counts.cumsum()])
        shape = (len(self.rows), len(self.rows))
        adjacency = sp.csr_array((np.ones(len(self.columns)), self.columns, indptr), shape=shape)
        return Attention(adjacency, heads, device=self.device)

    @overload
    def targets(self, rows: Tensor) -> Tensor: ...
    @overload
    def targets(self, rows: Features | Tensor) -> Features | Tensor: ...
    def targets(self, rows: Features | Tensor) -> Features | Tensor:
        """Of the rows that are read, those that are computed."""
        if len(self.out) == len(self.rows):
            return rows
        index = torch.from_numpy(self.out).to(self.device)
        return rows.take(index, self.out_blocks) if isinstance(rows, Features) else rows.index_select(0, index)

    @cached_property
    def weights(self) -> Floats:
        """Weights of the edges, each times the number of neighbors that it stands for."""
        degree = self.lists.degree[self.rows[self.out]]
        factor = np.repeat(degree / np.maximum(self.counts, 1), self.counts)
        return factor if self.lists.weight is None else factor * self.lists.weight[self.positions]

    def _looped(self, values: Floats, diagonal: NDArray[Any]) -> SparseMatrix:
        """The matrix of these values with the node itself in front of its neighbors."""
        first = self.counts.cumsum() - self.counts
        columns: Ints = np.insert(self.columns, first, self.out).astype(np.int64, copy=False)
        return self._matrix(np.insert(values, first, diagonal), columns, self.counts + 1)

    def _matrix(self, values: Floats, columns: Ints | NDArray[np.int32], counts: Ints) -> SparseMatrix:
        indptr = np.concatenate([[0], counts.cumsum()])
        entries = sp.csr_array((values, columns, indptr), shape=(len(self.out), len(self.rows)))
        matrix = SparseMatrix(entries, device=self.device)
        matrix.row_blocks = self.out_blocks
        return matrix
