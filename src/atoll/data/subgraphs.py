"""From node lists, or from blocks of features, to the parties' block-diagonal graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch

from atoll.data.builder import Ints
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.neighbors import ranges
from atoll.graphs.selection import EDGES_AT_ONCE
from atoll.random import seed_of


def induced_subgraphs(graph: Graph, lists: Sequence[Ints]) -> Graph:
    """The induced subgraphs of the node lists, block-diagonal; lists may share nodes, edges between parties are dropped."""
    rows = np.concatenate(lists)
    sizes = np.array([len(nodes) for nodes in lists])
    ptr = np.concatenate([[0], sizes.cumsum()])
    edges = graph.edge_index.numpy()
    if (np.bincount(rows, minlength=1) <= 1).all():
        indexed = graph.edge_weight is not None or graph.edge_split is not None
        kept, chosen = _disjoint_edges(edges, lists, graph.num_nodes, indexed=indexed)
    else:
        pieces, indices = [], []
        for start, nodes in zip(ptr, lists, strict=False):
            position = np.full(graph.num_nodes, -1)
            position[nodes] = np.arange(len(nodes)) + start
            piece = position[edges]
            indices.append(np.flatnonzero((piece >= 0).all(axis=0)))
            pieces.append(piece[:, indices[-1]])
        kept, chosen = np.concatenate(pieces, axis=1), np.concatenate(indices)
    return take_rows(graph, rows, kept, chosen, ptr)


def _disjoint_edges(edges: Ints, lists: Sequence[Ints], nodes: int, *, indexed: bool) -> tuple[Ints, Ints]:
    """(2, E') the edges inside lists that share no nodes, list after list, and, if `indexed`, which of all edges they are.

    A piece of the edges at a time: first their numbers, then the edges where they belong.
    """
    owner, position = np.full(nodes, -1, np.int32), np.zeros(nodes, np.int64)
    rows = np.concatenate(lists)
    owner[rows], position[rows] = np.repeat(np.arange(len(lists)), [*map(len, lists)]), np.arange(len(rows))
    pieces = [slice(first, first + EDGES_AT_ONCE) for first in range(0, edges.shape[1], EDGES_AT_ONCE)]

    def inside(piece: slice) -> tuple[Ints, Ints]:
        """Indices of a piece's edges inside lists, list after list, and the number of each list's."""
        party = np.where(owner[edges[0, piece]] == owner[edges[1, piece]], owner[edges[0, piece]], -1)
        inner = np.flatnonzero(party >= 0)
        order = inner[np.argsort(party[inner], kind="stable")]
        return order + piece.start, np.bincount(party[inner], minlength=len(lists))

    counts = np.array([inside(piece)[1] for piece in pieces]).reshape(len(pieces), len(lists))
    starts = counts.sum(0).cumsum() - counts.sum(0) + counts.cumsum(0) - counts  # (pieces, lists)
    kept, chosen = np.empty((2, int(counts.sum())), np.int64), np.empty(int(counts.sum()) if indexed else 0, np.int64)
    for piece, first, number in zip(pieces, starts, counts, strict=True):
        index = inside(piece)[0]
        place = ranges(first, number)
        kept[:, place] = position[edges[:, index]]
        if indexed:
            chosen[place] = index
    return kept, chosen


def vertical(graph: Graph, parties: int, edge_fraction: float, seed: int) -> Graph:
    """GLASU: every party holds all nodes, a block of the shuffled features and a uniform share of the undirected edges.

    Blocks differ by at most one column; x is padded with zero columns on the right to the widest, `widths` holds their widths.
    """
    width = graph.num_features
    if parties > width:
        raise AtollError(f"{parties} parties cannot share {width} features; use at most {width} parties.")
    if not 0 < edge_fraction <= 1:
        raise AtollError(f"edge_fraction must be more than 0 and at most 1, not {edge_fraction:g}.")
    columns = [np.sort(part) for part in np.array_split(_rng(seed, "vertical", "features").permutation(width), parties)]
    widest = max(len(part) for part in columns)
    nodes = graph.num_nodes
    source, target = graph.edge_index.numpy()
    pairs, pair = np.unique(np.minimum(source, target) * nodes + np.maximum(source, target), return_inverse=True)
    pieces, indices = [], []
    for party in range(parties):
        kept = np.zeros(len(pairs), bool)
        count = round(edge_fraction * len(pairs))
        kept[_rng(seed, "vertical", "edges", party).choice(len(pairs), count, replace=False)] = True
        indices.append(np.flatnonzero(kept[pair]))
        pieces.append(graph.edge_index.numpy()[:, indices[-1]] + party * nodes)
    everyone, edges, chosen = np.tile(np.arange(nodes), parties), np.concatenate(pieces, axis=1), np.concatenate(indices)
    whole = take_rows(replace(graph, x=graph.x[:, :0]), everyone, edges, chosen, np.arange(parties + 1) * nodes)
    padded = [_padded(graph.x, part, widest) for part in columns]
    x = torch.cat(padded) if isinstance(graph.x, torch.Tensor) else sp.csr_array(sp.vstack(padded, format="csr"))
    return replace(whole, x=x, widths=tuple(len(part) for part in columns))


def _padded(x: sp.csr_array | torch.Tensor, columns: Ints, width: int) -> sp.csr_array | torch.Tensor:
    if isinstance(x, torch.Tensor):
        return torch.nn.functional.pad(x[:, torch.from_numpy(columns)], (0, width - len(columns)))
    part = sp.csr_array(x[:, columns])
    return sp.csr_array((part.data, part.indices, part.indptr), shape=(x.shape[0], width))


def take_rows(graph: Graph, rows: Ints, edges: Ints, chosen: Ints, ptr: Ints) -> Graph:
    """The graph of these rows (a node may occur several times) with the given edges and party boundaries.

    `chosen` are the indices of the edges in the graph that it is taken from.
    """
    index = torch.from_numpy(rows)
    return replace(
        graph,
        x=graph.x[index] if isinstance(graph.x, torch.Tensor) else sp.csr_array(graph.x[rows]),
        edge_index=torch.from_numpy(np.ascontiguousarray(edges)),
        edge_weight=None if graph.edge_weight is None else graph.edge_weight[torch.from_numpy(chosen)],
        edge_split=None if graph.edge_split is None else graph.edge_split[torch.from_numpy(chosen)],
        y=graph.y[index],
        train=graph.train[index],
        val=graph.val[index],
        test=graph.test[index],
        ids=graph.ids[index],
        ptr=torch.from_numpy(ptr.astype(np.int64)),
        table=None if graph.table is None else graph.table.rows(rows),
        node_names=None if graph.node_names is None else graph.node_names[rows],
        y_columns=None if graph.y_columns is None else graph.y_columns[index],
    )


def _rng(*words: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of("partition", *words))
