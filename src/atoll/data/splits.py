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

KINDS = ("auto", "public", "random", "by_class", "per_class", "geom", "stratified")


@dataclass(frozen=True)
class SplitSettings:
    """How labeled nodes become train, validation and test nodes."""

    split: str = setting(
        "auto",
        "auto: the dataset's own split, or else random; random splits within each party, by_class too, each class in the same "
        "shares; the others split all nodes together.",
        choices=KINDS,
    )
    train: float = setting(0.4, "Share of the labeled nodes used for training (random, by_class, stratified).", low=0, high=1)
    val: float = setting(0.3, "Share of the labeled nodes used for validation (random, by_class, stratified).", low=0, high=1)
    test: float = setting(0.3, "Share of the labeled nodes used for testing (random, by_class, stratified).", low=0, high=1)
    per_class: int = setting(20, "Training nodes per class (per_class).", low=1, high=10**9)
    val_count: int = setting(500, "Validation nodes in total (per_class).", low=0, high=10**9)
    test_count: int = setting(1000, "Test nodes in total (per_class).", low=0, high=10**9)
    fold: int = setting(0, "Index of the dataset's own split, if it has several (geom-gcn: 0 to 9).", low=0, high=10**6)


def split(graph: Graph, settings: SplitSettings, seed: int, parties: Sequence[int] | None = None) -> Graph:
    """The graph with its train, val and test masks set.

    `random` and `by_class` shuffle within each party, keyed by (seed, party): a party gets the same split wherever it runs
    (`parties` are the blocks' numbers in the federation, by default 0, 1, …). Everything else is drawn over the distinct nodes
    of all blocks, so that a node of several parties has one role; so are these where parties share nodes or hold one each.
    """
    kind = _checked(settings)
    has_split = bool((graph.train | graph.val | graph.test).any())
    if kind == "auto":
        kind = "public" if has_split else "random"
    if kind in ("public", "geom"):
        if not has_split:
            raise AtollError(f"split='{kind}', but this graph comes without a split; use split='random' or 'per_class'.")
        return graph
    if kind in ("random", "by_class") and not _shares_nodes(graph):
        numbers = range(graph.parties) if parties is None else parties
        roles = torch.full((graph.num_nodes,), -1)
        blocks = zip(torch.split(roles, graph.sizes), torch.split(graph.y, graph.sizes), numbers, strict=True)
        for block, labels, number in blocks:
            source = generator(seed, number, "split")
            by_class = kind == "by_class"
            block[:] = (
                _stratified(labels, graph.num_classes, settings, source) if by_class else _fractions(labels, settings, source)
            )
        return _with_roles(graph, roles)
    ids, row = torch.unique(graph.ids, return_inverse=True)
    labels = torch.full((len(ids),), -1).scatter_reduce_(0, row, graph.y, "amax")
    source = generator(seed, "split")
    if kind == "random":
        roles = _fractions(labels, settings, source)
    elif kind in ("stratified", "by_class"):
        roles = _stratified(labels, graph.num_classes, settings, source)
    else:
        roles = _per_class(labels, graph.num_classes, settings, source)
    return _with_roles(graph, roles[row])


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
    if graph.widths is not None or graph.parties == 1 or graph.parties == graph.num_nodes:
        return graph.widths is not None or graph.parties > 1
    owners = torch.unique(torch.stack([graph.ids, graph.party]), dim=1)
    return bool(torch.unique(owners[0]).numel() < owners.shape[1])


def _with_roles(graph: Graph, roles: Tensor) -> Graph:
    """The graph whose masks are the roles 0, 1 and 2."""
    return replace(graph, train=roles == 0, val=roles == 1, test=roles == 2)


def _cuts(count: int, settings: SplitSettings) -> tuple[int, int, int]:
    """Where train, val and test end among `count` shuffled nodes."""
    ends = (settings.train, settings.train + settings.val, settings.train + settings.val + settings.test)
    first, second, third = (math.floor(count * end + 1e-6) for end in ends)
    return first, second, third


def _fractions(labels: Tensor, settings: SplitSettings, source: torch.Generator) -> Tensor:
    """Shuffle the labeled nodes; the first share trains, the next validates, the next tests."""
    labeled = (labels >= 0).nonzero()[:, 0]
    shuffled = labeled[torch.randperm(len(labeled), generator=source)]
    first, second, third = _cuts(len(labeled), settings)
    roles = torch.full_like(labels, -1)
    roles[shuffled[:first]] = 0
    roles[shuffled[first:second]] = 1
    roles[shuffled[second:third]] = 2
    return roles


def _stratified(labels: Tensor, classes: int, settings: SplitSettings, source: torch.Generator) -> Tensor:
    """The same shares of every class."""
    roles = torch.full_like(labels, -1)
    for label in range(classes):
        of_class = (labels == label).nonzero()[:, 0]
        roles[of_class] = _fractions(labels[of_class], settings, source)
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
