"""Edges between nodes that arrive after training and the nodes of the training data that they name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from atoll.data.alignment import align
from atoll.data.builder import Ints, tidy_edges
from atoll.data.edge_weights import Weights, tidy_weights
from atoll.errors import AtollError
from atoll.graphs.edges import distinct_edges
from atoll.graphs.graph import Graph, stack

if TYPE_CHECKING:
    from atoll.data.table_files import TableFile

Context = Callable[[Mapping[str, str]], Graph]  # ids of known nodes, and where each is named → the graph (P = 1) that holds them


def ends_of(edges: TableFile, ids: Any, nodes: Path, context: Context | None) -> tuple[Ints, dict[str, str]]:
    """(2, E) rows of the new nodes and, counted on from them, of other nodes; and the ids of those, with where each is named."""
    texts = [edges.texts(column) for column in ("source", "target")]
    rows = [ids.get_indexer(column).astype(np.int64) for column in texts]
    locations: dict[str, str] = {}
    for role, column, ends in zip(("source", "target"), texts, rows, strict=True):
        unknown = np.flatnonzero(ends < 0)
        for name, first in zip(*np.unique(column[unknown].astype(str), return_index=True), strict=True):
            row = int(unknown[first])
            locations.setdefault(str(name), f"The {role} '{name}' in {edges.location(row)}")
    if locations and context is None:
        raise AtollError(
            f"{next(iter(locations.values()))} is not a node of {nodes.name}, and the training data is not known here; "
            "add the node, with its own edges, or remove the edge."
        )
    others = np.array(sorted(locations), dtype=str)
    for column, ends in zip(texts, rows, strict=True):
        outside = ends < 0
        ends[outside] = len(ids) + np.searchsorted(others, column[outside].astype(str))
    return np.stack(rows), {name: locations[name] for name in others.tolist()}


def joined(
    graph: Graph, known: Graph, ends: Ints, names: Sequence[str], directed: bool, weighted: bool, weights: Weights | None
) -> Graph:
    """New nodes beside the known graph, connected by `ends`, whose rows after the new ones are those of `names`.

    A known node that the new data lists again is the new one, with the edges of both. An edge of the training data that is
    listed again counts once, with the larger weight.
    """
    import pandas as pd

    assert graph.node_names is not None
    assert known.node_names is not None
    count, listed = graph.num_nodes, pd.Index(graph.node_names).get_indexer(known.node_names)
    kept = np.flatnonzero(listed < 0)
    position = np.where(listed >= 0, listed, 0)
    position[kept] = count + np.arange(len(kept))
    named = np.flatnonzero(pd.Index(known.node_names).isin(list(names)))  # each once; other names may be there several times
    rows = np.concatenate([np.arange(count), position[named[pd.Index(known.node_names[named]).get_indexer(list(names))]]])
    blocks = align([graph, known.rows(torch.from_numpy(kept))], ["the new nodes", "the training data"], extend_classes=True)
    both = stack([blocks[0], replace(blocks[1], ids=blocks[1].ids + int(graph.ids.max()) + 1)])
    both = replace(both, ptr=both.ptr[[0, -1]])
    inner = np.concatenate([graph.edge_index.numpy(), position[known.edge_index.numpy()]], 1)
    if not weighted:
        edges = np.concatenate([inner, rows[ends]], 1)
        return replace(both, edge_index=torch.from_numpy(tidy_edges(edges, both.num_nodes, directed)), edge_weight=None)
    between, tidied = tidy_edges(rows[ends], both.num_nodes, directed), None
    if weights is not None:
        between, tidied = tidy_weights(rows[ends], weights, both.num_nodes, directed, "The edges to known nodes")
    given = (graph.edge_weight, known.edge_weight, None if tidied is None else torch.from_numpy(tidied))
    sizes = (graph.edge_index.shape[1], known.edge_index.shape[1], between.shape[1])
    weight = torch.cat([torch.ones(size) if one is None else one for one, size in zip(given, sizes, strict=True)])
    edges = np.concatenate([inner, between], 1)
    proper = edges[0] != edges[1]
    together, merged = distinct_edges(torch.from_numpy(edges[:, proper]), weight[torch.from_numpy(proper)])
    return replace(both, edge_index=together, edge_weight=merged)
