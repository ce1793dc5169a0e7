"""Parts of graphs that are put one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.table import stack_tables


def joined_ptr(values: Sequence[Tensor]) -> Tensor:
    """Where blocks begin, of graphs one after the other."""
    return torch.cat([values[0].new_zeros(1), *(ptr.diff() for ptr in values)]).cumsum(0)


def _flat(values: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(value for one in values for value in one)


def _features(values: Sequence[Any]) -> Any:
    return torch.cat(list(values)) if isinstance(values[0], Tensor) else sp.csr_array(sp.vstack(values, format="csr"))


JOINS: dict[str, Callable[[Any], Any]] = {  # field of a graph → how those of several are joined
    "x": _features,
    **dict.fromkeys(("y", "train", "val", "test", "ids", "graph_ids", "pair_party", "edge_split", "y_columns"), torch.cat),
    **dict.fromkeys(("ptr", "graph_ptr"), joined_ptr),
    **dict.fromkeys(("widths", "classes"), _flat),
    "table": stack_tables,
    "node_names": np.concatenate,
    "graph_names": np.concatenate,
}


def joined_fields(graphs: Sequence[Any]) -> dict[str, Any]:
    """The fields of graphs that are joined one after the other; None where one of the graphs lacks it."""
    fields = {name: [getattr(graph, name) for graph in graphs] for name in JOINS}
    return {name: None if any(one is None for one in values) else JOINS[name](values) for name, values in fields.items()}
