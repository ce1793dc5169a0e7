"""The matrices of graphs whose edges are sorted, go both ways and have no weights, made of the edges alone.

Â = D^(-1/2)·(A + I)·D^(-1/2) and L = 2·(D − A) have the same pattern, that of A + I, so they share its arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.graphs.sparse import SparseMatrix

MAX_TOGETHER = 1 << 20  # edges that are looked at at once, so that little else is needed


@dataclass(frozen=True)
class Looped:
    """The pattern of A + I in CSR, with 32-bit indices."""

    indptr: Tensor  # (N + 1,)
    columns: Tensor  # (E + N,)
    diagonal: Tensor  # (N,) where the diagonal is among them

    @classmethod
    def of(cls, edge_index: Tensor, nodes: int) -> Looped | None:
        """That of some edges; None where they are not sorted by source and target, or do not all go both ways."""
        source, target = edge_index.numpy()
        if len(source) + nodes >= 2**31 or not is_sorted(source, target) or not goes_both_ways(source, target, nodes):
            return None
        degrees, below = (np.bincount(ends, minlength=nodes) for ends in (source, source[target < source]))
        indptr = np.arange(nodes + 1, dtype=np.int64)  # one of the diagonal per row
        indptr[1:] += degrees.cumsum()
        diagonal = indptr[:-1] + below
        columns = np.empty(len(source) + nodes, np.int32)
        for first in range(0, len(source), MAX_TOGETHER):
            here, there = source[first : first + MAX_TOGETHER], target[first : first + MAX_TOGETHER]
            columns[np.arange(first, first + len(here)) + here + (there > here)] = there
        columns[diagonal] = np.arange(nodes, dtype=np.int32)
        return cls(*map(torch.from_numpy, (indptr.astype(np.int32), columns, diagonal)))

    def normalized(self) -> SparseMatrix:
        """Â, bit for bit as `edges.normalized_matrix` makes it: scaled in float64, then rounded."""
        starts, columns = self.indptr.numpy(), self.columns.numpy()
        counts = np.diff(starts)
        scale, values = counts.astype(np.float64) ** -0.5, np.empty(len(columns), np.float32)
        step = max(1, MAX_TOGETHER * len(counts) // len(columns)) if len(columns) else 1
        for first in range(0, len(counts), step):
            rows = slice(first, min(first + step, len(counts)))
            span = slice(starts[rows.start], starts[rows.stop])
            values[span] = np.repeat(scale[rows], counts[rows]) * scale[columns[span]]
        return self._matrix(torch.from_numpy(values))

    def laplacian(self) -> SparseMatrix:
        """L, with a zero where a node has no edges."""
        values = torch.full((len(self.columns),), -2.0)
        values[self.diagonal] = 2.0 * (self.indptr.diff() - 1).float()
        return self._matrix(values)

    def _matrix(self, values: Tensor) -> SparseMatrix:
        nodes = len(self.indptr) - 1
        made = object.__new__(SparseMatrix)
        made.shape, made.symmetric = (nodes, nodes), True
        made.forward = torch.sparse_csr_tensor(self.indptr, self.columns, values, size=made.shape, check_invariants=False)
        return made


def is_sorted(source: NDArray[Any], target: NDArray[Any]) -> bool:
    """Whether edges are sorted by source, then target, without loops and repeats."""
    for first in range(0, len(source), MAX_TOGETHER):
        rows = slice(first, first + MAX_TOGETHER + 1)
        here, there = source[rows], target[rows]
        later, same = here[1:] > here[:-1], here[1:] == here[:-1]
        if not (later | (same & (there[1:] > there[:-1]))).all() or (here == there).any():
            return False
    return True


def goes_both_ways(source: NDArray[Any], target: NDArray[Any], nodes: int) -> bool:
    """Whether every edge, of sorted ones, has its reverse: the matrix is its own transpose."""
    indptr = np.zeros(nodes + 1, np.int32)
    np.cumsum(np.bincount(source, minlength=nodes), out=indptr[1:])
    matrix = sp.csr_array((nodes, nodes), dtype=np.int8)
    matrix.indptr, matrix.indices, matrix.data = indptr, target.astype(np.int32, copy=False), np.ones(len(target), np.int8)
    other = matrix.tocsc()
    return np.array_equal(matrix.indptr, other.indptr) and np.array_equal(matrix.indices, other.indices)
