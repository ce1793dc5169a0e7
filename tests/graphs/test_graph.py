"""Graphs of several parties: what is derived, and what is cut out and put together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs import edges as matrices
from atoll.graphs.graph import Graph, stack


def make_graph(nodes: int, seed: int, *, directed: bool = False) -> Graph:
    """A random graph with two isolated nodes."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, nodes - 2, (2, 2 * nodes))
    edges = edges[:, edges[0] != edges[1]]
    if not directed:
        edges = np.concatenate([edges, edges[::-1]], 1)
    role = torch.from_numpy(rng.integers(0, 3, nodes))
    return Graph(
        x=sp.csr_array((rng.random((nodes, 5)) * (rng.random((nodes, 5)) < 0.5)).astype(np.float32)),
        edge_index=torch.from_numpy(np.unique(edges, axis=1)),
        y=torch.from_numpy(rng.integers(0, 3, nodes)),
        train=role == 0,
        val=role == 1,
        test=role == 2,
        num_classes=3,
        ids=torch.from_numpy(rng.permutation(100)[:nodes]),
        ptr=torch.tensor([0, nodes]),
    )


def adjacency(graph: Graph) -> Tensor:
    """Dense: row i holds the sources of the edges into i."""
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes, dtype=torch.float64)
    matrix[graph.edge_index[1], graph.edge_index[0]] = 1
    return matrix


def same(one: Graph, other: Graph) -> None:
    """Equal in every field; edges in any order."""
    np.testing.assert_array_equal(one.x.toarray(), other.x.toarray())
    assert sorted(one.edge_index.t().tolist()) == sorted(other.edge_index.t().tolist())
    for name in ("y", "train", "val", "test", "ids", "ptr"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize("directed", [False, True])
def test_propagation_is_symmetrically_normalized(directed: bool) -> None:
    """D^(-1/2)·(A + I)·D^(-1/2) with in-degrees, entry for entry; isolated nodes keep themselves."""
    graph = make_graph(15, 0, directed=directed)
    looped = adjacency(graph) + torch.eye(15)
    scale = looped.sum(1) ** -0.5
    expected = (scale[:, None] * looped * scale).float()
    torch.testing.assert_close(graph.normalized_adjacency.forward.to_dense(), expected)
    torch.testing.assert_close(graph.normalized_adjacency.transposed.to_dense(), expected.t())
    assert graph.symmetric != directed
    assert (graph.normalized_adjacency.transposed is graph.normalized_adjacency.forward) != directed
    assert expected[-1, -1] == 1


@pytest.mark.parametrize("directed", [False, True])
def test_mean_averages_the_neighbors(directed: bool) -> None:
    """D⁻¹·A, zero rows for nodes without neighbors."""
    graph = make_graph(15, 1, directed=directed)
    matrix = adjacency(graph)
    expected = (matrix / matrix.sum(1, keepdim=True).clamp(min=1)).float()
    torch.testing.assert_close(graph.mean_adjacency.forward.to_dense(), expected)
    torch.testing.assert_close(graph.mean_adjacency.transposed.to_dense(), expected.t())
    assert not expected[-1].any()


def test_derived_operators_of_a_block_are_the_partys_own() -> None:
    """In a block-diagonal graph every party's operators are those it has alone."""
    graphs = [make_graph(size, seed) for seed, size in enumerate((6, 11, 8))]
    whole = stack(graphs)
    for graph, start in zip(graphs, whole.ptr.tolist(), strict=False):
        rows = slice(start, start + graph.num_nodes)
        for name in ("normalized_adjacency", "mean_adjacency"):
            block = getattr(whole, name).forward.to_dense()[rows]
            assert torch.equal(block[:, rows], getattr(graph, name).forward.to_dense())
            assert block.count_nonzero() == block[:, rows].count_nonzero()


def test_derived_operators_are_made_once() -> None:
    """The same object comes back every time."""
    graph = make_graph(9, 0)
    for name in ("normalized_adjacency", "mean_adjacency", "features", "blocks", "adjacency", "merged"):
        assert getattr(graph, name) is getattr(graph, name)
    assert graph.attention(4) is graph.attention(4)


def test_select_undoes_stack() -> None:
    """Each party comes back out of a stack; so do several, in the asked order."""
    graphs = [make_graph(size, seed) for seed, size in enumerate((6, 11, 8))]
    whole = stack(graphs)
    assert whole.parties == 3
    assert whole.sizes == [6, 11, 8]
    assert whole.party.tolist() == [0] * 6 + [1] * 11 + [2] * 8
    for party, graph in enumerate(graphs):
        same(whole.select([party]), graph)
    same(whole.select([2, 0]), stack([graphs[2], graphs[0]]))
    assert whole.select([0, 1, 2]) is whole
    same(stack([stack(graphs[:2]), graphs[2]]), whole)


def test_rows_keep_the_edges_between_them() -> None:
    """The induced subgraph has exactly the edges whose ends are both kept, renumbered."""
    graph = make_graph(12, 3)
    rows = torch.tensor([7, 2, 9, 0, 4])
    part = graph.rows(rows)
    assert torch.equal(adjacency(part), adjacency(graph)[rows][:, rows])
    assert torch.equal(part.ids, graph.ids[rows])
    np.testing.assert_array_equal(part.x.toarray(), graph.x.toarray()[rows.numpy()])


def test_pooled_is_one_block() -> None:
    """The pooled graph has the same nodes and edges and one party, so one weight serves all rows."""
    whole = stack([make_graph(6, 0), make_graph(9, 1)])
    assert whole.merged.parties == 1
    weight = torch.randn(1, 5, 4)
    torch.testing.assert_close(whole.merged.features @ weight, whole.features @ weight.expand(2, 5, 4).contiguous())
    assert torch.equal(whole.merged.edge_index, whole.edge_index)


@pytest.mark.parametrize("sparse", [True, False])
def test_the_digest_tells_other_data(sparse: bool) -> None:
    """Every single number counts, in features of either kind; a copy has the same."""
    graph = make_graph(20, 0)
    assert not isinstance(graph.x, Tensor)
    dense = torch.from_numpy(graph.x.toarray())
    graph = replace(graph, x=sp.csr_array(dense.numpy()) if sparse else dense)
    others = {name: getattr(graph, name).clone() for name in ("edge_index", "y", "train", "val", "test", "ids")}
    for tensor in others.values():
        tensor[..., 7] = ~tensor[..., 7]
    changed = dense.clone()
    changed[5, 3] += 1e-3
    others["x"] = sp.csr_array(changed.numpy()) if sparse else changed
    digests = [replace(graph, **{name: value}).digest for name, value in others.items()]
    assert len({graph.digest, *digests}) == 8
    assert replace(graph).digest == graph.digest


def test_nodes_keep_their_names() -> None:
    """In subgraphs, blocks and stacks; the texts are shared, not copied."""
    graph = replace(_whole_graph(5), node_names=np.array(["a", "b", "c", "d", "e"], object))
    part = graph.rows(torch.tensor([4, 1]))
    assert part.node_names is not None
    assert part.node_names.tolist() == ["e", "b"]
    assert graph.node_names is not None
    assert part.node_names[0] is graph.node_names[4]
    both = stack([part, graph])
    assert both.node_names is not None
    assert both.node_names.tolist() == ["e", "b", "a", "b", "c", "d", "e"]
    assert both.select([0]).node_names is not None
    assert stack([part, replace(graph, node_names=None)]).node_names is None


def _whole_graph(nodes: int) -> Graph:
    none = torch.zeros(nodes, dtype=torch.bool)
    edges = torch.zeros(2, 0, dtype=torch.int64)
    return Graph(torch.ones(nodes, 1), edges, none.long(), none, none, none, 1, torch.arange(nodes), torch.tensor([0, nodes]))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_scaled_in_place_is_the_product_with_diagonals(directed: bool, weighted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Normalized adjacency and Laplacian, bit for bit and entry by entry as scipy's products, some rows at a time."""
    monkeypatch.setattr(matrices, "MAX_SCALED", 7)
    graph = make_graph(40, 3, directed=directed)
    if weighted:
        weights = torch.rand(graph.edge_index.shape[1], generator=torch.Generator().manual_seed(0))
        graph = replace(graph, edge_weight=torch.where(weights < 0.1, 0, weights))
    adjacency = graph.weighted_adjacency
    looped = sp.csr_array(adjacency + sp.eye_array(40, format="csr"))
    scale = sp.diags_array(looped.sum(1) ** -0.5)
    both = adjacency + adjacency.T
    laplacian = sp.csr_array(sp.diags_array(both.sum(1)) - both)
    made = matrices.laplacian_matrix(adjacency, symmetric=graph.symmetric)
    for plain, fast in ((sp.csr_array(scale @ looped @ scale), graph.normalized), (laplacian, made)):
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(plain, name), getattr(fast, name)), name
    graph.forget_adjacency()
    assert (graph.weighted_adjacency != adjacency).nnz == 0
