"""Injected noise and sparsity: how much is damaged, what is not, and that it is a function of seed and party alone."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll.data import PartitionSettings, partition
from atoll.data.damage import DamageSettings, damaged, require_divided_nodes
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from graphs import dense, edge_set, make_graph, same

ALL = DamageSettings(0.3, 0.2, 0.2, 0.3, 0.25, 0.4)


@pytest.fixture(scope="module")
def parts() -> Graph:
    """Three parties, one of them with directed edges too, sparse features, and every second labeled node trains."""
    graph = partition(make_graph(90, 400, 1), "random", 3, PartitionSettings(), 2)
    train = (graph.y >= 0) & (torch.arange(90) % 2 == 0)
    x = sp.csr_array(np.where(np.random.default_rng(0).random((90, 40)) < 0.2, 1.5, 0).astype(np.float32))
    return replace(graph, x=x, train=train, val=graph.val & ~train, test=graph.test & ~train)


def pairs(graph: Graph) -> set[tuple[int, int]]:
    """The undirected edges."""
    return {(min(edge), max(edge)) for edge in edge_set(graph)}


def damage(graph: Graph, seed: int = 0, **settings: float) -> Graph:
    """All parties damaged."""
    return damaged(graph, DamageSettings(**settings), seed, Parties(range(graph.parties)))


def test_nothing_is_damaged_by_default(parts: Graph) -> None:
    """The graph itself."""
    assert not DamageSettings().active
    assert damage(parts) is parts


@pytest.mark.parametrize("share", [0.0001, 0.3, 1.0])
def test_feature_sparsity(parts: Graph, share: float) -> None:
    """Of each node's c non-zeros, ⌊p·c⌋ become 0; the others keep their values; sparse and dense alike."""
    before = dense(parts)
    for graph in (parts, replace(parts, x=before)):
        found = damage(graph, feature_sparsity=share)
        after = dense(found)
        assert isinstance(found.x, torch.Tensor) == isinstance(graph.x, torch.Tensor)
        for row in range(90):
            nonzero = before[row] != 0
            assert int((nonzero & (after[row] == 0)).sum()) == int(share * int(nonzero.sum()) + 1e-6)
            assert torch.equal(after[row][after[row] != 0], before[row][after[row] != 0])
    assert torch.equal(found.edge_index, parts.edge_index)


def test_feature_noise(parts: Graph) -> None:
    """N(0, σ²) on every entry, zeros too."""
    noise = dense(damage(parts, feature_noise=0.5)) - dense(parts)
    assert float(noise.std()) == pytest.approx(0.5, rel=0.05)
    assert abs(float(noise.mean())) < 0.02
    assert bool((noise != 0).all())


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_edges(parts: Graph, share: float) -> None:
    """Sparsity keeps round((1 − p)·m) undirected edges of each party; noise puts as many new ones in the place of the others."""
    for party in range(3):
        one = parts.select([party])
        before = pairs(one)
        sparse, noisy = damage(one, edge_sparsity=share), damage(one, edge_noise=share)
        assert pairs(sparse) < before
        assert len(pairs(sparse)) == round((1 - share) * len(before))
        assert len(pairs(noisy)) == len(before)
        assert len(pairs(noisy) & before) == round((1 - share) * len(before))
        for found in (sparse, noisy):
            assert found.symmetric
            assert all(a != b for a, b in edge_set(found))
            assert len(edge_set(found)) == found.edge_index.shape[1]


def test_edges_of_all_parties_stay_inside_them(parts: Graph) -> None:
    """New edges join nodes of one party."""
    found = damage(parts, edge_noise=0.8)
    assert bool((parts.party[found.edge_index[0]] == parts.party[found.edge_index[1]]).all())


def test_directed_and_weighted_edges() -> None:
    """Weights stay with their edges, new edges have weights that occur, a directed graph stays one."""
    graph = make_graph(40, 200, 3)
    up = graph.edge_index[0] < graph.edge_index[1]
    directed = replace(graph, edge_index=graph.edge_index[:, up], edge_weight=torch.arange(1.0, 1 + int(up.sum())))
    weight = {tuple(edge): w for edge, w in zip(directed.edge_index.T.tolist(), directed.edge_weight.tolist(), strict=True)}
    found = damage(directed, edge_noise=0.4)
    assert found.edge_index.shape[1] == len(pairs(found)) == len(weight)
    assert found.edge_weight is not None
    for edge, value in zip(found.edge_index.T.tolist(), found.edge_weight.tolist(), strict=True):
        assert value == weight[tuple(edge)] if tuple(edge) in weight else value in weight.values()


def test_a_complete_graph_has_no_new_edges() -> None:
    """There is nothing to add, so fewer edges are left."""
    full = torch.tensor([(a, b) for a in range(12) for b in range(12) if a != b]).T
    graph = replace(make_graph(12, 5, 0), edge_index=full)
    assert len(pairs(damage(graph, edge_noise=0.5))) == 33
    nearly = replace(graph, edge_index=full[:, (full.min(0).values > 0) | (full.max(0).values > 3)])
    assert pairs(damage(nearly, edge_noise=0.5)) >= {(0, 1), (0, 2), (0, 3)}


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_labels(parts: Graph, share: float) -> None:
    """round(p·n_k) training nodes of each party do not train, or train with another class; nobody else is touched."""
    sparse, noisy = damage(parts, label_sparsity=share), damage(parts, label_noise=share)
    for party in range(3):
        one, fewer, other = (graph.select([party]) for graph in (parts, sparse, noisy))
        count = int(one.train.sum())
        assert int(fewer.train.sum()) == count - round(share * count)
        assert bool((one.train | ~fewer.train).all())
        changed = other.y != one.y
        assert int(changed.sum()) == round(share * count)
        assert bool((one.train | ~changed).all())
        assert bool(((other.y >= 0) & (other.y < 3))[changed].all())
    assert torch.equal(sparse.y, parts.y)
    assert torch.equal(noisy.train, parts.train)
    for name in ("val", "test", "ids"):
        assert torch.equal(getattr(sparse, name), getattr(parts, name))


def test_every_other_class_is_equally_likely() -> None:
    """Over many labels."""
    graph = replace(make_graph(3000, 10, 0, classes=4), y=torch.zeros(3000, dtype=torch.int64), train=torch.ones(3000) > 0)
    counts = damage(graph, label_noise=1.0).y.bincount(minlength=4)
    assert counts[0] == 0
    assert bool(((counts[1:] - 1000).abs() < 150).all())


def test_placement_does_not_matter(parts: Graph) -> None:
    """A party's damage is the same alone and among others, whatever its place; another seed or party gives another."""
    together = damaged(parts, ALL, 5, Parties(range(3)))
    for party in range(3):
        alone = damaged(parts.select([party]), ALL, 5, Parties([party]))
        assert same(together.select([party]), alone)
    turned = damaged(parts.select([2, 0]), ALL, 5, Parties([2, 0]))
    assert same(turned.select([0]), together.select([2]))
    assert not same(together, damaged(parts, ALL, 6, Parties(range(3))))
    assert not same(damaged(parts.select([0]), ALL, 5, Parties([1])), together.select([0]))


def test_what_cannot_be(parts: Graph) -> None:
    """One sentence each."""
    with pytest.raises(AtollError, match=r"leaves party 0 none of its .* training nodes; choose a smaller share"):
        damage(parts, label_sparsity=1.0)
    with pytest.raises(AtollError, match="needs at least 2 classes"):
        damage(replace(parts, num_classes=1), label_noise=0.5)
    wide = sp.csr_array((90, 2**27), dtype=np.float32)
    with pytest.raises(AtollError, match=r"are too many; use noise\.feature_sparsity"):
        damage(replace(parts, x=wide), feature_noise=0.1)
    for scenario in ("node", "vertical"):
        with pytest.raises(AtollError, match=f"not for {scenario} parties"):
            require_divided_nodes(ALL, scenario)
    require_divided_nodes(ALL, "horizontal")
