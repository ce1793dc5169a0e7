"""Pseudo graphs: exact in blocks, projected to the parties and normalized as the paper writes it."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data.csbm import CsbmSettings, generate
from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.graphs import knn
from atoll.graphs.graph import Graph


def parts() -> Graph:
    """Three overlapping parties of a graph of 40 nodes."""
    graph = generate(CsbmSettings(nodes=40, features=6, classes=3))
    return partition(graph, "overlap", None, PartitionSettings(proportions="0.5,0.4,0.7"), 0)


@pytest.mark.parametrize(("nodes", "count"), [(1, 1), (7, 3), (50, 50), (83, 10), (400, 7), (1000, 1)])
@pytest.mark.parametrize("entries", [1, 1 << 24])
def test_nearest_is_the_top_of_the_whole_product(nodes: int, count: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and groups of columns change nothing: the largest entries of H·Hᵀ and where they stand."""
    monkeypatch.setattr(knn, "MAX_SIMILARITIES", entries)
    embeddings = torch.randn(nodes, 5, generator=torch.Generator().manual_seed(nodes))
    scores, columns = knn.exact_search(embeddings, count)
    product = embeddings @ embeddings.t()
    torch.testing.assert_close(scores, product.topk(count, dim=1).values)
    torch.testing.assert_close(product.gather(1, columns.long()), scores)
    assert all(len(set(row)) == count for row in columns.tolist())


@pytest.mark.parametrize(("nodes", "count"), [(1, 0), (7, 3), (50, 49), (400, 7)])
@pytest.mark.parametrize("entries", [1, 1 << 24])
def test_nearest_others_leave_out_the_diagonal(nodes: int, count: int, entries: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the node itself, the largest entries off the diagonal of H·Hᵀ."""
    monkeypatch.setattr(knn, "MAX_SIMILARITIES", entries)
    embeddings = torch.randn(nodes, 5, generator=torch.Generator().manual_seed(nodes))
    scores, columns = knn.exact_search(embeddings, count, itself=False)
    product = (embeddings @ embeddings.t()).fill_diagonal_(-torch.inf)
    torch.testing.assert_close(scores, product.topk(count, dim=1).values)
    torch.testing.assert_close(product.gather(1, columns.long()), scores)
    assert knn.nearest_neighbors(embeddings, 1000, "joint", itself=False)[0].shape == (nodes, nodes - 1)


def test_other_entries_than_the_row_s_own() -> None:
    """One entry per row goes: its own; the last where its own is not there; the first of several that are zeros."""
    columns = torch.tensor([[1, 0, 2], [2, 0, 3], [2, 1, 0], [1, 3, 3]])
    scores = torch.arange(12.0).view(4, 3)
    kept, others = knn._others(scores, columns)
    assert others.tolist() == [[1, 2], [2, 0], [1, 0], [1, 3]]
    assert kept.tolist() == [[0.0, 2.0], [3.0, 4.0], [7.0, 8.0], [9.0, 11.0]]


def test_nearest_holds_few_similarities(monkeypatch: pytest.MonkeyPatch) -> None:
    """No product inside is larger than the limit: never N × N."""
    monkeypatch.setattr(knn, "MAX_SIMILARITIES", 4000)
    largest = 0
    product = torch.mm

    def watched(left: torch.Tensor, right: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        nonlocal largest
        largest = max(largest, out.numel())
        return product(left, right, out=out)

    monkeypatch.setattr(torch, "mm", watched)
    knn.exact_search(torch.randn(500, 4, generator=torch.Generator().manual_seed(0)), 10)
    assert 0 < largest <= 4000


@pytest.mark.parametrize("form", knn.FORMS)
def test_rows_sum_to_one_and_nothing_is_negative(form: str) -> None:
    """Ā's rows are normalized; where no similarity is positive the row is 0."""
    embeddings = torch.tensor([[1.0, 0.0], [2.0, 0.0], [-1.0, 0.1], [0.0, 0.0]])
    columns, weights = knn.nearest_neighbors(embeddings, 2, form)
    assert columns.dtype == torch.int32
    assert bool((weights >= 0).all())
    torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 1.0, 1.0, 0.0]))


def test_literal_weights_by_hand() -> None:
    """relu(H·Hᵀ), two largest entries a row, rows summing to 1."""
    embeddings = torch.tensor([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0]])  # products: 1 3 0 / 3 9 0 / 0 0 4
    columns, weights = knn.nearest_neighbors(embeddings, 2, "literal")
    found = torch.zeros(3, 3).scatter_(1, columns.long(), weights)
    torch.testing.assert_close(found, torch.tensor([[0.25, 0.75, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]))


def test_projection_keeps_what_a_party_holds() -> None:
    """Ā⁽ᵏ⁾ has an entry where both nodes are the party's, and none between parties."""
    graph = parts()
    columns, weights = knn.nearest_neighbors(torch.randn(40, 4, generator=torch.Generator().manual_seed(1)), 9, "literal")
    whole = torch.zeros(40, 40).scatter_(1, columns.long(), weights)
    expected = torch.zeros(graph.num_nodes, graph.num_nodes)
    for start, end in graph.blocks.ranges:
        ids = graph.ids[start:end]
        expected[start:end, start:end] = whole[ids][:, ids]
    torch.testing.assert_close(torch.from_numpy(knn.project(graph, columns, weights).toarray()), expected)


@pytest.mark.parametrize("form", ["literal", "counts", "cosine"])
def test_normalization_by_hand(form: str) -> None:
    """D̄ are row sums, or counts of neighbors; `cosine` is symmetric. A row without neighbors stays 0."""
    dense = np.array([[0.5, 0.3, 0.0], [0.0, 0.2, 0.0], [0.0, 0.0, 0.0]], dtype=np.float32)
    base = (dense + dense.T) / 2 if form == "cosine" else dense
    degree = (base > 0).sum(1) if form == "counts" else base.sum(1)
    scale = np.where(degree > 0, degree, 1) ** -0.5
    found = knn.normalize(sp.csr_array(dense), form).toarray()
    np.testing.assert_allclose(found, scale[:, None] * base * scale, rtol=1e-6)


@pytest.mark.parametrize("form", knn.FORMS)
def test_complement_adds_the_pseudo_graph(form: str) -> None:
    """A_k = Â_k + β·D̄^(-1/2)·Ā⁽ᵏ⁾·D̄^(-1/2), or normalized jointly, and its transpose in the backward pass."""
    graph = parts()
    columns, weights = knn.nearest_neighbors(torch.randn(40, 4, generator=torch.Generator().manual_seed(2)), 5, form)
    projected = knn.project(graph, columns, weights)
    expected = torch.from_numpy(graph.normalized.toarray() + 0.5 * knn.normalize(projected, form).toarray()).float()
    if form == "joint":
        both = torch.from_numpy(0.5 * (projected + projected.T).toarray()).fill_diagonal_(0)
        looped = torch.from_numpy(graph.adjacency.toarray()) + torch.eye(graph.num_nodes) + 0.5 * both
        scale = looped.sum(1) ** -0.5
        expected = (scale[:, None] * looped * scale).float()
    found = knn.complement(graph, columns, weights, beta=0.5, form=form)
    rows = torch.randn(graph.num_nodes, 3, requires_grad=True)
    out = found.normalized_adjacency @ rows
    torch.testing.assert_close(out, expected @ rows)
    (gradient,) = torch.autograd.grad(out.square().sum(), rows)
    torch.testing.assert_close(gradient, expected.t() @ (2 * expected @ rows))


def test_approximate_search_finds_most_of_the_nearest() -> None:
    """faiss finds at least nine in ten of the true neighbors of clustered points."""
    pytest.importorskip("faiss", exc_type=ImportError)
    source = torch.Generator().manual_seed(0)
    centers = 4 * torch.randn(20, 8, generator=source)
    embeddings = torch.nn.functional.normalize(centers.repeat(100, 1) + torch.randn(2000, 8, generator=source), dim=1)
    _, exact = knn.exact_search(embeddings, 10)
    scores, found = knn.approximate_search(embeddings, 10)
    shared = [len(set(a) & set(b)) for a, b in zip(exact.tolist(), found.tolist(), strict=True)]
    assert sum(shared) / 20_000 > 0.9
    torch.testing.assert_close(scores, (embeddings[:, None] * embeddings[found.long()]).sum(2))
