"""Edges and their weights: matrices made of them, and what becomes of weights where edges are merged or stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

MAX_SCALED = 1 << 20  # values that are scaled at once


def adjacency_matrix(edge_index: Tensor, edge_weight: Tensor | None, nodes: int) -> sp.csr_array:
    """(N, N) float64; row i holds the sources of the edges into i, with weight 1 where edges have none."""
    source, target = edge_index.cpu().numpy()
    values = np.ones(len(source)) if edge_weight is None else edge_weight.cpu().numpy().astype(np.float64)
    matrix = sp.csr_array((values, (target, source)), shape=(nodes, nodes))
    matrix.sort_indices()
    return matrix


def edge_pattern(edge_index: Tensor, nodes: int) -> sp.csr_array:
    """(N, N) as `adjacency_matrix`, in 5 bytes per edge: for programs that look at where edges are."""
    source, target = (side.numpy().astype(np.int32) for side in edge_index.cpu())
    matrix = sp.csr_array((np.ones(len(source), np.int8), (target, source)), shape=(nodes, nodes))
    matrix.sort_indices()
    return matrix


def looped_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """A + I."""
    return sp.csr_array(adjacency + sp.eye_array(adjacency.shape[0], format="csr"))


def normalized_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D^(-1/2)·(A + I)·D^(-1/2), D the row sums of A + I."""
    looped = looped_matrix(adjacency)
    return scaled_in_place(looped, looped.sum(1) ** -0.5)


def scaled_in_place(matrix: sp.csr_array, scale: NDArray[np.float64]) -> sp.csr_array:
    """diag(scale)·M·diag(scale), in the memory of M: some rows at a time, so that little else is needed."""
    step = max(1, MAX_SCALED * matrix.shape[0] // max(matrix.nnz, 1))
    for first in range(0, matrix.shape[0], step):
        starts = matrix.indptr[first : first + step + 1]
        values = matrix.data[starts[0] : starts[-1]]
        values *= np.repeat(scale[first : first + step], np.diff(starts))
        values *= scale[matrix.indices[starts[0] : starts[-1]]]
    return matrix


def laplacian_matrix(adjacency: sp.csr_array, *, symmetric: bool) -> sp.csr_array:
    """D_in + D_out − A − Aᵀ."""
    both = adjacency * 2 if symmetric else adjacency + adjacency.T
    return sp.csr_array(sp.diags_array(both.sum(1)) - both)


def unlooped_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D_in^(-1/2)·A·D_out^(-1/2), without self loops; a node without edges has a row and a column of zeros."""
    into, out_of = (np.where(degree > 0, degree, np.inf) ** -0.5 for degree in (adjacency.sum(1), adjacency.sum(0)))
    return sp.csr_array(sp.diags_array(into) @ adjacency @ sp.diags_array(out_of))


def spectral_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D^(-1/2)·A·D^(-1/2), D the sums over the edges out of a node; without self loops, 0 for a node without any."""
    degree = adjacency.sum(0)
    return scaled_in_place(sp.csr_array(adjacency, copy=True), np.where(degree > 0, degree, np.inf) ** -0.5)


def mean_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D⁻¹·A, D the row sums: a weighted mean; a row of zeros stays zero."""
    degree = adjacency.sum(1)
    return sp.csr_array(sp.diags_array(1 / np.where(degree > 0, degree, 1)) @ adjacency)


def distinct_edges(edge_index: Tensor, edge_weight: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Each edge once, sorted; of several weights of an edge the largest."""
    if edge_weight is None:
        return torch.unique(edge_index, dim=1), None
    edges, index = torch.unique(edge_index, dim=1, return_inverse=True)
    weights = edge_weight.new_zeros(edges.shape[1]).scatter_reduce_(0, index, edge_weight, "amax", include_self=False)
    return edges, weights


def stacked_weights(edge_indices: Sequence[Tensor], edge_weights: Sequence[Tensor | None]) -> Tensor | None:
    """The weights of several graphs' edges, one graph after the other; 1 where only other graphs have weights."""
    if all(weights is None for weights in edge_weights):
        return None
    pairs = zip(edge_indices, edge_weights, strict=True)
    return torch.cat(
        [torch.ones(edges.shape[1], device=edges.device) if weights is None else weights for edges, weights in pairs]
    )


def stacked_pairs(pairs: Sequence[Tensor | None], starts: Sequence[int]) -> Tensor | None:
    """The judged pairs of several graphs, one graph after the other; None where a graph has none."""
    present = [one + start for one, start in zip(pairs, starts, strict=True) if one is not None]
    return torch.cat(present, 1) if len(present) == len(pairs) else None
