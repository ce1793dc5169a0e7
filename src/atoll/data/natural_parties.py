"""Natural parties: datasets that are several graphs, each with its own owner, such as one per country."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atoll.data.party_graphs import PartyGraph, aligned
from atoll.data.registry import lookup
from atoll.errors import AtollError
from atoll.graphs.graph import Graph, stack

NATURAL = "natural"  # the partition


def has_parties(name: str) -> bool:
    """Whether a dataset brings its own parties: it has `load_parties`."""
    return hasattr(lookup(name), "load_parties")


def natural_parties(name: str, settings: Any, *, seed: int, fold: int) -> list[PartyGraph]:
    """The graphs of a dataset's own parties."""
    dataset: Any = lookup(name)
    if not hasattr(dataset, "load_parties"):
        raise AtollError(f"The dataset {name!r} has no parties of its own; choose another partition than {NATURAL}.")
    graphs = dataset.load_parties(settings, seed=seed, fold=fold)
    if not graphs:
        raise AtollError(f"The dataset {name!r} gives no party; `load_parties` must give a graph for each.")
    return [PartyGraph(party, f"{name} {party}", graph) for party, graph in graphs.items()]


def as_one_graph(parties: dict[str, Graph]) -> Graph:
    """The parties' graphs as a whole one (P = 1), one after the other."""
    listed = [PartyGraph(name, name, graph) for name, graph in parties.items()]
    whole = stack(aligned(listed, "horizontal"))
    return replace(whole, ptr=whole.ptr[[0, -1]])
