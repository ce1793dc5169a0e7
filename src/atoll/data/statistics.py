"""Statistics of a partition: sizes, edges kept and lost, classes, splits, homophily of majority and minority nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from atoll.data.builder import Ints, distinct
from atoll.graphs.edges import edge_pattern
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import EDGE
from atoll.graphs.selection import EDGES_AT_ONCE, edge_starts
from atoll.graphs.symmetric_matrices import goes_both_ways, is_sorted

MAX_APART = 1000  # parties whose graphs are looked at one by one

DEGREES = {
    "degree 0": 0,
    "degree 1": 1,
    "degree 2": 2,
    "degree 3": 3,
    "degree 4": 4,
    "degree 5 to 9": 5,
    "degree 10+": 10,
}  # from


@dataclass(frozen=True)
class PartyStatistics:
    """One party. Its majority class is the most frequent among its labeled nodes; nodes of other classes are minority nodes."""

    nodes: int
    edges: int  # undirected
    labels: list[int]  # labeled nodes of each class
    train: int
    val: int
    test: int
    majority_class: int | None  # None where no node is labeled
    majority_nodes: int
    minority_nodes: int
    majority_homophily: float | None  # None where no such node has a labeled neighbor
    minority_homophily: float | None
    components: int = 0  # connected components of the party's graph


@dataclass(frozen=True)
class PartitionStatistics:
    """All parties; `dataclasses.asdict` makes it ready for JSON."""

    parties: list[PartyStatistics]
    nodes: int  # distinct nodes that some party holds
    edges_kept: int  # distinct undirected edges within some party
    nodes_lost: int | None  # of the whole graph, where it is known and holds all edges
    edges_lost: int | None


def partition_statistics(graph: Graph, whole: Graph | None = None) -> PartitionStatistics:
    """Statistics of the parties' block-diagonal graph, and how much of the `whole` one was lost.

    A node's homophily is the share of its neighbors that have its class (FedSpray, Eq. 1) within the party's own graph, as in
    the paper's Table 1; neighbors without a label do not count, nor do nodes without a labeled neighbor.
    """
    graph = _with_held_out(graph)
    if graph.y_columns is not None or graph.pairs is not None:  # labels, values or pairs: nothing here is about classes
        graph = replace(graph, y=torch.full_like(graph.y, -1), y_columns=None, class_names=None, num_classes=1)
    parties, classes = graph.parties, max(graph.num_classes, 1)
    party, y = graph.owner.numpy(), graph.y.numpy()
    labeled = y >= 0
    labels = np.bincount(party[labeled] * classes + y[labeled], minlength=parties * classes).reshape(parties, classes)
    majority = labels.argmax(1)
    in_majority = labeled & (y == majority[party])
    homophily, defined = node_homophily(graph)
    means = [_means(homophily, party, group & defined, parties) for group in (in_majority, labeled & ~in_majority)]
    edges = undirected_edges(graph)
    roles = [np.bincount(party[mask.numpy()], minlength=parties) for mask in (graph.train, graph.val, graph.test)]
    components = component_counts(graph)
    listed = [
        PartyStatistics(
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
            components=int(components[p]),
        )
        for p in range(parties)
    ]
    nodes = len(np.unique(graph.ids.numpy()))
    kept = int(edges.sum()) if nodes == graph.num_nodes else _pairs(graph.edge_index.numpy(), graph.ids.numpy()).shape[1]
    if whole is None or graph.pairs is not None:  # held-out edges are in no whole graph
        return PartitionStatistics(listed, nodes, kept, None, None)
    every = len(np.unique(whole.ids.numpy()))
    alone = every == whole.num_nodes
    total = int(undirected_edges(whole).sum()) if alone else _pairs(whole.edge_index.numpy(), whole.ids.numpy()).shape[1]
    return PartitionStatistics(listed, nodes, kept, every - nodes, total - kept)


def undirected_edges(graph: Graph) -> Ints:
    """(P,) distinct undirected edges of each party."""
    source, target = graph.edge_index.numpy()
    party = graph.party.numpy()
    if not (is_sorted(source, target) and goes_both_ways(source, target, graph.num_nodes)):
        return np.bincount(party[_pairs(graph.edge_index.numpy(), np.arange(graph.num_nodes))[0]], minlength=graph.parties)
    counts = np.zeros(graph.parties, np.int64)
    for first in range(0, len(source), EDGES_AT_ONCE):
        here, there = source[first : first + EDGES_AT_ONCE], target[first : first + EDGES_AT_ONCE]
        counts += np.bincount(party[here[here < there]], minlength=graph.parties)
    return counts


def component_counts(graph: Graph) -> Ints:
    """(P,) connected components of each party's graph: of one party at a time, where its edges are stored together."""
    starts = edge_starts(graph)
    spans = [] if starts is None else [*zip(graph.blocks.ranges, starts[:-1].tolist(), starts[1:].tolist(), strict=True)]
    if starts is None or graph.parties > MAX_APART:
        _, component = sp.csgraph.connected_components(edge_pattern(graph.edge_index, graph.num_nodes), directed=False)
        return np.bincount(graph.party.numpy()[np.unique(component, return_index=True)[1]], minlength=graph.parties)
    blocks = (edge_pattern(graph.edge_index[:, a:b] - start, end - start) for (start, end), a, b in spans)
    return np.array([sp.csgraph.connected_components(block, directed=False)[0] for block in blocks])


def degree_shares(graph: Graph) -> list[dict[str, float]]:
    """Each party's share of nodes with no edge, one, … four, five to nine, ten and more, by the names in `DEGREES`."""
    bounds = np.array(list(DEGREES.values()))
    shares = []
    for degrees in np.split(graph.adjacency.sum(1), graph.ptr[1:-1].numpy()):
        group = np.searchsorted(bounds, degrees, side="right") - 1
        counts = np.bincount(group, minlength=len(bounds)) / max(len(degrees), 1)
        shares.append(dict(zip(DEGREES, counts.tolist(), strict=True)))
    return shares


def node_homophily(graph: Graph) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Each node's share of labeled neighbors with its own class, and where it is defined: nowhere if nodes are not the items."""
    if not graph.of_nodes:
        return np.zeros(len(graph.y)), np.zeros(len(graph.y), bool)
    y, edges = graph.y.numpy(), graph.edge_index.numpy()
    degree, same = np.zeros(graph.num_nodes, np.int64), np.zeros(graph.num_nodes)
    for first in range(0, edges.shape[1], EDGES_AT_ONCE):
        source, target = edges[:, first : first + EDGES_AT_ONCE]
        known = (y[source] >= 0) & (y[target] >= 0)
        source, target = source[known], target[known]
        degree += np.bincount(target, minlength=graph.num_nodes)
        same += np.bincount(target, weights=y[source] == y[target], minlength=graph.num_nodes)
    return same / np.maximum(degree, 1), degree > 0


def _with_held_out(graph: Graph) -> Graph:
    """The graph with the edges that link prediction holds out: they are the party's as much as the others."""
    if graph.pairs is None:
        return graph
    held = graph.pairs[:, graph.y == EDGE]
    return replace(graph, edge_index=torch.cat([graph.edge_index, held, held.flip(0)], 1), edge_weight=None)


def _means(values: NDArray[np.float64], party: Ints, selected: NDArray[np.bool_], parties: int) -> list[float | None]:
    """The mean over each party's selected nodes; None where there are none."""
    count = np.bincount(party[selected], minlength=parties)
    total = np.bincount(party[selected], weights=values[selected], minlength=parties)
    return [float(t / c) if c else None for t, c in zip(total, count, strict=True)]


def _pairs(edges: Ints, names: Ints) -> Ints:
    """(2, ·) the distinct undirected edges, with the ends renamed."""
    a, b = names[edges[0]].astype(np.int64), names[edges[1]].astype(np.int64)
    size = int(names.max(initial=0)) + 1
    code = distinct(np.minimum(a, b) * size + np.maximum(a, b))
    return np.stack([code // size, code % size])
