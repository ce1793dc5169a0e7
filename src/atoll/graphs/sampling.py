"""Layer-wise sampling (FastGCN: Chen, Ma & Xiao, ICLR 2018): which nodes each layer of a batch needs, and the matrices between.

A batch of an L-layer network has levels 0 … L. Level L holds the nodes whose loss counts; level l holds level l + 1 and a uniform
sample of its neighbors, so levels grow downwards and a skip connection finds its rows. Layer l maps level l to level l + 1 by

    A(E[l])_ij = Â_ij · d_i / d_i[l]   for a neighbor j, Â_ii for the node itself,

where d_i of i's neighbors exist and d_i[l] were sampled: every sampled neighbor stands for d_i / d_i[l] of them. With all
neighbors it is Â itself. All parties of a cohort are sampled at once; each draws for itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.attention import Attention
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.neighbors import Ints, ranges
from atoll.graphs.sparse import SparseMatrix


class Level:
    """The nodes of one level: rows of the parties' block-diagonal graph, ascending, and how many are each party's."""

    def __init__(self, rows: Ints, sizes: Sequence[int], device: torch.device = CPU) -> None:
        self.rows, self.device = rows, device
        self.blocks = Blocks(sizes, device)

    @property
    def index(self) -> Tensor:
        """The rows as a tensor."""
        return torch.from_numpy(self.rows).to(self.device)

    @classmethod
    def everything(cls, graph: Graph) -> Level:
        """All nodes of all parties."""
        return cls(np.arange(graph.num_nodes), graph.sizes, graph.device)

    @classmethod
    def from_nodes(cls, graph: Graph, nodes: Sequence[Tensor]) -> Level:
        """From node numbers within each party's block, one tensor per party."""
        starts = graph.bounds.tolist()
        rows = [np.sort(sampled.cpu().numpy()) + start for sampled, start in zip(nodes, starts, strict=False)]
        return cls(np.concatenate(rows), [*map(len, nodes)], graph.device)

    def nodes(self, graph: Graph) -> list[Tensor]:
        """Each party's nodes, numbered within its block."""
        starts, rows = graph.bounds.tolist(), self.rows
        return [
            torch.from_numpy(rows[a:b] - start).to(self.device) for (a, b), start in zip(self.blocks.ranges, starts, strict=False)
        ]


class Batch:
    """The levels of one batch, known from the top down, and the matrices between them."""

    def __init__(self, graph: Graph, levels: Sequence[Level | None]) -> None:
        self.graph = graph
        self.levels = list(levels)

    @classmethod
    def everything(cls, graph: Graph, layers: int) -> Batch:
        """The whole graph at every level: nothing is sampled."""
        return cls(graph, [Level.everything(graph)] * (layers + 1))

    @classmethod
    def of(cls, graph: Graph, layers: int, top: Level) -> Batch:
        """A batch of which only level L is known yet."""
        return cls(graph, [*[None] * layers, top])

    def level(self, index: int) -> Level:
        """A level that is known."""
        level = self.levels[index]
        assert level is not None
        return level

    def blocks(self, level: int) -> Blocks:
        """How the rows of a level are divided into parties."""
        return self.level(level).blocks

    @cached_property
    def features(self) -> Features:
        """X[S[0]]."""
        level = self.level(0)
        if len(level.rows) == self.graph.num_nodes:
            return self.graph.features
        x = self.graph.x
        return Features.of(x[level.index] if isinstance(x, Tensor) else x[level.rows], level.blocks)

    def matrix(self, layer: int) -> SparseMatrix:
        """A(E[l]), level l + 1 by level l."""
        if layer not in self._matrices:
            self._matrices[layer] = between(self.graph, self.level(layer + 1), self.level(layer))
        return self._matrices[layer]

    @cached_property
    def _matrices(self) -> dict[int, SparseMatrix]:
        return {}

    def attention(self, layer: int, heads: int) -> Attention:
        """The edges from level l to level l + 1, as a square pattern over level l: its other rows attend to themselves only."""
        if layer not in self._attention:
            self._attention[layer] = attention_between(self.graph, self.level(layer + 1), self.level(layer), heads)
        return self._attention[layer]

    @cached_property
    def _attention(self) -> dict[int, Attention]:
        return {}

    def take(self, hidden: Tensor, lower: int, upper: int) -> Tensor:
        """The rows of the nodes of the upper level from what is known of those of the lower."""
        below, above = self.level(lower), self.level(upper)
        if len(below.rows) == len(above.rows):
            return hidden
        return hidden.index_select(0, torch.from_numpy(np.searchsorted(below.rows, above.rows)).to(hidden.device))


def below(graph: Graph, level: Level, fan_out: int, draws: Sequence[torch.Generator]) -> Level:
    """The level under this one: its nodes and, of each party, a uniform sample of `fan_out` neighbors per node (0: all)."""
    _, columns, indptr = graph.normalized_adjacency.arrays
    positions, _ = _stored(indptr, level.rows)
    near = np.zeros(graph.num_nodes, bool)
    near[columns[positions]] = True
    near[level.rows] = False
    most = [fan_out * size for size in level.blocks.sizes]
    chosen = choose(np.flatnonzero(near), graph.bounds, most, draws)
    parts = [np.sort(np.concatenate([level.rows[a:b], one])) for (a, b), one in zip(level.blocks.ranges, chosen, strict=True)]
    return Level(np.concatenate(parts), [*map(len, parts)], graph.device)


def choose(candidates: Ints, ptr: Ints, most: Sequence[int], draws: Sequence[torch.Generator]) -> Iterator[Ints]:
    """Of each party's rows among ascending candidates a uniform sample of `most[p]`; all for 0, or where there are no more."""
    cuts = np.searchsorted(candidates, ptr)
    for party, limit in enumerate(most):
        rows = candidates[cuts[party] : cuts[party + 1]]
        sampled = 0 < limit < len(rows)
        yield rows[torch.randperm(len(rows), generator=draws[party])[:limit].numpy()] if sampled else rows


def between(graph: Graph, upper: Level, lower: Level) -> SparseMatrix:
    """The scaled submatrix of Â from the lower level's nodes to the upper level's."""
    if len(upper.rows) == len(lower.rows) == graph.num_nodes:
        return graph.normalized_adjacency
    stored, columns, indptr = graph.normalized_adjacency.arrays
    positions, counts = _stored(indptr, upper.rows)
    source = columns[positions]
    column = _index_in(graph, lower)[source]
    kept = column >= 0
    starts = np.concatenate([[0], kept.cumsum()])[np.concatenate([[0], counts.cumsum()])]
    factor = (counts - 1) / np.maximum(np.diff(starts) - 1, 1)  # d_i / d_i[l]
    scale = np.where(source == np.repeat(upper.rows, counts), 1, np.repeat(factor, counts))
    values = (stored[positions].astype(np.float32, copy=False) * scale)[kept]
    matrix = sp.csr_array((values, column[kept], starts), shape=(len(upper.rows), len(lower.rows)))
    return SparseMatrix(matrix, device=graph.device)


def attention_between(graph: Graph, upper: Level, lower: Level, heads: int) -> Attention:
    """The edges from the lower level's nodes into the upper level's, as a square pattern over the lower level."""
    if len(upper.rows) == len(lower.rows) == graph.num_nodes:
        return graph.attention(heads)
    adjacency = graph.adjacency
    counts = np.zeros(len(lower.rows), np.int64)
    starts, ends = adjacency.indptr[upper.rows], adjacency.indptr[upper.rows + 1]
    positions = ranges(starts, ends - starts)
    column = _index_in(graph, lower)[adjacency.indices[positions]]
    kept = column >= 0
    inside = np.concatenate([[0], kept.cumsum()])
    bounds = np.concatenate([[0], (ends - starts).cumsum()])
    counts[np.searchsorted(lower.rows, upper.rows)] = np.diff(inside[bounds])
    indptr = np.concatenate([[0], counts.cumsum()])
    shape = (len(lower.rows), len(lower.rows))
    adjacency = sp.csr_array((np.ones(int(kept.sum())), column[kept], indptr), shape=shape)
    return Attention(adjacency, heads, device=graph.device)


def _stored(indptr: NDArray[Any], rows: Ints) -> tuple[Ints, Ints]:
    """Where the stored values of some rows of a matrix stand, one row after the other, and how many each row has."""
    starts = indptr[rows].astype(np.int64)
    counts = indptr[rows + 1] - starts
    return ranges(starts, counts), counts


def _index_in(graph: Graph, level: Level) -> NDArray[np.int32]:
    """For every row of the graph its index in the level, −1 where it is not in it."""
    index = np.full(graph.num_nodes, -1, np.int32)
    index[level.rows] = np.arange(len(level.rows))
    return index
