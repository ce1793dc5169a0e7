"""`majorities`: the random graphs of FedSpray's Section 3.2, one per party, whose minority nodes have mostly other neighbors.

Gen(μ₁, μ₂, p, ρ): a party has majority nodes of one class and ρ times as many minority nodes of the other; a neighbor of any node
is of the majority with probability p, and x ~ N(μ_class, I).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.data.builder import build_graph, check_fold
from atoll.data.csbm import sample_edges
from atoll.data.natural_parties import as_one_graph
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.random import seed_of
from atoll.settings import setting

MAX_NODES = 10**8  # of all parties


@dataclass(frozen=True)
class MajoritiesSettings:
    """The graphs' parameters by the paper's symbols; shares and ratios are one number for all parties or one per party."""

    clients: int = setting(6, "K, the number of parties.", low=2, high=10**5)
    first: int = setting(-1, "M, the parties whose majority is the first class; −1 is half of them.", low=-1)
    majority_nodes: int = setting(500, "Nodes of the majority class of each party.", low=2, high=10**7)
    neighbor_share: tuple[float, ...] = setting((0.8,), "p, the probability that a neighbor is of the majority: between ½ and 1.")
    minority_ratio: tuple[float, ...] = setting((0.2,), "ρ, minority nodes per majority node: between 0 and 1.")
    degree: float = setting(10.0, "The average degree.", low=0)
    features: int = setting(16, "d, the number of features.", low=1, high=10**6)
    separation: float = setting(2.0, "‖μ₁ − μ₂‖.", low=0)
    offset: float = setting(0.0, "Distance of the middle of μ₁ and μ₂ from 0, in the direction of μ₁ − μ₂.")
    graph_seed: int = setting(0, "Seed of edges and features.")


@dataclass(frozen=True)
class Party:
    """The parameters of one party's graph."""

    majority: int  # class
    share: float  # p
    ratio: float  # ρ


def parties_of(s: MajoritiesSettings) -> list[Party]:
    """The parties in order: the first M have class 0 as their majority, the others class 1."""
    first = s.clients // 2 if s.first < 0 else s.first
    if first > s.clients:
        raise AtollError(f"majorities: first is {first}, but there are {s.clients} parties; choose at most as many.")
    shares = _each(s.neighbor_share, "neighbor_share", 0.5, s.clients)
    ratios = _each(s.minority_ratio, "minority_ratio", 0.0, s.clients)
    return [Party(int(k >= first), p, rho) for k, (p, rho) in enumerate(zip(shares, ratios, strict=True))]


def _each(values: tuple[float, ...], name: str, low: float, clients: int) -> tuple[float, ...]:
    if len(values) not in (1, clients):
        raise AtollError(f"majorities: {name} has {len(values)} numbers for {clients} parties; give one, or one per party.")
    if not all(low < value < 1 for value in values):
        raise AtollError(f"majorities: {name} must be above {low:g} and below 1, but it is {', '.join(map(str, values))}.")
    return values * clients if len(values) == 1 else values


def centers(s: MajoritiesSettings) -> NDArray[np.float64]:
    """(2, d) μ₁ and μ₂, in the direction of (1, …, 1)."""
    direction = np.full(s.features, 1 / math.sqrt(s.features))
    return np.stack([(s.offset + s.separation / 2) * direction, (s.offset - s.separation / 2) * direction])


def generate(s: MajoritiesSettings) -> dict[str, Graph]:
    """Each party's graph.

    An edge's ends are drawn independently: of the majority with probability p, and any of its nodes. So p holds for the
    neighbors of both classes although edges go both ways, as the paper asks; a minority node has (1 − p)/(ρ·p) times the
    neighbors of a majority node.
    """
    parties, means = parties_of(s), centers(s)
    sizes = [(s.majority_nodes, max(1, round(party.ratio * s.majority_nodes))) for party in parties]
    if sum(map(sum, sizes)) > MAX_NODES:
        raise AtollError(f"majorities cannot make more than {MAX_NODES:,} nodes; choose fewer parties or majority_nodes.")
    graphs = {}
    for k, (party, size) in enumerate(zip(parties, sizes, strict=True)):
        rng = np.random.default_rng(seed_of("majorities", s.graph_seed, k))
        y = np.repeat([party.majority, 1 - party.majority], size)
        ends = np.array([party.share, 1 - party.share])
        chances = s.degree * sum(size) * np.outer(ends / size, ends / size)
        if chances.max() > 1:
            raise AtollError(
                f"majorities: degree {s.degree:g} is too high for party {k}, where two nodes would be joined with a probability "
                f"of {chances.max():.2g}; choose a lower degree or more majority_nodes."
            )
        edges = sample_edges(np.repeat([0, 1], size), chances, rng)
        x = means[y] + rng.standard_normal((len(y), s.features))
        graphs[f"{k}"] = build_graph(x, edges, y, where=f"majorities {k}", num_classes=2)
    return graphs


DEFAULTS = MajoritiesSettings()
NODES = DEFAULTS.clients * round(DEFAULTS.majority_nodes * (1 + DEFAULTS.minority_ratio[0]))


@dataclass(frozen=True)
class MajoritiesDataset:
    """The dataset `majorities`: generated, with parties of its own; the sizes are those of its defaults."""

    Settings: ClassVar[type] = MajoritiesSettings

    name: str = "majorities"
    nodes: int = NODES
    edges: int = round(NODES * DEFAULTS.degree / 2)
    features: int = DEFAULTS.features
    classes: int = 2
    folder: str = ""
    available: bool = True

    def load_parties(self, settings: MajoritiesSettings, *, seed: int = 0, fold: int = 0) -> dict[str, Graph]:
        """The graph of each party."""
        check_fold(fold, 1, self.name)
        return generate(settings)

    def load(self, settings: MajoritiesSettings, *, seed: int = 0, fold: int = 0) -> Graph:
        """All parties as one graph (P = 1)."""
        return as_one_graph(self.load_parties(settings, seed=seed, fold=fold))


MAJORITIES = MajoritiesDataset()
