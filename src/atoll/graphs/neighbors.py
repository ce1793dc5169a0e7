"""Neighbor lists of a large graph, 4 bytes per edge, and uniform samples of them, drawn for all parties at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from atoll.random import Draws

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
ROWS_AT_ONCE = 1 << 12  # whose neighbors are drawn together, so that their numbers stay in the cache


class NeighborLists:
    """The sources of the edges into each node, one node after the other.

    Nothing else is kept per edge: normalized weights are computed where a sample or a block of rows needs them.

    Attributes:
        indptr: (N + 1,) where each node's neighbors begin.
        indices: (E,) int32, the neighbors.
        weight: (E,) float32, the weights of the edges; None where all are 1.
    """

    diagonal: NDArray[np.float32] | None = None  # (N,) of a matrix whose other entries the weights are; None: normalized later

    def __init__(self, edge_index: Tensor, edge_weight: Tensor | None, nodes: int) -> None:
        source, target = (side.numpy().astype(np.int32) for side in edge_index.cpu())
        values = np.ones(len(source), np.int8) if edge_weight is None else edge_weight.cpu().numpy()
        matrix = sp.coo_array((values, (target, source)), shape=(nodes, nodes)).tocsr()
        self.indptr: Ints = matrix.indptr.astype(np.int64)
        self.indices: NDArray[np.int32] = matrix.indices
        self.weight: NDArray[np.float32] | None = None if edge_weight is None else matrix.data

    @staticmethod
    def of_matrix(matrix: sp.csr_array) -> NeighborLists:
        """The entries of a square matrix as weighted edges: what is sampled of it is made of them as they are."""
        rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
        lists = NeighborLists.of_entries(matrix, matrix.indices != rows)
        lists.diagonal = matrix.diagonal().astype(np.float32, copy=False)
        return lists

    @staticmethod
    def of_entries(matrix: sp.csr_array, kept: NDArray[np.bool_]) -> NeighborLists:
        """The entries of a matrix that are kept, as weighted edges from its columns to its rows."""
        lists = object.__new__(NeighborLists)
        lists.indptr = np.concatenate([[0], kept.cumsum()])[matrix.indptr]
        lists.indices = matrix.indices[kept].astype(np.int32, copy=False)
        lists.weight = matrix.data[kept].astype(np.float32, copy=False)
        return lists

    def cut(self, starts: Ints, ends: Ints) -> NeighborLists:
        """Those of some spans of rows, each of which has its neighbors in the span itself."""
        part = object.__new__(NeighborLists)
        sizes, first, counts = ends - starts, self.indptr[starts], self.indptr[ends] - self.indptr[starts]
        rows, entries = ranges(starts, sizes), ranges(first, counts)
        part.indptr = np.concatenate([[0], self.degree[rows].cumsum()])
        part.indices = self.indices[entries] - np.repeat((starts - sizes.cumsum() + sizes).astype(np.int32), counts)
        part.weight = None if self.weight is None else self.weight[entries]
        return part

    @cached_property
    def degree(self) -> Ints:
        """(N,) neighbors of each node."""
        return np.diff(self.indptr)

    @cached_property
    def in_weight(self) -> Floats:
        """(N,) the sum of the weights of the edges into each node: its degree where edges have none."""
        if self.weight is None:
            return self.degree.astype(np.float64)
        total = np.concatenate([[0.0], self.weight.cumsum(dtype=np.float64)])
        return np.diff(total[self.indptr])

    @cached_property
    def out_weight(self) -> Floats:
        """(N,) the sum of the weights of the edges out of each node."""
        return np.bincount(self.indices, self.weight, minlength=len(self.indptr) - 1).astype(np.float64)

    def all_of(self, rows: Ints) -> tuple[Ints, Ints]:
        """Where all neighbors of some nodes stand in `indices`, one node after the other, and how many each has."""
        counts = self.degree[rows]
        return ranges(self.indptr[rows], counts), counts

    def sample(self, rows: Ints, sizes: Sequence[int], fan_out: int, draws: Draws) -> tuple[Ints, Ints]:
        """As `all_of`, for at most `fan_out` neighbors of each node (0: all), drawn without replacement.

        `sizes`: how many of the rows are each party's; each party draws for its own, and only for nodes with more neighbors.
        """
        degree = self.degree[rows]
        if not fan_out or not (many := np.flatnonzero(degree > fan_out)).size:
            return self.all_of(rows)
        counts, starts = np.minimum(degree, fan_out), self.indptr[rows]
        positions = ranges(starts, counts)
        ends = np.searchsorted(many, np.cumsum([0, *sizes]))
        raw = [bits.random_raw(int(n) * fan_out) for bits, n in zip(draws.bits, np.diff(ends), strict=True)]
        chosen = subsets(degree[many], fan_out, np.concatenate(raw).reshape(-1, fan_out))
        first = (counts.cumsum() - counts)[many]
        positions[first[:, None] + np.arange(fan_out)] = starts[many][:, None] + chosen
        return positions, counts


def subsets(sizes: Ints, count: int, words: NDArray[np.uint64]) -> Ints:
    """(R, count): for each row a uniform subset of 0 … sizes[r] − 1, from random words (R, count) of 64 bits.

    Floyd's algorithm (Bentley & Floyd, CACM 1987): `count` numbers whatever the size, and no sorting of all neighbors.
    """
    chosen = np.empty((len(sizes), count), np.int64)
    for first in range(0, len(sizes), ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        chosen[rows] = _few_subsets(sizes[rows], count, words[rows]).T
    return chosen


def _few_subsets(sizes: Ints, count: int, words: NDArray[np.uint64]) -> NDArray[np.int32]:
    """(count, R): the same, of as many rows as fit in the cache, one number of all subsets after the other."""
    chosen, uniform = np.empty((count, len(sizes)), np.int32), (words >> np.uint64(11)).T * 2.0**-53
    for step in range(count):
        last = sizes - count + step
        chosen[step] = uniform[step] * (last + 1)
        repeated = np.zeros(len(sizes), bool)
        for before in chosen[:step]:
            repeated |= before == chosen[step]
        chosen[step, repeated] = last[repeated]
    return chosen


def ranges(starts: Ints, counts: Ints) -> Ints:
    """start, start + 1, … for `count` numbers each, one range after the other."""
    ends = counts.cumsum()
    result: Ints = np.arange(int(counts.sum())) + np.repeat(starts - ends + counts, counts)
    return result
