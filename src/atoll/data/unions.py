"""The graph of all parties' nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from atoll.graphs.edges import distinct_edges
from atoll.graphs.graph import Graph, majority_class


def union(parts: Graph, graph: Graph, *, merged: bool = False) -> Graph:
    """All nodes that some party holds and the edges among them, with the parties' splits and each node's majority class there.

    `merged` keeps only the edges that some party holds: the union of overlapping parties' graphs.
    """
    ids, row = torch.unique(parts.ids, return_inverse=True)
    order = graph.ids.argsort(stable=True)
    rows = order[torch.searchsorted(graph.ids[order], ids)]
    whole = graph if torch.equal(rows, torch.arange(graph.num_nodes)) else graph.rows(rows)
    if merged:
        edges, weights = distinct_edges(row[parts.edge_index], parts.edge_weight)
        whole = replace(whole, edge_index=edges, edge_weight=weights)
    masks: dict[str, Any] = {}
    for name in ("train", "val", "test"):
        mask = torch.zeros(len(ids), dtype=torch.bool)
        mask[row[getattr(parts, name)]] = True
        masks[name] = mask
    majority = torch.zeros(len(ids), dtype=torch.int64)
    majority[row.flip(0)] = majority_class(parts).flip(0)  # of several parties that hold a node, the first
    return replace(whole, **masks, majority=majority)
