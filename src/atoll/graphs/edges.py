"""Edges and their weights: matrices made of them, and what becomes of weights where edges are merged or stacked."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor


def adjacency_matrix(edge_index: Tensor, edge_weight: Tensor | None, nodes: int) -> sp.csr_array:
    """(N, N) float64; row i holds the sources of the edges into i, with weight 1 where edges have none."""
    source, target = edge_index.numpy()
    values = np.ones(len(source)) if edge_weight is None else edge_weight.numpy().astype(np.float64)
    matrix = sp.csr_array((values, (target, source)), shape=(nodes, nodes))
    matrix.sort_indices()
    return matrix


def looped_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """A + I."""
    return sp.csr_array(adjacency + sp.eye_array(adjacency.shape[0], format="csr"))


def normalized_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D^(-1/2)·(A + I)·D^(-1/2), D the row sums of A + I."""
    looped = looped_matrix(adjacency)
    scale = sp.diags_array(looped.sum(1) ** -0.5)
    return sp.csr_array(scale @ looped @ scale)


def unlooped_matrix(adjacency: sp.csr_array) -> sp.csr_array:
    """D_in^(-1/2)·A·D_out^(-1/2), without self loops; a node without edges has a row and a column of zeros."""
    into, out_of = (np.where(degree > 0, degree, np.inf) ** -0.5 for degree in (adjacency.sum(1), adjacency.sum(0)))
    return sp.csr_array(sp.diags_array(into) @ adjacency @ sp.diags_array(out_of))


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
    return torch.cat([torch.ones(edges.shape[1]) if weights is None else weights for edges, weights in pairs])
