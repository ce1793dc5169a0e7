"""What neighbor generators are to predict at home: hidden neighbors, their number and their features."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.graphs.graph import Graph


@dataclass(frozen=True)
class Hidden:
    """A party's graph with some nodes hidden, and what is known of them.

    Attributes:
        graph: the impaired graph: hidden nodes have no edges there.
        nodes: (N,) which are hidden.
        counts: (N,) m_i, how many hidden neighbors a node has.
        edges: (2, E) node, hidden neighbor: of training nodes.
        features: (E, d) of these neighbors.
    """

    graph: Graph
    nodes: Tensor
    counts: Tensor
    edges: Tensor
    features: Tensor

    @property
    def neighbors(self) -> Tensor:
        """(E,) these neighbors' rows."""
        return self.edges[1]


def hide(graph: Graph, share: float, order: Tensor) -> Hidden:
    """Hide a share of the nodes that neither train nor test: the first ones in that order (N,)."""
    free, order = ~(graph.train | graph.test), order.to(graph.device)
    rows = order[free[order]]
    hidden = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
    hidden[rows[: round(share * len(rows))]] = True
    source, target = graph.edge_index
    lost = hidden[source] & ~hidden[target]
    kept = ~(hidden[source] | hidden[target])
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    impaired = replace(graph, edge_index=graph.edge_index[:, kept], edge_weight=weight)
    counts = torch.bincount(target[lost], minlength=graph.num_nodes)
    wanted = lost & graph.train[target]
    edges = torch.stack([target[wanted], source[wanted]])
    return Hidden(impaired, hidden, counts, edges, graph.dense_features(edges[1]))


def nearest(made: Tensor, owner: Tensor, edges: Tensor, features: Tensor) -> tuple[Tensor, Tensor]:
    """Of generated vectors (M, d) with a node each, those whose node has hidden neighbors, and the nearest of these to each.

    `features`: (E, d) of the hidden ends of `edges`. Returns (K,) rows of `made`, (K,) rows of `features`.
    """
    per_node = torch.bincount(edges[0], minlength=int(owner.max()) + 1 if len(owner) else 0)
    order = edges[0].argsort(stable=True)
    starts = per_node.cumsum(0) - per_node
    many = per_node[owner]
    pair = torch.repeat_interleave(torch.arange(len(owner), device=owner.device), many)
    first = many.cumsum(0) - many
    column = order[starts[owner][pair] + torch.arange(len(pair), device=pair.device) - first[pair]]
    distance = (made.detach()[pair] - features[column]).square().sum(1)
    lowest = distance.new_full((len(owner),), torch.inf).scatter_reduce_(0, pair, distance, "amin")
    candidates = torch.where(distance == lowest[pair], column, len(features))
    best = torch.full((len(owner),), len(features), device=owner.device).scatter_reduce_(0, pair, candidates, "amin")
    rows = (many > 0).nonzero()[:, 0]
    return rows, best[rows]
