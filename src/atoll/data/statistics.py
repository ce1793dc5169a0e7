"""Statistics of a partition: sizes, edges kept and lost, classes, splits, homophily of majority and minority nodes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from atoll.data.builder import Ints, distinct
from atoll.graphs.graph import Graph

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
    nodes_lost: int | None  # of the whole graph, where it is known
    edges_lost: int | None


def partition_statistics(graph: Graph, whole: Graph | None = None) -> PartitionStatistics:
    """Statistics of the parties' block-diagonal graph, and how much of the `whole` one was lost.

    A node's homophily is the share of its neighbors that have its class (FedSpray, Eq. 1) within the party's own graph, as in
    the paper's Table 1; neighbors without a label do not count, nor do nodes without a labeled neighbor.
    """
    if graph.y_columns is not None:  # labels or values: nothing here is about classes
        graph = replace(graph, y=torch.full_like(graph.y, -1), y_columns=None, class_names=None, num_classes=1)
    parties, classes = graph.parties, max(graph.num_classes, 1)
    party, y = graph.owner.numpy(), graph.y.numpy()
    labeled = y >= 0
    labels = np.bincount(party[labeled] * classes + y[labeled], minlength=parties * classes).reshape(parties, classes)
    majority = labels.argmax(1)
    in_majority = labeled & (y == majority[party])
    homophily, defined = node_homophily(graph)
    means = [_means(homophily, party, group & defined, parties) for group in (in_majority, labeled & ~in_majority)]
    rows = _pairs(graph.edge_index.numpy(), np.arange(graph.num_nodes))
    edges = np.bincount(graph.party.numpy()[rows[0]], minlength=parties)
    roles = [np.bincount(party[mask.numpy()], minlength=parties) for mask in (graph.train, graph.val, graph.test)]
    _, component = sp.csgraph.connected_components(graph.adjacency, directed=False)
    components = np.bincount(graph.party.numpy()[np.unique(component, return_index=True)[1]], minlength=parties)
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
    kept = _pairs(graph.edge_index.numpy(), graph.ids.numpy()).shape[1]
    if whole is None:
        return PartitionStatistics(listed, nodes, kept, None, None)
    total = _pairs(whole.edge_index.numpy(), whole.ids.numpy()).shape[1]
    return PartitionStatistics(listed, nodes, kept, len(np.unique(whole.ids.numpy())) - nodes, total - kept)


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
    """Each node's share of labeled neighbors with its own class, and where it is defined: nowhere if the items are graphs."""
    if graph.graph_ptr is not None:
        return np.zeros(len(graph.y)), np.zeros(len(graph.y), bool)
    source, target = graph.edge_index.numpy()
    y = graph.y.numpy()
    known = (y[source] >= 0) & (y[target] >= 0)
    source, target = source[known], target[known]
    degree = np.bincount(target, minlength=graph.num_nodes)
    same = np.bincount(target, weights=y[source] == y[target], minlength=graph.num_nodes)
    return same / np.maximum(degree, 1), degree > 0


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
