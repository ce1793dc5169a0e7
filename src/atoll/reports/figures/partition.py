"""How the graph was divided: party sizes, classes of each party, cut edges."""

from __future__ import annotations

import numpy as np

from atoll.reports.figures.figure import KINDS, Figure, Heat, Series
from atoll.reports.partitions import Partition

SECTION = "Partition"
MAX_PARTIES = 100  # drawn one by one


def partition(divided: Partition, title: str = "", suffix: str = "") -> list[Figure]:
    """Party sizes, classes and cut edges; `title` and `suffix` tell several partitions apart."""
    listed, names = divided.facts.parties, divided.names
    if len(listed) > MAX_PARTIES:
        return [_ranked_sizes(divided, title, suffix)]
    roles = {
        "training": [one.train for one in listed],
        "validation": [one.val for one in listed],
        "test": [one.test for one in listed],
        "other": [one.nodes - one.train - one.val - one.test for one in listed],
    }
    stacks = [Series(role, names, counts, KINDS + number) for number, (role, counts) in enumerate(roles.items()) if any(counts)]
    heading = f"Nodes of each party{title}"
    figures = [Figure(f"party-sizes{suffix}", SECTION, heading, "stack", "party", "nodes", stacks, None, losses(divided))]
    labels = np.array([one.labels for one in listed], dtype=np.float64)
    caption = "Share of each class among the party's labeled nodes."
    heat = Heat(divided.class_names, names, _shares(labels), _counts(labels, "node"))
    figures.append(
        Figure(f"labels{suffix}", SECTION, f"Classes of each party{title}", "heat", "class", "party", heat=heat, caption=caption)
    )
    return figures + _edges(divided, title, suffix)


def _ranked_sizes(divided: Partition, title: str, suffix: str) -> Figure:
    listed = divided.facts.parties
    ranked = sorted((one.nodes for one in listed), reverse=True)
    series = [Series("nodes", list(range(1, len(ranked) + 1)), ranked, 0)]
    caption, heading = f"{len(listed):,} parties. {losses(divided)}", f"Nodes of each party{title}"
    return Figure(f"party-sizes{suffix}", SECTION, heading, "lines", "party, largest first", "nodes", series, None, caption)


def _edges(divided: Partition, title: str, suffix: str) -> list[Figure]:
    """Where the edges at each party's nodes lead or, where parties share nodes, how many each has."""
    listed, names = divided.facts.parties, divided.names
    flows = divided.flows
    if flows is None or not (flows.sum() > np.trace(flows)):  # nothing was cut
        series = [Series("edges", names, [one.edges for one in listed], 0)]
        return [Figure(f"edges{suffix}", SECTION, f"Edges of each party{title}", "bars", "party", "edges", series)]
    flows = flows if flows[:, -1].any() else flows[:, :-1]
    heat = Heat([*names, "none"][: flows.shape[1]], names, _shares(flows), _counts(flows, "edge"))
    caption = "Where the other end of the edges at a party's nodes is. Only the diagonal is kept; the rest is cut."
    return [Figure(f"edges{suffix}", SECTION, f"Cut edges{title}", "heat", "to party", "from party", heat=heat, caption=caption)]


def _shares(counts: np.ndarray) -> list[list[float]]:
    """Each row divided by its sum."""
    shares: list[list[float]] = (counts / np.maximum(counts.sum(1, keepdims=True), 1)).tolist()
    return shares


def _counts(counts: np.ndarray, what: str) -> list[list[str]]:
    return [[f"{int(count):,} {what}{'' if count == 1 else 's'}" for count in line] for line in counts]


def losses(divided: Partition) -> str:
    """How much of the graph is at the parties, in a sentence."""
    facts = divided.facts
    sentence = f"{facts.nodes:,} nodes and {facts.edges_kept:,} edges at the parties"
    if facts.nodes_lost or facts.edges_lost:
        sentence += f"; {facts.nodes_lost:,} nodes and {facts.edges_lost:,} edges at none"
    return sentence + "."
