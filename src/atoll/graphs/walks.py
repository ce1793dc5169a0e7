"""Closed walks: the diagonals of a symmetric matrix's powers, from sparse rows, without forming a power."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
MAX_ENTRIES = 1 << 23  # of the rows that are held at once


def closed_walks(matrix: sp.csr_array, nodes: Tensor, steps: int) -> Iterator[tuple[slice, Tensor]]:
    """(steps + 1, k) the diagonal entries (Mⁱ)_kk, i = 0 … steps, for one span of `nodes` after the other; M is symmetric.

    (Mⁱ⁺ʲ)_kk = (e_kᵀ·Mⁱ)·(e_kᵀ·Mʲ), so rows of powers up to half the steps suffice: they hold the nodes that are that many hops
    away, and no others. Spans are as long as the rows before them allow.
    """
    start, width, dense = 0, 1, np.zeros(matrix.shape[0])
    while start < len(nodes):
        span = slice(start, min(start + width, len(nodes)))
        row = _unit_rows(nodes[span].cpu().numpy(), matrix.shape[0])  # e_kᵀ·Mⁱ
        walks = [np.ones(span.stop - span.start)]
        while len(walks) <= steps:
            walks += _products(row, matrix, dense)  # of 2i + 1 and 2i + 2 steps
            row = sp.csr_array(row @ matrix) if len(walks) <= steps else row
        yield span, torch.from_numpy(np.stack(walks[: steps + 1]))
        start = span.stop
        width = max(1, min(4 * width, MAX_ENTRIES * (span.stop - span.start) // max(row.nnz, 1)))


def _unit_rows(nodes: Ints, width: int) -> sp.csr_array:
    return sp.csr_array((np.ones(len(nodes)), nodes, np.arange(len(nodes) + 1)), shape=(len(nodes), width))


def _products(row: sp.csr_array, matrix: sp.csr_array, dense: Floats) -> tuple[Floats, Floats]:
    """(k,) r·(M·r) and ‖M·r‖² of some rows r; `dense` is a row of zeros to add up in, and is left so.

    M·r is not stored: a sparse product would spend ten times as long on finding room for its entries.
    """
    degree, once, twice = np.diff(matrix.indptr), np.empty(row.shape[0]), np.empty(row.shape[0])
    for index in range(row.shape[0]):
        span = slice(row.indptr[index], row.indptr[index + 1])
        here, values = row.indices[span], row.data[span]
        near = matrix[here]
        sent = near.data * np.repeat(values, degree[here])
        np.add.at(dense, near.indices, sent)
        once[index], twice[index] = (values * dense[here]).sum(), (sent * dense[near.indices]).sum()  # @ would start threads
        dense[near.indices] = 0
    return once, twice
