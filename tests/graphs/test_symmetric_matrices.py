"""Matrices made of sorted edges alone: those of the sparse sums, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data.builder import build_graph
from atoll.graphs import edges as matrices
from atoll.graphs import symmetric_matrices
from atoll.graphs.graph import Graph, stack
from atoll.graphs.sparse import SparseMatrix


def some_graph(nodes: int = 40, edges: int = 70, *, directed: bool = False, weighted: bool = False, seed: int = 0) -> Graph:
    """Random edges; the last node has none."""
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes - 1, (2, edges))
    x, y = sp.csr_array(np.eye(nodes, 5, dtype=np.float32)), rng.integers(0, 2, nodes)
    weight = rng.random(edges) if weighted else None
    return build_graph(x, ends, y, where="test", directed=directed, edge_weight=weight)


def same(one: SparseMatrix, other: SparseMatrix) -> bool:
    """Whether all stored numbers agree."""
    parts = ("crow_indices", "col_indices", "values")
    return all(torch.equal(getattr(one.forward, part)(), getattr(other.forward, part)()) for part in parts)


@pytest.mark.parametrize("piece", [1, 7, 1 << 20])
def test_the_matrices_are_those_of_sparse_sums(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of one graph and of several, whatever is computed at once."""
    monkeypatch.setattr(symmetric_matrices, "MAX_TOGETHER", piece)
    one = some_graph()
    for graph in (one, stack([one, some_graph(9, 3, seed=1), some_graph(2, 0)])):
        adjacency = matrices.adjacency_matrix(graph.edge_index, None, graph.num_nodes)
        assert graph.looped is not None
        assert graph.symmetric
        assert same(graph.normalized_adjacency, SparseMatrix(matrices.normalized_matrix(adjacency), symmetric=True))
        laplacian = matrices.laplacian_matrix(adjacency, symmetric=True)
        assert np.array_equal(laplacian.toarray(), graph.laplacian.forward.to_dense().numpy())
        rows = torch.randn(graph.num_nodes, 3, generator=torch.Generator().manual_seed(0))
        assert torch.equal(graph.laplacian @ rows, SparseMatrix(laplacian, symmetric=True) @ rows)


def test_other_graphs_have_no_such_pattern() -> None:
    """Directed or weighted edges, and those that are not sorted: their matrices are sums, as ever."""
    graph = some_graph()
    backwards = graph.rows(torch.arange(graph.num_nodes).flip(0))
    for other in (some_graph(directed=True), some_graph(weighted=True), backwards):
        assert other.looped is None
    assert backwards.symmetric
    assert not some_graph(directed=True).symmetric
    expected = graph.normalized_adjacency.forward.to_dense().flip(0).flip(1)
    assert torch.equal(backwards.normalized_adjacency.forward.to_dense(), expected)
    assert Graph.looped.func(some_graph(3, 0)) is not None  # type: ignore[attr-defined]
