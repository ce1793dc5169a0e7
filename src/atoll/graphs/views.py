"""Random views of graphs, for methods that contrast them: some edges left out, some columns of the features masked."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix
from atoll.random import Draws


def view(graph: Graph, drop_edges: float, mask_columns: float, draws: Draws) -> Graph:
    """The graph without a random share of its edges, both directions together, and of its columns, which are 0 in all rows.

    Every party draws for its own edges and columns. With both shares 0 it is the graph itself, and nothing is drawn.
    """
    if not drop_edges and not mask_columns:
        return graph
    kept = torch.ones(graph.edge_index.shape[1], dtype=torch.bool, device=graph.device)
    if drop_edges:
        pair, counts = edge_pairs(graph)
        drawn = [torch.rand(count, generator=one) for count, one in zip(counts, draws.generators, strict=True)]
        kept = (torch.cat(drawn) >= drop_edges).to(graph.device)[pair]
    weight = None if graph.edge_weight is None else graph.edge_weight[kept]
    columns = draws.uniform(graph.num_features) >= mask_columns if mask_columns else None  # (P, d)
    x = graph.x if columns is None else masked(graph, columns)
    made = replace(graph, x=x, edge_index=graph.edge_index[:, kept], edge_weight=weight)
    if columns is None:
        made.__dict__["features"] = graph.features
    elif isinstance(graph.features.values, SparseMatrix):  # without sorting the values into the transpose again
        made.__dict__["features"] = Features(graph.features.values.masked(stored(graph, columns), 1.0), graph.blocks)
    return made


def edge_pairs(graph: Graph) -> tuple[Tensor, list[int]]:
    """(E,) the number of each edge's pair of nodes, sorted by party, and how many pairs each party has; kept with the graph."""
    if "pairs" not in graph.derived:
        low, high = graph.edge_index.amin(0), graph.edge_index.amax(0)
        pairs, number = torch.unique(low * graph.num_nodes + high, return_inverse=True)
        party = graph.party[torch.div(pairs, graph.num_nodes, rounding_mode="floor")]
        graph.derived["pairs"], graph.derived["pair_counts"] = number, torch.bincount(party, minlength=graph.parties)
    counts: list[int] = graph.derived["pair_counts"].tolist()
    return graph.derived["pairs"], counts


def masked(graph: Graph, columns: Tensor) -> sp.csr_array | Tensor:
    """The features with 0 in the columns that a row's party does not keep."""
    if isinstance(graph.x, Tensor):
        return graph.x * columns[graph.party]
    kept = np.concatenate([np.empty(0, bool), *stored(graph, columns)])
    return sp.csr_array((graph.x.data * kept, graph.x.indices, graph.x.indptr), shape=graph.x.shape)


def stored(graph: Graph, columns: Tensor) -> list[np.ndarray]:
    """Per party, which of its stored values are in columns that it keeps."""
    assert not isinstance(graph.x, Tensor)
    starts, keep = graph.x.indptr[graph.bounds], columns.cpu().numpy()
    return [keep[party][graph.x.indices[starts[party] : starts[party + 1]]] for party in range(graph.parties)]
