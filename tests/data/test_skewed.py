"""Partitions that are uneven on purpose: label skew, clustered communities, sizes by a power law."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from atoll.data import PartitionSettings, load, partition
from atoll.data.balanced import communities
from atoll.data.csbm import CsbmSettings, generate
from atoll.data.node_lists import metis
from atoll.data.skewed import by_label_histogram, label_skew, power_law_sizes
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.random import seed_of
from atoll.runs.config import resolve


@pytest.fixture(scope="module")
def blocks() -> Graph:
    """A graph with twelve communities of five classes."""
    return generate(CsbmSettings(nodes=600, communities=12, mixing=0.05, minority_share=0.2))


def naive_label_skew(labels: list[int], parties: int, alpha: float, rng: np.random.Generator) -> list[set[int]]:
    """One try, node by node."""
    lists: list[list[int]] = [[] for _ in range(parties)]
    for label in sorted(set(labels)):
        nodes = rng.permutation([node for node, other in enumerate(labels) if other == label])
        shares = rng.dirichlet([alpha] * parties)
        shares = [share if len(held) < len(labels) / parties else 0 for share, held in zip(shares, lists, strict=True)]
        ends = [int(sum(shares[: party + 1]) / sum(shares) * len(nodes)) for party in range(parties)]
        ends[-1] = len(nodes)
        for party in range(parties):
            lists[party].extend(nodes[ends[party - 1] if party else 0 : ends[party]])
    return [set(map(int, held)) for held in lists]


@given(st.integers(0, 200), st.integers(2, 6), st.sampled_from([0.5, 1.0, 10.0]))
def test_label_skew_is_a_loop_over_classes(seed: int, parties: int, alpha: float) -> None:
    """Parties with N / P nodes get nothing of the next classes, the others shares of what they would have got."""
    labels = np.random.default_rng(seed).integers(-1, 4, 80)
    found = label_skew(labels, parties, alpha, 0, np.random.default_rng(seed))
    expected = naive_label_skew(labels.tolist(), parties, alpha, np.random.default_rng(seed))
    moved = sum(len(set(mine.tolist()) ^ other) for mine, other in zip(found, expected, strict=True))
    assert moved <= 2 * parties  # a cut may fall on the other side of a node by rounding
    assert sorted(np.concatenate(found).tolist()) == list(range(80))


def test_label_skew_follows_its_concentration() -> None:
    """Few classes per party with a small one, all of them evenly with a large one; the cap holds but for the last class dealt."""
    labels = np.repeat(np.arange(5), 200)
    skewed, even = (label_skew(labels, 5, alpha, 1, np.random.default_rng(0)) for alpha in (0.05, 1e6))
    assert np.mean([(np.bincount(labels[nodes], minlength=5) > 10).sum() for nodes in skewed]) < 3
    assert all(np.abs(np.bincount(labels[nodes], minlength=5) - 40).max() <= 2 for nodes in even)
    assert max(map(len, skewed)) < 200 + 200


@pytest.mark.parametrize("alpha", [1e-300, 1e-4])
def test_shares_that_vanish(alpha: float) -> None:
    """The one party with a share may be full: then the others get equal shares, and nobody is lost."""
    labels = np.repeat(np.arange(6), 30)
    lists = label_skew(labels, 3, alpha, 0, np.random.default_rng(1))
    assert sorted(np.concatenate(lists).tolist()) == list(range(180))


@pytest.mark.parametrize("kind", ["louvain_plus", "metis_plus"])
def test_communities_stay_whole(blocks: Graph, kind: str) -> None:
    """Every community is at one party, and communities of one party have similar classes."""
    settings = PartitionSettings(metis_parts=20)
    found = partition(blocks, kind, 5, settings, seed=3)
    owner = dict(zip(found.ids.tolist(), found.party.tolist(), strict=True))
    seed = seed_of(3, "metis") % 2**31
    pieces = communities(blocks, 3) if kind == "louvain_plus" else metis(blocks, 20, seed)
    assert sorted(owner) == list(range(600))
    assert all(len({owner[node] for node in piece.tolist()}) <= 1 for piece in pieces)
    main = [found.select([party]).y.bincount(minlength=5) for party in range(5)]
    alike = np.mean([float(counts.max() / counts.sum()) for counts in main])
    even = partition(blocks, "random", 5, PartitionSettings(), seed=3)
    assert alike > 2 * np.mean([float(even.select([p]).y.bincount().max() / even.sizes[p]) for p in range(5)])


def test_clusters_of_histograms() -> None:
    """Pieces with the same classes make a party; unlabeled nodes do not count."""
    labels = np.array([0, 0, 1, 1, 0, 0, 1, -1])
    pieces = [np.array([0, 1]), np.array([2, 3]), np.array([4, 5]), np.array([6, 7])]
    lists = by_label_histogram(pieces, labels, 2, 2, seed=0)
    assert sorted(nodes.tolist() for nodes in lists) == [[0, 1, 4, 5], [2, 3, 6, 7]]


@given(st.integers(1, 20), st.integers(0, 1000), st.floats(0, 3))
def test_power_law_sizes(parties: int, nodes: int, exponent: float) -> None:
    """They sum to N, and each is within one of its share."""
    sizes = power_law_sizes(nodes, parties, exponent)
    weights = [(rank + 1) ** -exponent for rank in range(parties)]
    assert sizes.sum() == nodes
    assert all(abs(size - nodes * weight / sum(weights)) <= 1 for size, weight in zip(sizes, weights, strict=True))


def test_sizes_of_parties(blocks: Graph) -> None:
    """Exact at random, within METIS's balance by METIS."""
    settings = PartitionSettings(size_exponent=1.0)
    expected = power_law_sizes(600, 4, 1.0)
    random = partition(blocks, "random", 4, settings, seed=1)
    assert random.sizes == expected.tolist()
    assert sorted(random.ids.tolist()) == list(range(600))
    assert np.allclose(partition(blocks, "metis", 4, settings, seed=1).sizes, expected, rtol=0.15)


def test_what_cannot_be(blocks: Graph) -> None:
    """One sentence each."""

    def cut(kind: str, parties: int, **settings: object) -> Graph:
        return partition(blocks, kind, parties, PartitionSettings(**settings), 0)  # type: ignore[arg-type]

    with pytest.raises(AtollError, match="concentration must be more than 0, not 0"):
        cut("label_skew", 3, concentration=0)
    with pytest.raises(AtollError, match="fewer than 250; use fewer parties"):
        cut("label_skew", 3, min_nodes=250)
    with pytest.raises(AtollError, match="601 parties cannot share 600 nodes"):
        cut("label_skew", 601)
    with pytest.raises(AtollError, match="20 communities cannot make 30 parties; use at most --parties 20"):
        cut("metis_plus", 30, metis_parts=20)
    with pytest.raises(AtollError, match="only 2 different shares of classes, too few for 3 parties"):
        by_label_histogram([np.array([0]), np.array([1]), np.array([2])], np.array([0, 0, 1]), 2, 3, 0)
    with pytest.raises(AtollError, match="size_exponent is for the partitions random and metis, not for dirichlet"):
        cut("dirichlet", 3, size_exponent=1.0)
    with pytest.raises(AtollError, match="leaves party 9 with 0 nodes"):
        cut("random", 20, size_exponent=3.0)


def test_a_class_of_one_node() -> None:
    """It goes to one party, and its split by class gives it to the test nodes."""
    graph = load("csbm", nodes=60)
    y = graph.y.clone()
    y[y == 4] = 3
    y[7] = 4
    found = label_skew(y.numpy(), 3, 1.0, 5, np.random.default_rng(0))
    assert sum(7 in nodes for nodes in found) == 1


def test_openfgl_shares_by_dataset() -> None:
    """20/40/40 by class, other shares for some datasets, and all of them can be set."""
    cora = resolve("fedavg", dataset="cora", partition="openfgl_label_skew", parties=10)
    assert (cora.split.split, cora.split.train, cora.split.val, cora.split.test) == ("by_class", 0.2, 0.4, 0.4)
    assert (cora.partition_settings.concentration, cora.partition_settings.min_nodes) == (10.0, 5)
    squirrel = resolve("fedavg", dataset="Squirrel", partition="openfgl_louvain", parties=10, values={"val": 0.3})
    assert (squirrel.split.train, squirrel.split.val, squirrel.split.test) == (0.48, 0.3, 0.2)
    assert squirrel.partition_settings.louvain_program == "scikit-network"
