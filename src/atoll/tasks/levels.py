"""Levels: what an item is (a node or a small graph), and so what a step of training reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.masks import random_batch
from atoll.random import Draws

ITEMS = {"node": "nodes", "graph": "graphs", "link": "pairs"}  # what the items of a level are called


def items_of(task: object) -> str:
    """What the items of a task are called."""
    return ITEMS.get(getattr(task, "level", ""), ITEMS["node"])


class NodeItems:
    """Items are nodes, and every step reads the whole graph: a node needs its neighbors."""

    level: ClassVar[str] = "node"

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """The whole graph, once; with a `size`, with `size` training nodes of each party drawn by itself."""
        mask = random_batch(graph, size, draws)
        yield graph.fitting(mask) if isinstance(mask, Tensor) else graph


class GraphItems:
    """Items are small graphs, and a step reads some of them."""

    level: ClassVar[str] = "graph"

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """Every party shuffles its own training graphs; step s takes the s-th `size` of each, so of fewer and fewer parties."""
        rows = torch.split(graph.train.nonzero()[:, 0], graph.num_train.tolist())
        longest = max(map(len, rows), default=0)
        if size <= 0 or size >= longest:
            if longest:
                yield graph.trained
            return
        shuffled = [members[order] for members, order in zip(rows, draws.orders(graph.num_train.tolist()), strict=True)]
        starts = range(0, longest, size)
        yield from graph.take_each([torch.cat([part[s : s + size].sort().values for part in shuffled]) for s in starts])
