"""cSBM: contextual stochastic block models (Deshpande et al. 2018) as in GFL-APPNP, A.2.1, and a variant with communities."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll.data.builder import Bools, Ints, Masks, build_graph, check_fold, distinct
from atoll.data.drawn_targets import with_drawn_targets
from atoll.data.ranked_set import Ranked
from atoll.data.target_columns import CLASS, TARGET, TARGETS
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.random import seed_of
from atoll.settings import setting
from atoll.stages import tracked


@dataclass(frozen=True)
class CsbmSettings:
    """A synthetic graph; the defaults give a small federation for a demo."""

    nodes: int = setting(3000, "N, the number of nodes.", low=2, high=10**9)
    degree: float = setting(5.0, "d, the average degree.", low=0)
    edge_signal: float = setting(1.3, "λ, how strongly edges follow the classes; at most √d.", was="lam")
    feature_signal: float = setting(120.0, "μ, how strongly features follow the classes.", low=0, was="mu")
    features: int = setting(64, "p, the number of features.", low=1, high=10**7)
    classes: int = setting(5, "The number of classes; the papers' cSBM has 2.", low=2, high=10**5)
    samples: int = setting(1, "Feature vectors per node, in consecutive rows.", low=1, high=10**6)
    flip_probability: float = setting(
        0.0, "Probability that a sample's class differs from its node's (GFL-APPNP's SC: 0.3).", low=0, high=1, was="flip"
    )
    communities: int = setting(10, "Communities, each with a main class; 0 gives the papers' cSBM.", low=0, high=10**6)
    mixing: float = setting(0.1, "The share of the edges that leave their community.", low=0, high=1)
    minority_share: float = setting(
        0.3, "The share of a community's nodes that are not of its main class.", low=0, high=1, was="minority"
    )
    graph_seed: int = setting(0, "Seed of classes and edges.")
    feature_seed: int = setting(-1, "Seed of the features alone, to redraw them on the same graph; negative uses graph_seed.")
    redraw: str = setting(
        "nothing",
        "What a run's seed redraws: nothing, the features, or the samples alone (noise and flips) around the same u.",
        choices=("nothing", "features", "samples"),
    )
    connected: bool = setting(False, "Draw the graph until it is connected.")
    connected_train_share: float = setting(
        0.0,
        "Share of the nodes in a connected, class-balanced training set; as many validate and the rest test; 0 makes no split.",
        low=0,
        high=0.5,
        was="labelled",
    )
    target: str = setting(CLASS, TARGET, choices=TARGETS, since="0.2")
    targets: int = setting(3, "With target=labels or values: how many of them.", low=1, high=1000, since="0.2")
    unknown: float = setting(0.0, "With these: the share that is not known (never of the first).", low=0, high=1, since="0.2")


MAX_BLOCKS = 10_000  # communities times classes: the edge probabilities between them are a square table


def csbm(
    nodes: int,
    degree: float,
    lam: float,
    mu: float,
    features: int,
    samples: int = 1,
    classes: int = 2,
    flip: float = 0.0,
    seed: int = 0,
    feature_seed: int = -1,
) -> Graph:
    """The papers' cSBM, without communities; see `generate`."""
    return generate(
        CsbmSettings(
            nodes, degree, lam, mu, features, classes, samples, flip, communities=0, graph_seed=seed, feature_seed=feature_seed
        )
    )


def generate(settings: CsbmSettings, seed: int = 0) -> Graph:
    """One whole graph (P = 1), every node labeled; `seed` is the run's.

    Two classes: v = ±1 with equal chance; nodes i, j are joined with probability c/N, c = d + λ√d where v_i = v_j, else d − λ√d;
    x_i = √(μ/N)·v_i·u + z_i/√p with u ~ N(0, I/p), z_i ~ N(0, I). More classes: c = d + (C − 1)·λ√d inside a class, so that the
    average degree stays d, and each class has a u of its own in place of ±u.

    Communities: each has a main class (its number modulo C), `minority_share` of its nodes have a random other class, and c is
    weighted so that about a share `mixing` of the edges leaves the community and the average degree stays d.

    With `samples` = n > 1 the rows i·n to (i + 1)·n − 1 are node i's: `ids` is i for all of them, and edges join the nodes' first
    rows, so the topology is `ids[edge_index]`; the `node` partition makes one party of the rows that share an id.
    """
    _check(settings)
    rng = np.random.default_rng(seed_of("csbm", settings.graph_seed))
    for _ in range(MAX_DRAWS if settings.connected else 1):
        classes, blocks, chances = _blocks(settings, rng)
        edges = sample_edges(blocks, chances, rng)
        adjacency = sp.csr_array((np.ones(edges.shape[1]), edges), shape=(settings.nodes, settings.nodes))
        if not settings.connected or sp.csgraph.connected_components(adjacency, directed=False)[0] == 1:
            break
    else:
        raise AtollError(f"None of {MAX_DRAWS} graphs of average degree {settings.degree:g} is connected; choose a higher one.")
    x, y = _features(settings, classes, seed)
    rows = np.repeat(np.arange(settings.nodes), settings.samples)
    masks = _masks(settings, classes, adjacency + adjacency.T) if settings.connected_train_share else None
    of_rows = None if masks is None else (masks[0][rows], masks[1][rows], masks[2][rows])
    graph = build_graph(x, edges * settings.samples, y, of_rows, where="csbm", num_classes=settings.classes, ids=rows)
    if settings.target == CLASS:
        return graph
    return with_drawn_targets(graph, settings.target, settings.targets, settings.unknown, settings.graph_seed)


MAX_TOGETHER = 1 << 14  # rows whose centers are added at once, so that they stay in the cache
MAX_DRAWS = 1000  # of graphs until one is connected, and of connected training sets


def _masks(s: CsbmSettings, classes: Ints, adjacency: sp.csr_array) -> Masks:
    """A random connected training set with as many nodes of each class; validation and test nodes at random from the rest."""
    rng = np.random.default_rng(seed_of("csbm", "split", s.graph_seed))
    each = max(1, round(s.connected_train_share * s.nodes / s.classes))
    for _ in range(MAX_DRAWS):
        train = _grown(classes, adjacency, each, rng)
        if train.sum() == each * s.classes:
            rest = rng.permutation(np.flatnonzero(~train))
            val, test = np.zeros(s.nodes, bool), np.zeros(s.nodes, bool)
            val[rest[: each * s.classes]] = True
            test[rest[each * s.classes :]] = True
            return train, val, test
    raise AtollError(
        f"csbm found no connected set with {each} nodes of each class; "
        "choose a higher degree, another graph_seed or a smaller connected_train_share."
    )


def _grown(classes: Ints, adjacency: sp.csr_array, each: int, rng: np.random.Generator) -> Bools:
    """A connected set: random neighbors join it one at a time, as long as their class has fewer than `each` nodes."""
    inside, frontier = np.zeros(len(classes), bool), Ranked(len(classes))
    left = [each] * (int(classes.max()) + 1)  # nodes that are still wanted, by class
    label = classes.tolist()
    goal = each * len(left)
    for size in tracked(range(goal), "Growing the training set", goal):
        if size and not frontier.size:
            break
        node = frontier.at(int(rng.integers(frontier.size))) if size else int(rng.integers(len(classes)))
        inside[node] = True
        frontier.discard(node)
        left[label[node]] -= 1
        if not left[label[node]]:
            for other in frontier.members(classes == label[node]):
                frontier.discard(other)
        for neighbor in adjacency.indices[adjacency.indptr[node] : adjacency.indptr[node + 1]].tolist():
            if left[label[neighbor]] and not inside[neighbor]:
                frontier.add(neighbor)
    return inside


def sample_edges(blocks: Ints, chances: NDArray[np.float64], rng: np.random.Generator) -> Ints:
    """(2, E) undirected edges, each once: nodes i < j are joined with probability chances[blocks[i], blocks[j]].

    The number of edges between two blocks is binomial and, given it, every set of distinct pairs is equally likely: so draw the
    numbers, then the endpoints, and redraw duplicates. Time and memory grow with the edges, not with N².
    """
    nodes, count = len(blocks), len(chances)
    order, sizes = np.argsort(blocks, kind="stable"), np.bincount(blocks, minlength=count)
    starts = sizes.cumsum() - sizes
    first, second = np.triu_indices(count)
    pairs = np.where(first == second, sizes[first] * (sizes[first] - 1) // 2, sizes[first] * sizes[second])
    wanted = rng.binomial(pairs, chances[first, second])
    number = np.zeros((count, count), np.int64)
    number[first, second] = number[second, first] = np.arange(len(wanted))
    codes, missing = np.empty(0, np.int64), wanted
    while missing.any():
        a, b = np.repeat(first, missing), np.repeat(second, missing)
        i = rng.integers(0, sizes[a])
        j = rng.integers(0, sizes[b] - (a == b))
        j += (a == b) & (j >= i)  # two different nodes of one block
        i, j = order[starts[a] + i], order[starts[b] + j]
        codes = distinct(np.concatenate([codes, np.minimum(i, j) * nodes + np.maximum(i, j)]))
        missing = wanted - np.bincount(number[blocks[codes // nodes], blocks[codes % nodes]], minlength=len(wanted))
    return np.stack([codes // nodes, codes % nodes])


def _check(s: CsbmSettings) -> None:
    if s.nodes < 2 or s.features < 1 or s.classes < 2 or s.samples < 1 or s.communities < 0:
        raise AtollError("csbm needs at least 2 nodes, 2 classes, 1 feature, 1 sample and 0 communities.")
    given = f"degree={s.degree:g}, edge_signal={s.edge_signal:g}, feature_signal={s.feature_signal:g}"
    if not all(map(math.isfinite, (s.degree, s.edge_signal, s.feature_signal))):
        raise AtollError(f"csbm needs finite numbers, but {given}.")
    if s.communities * s.classes > MAX_BLOCKS:
        raise AtollError(f"csbm cannot make {s.communities} communities of {s.classes} classes; use fewer of one or the other.")
    if s.degree <= 0 or abs(s.edge_signal) > math.sqrt(s.degree) or s.feature_signal < 0:
        raise AtollError(
            f"csbm needs degree > 0, edge_signal at most √degree and feature_signal ≥ 0, but {given}: "
            "nodes of different classes would be joined with a negative probability."
        )
    if not (0 <= s.flip_probability <= 1 and 0 <= s.minority_share <= 1 and 0 <= s.mixing <= 1):
        raise AtollError("csbm needs flip_probability, minority_share and mixing between 0 and 1.")


def _blocks(s: CsbmSettings, rng: np.random.Generator) -> tuple[Ints, Ints, NDArray[np.float64]]:
    """The nodes' classes, their blocks (community and class together) and the blocks' edge probabilities."""
    inside, across = (
        s.degree + (s.classes - 1) * s.edge_signal * math.sqrt(s.degree),
        s.degree - s.edge_signal * math.sqrt(s.degree),
    )
    by_class = np.where(np.eye(s.classes, dtype=bool), inside, across)  # c_in, c_out
    if s.communities < 2:
        classes = rng.integers(0, s.classes, s.nodes)
        return classes, classes, np.clip(by_class / s.nodes, 0, 1)
    community = rng.integers(0, s.communities, s.nodes)
    other = rng.integers(1, s.classes, s.nodes) * (rng.random(s.nodes) < s.minority_share)
    classes = (community + other) % s.classes
    home = np.eye(s.communities, dtype=bool)
    weight = np.where(home, s.communities * (1 - s.mixing), s.mixing * s.communities / (s.communities - 1))
    blocks = community * s.classes + classes
    chances = np.kron(weight, by_class) / s.nodes
    share = np.bincount(blocks, minlength=len(chances)) / s.nodes
    expected = s.nodes * share @ chances @ share
    return classes, blocks, np.clip(chances * s.degree / expected, 0, 1)


def _features(s: CsbmSettings, classes: Ints, seed: int) -> tuple[NDArray[np.float32], Ints]:
    """√(μ/N)·v·u + z/√p for every sample, and the samples' classes."""
    feature_seed = s.graph_seed if s.feature_seed < 0 else s.feature_seed
    fixed, of_run = ("csbm", "features", feature_seed), ("csbm", "features", feature_seed, "run", seed)
    rng = np.random.default_rng(seed_of(*(of_run if s.redraw == "features" else fixed)))
    y = np.repeat(classes, s.samples)
    centers = rng.standard_normal((s.classes if s.classes > 2 else 1, s.features), np.float32) / math.sqrt(s.features)
    if s.classes == 2:
        centers = np.concatenate([-centers, centers])  # v = −1, +1
    if s.redraw == "samples":
        rng = np.random.default_rng(seed_of(*of_run))
    if s.flip_probability:
        y = (y + rng.integers(1, s.classes, len(y)) * (rng.random(len(y)) < s.flip_probability)) % s.classes
    x = rng.standard_normal((len(y), s.features), np.float32)
    x /= math.sqrt(s.features)
    with np.errstate(over="ignore"):  # values that are too large are refused later
        for start in range(0, len(x), MAX_TOGETHER):
            rows = slice(start, start + MAX_TOGETHER)
            x[rows] += math.sqrt(s.feature_signal / s.nodes) * centers[y[rows]]
    return x, y


DEFAULTS = CsbmSettings()


@dataclass(frozen=True)
class CsbmDataset:
    """The dataset `csbm`: generated, so always available; the sizes are those of its defaults."""

    Settings: ClassVar[type] = CsbmSettings

    name: str = "csbm"
    nodes: int = DEFAULTS.nodes
    edges: int = round(DEFAULTS.nodes * DEFAULTS.degree / 2)
    features: int = DEFAULTS.features
    classes: int = DEFAULTS.classes
    folder: str = ""
    available: bool = True

    def load(self, settings: CsbmSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """A graph drawn by its settings' seeds, and by the run's `seed` where they say so."""
        graph = generate(settings, seed)
        check_fold(fold, 1, self.name)
        return graph


CSBM = CsbmDataset()
