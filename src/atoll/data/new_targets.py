"""Labels or values of items that arrive after training, in the model's order; they are optional."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from atoll.data.builder import Ints
from atoll.data.target_columns import PREFIXES, known_rows, read_targets, with_targets
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

if TYPE_CHECKING:
    from atoll.data.table_files import TableFile


def known_targets(table: TableFile, target: str, names: Sequence[str] | None, count: int) -> tuple[Ints, Tensor]:
    """y and what the table tells of the model's labels or values; NaN where it tells nothing."""
    made = torch.full((len(table.frame), count), torch.nan)
    prefix = PREFIXES[target]
    if table.targets is not None and any(str(name).startswith(prefix) for name in table.targets.columns):
        _, present, values = read_targets(table, target)
        made = placed(values, present, names or tuple(map(str, range(count))), str(table.path))
    return known_rows(made.numpy()), made


def placed(values: Tensor, names: Sequence[str], wanted: Sequence[str], where: str) -> Tensor:
    """The columns of these names in the model's order."""
    if unknown := [name for name in names if name not in wanted]:
        raise AtollError(f"{where} has {unknown[0]!r}, which the model does not predict; leave it out.")
    made = torch.full((len(values), len(wanted)), torch.nan)
    made[:, [list(wanted).index(name) for name in names]] = values
    return made


def with_model_targets(graph: Graph, names: tuple[str, ...] | None, count: int, where: str) -> Graph:
    """The graph with the model's labels or values; those that its data names are matched by name."""
    if graph.y_columns is None:
        return with_targets(graph, torch.full((len(graph.y), count), torch.nan), names)
    values = graph.y_columns
    if graph.class_names is not None and names is not None and graph.class_names != names:
        values = placed(values, graph.class_names, names, where)
    if values.shape[1] != count:
        raise AtollError(f"{where} has {values.shape[1]} labels or values per item, but the model predicts {count}.")
    return replace(with_targets(graph, values, names), majority=None)
