"""The column `split` of a table of edges: which train, validate and test in link prediction."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from atoll.data.builder import Ints
from atoll.data.table_files import TableFile
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.negatives import pair_codes

COLUMN = "split"
ROLES = {"train": 0, "": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}


def edge_roles(edges: TableFile, ends: Ints, graph: Graph) -> Tensor | None:
    """(E,) the role of each edge of the graph, which both directions have; None where the table has no column `split`.

    An edge without a role trains. One that is listed twice must have the same role in both rows.
    """
    if COLUMN not in edges.frame.columns:
        return None
    texts = edges.texts(COLUMN)
    roles = np.array([ROLES.get(text.strip().lower(), -1) for text in texts], np.int64)
    if len(wrong := np.flatnonzero(roles < 0)):
        raise AtollError(
            f"The split in {edges.location(int(wrong[0]))} is '{texts[wrong[0]]}'; an edge is train, val, test or, empty, train."
        )
    codes = pair_codes(torch.from_numpy(ends), graph.num_nodes).numpy()
    distinct, first, index = np.unique(codes, return_index=True, return_inverse=True)
    if len(wrong := np.flatnonzero(roles != roles[first][index])):
        row, other = int(wrong[0]), int(first[index[wrong[0]]])
        raise AtollError(
            f"The edge in {edges.location(row)} is {texts[row] or 'train'}, but in {edges.location(other)} it is "
            f"{texts[other] or 'train'}; both directions of an edge have one role."
        )
    wanted = pair_codes(graph.edge_index, graph.num_nodes).numpy()
    return torch.from_numpy(roles[first][np.searchsorted(distinct, wanted)].astype(np.int8))
