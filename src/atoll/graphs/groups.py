"""Groups of nodes represented by their mean features: the means of their features, of enough nodes each."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.clusters import clusters
from atoll.graphs.graph import Graph

SLACK = 1.15  # how much larger than asked for groups are cut, as they come out unequal


def group_means(graph: Graph, size: int) -> list[Tensor]:
    """Per party (G, d): means of disjoint groups of at least `size` nodes that are close in its graph; of one, the nodes.

    Groups are the same in every call, so that no two answers differ by single nodes. A party with fewer nodes has none.
    """
    key = f"groups.{size}"
    if key not in graph.derived:
        cells = _groups(graph, size)
        rows = np.concatenate([np.empty(0, np.int64), *(cell for party in cells for cell in party)])
        lengths = np.array([len(cell) for party in cells for cell in party], dtype=np.int64)
        values = np.repeat(1 / np.maximum(lengths, 1), lengths).astype(np.float32)
        indptr = np.concatenate([[0], lengths.cumsum()])
        mean = sp.csr_array((values, rows, indptr), shape=(len(lengths), graph.num_nodes))
        means = mean @ (graph.x.cpu().numpy() if isinstance(graph.x, Tensor) else graph.x)
        dense = np.asarray(means.toarray() if sp.issparse(means) else means, dtype=np.float32)
        graph.derived[key] = torch.from_numpy(dense).to(graph.device)
        graph.derived[f"{key}.sizes"] = torch.tensor([len(party) for party in cells])
    return list(torch.split(graph.derived[key], graph.derived[f"{key}.sizes"].tolist()))


def _groups(graph: Graph, size: int) -> list[list[np.ndarray]]:
    """Per party, disjoint groups of at least that many nodes that hold all of them."""
    if size == 1:
        return [[np.array([row]) for row in range(start, end)] for start, end in graph.blocks.ranges]
    wanted = [max(1, int(count / (SLACK * size))) for count in graph.sizes]
    return [_merged(cells, size) for cells in clusters(graph, wanted)]


def _merged(cells: list[np.ndarray], size: int) -> list[np.ndarray]:
    """The groups, the smallest joined with the next larger one until none is too small; none where all nodes are too few."""
    cells = list(cells)
    while cells:
        cells.sort(key=len)
        if len(cells[0]) >= size:
            break
        smallest = cells.pop(0)
        if cells:
            cells[0] = np.concatenate([cells[0], smallest])
    return cells
