"""Connected components of a graph, whatever the directions of its edges."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch

from atoll.graphs.graph import Graph


def largest_component(graph: Graph) -> Graph:
    """The nodes of the largest connected component (ties: that of the lowest node) with their ids, in order.

    Rows that share an id are one node.
    """
    ids, node = np.unique(graph.ids.numpy(), return_inverse=True)
    source, target = node[graph.edge_index.numpy()]
    adjacency = sp.coo_array((np.ones(len(source)), (source, target)), shape=(len(ids), len(ids)))
    _, component = sp.csgraph.connected_components(adjacency, directed=False)
    _, first, sizes = np.unique(component, return_index=True, return_counts=True)
    largest = np.lexsort((first, -sizes))[0]
    rows = np.flatnonzero(component[node] == largest)
    return graph if len(rows) == graph.num_nodes else graph.rows(torch.from_numpy(rows))
