"""Mini-batches of the parties of a cohort: which training nodes a step fits, and what of the graph they need.

    neighbors  Hamilton et al., NeurIPS 2017: `fan_out` neighbors of every node that is reached, as PyG's NeighborLoader draws
    layers     Chen, Ma & Xiao, ICLR 2018: of the neighbors of all nodes of a level together, `fan_out` per node on average
    clusters   Chiang et al., KDD 2019: whole clusters of the graph, with the edges among their nodes and no others

All parties take their step together, each with nodes that it draws itself: a party's batches do not depend on who else is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.clusters import clusters
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop, SampledHop
from atoll.graphs.neighbors import Ints, NeighborLists, ranges
from atoll.graphs.sampling import choose
from atoll.random import Draws

SAMPLERS = ("neighbors", "layers", "clusters")
CLUSTERS_PER_BATCH = 4  # random ones each time, so that batches differ from epoch to epoch


@dataclass(frozen=True, eq=False)
class MiniBatch(Graph):
    """The training nodes of one step as a graph: a model gives one row of output for each of them.

    What a network reads below them is `hop(0)`, `hop(1)`, …; its own edges are those of `sampler=clusters`, else none.

    Attributes:
        index: (n,) its rows in the whole graph.
        active: (P,) which parties take this step; None for all. A party that has fewer batches than others is done before them.
    """

    index: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    active: Tensor | None = None
    sampled: Sampled | None = None

    def hop(self, index: int) -> Hop:
        """The rows and edges of a network's propagation `index` = 0, 1, …"""
        return self if self.sampled is None else self.sampled.hop(index)


class Sampled:
    """The nodes that a batch reaches, and the sampled edges into those that are expanded: each once, where it is reached first.

    Attributes:
        rows: (U,) rows of the graph, ascending.
        depth: (U,) over how many edges a node was reached: 0 for the training nodes themselves.
    """

    def __init__(self, graph: Graph, seeds: Ints, fan_outs: Sequence[int], sampler: str, draws: Draws) -> None:
        self.graph, self.hops = graph, len(fan_outs)
        self.lists: NeighborLists = graph.neighbors
        self.ptr: Ints = graph.bounds
        depth = np.full(graph.num_nodes, -1, np.int16)
        depth[seeds] = 0
        expanded, pieces, frontier = [], [], seeds
        for number, fan_out in enumerate(fan_outs, 1):
            step = self._by_node if sampler == "neighbors" else self._by_level
            positions, counts = step(frontier, depth, fan_out, draws)
            expanded.append(frontier)
            pieces.append((positions, counts))
            columns = self.lists.indices[positions]
            reached = np.zeros(graph.num_nodes, bool)
            reached[columns[depth[columns] < 0]] = True
            frontier = np.flatnonzero(reached)
            depth[frontier] = number
        self.rows: Ints = np.flatnonzero(depth >= 0)
        self.depth = depth[self.rows]
        self._stack(expanded, pieces)

    def _by_node(self, rows: Ints, depth: NDArray[np.int16], fan_out: int, draws: Draws) -> tuple[Ints, Ints]:
        return self.lists.sample(rows, np.diff(np.searchsorted(rows, self.ptr)).tolist(), fan_out, draws)

    def _by_level(self, rows: Ints, depth: NDArray[np.int16], fan_out: int, draws: Draws) -> tuple[Ints, Ints]:
        """Edges to nodes that were reached before, and to a sample of all others."""
        positions, counts = self.lists.all_of(rows)
        columns = self.lists.indices[positions]
        near = np.zeros(len(depth), bool)
        near[columns] = True
        near[depth >= 0] = False
        sizes = np.diff(np.searchsorted(rows, self.ptr)).tolist()
        kept = depth >= 0
        for part in choose(np.flatnonzero(near), self.ptr, [fan_out * size for size in sizes], draws.generators):
            kept[part] = True
        inside = kept[columns]
        total = np.concatenate([[0], inside.cumsum()])
        return positions[inside], np.diff(total[np.concatenate([[0], counts.cumsum()])])

    def _stack(self, expanded: list[Ints], pieces: list[tuple[Ints, Ints]]) -> None:
        """The edges of all hops by ascending row: `counts` of the expanded nodes, `positions` in the lists, local `columns`."""
        empty = np.empty(0, np.int64)
        rows = np.concatenate([*expanded, empty])
        counts = np.concatenate([*(counts for _, counts in pieces), empty])
        positions = np.concatenate([*(positions for positions, _ in pieces), empty])
        order = rows.argsort()
        starts = (counts.cumsum() - counts)[order]
        self.counts: Ints = counts[order]
        self.positions: Ints = positions[ranges(starts, self.counts)]
        index = np.empty(self.graph.num_nodes, np.int32)
        index[self.rows] = np.arange(len(self.rows))
        self.columns: NDArray[np.int32] = index[self.lists.indices[self.positions]]

    def hop(self, index: int) -> SampledHop:
        """From the nodes that hop `index` reads to those that it computes; without hops, the training nodes alone."""
        if index not in self._views:
            self._views[index] = self._view(index)
        return self._views[index]

    @cached_property
    def _views(self) -> dict[int, SampledHop]:
        return {}

    def _view(self, index: int) -> SampledHop:
        left = max(self.hops - index, 0)  # hops from here on, this one included
        read = self.depth <= left
        local = read.cumsum() - 1  # where a reached node stands among those that are read
        computed = self.depth <= max(left - 1, 0)
        rows = np.flatnonzero(computed[self.depth < self.hops]) if left else np.empty(0, np.int64)  # among the expanded nodes
        counts = self.counts[rows] if left else np.zeros(int(computed.sum()), np.int64)
        entries = ranges((self.counts.cumsum() - self.counts)[rows], self.counts[rows])
        around = self.lists, self.graph.x, self.ptr
        return SampledHop(
            *around,
            self.rows[read],
            local[computed],
            local[self.columns[entries]],
            counts,
            self.positions[entries],
            self.graph.device,
        )

    @cached_property
    def union(self) -> tuple[Graph, Tensor]:
        """All reached nodes with the sampled edges as one graph, and which of its rows are the training nodes.

        What a module that takes `x` and `edge_index` gets, as from PyG's NeighborLoader.
        """
        target = np.repeat(np.flatnonzero(self.depth < self.hops), self.counts)
        edges = torch.from_numpy(np.stack([self.columns.astype(np.int64), target]))
        weight = None if self.lists.weight is None else torch.from_numpy(self.lists.weight[self.positions])
        inside = torch.from_numpy(np.flatnonzero(self.depth == 0)).to(self.graph.device)
        return _part(self.graph, self.rows, edges, weight), inside


def _part(graph: Graph, rows: Ints, edge_index: Tensor, edge_weight: Tensor | None) -> Graph:
    """Some rows of a graph as a graph with these edges, which are in the memory of the CPU."""
    device = graph.device
    index = torch.from_numpy(rows).to(device)
    return Graph(
        x=graph.x[index] if isinstance(graph.x, Tensor) else graph.x[rows],
        edge_index=edge_index.to(device),
        edge_weight=None if edge_weight is None else edge_weight.to(device),
        y=graph.y[index],
        train=graph.train[index],
        val=graph.val[index],
        test=graph.test[index],
        num_classes=graph.num_classes,
        ids=graph.ids[index],
        ptr=torch.from_numpy(np.searchsorted(rows, graph.bounds)).to(device),
        y_columns=None if graph.y_columns is None else graph.y_columns[index],
    )


def epoch(
    graph: Graph, size: int, fan_outs: Sequence[int], sampler: str, draws: Draws, items: Tensor | None = None
) -> Iterator[MiniBatch]:
    """One pass over the parties' training nodes in random order, `size` of each party at a time.

    Parameters:
        graph: The parties' graphs.
        size: Training nodes of a party per step.
        fan_outs: Neighbors per node, for each hop from the training nodes outwards; 0 takes all.
        sampler: One of `SAMPLERS`.
        draws: Each party's randomness.
        items: (N,) mask of the nodes that are passed over instead of the training nodes.
    """
    train = (graph.train if items is None else items).cpu()
    groups = _clusters(graph, size, train, draws) if sampler == "clusters" else _shuffled(graph, size, train, draws)
    for step in range(max(map(len, groups), default=0)):
        active = torch.tensor([step < len(batches) for batches in groups])
        rows = np.concatenate([np.sort(batches[step]) for batches in groups if step < len(batches)])
        yield batch_of(graph, rows, fan_outs, sampler, draws, None if bool(active.all()) else active.to(graph.device))


def batch_of(
    graph: Graph, rows: Ints, fan_outs: Sequence[int], sampler: str, draws: Draws, active: Tensor | None = None
) -> MiniBatch:
    """The batch of these rows, ascending; the rest as for `epoch`."""
    if sampler == "clusters":
        batch, edges, weight = None, *_inside(graph, rows)
    else:
        batch = Sampled(graph, rows, fan_outs, sampler, draws)
        edges, weight = torch.empty(2, 0, dtype=torch.int64), None
    part = _part(graph, rows, edges, weight)
    fields = {name: getattr(part, name) for name in Graph.__dataclass_fields__}
    return MiniBatch(**fields, index=torch.from_numpy(rows).to(graph.device), active=active, sampled=batch)


def _shuffled(graph: Graph, size: int, train: Tensor, draws: Draws) -> list[list[Ints]]:
    """Each party's training rows in random order, cut into batches; one empty batch for a party without any."""
    rows = train.nonzero()[:, 0].numpy()
    cuts = np.searchsorted(rows, graph.bounds)
    groups = []
    for generator, start, end in zip(draws.generators, cuts[:-1], cuts[1:], strict=True):
        order = rows[start:end][torch.randperm(int(end - start), generator=generator).numpy()]
        groups.append([order[first : first + size] for first in range(0, max(len(order), 1), size)])
    return groups


def _clusters(graph: Graph, size: int, train: Tensor, draws: Draws) -> list[list[Ints]]:
    """Each party's nodes, a few random clusters at a time, with about `size` training nodes; those without any are left out."""
    counts = Blocks(graph.sizes).sum(train.long()).tolist()
    wanted = [CLUSTERS_PER_BATCH * max(1, -(-count // size)) for count in counts]
    groups = []
    for generator, cells in zip(draws.generators, clusters(graph, wanted), strict=True):
        order = [cells[index] for index in torch.randperm(len(cells), generator=generator).tolist()]
        batches = [np.concatenate(order[k : k + CLUSTERS_PER_BATCH]) for k in range(0, len(order), CLUSTERS_PER_BATCH)]
        fitted = [batch for batch in batches if bool(train[torch.from_numpy(batch)].any())]
        groups.append(fitted or [np.empty(0, np.int64)])
    return groups


def _inside(graph: Graph, rows: Ints) -> tuple[Tensor, Tensor | None]:
    """The edges among some rows, which are numbered from 0, and their weights."""
    lists = graph.neighbors
    index = np.full(graph.num_nodes, -1, np.int32)
    index[rows] = np.arange(len(rows))
    positions, counts = lists.all_of(rows)
    source, target = index[lists.indices[positions]].astype(np.int64), np.repeat(np.arange(len(rows)), counts)
    kept = source >= 0
    weight = None if lists.weight is None else torch.from_numpy(lists.weight[positions[kept]])
    return torch.from_numpy(np.stack([source[kept], target[kept]])), weight
