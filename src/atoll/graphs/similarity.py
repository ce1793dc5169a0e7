"""How much nodes resemble their neighbors: cosines of features over edges, without an array per edge."""

from __future__ import annotations

import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.features import unit_rows
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix


def neighbor_cosines(graph: Graph, beside: Tensor | None = None) -> Tensor:
    """(N,) Σ_{j ∈ N(i)} cos(e_i, e_j) with e_i = [x_i ‖ beside_i]; a row of zeros has cosine 0 with all others.

    With ê the rows of length 1 it is ê_i · (A·ê)_i.
    """
    if isinstance(graph.x, Tensor):
        rows = unit_rows(graph.x if beside is None else torch.cat([graph.x, beside], 1))
        assert isinstance(rows, Tensor)
        return (rows * (SparseMatrix(graph.adjacency, device=graph.device) @ rows)).sum(1)
    joined = graph.x if beside is None else sp.hstack([graph.x, sp.csr_array(beside.cpu().numpy())], format="csr")
    rows = unit_rows(sp.csr_array(joined))
    return torch.from_numpy(rows.multiply(graph.adjacency @ rows).sum(1)).float().to(graph.device)
