"""cSBM: the distribution of GFL-APPNP's appendix A.2.1, at any size."""

import math
import time
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data import CsbmSettings, PartitionSettings, csbm, load, partition, partition_statistics
from atoll.data.builder import Bools, Ints
from atoll.data.csbm import _grown, generate, sample_edges
from atoll.errors import AtollError, AtollWarning
from graphs import dense, edge_set


def test_every_pair_is_joined_with_its_own_probability() -> None:
    """Over 1500 draws each of the 21 pairs of 7 nodes comes as often as its blocks say (four standard errors), never twice."""
    blocks = np.array([0, 1, 0, 1, 1, 2, 0])
    chances = np.array([[0.9, 0.2, 0.5], [0.2, 1.0, 0.0], [0.5, 0.0, 0.7]])
    rng, draws, count = np.random.default_rng(0), 1500, np.zeros((7, 7))
    both = 0
    for _ in range(draws):
        edges = sample_edges(blocks, chances, rng)
        assert (edges[0] < edges[1]).all()
        assert len({(a, b) for a, b in edges.T.tolist()}) == edges.shape[1]
        count[edges[0], edges[1]] += 1
        both += {(0, 2), (0, 6)} <= {(a, b) for a, b in edges.T.tolist()}
    for i in range(7):
        for j in range(i + 1, 7):
            p = chances[blocks[i], blocks[j]]
            assert abs(count[i, j] / draws - p) <= 4 * math.sqrt(p * (1 - p) / draws)
    assert abs(both / draws - 0.81) < 0.04  # independent of each other


def test_degrees_follow_c_in_and_c_out() -> None:
    """Mean degree d; neighbors of the same class c_in/2 = (d + λ√d)/2, of the other c_out/2."""
    graph = csbm(nodes=20_000, degree=8, lam=2, mu=1, features=2, seed=3)
    source, target = graph.edge_index
    same = (graph.y[source] == graph.y[target]).float().mean()
    assert graph.edge_index.shape[1] / 20_000 == pytest.approx(8, rel=0.02)
    assert float(same) == pytest.approx((8 + 2 * math.sqrt(8)) / 16, rel=0.02)
    assert float(graph.y.float().mean()) == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("classes", [3, 5])
def test_more_classes_keep_the_degree(classes: int) -> None:
    """c = d + (C − 1)λ√d inside a class and d − λ√d across keep the mean degree at d."""
    graph = csbm(nodes=20_000, degree=10, lam=1.5, mu=1, features=2, classes=classes)
    source, target = graph.edge_index
    inside = 10 + (classes - 1) * 1.5 * math.sqrt(10)
    assert graph.edge_index.shape[1] / 20_000 == pytest.approx(10, rel=0.02)
    assert float((graph.y[source] == graph.y[target]).float().mean()) == pytest.approx(inside / classes / 10, rel=0.03)


def test_features_are_signal_plus_noise() -> None:
    """x = √(μ/N)·v·u + z/√p: the classes' means are ±√(μ/N)·u with ‖u‖ ≈ 1, the noise has variance 1/p."""
    nodes, p, mu = 20_000, 50, 20_000.0
    graph = csbm(nodes=nodes, degree=4, lam=1, mu=mu, features=p)
    x = dense(graph)
    low, high = x[graph.y == 0].mean(0), x[graph.y == 1].mean(0)
    torch.testing.assert_close(low, -high, atol=0.01, rtol=0)
    assert float(high.norm()) == pytest.approx(math.sqrt(mu / nodes), rel=0.35)
    assert float((x[graph.y == 1] - high).var()) == pytest.approx(1 / p, rel=0.02)


def test_features_can_be_redrawn_on_one_graph() -> None:
    """The paper fixes topology and classes over 20 repetitions and draws features again."""
    one, two = (csbm(100, 8, 2, 1, 5, seed=4, feature_seed=seed) for seed in (1, 2))
    assert edge_set(one) == edge_set(two)
    assert torch.equal(one.y, two.y)
    assert not torch.equal(dense(one), dense(two))
    assert edge_set(one) != edge_set(csbm(100, 8, 2, 1, 5, seed=5))


@pytest.mark.parametrize("flip", [0.0, 0.3])
def test_samples_can_be_redrawn_around_one_center(flip: float) -> None:
    """A.2.1 draws u once and repeats the sampling: the classes' means stay, every vector changes; `features` changes both."""
    settings = CsbmSettings(60, 8, 2, 60.0 * 400, 5, 2, 50, flip, communities=0, redraw="samples", graph_seed=4)
    one, two = (generate(settings, seed) for seed in (1, 2))
    assert edge_set(one) == edge_set(two)
    assert torch.equal(one.y, two.y) == (flip == 0)
    assert not (dense(one) == dense(two)).any()
    means = [dense(graph)[graph.y == 1].mean(0) for graph in (one, two)]
    torch.testing.assert_close(*means, atol=0.1, rtol=0)
    other = generate(replace(settings, redraw="features"), 2)
    assert float((dense(other)[other.y == 1].mean(0) - means[1]).norm()) > 1
    fixed = generate(replace(settings, redraw="nothing"))
    torch.testing.assert_close(dense(fixed)[fixed.y == 1].mean(0), means[0], atol=0.1, rtol=0)


def grown(classes: Ints, adjacency: sp.csr_array, each: int, rng: np.random.Generator) -> Bools:
    """The connected set as it was first written: the whole frontier again for every node."""
    inside = np.zeros(len(classes), bool)
    counts = np.zeros(classes.max() + 1, np.int64)
    node = rng.integers(len(classes))
    while True:
        inside[node] = True
        counts[classes[node]] += 1
        candidates = np.unique(adjacency[np.flatnonzero(inside)].indices)
        candidates = candidates[~inside[candidates] & (counts[classes[candidates]] < each)]
        if not len(candidates):
            return inside
        node = rng.choice(candidates)


def test_training_sets_grow_as_they_always_did() -> None:
    """The same nodes and the same random numbers as the naive version, also where the set cannot be completed."""
    complete = 0
    for seed in range(60):
        rng = np.random.default_rng(seed)
        nodes, kinds, each = int(rng.integers(5, 60)), int(rng.integers(2, 5)), int(rng.integers(1, 8))
        classes = np.append(rng.integers(0, kinds, nodes - 1), kinds - 1)
        half = np.triu(rng.random((nodes, nodes)) < 0.3 * rng.random(), 1)
        adjacency = sp.csr_array((half + half.T).astype(float))
        naive, ours = np.random.default_rng(seed), np.random.default_rng(seed)
        expected = grown(classes, adjacency, each, naive)
        assert np.array_equal(_grown(classes, adjacency, each, ours), expected)
        assert naive.integers(1 << 60) == ours.integers(1 << 60)
        complete += int(expected.sum() == each * kinds)
    assert 0 < complete < 60


def test_samples_stand_together() -> None:
    """Node i's n rows are i·n … (i + 1)·n − 1 with id i; the topology by ids is that of one sample; flips change some labels."""
    one, many = csbm(50, 5, 2, 1, 6, seed=2), csbm(50, 5, 2, 1, 6, samples=40, seed=2)
    assert many.ids.tolist() == [node for node in range(50) for _ in range(40)]
    assert {(int(a), int(b)) for a, b in many.ids[many.edge_index].T} == edge_set(one)
    assert torch.equal(many.y.reshape(50, 40), one.y[:, None].expand(50, 40))
    assert len(torch.unique(dense(many), dim=0)) == 2000
    flipped = csbm(50, 5, 2, 1, 6, samples=400, flip=0.3, seed=2)
    assert float((flipped.y != many.y.reshape(50, 40)[:, :1].expand(50, 400).reshape(-1)).float().mean()) == pytest.approx(
        0.3, abs=0.02
    )


def test_a_million_nodes_take_seconds() -> None:
    """Time goes with the edges, never with N²: five million edges in well under 20 s of one core."""
    start = time.process_time()
    graph = csbm(nodes=1_000_000, degree=10, lam=2, mu=1, features=1)
    assert graph.edge_index.shape[1] == pytest.approx(10_000_000, rel=0.01)
    assert time.process_time() - start < 20


def test_the_demo_graph_is_a_federation() -> None:
    """Louvain finds eight parties of like size whose minority nodes have much lower homophily; degree and mixing are as set."""
    graph = load("csbm")
    assert (graph.num_nodes, graph.num_classes, graph.num_features) == (3000, 5, 64)
    assert graph.edge_index.shape[1] / 3000 == pytest.approx(CsbmSettings().degree, rel=0.03)
    found = partition_statistics(partition(graph, "louvain_largest", 8, PartitionSettings(), 0), graph)
    for one in found.parties:
        assert 150 < one.nodes < 450
        assert one.minority_nodes > 40
        assert (one.minority_homophily or 0) + 0.2 < (one.majority_homophily or 0)
    assert load("csbm", nodes=500, classes=3, graph_seed=1).num_nodes == 500


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"nodes": 1}, "at least 2 nodes"),
        ({"classes": 1}, "2 classes"),
        ({"degree": 4.0, "edge_signal": 2.5}, "negative probability"),
        ({"degree": 0.0, "edge_signal": 0.0}, "degree > 0"),
        ({"feature_signal": -1.0}, "feature_signal ≥ 0"),
        ({"mixing": 1.5}, "between 0 and 1"),
        ({"samples": 0}, "1 sample"),
        ({"edge_signal": float("nan")}, "finite numbers"),
        ({"degree": float("inf")}, "finite numbers"),
        ({"feature_signal": 1e300}, "too large"),
        ({"nodes": 60, "communities": 100_000}, "100000 communities of 5 classes"),
    ],
)
def test_impossible_settings_are_refused(change: dict[str, float], said: str) -> None:
    """One sentence with the numbers that clash."""
    with pytest.raises(AtollError, match=said):
        generate(CsbmSettings(**change))  # type: ignore[arg-type]


def test_earlier_names_of_its_settings_are_accepted() -> None:
    """`load` takes λ and μ by their old names and gives the new ones."""
    with pytest.warns(AtollWarning, match="lam is now edge_signal, mu is now feature_signal"):
        old = load("csbm", nodes=50, lam=1.0, mu=3.0)
    assert torch.equal(torch.as_tensor(old.x), torch.as_tensor(load("csbm", nodes=50, edge_signal=1.0, feature_signal=3.0).x))
