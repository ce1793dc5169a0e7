"""The graph of some parties, cut out of that of all: the same as one of its own, to the last bit."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data.builder import build_graph
from atoll.graphs import clusters
from atoll.graphs.graph import Graph, stack
from atoll.graphs.sparse import SparseMatrix

OPERATORS = ("normalized_adjacency", "summed_adjacency", "unlooped_adjacency", "mean_adjacency", "laplacian")
CHOICES = ([1], [2, 0], [3, 1, 2], [0, 1, 2, 3])


def parties(*, dense: bool = False, directed: bool = False, weighted: bool = False) -> Graph:
    """Four parties of different sizes; one has no edges."""
    rng = np.random.default_rng(0)
    graphs = []
    for nodes, edges in ((7, 12), (5, 0), (9, 20), (3, 3)):
        x = rng.random((nodes, 6)).astype(np.float32) * (1 if dense else rng.random((nodes, 6)) < 0.2)
        ends = np.unique(np.sort(rng.integers(0, nodes, (2, edges)), 0), axis=1)
        weight = 0.1 + ends.sum(0) if weighted else None
        y = rng.integers(0, 3, nodes)
        role = rng.integers(0, 3, nodes)
        masks = (role == 0, role == 1, role == 2)
        form = {"directed": directed, "num_classes": 3, "edge_weight": weight}
        graphs.append(build_graph(x, ends, y, masks, where="test", **form))
    return stack(graphs)


def numbers(matrix: SparseMatrix, rows: int) -> list[torch.Tensor]:
    """M·X and Mᵀ·X."""
    dense = torch.randn(max(matrix.shape), 4, generator=torch.Generator().manual_seed(rows))
    return [matrix @ dense[: matrix.shape[1]], matrix.transposed_matmul(dense[: matrix.shape[0]])]


@pytest.mark.parametrize("form", [{}, {"dense": True}, {"directed": True}, {"weighted": True}], ids=str)
@pytest.mark.parametrize("chosen", CHOICES, ids=str)
def test_a_slice_is_a_selection(form: dict[str, bool], chosen: list[int]) -> None:
    """Fields, matrices, features with their gradients and neighbor lists, in any order of the parties."""
    whole = parties(**form)
    one, other = whole.slice(np.array(chosen)), whole.select(chosen)
    for field in fields(Graph):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if field.name.startswith("edge_") and left is not None:  # in the order of the parties, or of the whole graph
            order = [(graph.edge_index[0] * 100 + graph.edge_index[1]).argsort() for graph in (one, other)]
            left, right = left[..., order[0]], right[..., order[1]]
        if sp.issparse(left):
            assert (left != right).nnz == 0
        else:
            assert torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right, field.name
    for name in OPERATORS:
        for left, right in zip(*(numbers(getattr(graph, name), 1) for graph in (one, other)), strict=True):
            assert torch.equal(left, right), name
    weight, upstream = torch.randn(len(chosen), 6, 2), torch.randn(one.num_nodes, 2)
    assert torch.equal(one.features.product(weight), other.features.product(weight))
    assert torch.equal(one.features.gram(upstream), other.features.gram(upstream))
    for name in ("indptr", "indices", "in_weight"):
        assert np.array_equal(getattr(one.neighbors, name), getattr(other.neighbors, name)), name


def test_edges_in_any_order_are_selected() -> None:
    """Where edges are not stored party after party there is nothing to cut."""
    whole = parties()
    mixed = replace(whole, edge_index=whole.edge_index.flip(1))
    assert "_cut" in whole.slice(np.array([2, 0])).__dict__
    part = mixed.slice(np.array([2, 0]))
    assert "_cut" not in part.__dict__
    assert torch.equal(part.normalized_adjacency.forward.to_dense(), whole.select([2, 0]).normalized_adjacency.forward.to_dense())


def test_clusters_are_found_once_for_each_party(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever takes part: the same clusters as a party alone has, and METIS is not asked again."""
    whole, asked = parties(), []
    plain = clusters._cut
    monkeypatch.setattr(clusters, "_cut", lambda graph, *place: (asked.append(place), plain(graph, *place))[1])
    for chosen in ([0, 2], [2, 3], [2], [0, 1, 2, 3]):
        graph = whole.slice(np.array(chosen))
        cells = clusters.clusters(graph, [3] * len(chosen))
        for party, start, found in zip(chosen, graph.ptr.tolist(), cells, strict=False):
            alone = clusters.clusters(whole.select([party]), [3])[0]
            assert [cell.tolist() for cell in found] == [(cell + start).tolist() for cell in alone]
    shared = [place for place in asked if place[0] or place[1] not in {7, 5, 9, 3}]
    assert len(asked) - len(shared) >= 8
    asked.clear()
    clusters.clusters(whole.slice(np.array([3, 0])), [3, 3])
    assert not asked
