"""Graphs whose edges have weights with gradients, for methods that learn which nodes are neighbors."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix, multiply, with_values


class EdgePattern:
    """Where the entries of A + I stand, row by row, made once for all weights.

    Attributes:
        number: (nnz,) the edge of each entry; the number of edges for a loop.
        rows, columns: (nnz,) where it stands.
    """

    def __init__(self, graph: Graph) -> None:
        nodes, edges = graph.num_nodes, graph.edge_index.shape[1]
        source, target = graph.edge_index.cpu().numpy()
        loops = np.arange(nodes)
        numbers = np.concatenate([np.arange(edges), np.full(nodes, edges)]) + 1  # a stored 0 could be dropped
        places = np.concatenate([target, loops]), np.concatenate([source, loops])
        entries = sp.csr_array((numbers, places), shape=(nodes, nodes))
        entries.sort_indices()
        ones = sp.csr_array((np.ones(entries.nnz, np.float32), entries.indices, entries.indptr), shape=entries.shape)
        self.matrix = SparseMatrix(ones, device=graph.device)
        self.number = torch.from_numpy(entries.data - 1).to(graph.device)
        self.rows = torch.from_numpy(np.repeat(loops, np.diff(entries.indptr))).to(graph.device)
        self.columns = torch.from_numpy(entries.indices.astype(np.int64)).to(graph.device)


class LearnedMatrix(SparseMatrix):
    """A sparse matrix of a single step whose values have gradients: `matrix @ dense` is differentiable in both."""

    learned = True

    def __init__(self, pattern: EdgePattern, values: Tensor) -> None:
        self.shape, self.symmetric = pattern.matrix.shape, False
        self.pattern, self.values = pattern, values

    def __matmul__(self, dense: Tensor) -> Tensor:
        result: Tensor = _LearnedProduct.apply(self.values, dense, self.pattern)  # type: ignore[no-untyped-call]
        return result


class _LearnedProduct(torch.autograd.Function):
    """Y = M·X, its gradients Mᵀ·G and, at each entry of M, G_i·X_j."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, dense: Tensor, pattern: EdgePattern) -> Tensor:
        ctx.save_for_backward(values, dense)
        ctx.pattern = pattern
        return multiply(with_values(pattern.matrix.forward, values.detach()), dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        values, dense = ctx.saved_tensors
        pattern, gradient = ctx.pattern, gradients[0].contiguous()
        of_values = of_dense = None
        if ctx.needs_input_grad[0]:
            of_values = (gradient.index_select(0, pattern.rows) * dense.index_select(0, pattern.columns)).sum(1)
        if ctx.needs_input_grad[1]:
            back = values.detach().index_select(0, pattern.matrix.transposed_order)
            of_dense = multiply(with_values(pattern.matrix.transposed, back), gradient)
        return of_values, of_dense, None


def reweighted(graph: Graph, weights: Tensor) -> Graph:
    """The graph whose edges have these weights (E,), which may have gradients, and its nodes loops of weight 1.

    Only its normalized adjacency differs: D^(-1/2)·(A + I)·D^(-1/2), D the in-degrees of A + I.
    """
    if "_pattern" not in graph.__dict__:
        graph.__dict__["_pattern"] = EdgePattern(graph)
    pattern: EdgePattern = graph.__dict__["_pattern"]
    values = torch.cat([weights, weights.new_ones(1)]).index_select(0, pattern.number)
    degree = LearnedMatrix(pattern, values) @ weights.new_ones(graph.num_nodes, 1)
    scale = degree[:, 0].rsqrt()  # the gradient of a power is rounded differently in a tensor's tail
    normalized = scale.index_select(0, pattern.rows) * values * scale.index_select(0, pattern.columns)
    return graph.with_adjacency(LearnedMatrix(pattern, normalized))
