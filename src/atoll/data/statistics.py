"""What a partition made: sizes, edges kept and lost, classes, splits, and the homophily of majority and minority nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.table import Table
from rich.text import Text

from atoll.data.builder import Ints, distinct
from atoll.errors import shown
from atoll.graphs.graph import Graph


@dataclass(frozen=True)
class PartyFacts:
    """One party. Its majority class is the most frequent among its labelled nodes; those of other classes are minority nodes."""

    nodes: int
    edges: int  # undirected
    labels: list[int]  # labelled nodes of each class
    train: int
    val: int
    test: int
    majority_class: int | None  # None where no node is labelled
    majority_nodes: int
    minority_nodes: int
    majority_homophily: float | None  # None where no such node has a labelled neighbour
    minority_homophily: float | None


@dataclass(frozen=True)
class Facts:
    """All parties together; `dataclasses.asdict` makes it ready for JSON."""

    parties: list[PartyFacts]
    nodes: int  # distinct ones that some party holds
    edges_kept: int  # distinct undirected ones inside some party
    nodes_lost: int | None  # against the whole graph, where it is known
    edges_lost: int | None


def facts(graph: Graph, whole: Graph | None = None) -> Facts:
    """The facts of the parties' block-diagonal graph, and what was lost of the `whole` one.

    A node's homophily is the share of its neighbours that have its class (FedSpray, Eq. 1), inside the party's own graph, as
    the paper's Table 1 does; neighbours without a label do not count, nor do nodes without a labelled neighbour.
    """
    parties, classes = graph.parties, max(graph.num_classes, 1)
    party, y = graph.party.numpy(), graph.y.numpy()
    labelled = y >= 0
    labels = np.bincount(party[labelled] * classes + y[labelled], minlength=parties * classes).reshape(parties, classes)
    majority = labels.argmax(1)
    common = labelled & (y == majority[party])
    homophily, defined = node_homophily(graph)
    means = [_means(homophily, party, group & defined, parties) for group in (common, labelled & ~common)]
    rows = _pairs(graph.edge_index.numpy(), np.arange(graph.num_nodes))
    edges = np.bincount(party[rows[0]], minlength=parties)
    roles = [np.bincount(party[mask.numpy()], minlength=parties) for mask in (graph.train, graph.val, graph.test)]
    listed = [
        PartyFacts(
            nodes=graph.sizes[p],
            edges=int(edges[p]),
            labels=labels[p].tolist(),
            train=int(roles[0][p]),
            val=int(roles[1][p]),
            test=int(roles[2][p]),
            majority_class=int(majority[p]) if labels[p].any() else None,
            majority_nodes=int(labels[p].max()),
            minority_nodes=int(labels[p].sum() - labels[p].max()),
            majority_homophily=means[0][p],
            minority_homophily=means[1][p],
        )
        for p in range(parties)
    ]
    nodes = len(np.unique(graph.ids.numpy()))
    kept = _pairs(graph.edge_index.numpy(), graph.ids.numpy()).shape[1]
    if whole is None:
        return Facts(listed, nodes, kept, None, None)
    everything = _pairs(whole.edge_index.numpy(), whole.ids.numpy()).shape[1]
    return Facts(listed, nodes, kept, len(np.unique(whole.ids.numpy())) - nodes, everything - kept)


def node_homophily(graph: Graph) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each node's share of labelled neighbours with its own class, and for which nodes it is defined."""
    source, target = graph.edge_index.numpy()
    y = graph.y.numpy()
    known = (y[source] >= 0) & (y[target] >= 0)
    source, target = source[known], target[known]
    degree = np.bincount(target, minlength=graph.num_nodes)
    same = np.bincount(target, weights=y[source] == y[target], minlength=graph.num_nodes)
    return same / np.maximum(degree, 1), degree > 0


def render(found: Facts, most: int = 20, names: Sequence[str] = ()) -> Table:
    """A table for the terminal: a line per party, at most `most` of them, by name where they have names; bars are classes."""
    table = Table(caption=_caption(found), caption_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for heading in ("party", "nodes", "edges", "train/val/test", "main", "main/other", "homophily", "classes"):
        table.add_column(heading, justify="left" if heading == "classes" else "right", no_wrap=True)
    for number, one in enumerate(found.parties[:most]):
        table.add_row(
            Text(shown(names[number]) if number < len(names) else str(number)),
            f"{one.nodes:,}",
            f"{one.edges:,}",
            f"{one.train}/{one.val}/{one.test}",
            "-" if one.majority_class is None else str(one.majority_class),
            f"{one.majority_nodes}/{one.minority_nodes}",
            f"{_share(one.majority_homophily)}/{_share(one.minority_homophily)}",
            "".join(BARS[-(-(len(BARS) - 1) * count // max(*one.labels, 1))] for count in one.labels),
        )
    if len(found.parties) > most:
        table.add_row("…", f"{len(found.parties) - most:,} more")
    return table


BARS = " ▁▂▃▄▅▆▇█"


def _caption(found: Facts) -> str:
    nodes, edges = f"{found.nodes:,} nodes", f"{found.edges_kept:,} edges kept"
    if found.edges_lost is None or found.nodes_lost is None:
        return f"{nodes}, {edges}"
    lost = f"{nodes} kept, {found.nodes_lost:,} lost; {edges}, {found.edges_lost:,} lost"
    meaning = "main: the most frequent class; homophily: the share of neighbours of a node's own class, main/other nodes"
    return f"{lost}\n{meaning}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _means(values: NDArray[np.float64], party: Ints, chosen: NDArray[np.bool_], parties: int) -> list[float | None]:
    """The mean over each party's chosen nodes; None where there are none."""
    count = np.bincount(party[chosen], minlength=parties)
    total = np.bincount(party[chosen], weights=values[chosen], minlength=parties)
    return [float(t / c) if c else None for t, c in zip(total, count, strict=True)]


def _pairs(edges: Ints, names: Ints) -> Ints:
    """(2, ·) the distinct undirected pairs of the edges' ends, by these names."""
    a, b = names[edges[0]].astype(np.int64), names[edges[1]].astype(np.int64)
    size = int(names.max(initial=0)) + 1
    code = distinct(np.minimum(a, b) * size + np.maximum(a, b))
    return np.stack([code // size, code % size])
