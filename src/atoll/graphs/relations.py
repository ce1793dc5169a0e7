"""Relations between a party's nodes that are not edges: a matrix that propagates over both."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from torch import Tensor

from atoll.graphs.edges import normalized_matrix
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix


def smoothing_matrix(graph: Graph, related: Sequence[Tensor], edge_share: float) -> SparseMatrix:
    """D^(-1/2)·(M + I)·D^(-1/2) with M = α·A + (1−α)·R, R the related pairs (n, n) of every party in turn."""
    starts = graph.ptr[:-1].tolist()
    pairs = np.concatenate(
        [pair.nonzero().cpu().numpy() + first for pair, first in zip(related, starts, strict=True)]
        or [np.empty((0, 2), np.int64)]
    )
    relations = sp.csr_array((np.full(len(pairs), 1 - edge_share), (pairs[:, 0], pairs[:, 1])), shape=(graph.num_nodes,) * 2)
    together = sp.csr_array(graph.weighted_adjacency * edge_share + relations)
    together.eliminate_zeros()
    return SparseMatrix(normalized_matrix(together), symmetric=graph.symmetric, device=graph.device)
