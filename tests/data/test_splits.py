"""Splits: sizes, where they are drawn, and that a party's split does not depend on who else is there."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from atoll.data import PartitionSettings, SplitSettings, csbm, load, partition, split
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from graphs import make_graph


def blank(graph: Graph) -> Graph:
    """The graph without its split."""
    none = torch.zeros(graph.num_nodes, dtype=torch.bool)
    return replace(graph, train=none, val=none, test=none)


def spread(graph: Graph, kind: str, parties: int | None, **settings: object) -> Graph:
    """The parties' graph without a split."""
    return partition(blank(graph), kind, parties, PartitionSettings(**settings), 0)  # type: ignore[arg-type]


def roles(graph: Graph) -> list[int]:
    """0, 1, 2 for train, val and test, −1 for none, of every row."""
    return (graph.train * 1 + graph.val * 2 + graph.test * 3 - 1).tolist()


def test_random_splits_inside_each_party() -> None:
    """40/30/30 of every party's labeled nodes, each labeled node once, unlabeled nodes never."""
    parties = split(spread(make_graph(200, 400, 0), "random", 4), SplitSettings("random"), seed=3)
    for p in range(4):
        one = parties.select([p])
        labeled = int((one.y >= 0).sum())
        counts = [int(mask.sum()) for mask in (one.train, one.val, one.test)]
        assert counts[0] == int(0.4 * labeled)
        assert counts[0] + counts[1] == int(0.7 * labeled)
        assert sum(counts) == labeled
        assert not (one.y[one.train | one.val | one.test] < 0).any()


def test_a_partys_split_is_its_own() -> None:
    """Party 2 alone at a site draws what it draws among all: randomness is a function of (seed, party)."""
    parties = spread(make_graph(120, 300, 0), "random", 4)
    together = split(parties, SplitSettings("random"), seed=5)
    alone = split(parties.select([2]), SplitSettings("random"), seed=5, parties=[2])
    assert roles(alone) == roles(together.select([2]))
    assert roles(split(parties, SplitSettings("random"), seed=6)) != roles(together)


def test_shares_may_leave_nodes_out() -> None:
    """60 % train and 20 % test leave a fifth without a role."""
    whole = split(blank(csbm(100, 4, 1, 1, 3)), SplitSettings("random", train=0.6, val=0.0, test=0.2), seed=0)
    assert [int(mask.sum()) for mask in (whole.train, whole.val, whole.test)] == [60, 0, 20]


def test_own_split_is_kept_and_travels(graph: Graph) -> None:
    """`auto` and `public` keep the masks, before and after a partition; a graph without any gets `random` from `auto` only."""
    for kind in ("auto", "public", "geom"):
        assert split(graph, SplitSettings(kind), 0) is graph
    parties = partition(graph, "random", 3, PartitionSettings(), 0)
    assert torch.equal(split(parties, SplitSettings("public"), 0).train, graph.train[parties.ids])
    assert split(blank(graph), SplitSettings("auto"), 0).train.any()
    with pytest.raises(AtollError, match="comes without a split"):
        split(blank(graph), SplitSettings("public"), 0)


def test_per_class_counts() -> None:
    """So many of every class train, a smaller class gives all it has, val and test come from the rest in the given numbers."""
    y = torch.tensor([0] * 50 + [1] * 30 + [2] * 4 + [-1] * 6)
    whole = replace(blank(csbm(90, 4, 1, 1, 3)), y=y, num_classes=3)
    found = split(whole, SplitSettings("per_class", per_class=10, val_count=20, test_count=25), seed=0)
    assert torch.bincount(y[found.train], minlength=3).tolist() == [10, 10, 4]
    assert (int(found.val.sum()), int(found.test.sum())) == (20, 25)
    assert not (y[found.train | found.val | found.test] < 0).any()
    assert not (found.train & found.val | found.train & found.test | found.val & found.test).any()
    short = split(whole, SplitSettings("per_class", per_class=10, val_count=500, test_count=1000), seed=0)
    assert (int(short.val.sum()), int(short.test.sum())) == (20, 40)  # 60 are left: a third and two thirds


def test_stratified_takes_the_same_share_of_every_class() -> None:
    """66 % of every class trains."""
    whole = csbm(1000, 4, 1, 1, 3, classes=4)
    found = split(whole, SplitSettings("stratified", train=0.66, val=0.1, test=0.24), seed=0)
    for label in range(4):
        of_class = whole.y == label
        assert int((found.train & of_class).sum()) == int(0.66 * int(of_class.sum()))


@pytest.mark.parametrize(("kind", "parties"), [("vertical", 3), ("overlap", 6)])
@pytest.mark.parametrize("how", ["per_class", "stratified"])
def test_a_node_has_one_role_at_all_its_holders(kind: str, parties: int, how: str) -> None:
    """Where parties share nodes, no node trains here and tests there."""
    shared = split(spread(make_graph(80, 200, 2), kind, parties), SplitSettings(how, per_class=5), seed=1)
    seen: dict[int, int] = {}
    for node, role in zip(shared.ids.tolist(), roles(shared), strict=True):
        assert seen.setdefault(node, role) == role
    assert set(seen.values()) >= {0, 1, 2}


def test_random_where_parties_are_thin() -> None:
    """Vertical parties (the same nodes) and node-level ones (one node) are split over all nodes, not inside each."""
    graph = make_graph(100, 200, 2)
    thin = split(spread(graph, "node", None), SplitSettings("random"), 0)
    assert int(thin.train.sum()) == int(0.4 * int((graph.y >= 0).sum()))
    tall = split(spread(graph, "vertical", 2), SplitSettings("random"), 0)
    assert roles(tall.select([0])) == roles(tall.select([1]))
    assert roles(thin) == roles(tall.select([1]))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (SplitSettings("randm"), "did you mean 'random'"),
        (SplitSettings("random", train=0.0), "train must be above 0"),
        (SplitSettings("random", train=0.8), "at most 1"),
        (SplitSettings("random", val=-0.1), "must not be negative"),
        (SplitSettings("random", train=float("nan")), "must not be negative"),
        (SplitSettings("per_class", per_class=0), "per_class must be at least 1"),
    ],
)
def test_bad_settings_are_refused(graph: Graph, settings: SplitSettings, said: str) -> None:
    """One sentence for each."""
    with pytest.raises(AtollError, match=said):
        split(graph, settings, 0)


def test_planetoid_counts_of_the_papers(real: object) -> None:
    """Cora 60 a class (GLASU): 420/500/1000; the public split: 140/500/1000; Wiki 20 a class gives 310 labels (FedGL)."""
    cora = load("cora")
    found = split(cora, SplitSettings("per_class", per_class=60), 0)
    assert [int(mask.sum()) for mask in (found.train, found.val, found.test)] == [420, 500, 1000]
    assert [int(mask.sum()) for mask in (cora.train, cora.val, cora.test)] == [140, 500, 1000]
    assert np.array_equal(np.bincount(found.y[found.train]), np.full(7, 60))
    wiki = split(load("wiki"), SplitSettings("per_class"), 0)
    assert [int(mask.sum()) for mask in (wiki.train, wiki.val, wiki.test)] == [310, 500, 1000]


def test_by_class_takes_the_same_share_of_every_class_of_a_party() -> None:
    """Counted class by class at each party; a party has the same split alone as among others."""
    parts = spread(load("csbm", nodes=300), "random", 3)
    settings = SplitSettings("by_class", train=0.2, val=0.4, test=0.4)
    found = split(parts, settings, seed=4)
    for party in range(3):
        one = found.select([party])
        alone = split(parts.select([party]), settings, seed=4, parties=[party])
        assert torch.equal(one.train, alone.train)
        for label in range(one.num_classes):
            of_class = one.y == label
            assert int((one.train & of_class).sum()) == math.floor(0.2 * int(of_class.sum()) + 1e-6)
            assert bool((one.train | one.val | one.test)[of_class].all())
