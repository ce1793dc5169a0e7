"""Structure embeddings: what can be said of a node from the links of its party's graph alone."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix


def structure_embedding(graph: Graph, walks: int, degrees: int, *, least: int = 0) -> Tensor:
    """(N, walks + degrees): random walk and degree embeddings of every node within its party's graph, or its small graph.

    They are made once, on the CPU.
    """
    here = graph.host
    return torch.cat([return_probabilities(here, walks), degree_embedding(here, degrees, least)], 1).to(graph.device)


def degree_embedding(graph: Graph, degrees: int, least: int = 0) -> Tensor:
    """(N, degrees) one-hot; the last column is for that degree and all higher ones.

    A lower degree than `least` counts as that; degree 0, of a node without neighbors, has no column.
    """
    degree = torch.from_numpy(graph.adjacency.sum(1)).long().clamp(min=least)
    onehot = torch.zeros(graph.num_nodes, degrees + 1)
    onehot.scatter_(1, degree.clamp(max=degrees)[:, None], 1.0)
    return onehot[:, 1:]


def return_probabilities(graph: Graph, walks: int, width: int = 64) -> Tensor:
    """(N, walks): the diagonals of M, M², …, M = A·D⁻¹ a random walk's transitions, without ever forming a power of M.

    The columns of M^j for `width` nodes of every party, or small graph, at a time; (M^(i+j))_vv is row v of M^i times column v of
    M^j.
    D^(-1/2)·A·D^(-1/2) has the same diagonals and, where A is symmetric, its rows are its columns.
    """
    scale = sp.diags_array(np.maximum(graph.adjacency.sum(0), 1) ** -0.5)
    step = SparseMatrix(sp.csr_array(scale @ graph.adjacency @ scale), symmetric=graph.symmetric)
    result = torch.zeros(graph.num_nodes, walks)
    ptr = graph.ptr if graph.graph_ptr is None else graph.graph_ptr
    starts, sizes = ptr[:-1], ptr.diff()
    blocks = graph.blocks if graph.graph_ptr is None else Blocks(sizes.tolist())
    for first in range(0, int(sizes.max()) if walks else 0, width):
        party, offset = (torch.arange(first, first + width) < sizes[:, None]).nonzero(as_tuple=True)
        nodes = starts[party] + first + offset  # one per party and column
        column = torch.zeros(graph.num_nodes, width)
        column[nodes, offset] = 1
        row = column  # the rows of M^i, transposed
        for power in range(walks):  # alternately i = j − 1 and i = j
            if power % 2 == 0:
                column = step.forward @ column
            else:
                row = column if graph.symmetric else step.transposed @ row
            result[nodes, power] = blocks.sum(row * column)[party, offset]
    return result
