"""A graph as fields of a payload (tensors and plain values), to hand the parties' graphs to another process."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from atoll.data import files
from atoll.graphs.borders import Borders
from atoll.graphs.graph import Graph

OPTIONAL = ("majority", "graph_ptr", "graph_ids", "pairs", "pair_party")
TUPLES = ("widths", "class_names", "classes")


def to_fields(graph: Graph) -> dict[str, Any]:
    """What parties compute with: everything but the names of nodes and columns; a table must have been encoded."""
    arrays = files.arrays(replace(graph, node_names=None, feature_names=None, class_names=None))
    fields: dict[str, Any] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    fields |= {name: getattr(graph, name) for name in ("ptr", *OPTIONAL) if getattr(graph, name) is not None}
    fields |= {} if graph.borders is None else graph.borders.arrays()
    listed = {name: list(getattr(graph, name)) for name in TUPLES if getattr(graph, name) is not None}
    return fields | {"listed": [listed]}  # in a list, so that it is kept as one value


def from_fields(fields: Mapping[str, Any]) -> Graph:
    """The graph of `to_fields`."""
    tensors = {name: value for name, value in fields.items() if isinstance(value, Tensor)}
    given: dict[str, Any] = {name: tensors.pop(name) for name in ("ptr", *OPTIONAL) if name in tensors}
    given["borders"] = Borders.of({name: tensors.pop(name) for name in list(tensors) if name.startswith("border_")})
    given |= {name: tuple(value) for name, value in fields["listed"][0].items()}
    return replace(files.graph_of({name: value.numpy() for name, value in tensors.items()}), **given)
