"""SubCora and the cSBM of GFL-APPNP's tasks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data import CsbmSettings, load
from atoll.data.csbm import generate
from atoll.data.subcora import PAIRS, component, subcora, within
from atoll.errors import AtollError

ROOT = Path(os.environ.get("ATOLL_DATA", "/nowhere"))
needs_cora = pytest.mark.skipif(not (ROOT / "Cora" / "raw").is_dir(), reason="Cora's raw files are not under ATOLL_DATA")


def adjacency(nodes: int, *edges: tuple[int, int]) -> sp.csr_array:
    """A symmetric adjacency matrix."""
    source, target = np.array(edges).T
    return sp.csr_array((np.ones(2 * len(edges)), (np.r_[source, target], np.r_[target, source])), shape=(nodes, nodes))


def test_components_by_size_then_by_lowest_node() -> None:
    """Of an induced subgraph: an edge through a node outside does not count."""
    matrix = adjacency(9, (0, 1), (1, 8), (8, 2), (2, 3), (5, 6), (6, 7), (5, 7))
    nodes = np.array([0, 1, 2, 3, 5, 6, 7])
    assert [component(matrix, nodes, rank).tolist() for rank in range(3)] == [[5, 6, 7], [0, 1], [2, 3]]


def test_within_two_hops() -> None:
    """The others, by number, whatever their distance."""
    matrix = adjacency(8, (5, 4), (4, 0), (0, 7), (5, 6), (1, 2))
    assert within(matrix, np.array([5]), 2).tolist() == [0, 4, 6]


@needs_cora
def test_the_pieces_are_as_the_paper_says() -> None:
    """All twenty: 300 nodes, a connected training set of 30 to 50 with all classes evenly, and as many to validate."""
    cora = load("cora")
    for repetition in range(len(PAIRS)):
        piece = subcora(cora, repetition)
        counts = torch.bincount(piece.y[piece.train], minlength=7)
        assert piece.num_nodes == 300
        assert 30 <= int(piece.train.sum()) <= 50
        assert int(piece.val.sum()) == int(piece.train.sum())
        assert int((piece.train | piece.val | piece.test).sum()) == 300
        assert counts.min() > 0
        assert float(counts.float().std(correction=0)) <= 2.5
        nodes = piece.train.nonzero()[:, 0].numpy()
        assert sp.csgraph.connected_components(piece.adjacency[nodes][:, nodes])[0] == 1


@needs_cora
def test_a_run_takes_its_seeds_piece() -> None:
    """Without a repetition the seed chooses, modulo twenty."""
    assert torch.equal(load("subcora", seed=3).y, load("subcora", repetition=3).y)
    assert torch.equal(load("subcora", seed=23).y, load("subcora", repetition=3).y)
    assert not torch.equal(load("subcora", seed=4).y, load("subcora", repetition=3).y)
    with pytest.raises(AtollError, match="no repetition 20"):
        load("subcora", repetition=20)


def test_a_connected_balanced_training_set() -> None:
    """`labelled`: as many of each class, connected; as many validate; the split belongs to the graph, not to the features."""
    settings = CsbmSettings(200, 8, 2, 1, 10, 2, communities=0, redraw="features", connected_train_share=0.1)
    graph, again = generate(settings, 0), generate(settings, 1)
    assert torch.bincount(graph.y[graph.train]).tolist() == [10, 10]
    assert (int(graph.val.sum()), int(graph.test.sum())) == (20, 160)
    nodes = graph.train.nonzero()[:, 0].numpy()
    assert sp.csgraph.connected_components(graph.adjacency[nodes][:, nodes])[0] == 1
    assert torch.equal(graph.train, again.train)
    assert torch.equal(graph.edge_index, again.edge_index)
    assert not torch.equal(torch.as_tensor(graph.x), torch.as_tensor(again.x))


def test_all_vectors_of_a_node_have_its_role() -> None:
    """With several vectors a node."""
    graph = generate(CsbmSettings(60, 6, 1, 1, 4, 2, samples=3, communities=0, connected_train_share=0.2))
    for mask in (graph.train, graph.val, graph.test):
        assert set(mask.view(60, 3).sum(1).tolist()) <= {0, 3}


def test_connected_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`connected` draws until it is; where that never happens it says so."""
    monkeypatch.setattr(sys.modules["atoll.data.csbm"], "MAX_DRAWS", 100)
    settings = CsbmSettings(50, 5, 2.2, 0.1, 4, 2, communities=0, connected=True)
    for seed in range(4):
        graph = generate(CsbmSettings(**{**vars(settings), "graph_seed": seed}))
        assert sp.csgraph.connected_components(graph.adjacency)[0] == 1
    with pytest.raises(AtollError, match="higher one"):
        generate(CsbmSettings(**{**vars(settings), "nodes": 100, "degree": 1.0, "edge_signal": 0.5}))
    with pytest.raises(AtollError, match="no connected set"):
        generate(CsbmSettings(40, 4, 2, 1, 4, 2, communities=0, connected_train_share=0.2))
