"""Mended graphs: nodes with generated neighbors, which stand behind the real nodes of their party."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.graph import Graph


def mended(graph: Graph, counts: Tensor, features: Tensor, *, both: bool = True) -> tuple[Graph, Tensor]:
    """The graph with `counts` (N,) generated neighbors per node, and (N,) where the real nodes are in it.

    Parameters:
        graph: The parties' graphs.
        counts: How many neighbors each node gets.
        features: (M, d) theirs, those of the first node first.
        both: Edges in both directions; without it only from the real node to the generated one, which then changes nothing.
    """
    parent = torch.repeat_interleave(torch.arange(graph.num_nodes, device=graph.device), counts)
    added = graph.blocks.sum(counts)  # (P,)
    before = added.cumsum(0) - added
    real = torch.arange(graph.num_nodes, device=graph.device) + before[graph.party]
    fresh = torch.arange(len(parent), device=graph.device) + graph.ptr[1:][graph.party[parent]]
    order = torch.empty(graph.num_nodes + len(parent), dtype=torch.int64, device=graph.device)  # of the rows [real ‖ generated]
    order[torch.cat([real, fresh])] = torch.arange(len(order), device=graph.device)
    outward = torch.stack([real[parent], fresh])
    edges = [real[graph.edge_index], outward, *([outward.flip(0)] if both else [])]
    weight = None
    if graph.edge_weight is not None:
        weight = torch.cat([graph.edge_weight, torch.ones(sum(part.shape[1] for part in edges[1:]), device=graph.device)])
    nobody, unknown = torch.zeros_like(parent, dtype=torch.bool), torch.full_like(parent, -1)
    made = replace(
        graph,
        x=_stacked(graph.x, features, order),
        edge_index=torch.cat(edges, 1),
        edge_weight=weight,
        y=torch.cat([graph.y, unknown])[order],
        train=torch.cat([graph.train, nobody])[order],
        val=torch.cat([graph.val, nobody])[order],
        test=torch.cat([graph.test, nobody])[order],
        ids=torch.cat([graph.ids, unknown])[order],
        ptr=graph.ptr + torch.nn.functional.pad(added.cumsum(0), (1, 0)),
        majority=None if graph.majority is None else torch.cat([graph.majority, unknown])[order],
        node_names=None,
    )
    return made, real


def _stacked(x: sp.csr_array | Tensor, features: Tensor, order: Tensor) -> sp.csr_array | Tensor:
    """The rows of both, in that order."""
    if isinstance(x, Tensor):
        return torch.cat([x, features])[order]
    return sp.csr_array(
        sp.vstack([x, sp.csr_array(features.cpu().numpy().astype(np.float32))], format="csr")[order.cpu().numpy()]
    )
