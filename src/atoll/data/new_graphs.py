"""Small graphs that arrive after training, in the form that a model was trained with: its columns and its classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from atoll.data.builder import check
from atoll.data.graph_tables import FILES, graphs_of_pyg, read_graph_tables
from atoll.data.new_nodes import InputForm, fitted
from atoll.data.target_columns import CLASS
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

ACCEPTED = "a folder with graphs, nodes and edges, a list of torch_geometric Data, or an atoll Graph of small graphs"


@dataclass(frozen=True)
class _How:
    """How a folder is read."""

    target: str
    directed: bool


def read_new_graphs(data: Any, form: InputForm) -> Graph:
    """New small graphs of one party, from a folder or objects (`ACCEPTED`). What is predicted of them may be known."""
    if isinstance(data, Graph):
        check(data, "The graph")
        if data.graph_ptr is None or data.parties != 1:
            raise AtollError(f"The model predicts small graphs; give {ACCEPTED}.")
        return fitted(data, form, "The graph")
    if isinstance(data, (str, Path)):
        folder = Path(data).expanduser()
        if not folder.is_dir() or not any((folder / name).is_file() for name in FILES):
            raise AtollError(f"{folder} holds no graphs.csv or graphs.parquet; the model predicts small graphs: give them there.")
        graph = read_graph_tables(folder, _How(form.target, form.directed), labeled=False, classes=_classes(form))
        return fitted(graph, form, str(folder))
    several = [data] if hasattr(data, "edge_index") else list(data) if hasattr(data, "__iter__") else []
    if not several:
        raise AtollError(f"data is a {type(data).__name__}; give {ACCEPTED}.")
    graph = graphs_of_pyg(several, form.target, "The data", labeled=False, count=form.num_classes)
    return fitted(graph, form, "The data")


def _classes(form: InputForm) -> tuple[str, ...] | None:
    """The model's classes by name; numbers, where they have none, are names of labels and values alone."""
    if form.class_names is not None or form.target == CLASS:
        return form.class_names
    return tuple(map(str, torch.arange(form.num_classes).tolist()))
