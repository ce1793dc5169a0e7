"""Which nodes train, validate and test: public splits, random ones within each party, counts per class, stratified shares."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.random import generator
from atoll.settings import setting

KINDS = ("auto", "public", "random", "by_class", "per_class", "geom", "stratified", "halves")


@dataclass(frozen=True)
class SplitSettings:
    """How labeled nodes become train, validation and test nodes."""

    split: str = setting(
        "auto",
        "auto: the dataset's own split, or else random (graphs: halves); random splits within each party, by_class too, each "
        "class in the same shares, and halves, for graphs: stratified, what does not train validates and tests half and half; "
        "the others split all nodes together.",
        choices=KINDS,
    )
    train: float = setting(0.4, "Share of the labeled nodes used for training (random, by_class, stratified).", low=0, high=1)
    val: float = setting(0.3, "Share of the labeled nodes used for validation (random, by_class, stratified).", low=0, high=1)
    test: float = setting(0.3, "Share of the labeled nodes used for testing (random, by_class, stratified).", low=0, high=1)
    per_class: int = setting(20, "Training nodes per class (per_class).", low=1, high=10**9)
    val_count: int = setting(500, "Validation nodes in total (per_class).", low=0, high=10**9)
    test_count: int = setting(1000, "Test nodes in total (per_class).", low=0, high=10**9)
    split_scope: str = setting(
        "party",
        "random, by_class: party splits each party's nodes, graph all nodes before the graph is cut; a node keeps its role.",
        choices=("party", "graph"),
        since="0.2",
    )
    split_rounding: str = setting(
        "cumulative",
        "Numbers of nodes from shares: cumulative cuts at ⌊share·n⌋ of the shares added up; floor and round make each a whole "
        "number, the last takes the rest (round: test comes before validation).",
        choices=("cumulative", "floor", "round"),
        since="0.2",
    )
    split_seed: int = setting(-1, "Seed of the split alone; negative uses the run's seed.", since="0.2")
    disjoint: float = setting(
        0.0,
        "Link tasks: the share of training edges that are fitted and pass no messages; 0: all do both.",
        low=0,
        high=0.99,
        since="0.2",
    )
    ranking: int = setting(
        50,
        "Link tasks: corrupted pairs that each test edge is ranked among; 0 leaves the rank out.",
        low=0,
        high=10**5,
        since="0.2",
    )
    fold: int = setting(0, "Index of the dataset's own split, if it has several (geom-gcn: 0 to 9).", low=0, high=10**6)


def split(graph: Graph, settings: SplitSettings, seed: int, parties: Sequence[int] | None = None) -> Graph:
    """The graph with its train, val and test masks set.

    `random` and `by_class` shuffle within each party, keyed by (seed, party): a party gets the same split wherever it runs
    (`parties` are the blocks' numbers in the federation, by default 0, 1, …). Everything else is drawn over the distinct nodes
    of all blocks, so that a node of several parties has one role; so are these where parties share nodes or hold one each, and
    with split_scope=graph (`split_before_cut` draws that from the whole graph).
    """
    kind = _checked(settings)
    seed = seed if settings.split_seed < 0 else settings.split_seed
    has_split = bool((graph.train | graph.val | graph.test).any())
    if kind == "auto":
        kind = "public" if has_split else "random"
    if kind in ("public", "geom"):
        if not has_split:
            raise AtollError(f"split='{kind}', but this graph comes without a split; use split='random' or 'per_class'.")
        return graph
    if kind in ("random", "by_class") and settings.split_scope == "party" and not _shares_nodes(graph):
        numbers = range(graph.parties) if parties is None else parties
        roles, sizes = torch.full((len(graph.y),), -1), graph.items.sizes
        blocks = zip(torch.split(roles, sizes), torch.split(graph.y, sizes), numbers, strict=True)
        for block, labels, number in blocks:
            source = generator(seed, number, "split")
            by_class = kind == "by_class"
            block[:] = (
                _stratified(labels, graph.num_classes, settings, source) if by_class else shuffled_roles(labels, settings, source)
            )
        return _with_roles(graph, roles)
    ids, row = torch.unique(graph.ids, return_inverse=True)
    labels = torch.full((len(ids),), -1).scatter_reduce_(0, row, graph.y, "amax")
    source = generator(seed, "split")
    if kind == "random":
        roles = shuffled_roles(labels, settings, source)
    elif kind in ("stratified", "by_class"):
        roles = _stratified(labels, graph.num_classes, settings, source)
    else:
        roles = _per_class(labels, graph.num_classes, settings, source)
    return _with_roles(graph, roles[row])


def split_before_cut(parts: Graph, graph: Graph, settings: SplitSettings, seed: int) -> Graph:
    """The parties' graphs with a split of the whole `graph`: what is drawn does not depend on the parties, masks go by id.

    A split that the parties' graphs already have is used as by `split`.
    """
    if not _draws(parts, settings):
        return split(parts, settings, seed)
    whole = split(graph, replace(settings, split="random") if settings.split == "auto" else settings, seed)
    order = whole.ids.argsort(stable=True)
    rows = order[torch.searchsorted(whole.ids[order], parts.ids)]
    return replace(parts, train=whole.train[rows], val=whole.val[rows], test=whole.test[rows])


def require_party_scope(settings: SplitSettings) -> None:
    """Refuse a split of the whole graph where every party brings its own graph."""
    if settings.split_scope == "graph":
        raise AtollError(
            "split_scope=graph splits a whole graph before it is cut, but here every party has its own; set split_scope=party."
        )


def _draws(graph: Graph, settings: SplitSettings) -> bool:
    """Whether `split` draws a split rather than use the one that the graph has."""
    if settings.split == "auto":
        return not bool((graph.train | graph.val | graph.test).any())
    return _checked(settings) not in ("public", "geom")


def replaces_split(graph: Graph, settings: SplitSettings) -> bool:
    """Whether `split` would replace the graph's own split."""
    return settings.split not in ("auto", "public", "geom") and bool((graph.train | graph.val | graph.test).any())


def _checked(settings: SplitSettings) -> str:
    if settings.split not in KINDS:
        raise AtollError(f"There is no split {settings.split!r}{suggest(settings.split, KINDS)}")
    shares = (settings.train, settings.val, settings.test)
    if not all(math.isfinite(share) and share >= 0 for share in shares) or settings.train == 0 or sum(shares) > 1 + 1e-9:
        raise AtollError(
            f"The shares train={settings.train}, val={settings.val}, test={settings.test} must not be negative, train must be "
            "above 0, and together they must be at most 1."
        )
    if settings.per_class < 1 or settings.val_count < 0 or settings.test_count < 0:
        raise AtollError("per_class must be at least 1, val_count and test_count at least 0.")
    return settings.split


def _shares_nodes(graph: Graph) -> bool:
    """Whether nodes cannot be split within each party: the parties share nodes, or hold one node each."""
    if graph.graph_ptr is not None:
        return False
    if graph.widths is not None or graph.parties == 1 or graph.parties == graph.num_nodes:
        return graph.widths is not None or graph.parties > 1
    ids, order = graph.ids.sort()
    party = graph.party[order]
    return bool(((ids[1:] == ids[:-1]) & (party[1:] != party[:-1])).any())


def _with_roles(graph: Graph, roles: Tensor) -> Graph:
    """The graph whose masks are the roles 0, 1 and 2."""
    return replace(graph, train=roles == 0, val=roles == 1, test=roles == 2)


def _counts(count: int, settings: SplitSettings) -> tuple[int, int, int]:
    """How many of `count` nodes train, validate and test."""
    shares = (settings.train, settings.val, settings.test)
    if settings.split_rounding == "cumulative":
        first, second, third = (math.floor(count * sum(shares[: end + 1]) + 1e-6) for end in range(3))
        return first, second - first, third - second
    whole = round if settings.split_rounding == "round" else _floor
    most = count if sum(shares) > 1 - 1e-9 else math.floor(count * sum(shares) + 1e-6)
    train = min(whole(count * settings.train), most)
    if settings.split_rounding == "round":
        test = min(whole(count * settings.test), most - train)
        return train, most - train - test, test
    val = min(whole(count * settings.val), most - train)
    return train, val, most - train - val


def _floor(value: float) -> int:
    return math.floor(value + 1e-6)


def shuffled_roles(labels: Tensor, settings: SplitSettings, source: torch.Generator) -> Tensor:
    """Shuffle the labeled nodes; the first share trains, the next validates, the next tests (rounded: tests, validates)."""
    labeled = (labels >= 0).nonzero()[:, 0]
    shuffled = labeled[torch.randperm(len(labeled), generator=source)]
    train, val, test = _counts(len(labeled), settings)
    sizes = {0: train, 2: test, 1: val} if settings.split_rounding == "round" else {0: train, 1: val, 2: test}
    roles, start = torch.full_like(labels, -1), 0
    for role, size in sizes.items():
        roles[shuffled[start : start + size]] = role
        start += size
    return roles


def _stratified(labels: Tensor, classes: int, settings: SplitSettings, source: torch.Generator) -> Tensor:
    """The same shares of every class."""
    roles = torch.full_like(labels, -1)
    for label in range(classes):
        of_class = (labels == label).nonzero()[:, 0]
        roles[of_class] = shuffled_roles(labels[of_class], settings, source)
    return roles


def _per_class(labels: Tensor, classes: int, settings: SplitSettings, source: torch.Generator) -> Tensor:
    """PyG's random Planetoid split: a number of training nodes per class (all of a smaller one), val and test from the rest.

    Where the rest is smaller than val_count + test_count, both shrink in proportion.
    """
    roles = torch.full_like(labels, -1)
    for label in range(classes):
        of_class = (labels == label).nonzero()[:, 0]
        shuffled = of_class[torch.randperm(len(of_class), generator=source)]
        roles[shuffled[: settings.per_class]] = 0
    rest = ((labels >= 0) & (roles < 0)).nonzero()[:, 0]
    rest = rest[torch.randperm(len(rest), generator=source)]
    val, test = settings.val_count, settings.test_count
    if val + test > len(rest):
        val = len(rest) * val // (val + test)
        test = len(rest) - val
    roles[rest[:val]] = 1
    roles[rest[val : val + test]] = 2
    return roles
