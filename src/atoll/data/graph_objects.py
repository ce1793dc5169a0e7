"""Graphs that a script has: of PyG, NetworkX, pandas, atoll, or paths. Packages are used only where they are in use already."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from atoll.data.builder import check, check_fold
from atoll.data.catalog import DataSettings
from atoll.data.party_graphs import PartyGraph, read_party
from atoll.data.pyg import from_pyg, node_ids
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

ACCEPTED = "a name, a path, a torch_geometric Data, a NetworkX graph, DataFrames (nodes, edges) or an atoll Graph"


def kind_of(value: Any) -> str:
    """Which kind of graph a value is; empty where it is not one."""
    pyg = sys.modules.get("torch_geometric.data")
    if isinstance(value, Graph):
        return "graph"
    if isinstance(value, (str, Path)):
        return "path"
    if pyg is not None and isinstance(value, pyg.HeteroData):
        return "hetero"
    if pyg is not None and isinstance(value, pyg.Dataset):
        return "pyg dataset"
    if "networkx" in sys.modules or "pandas" in sys.modules:
        from atoll.data.frames import is_frames, is_networkx

        if is_networkx(value):
            return "networkx"
        if is_frames(value):
            return "frames"
    return "pyg" if any(hasattr(value, name) for name in ("x", "edge_index", "y")) else ""


def read_object(value: Any, settings: DataSettings, fold: int = 0, *, name: str = "", where: str = "") -> PartyGraph:
    """One graph and its nodes' ids; `name` is its party's, `where` what error messages call it."""
    kind = kind_of(value)
    if kind == "path":
        how: dict[str, Any] = {"directed": settings.directed, "encode": settings.encode, "edge_weights": settings.edge_weights}
        return read_party(Path(value), name, fold=fold, target=settings.target, **how)
    if kind == "pyg dataset":
        if len(value) != 1:
            raise AtollError(
                f"{where or 'The dataset'} has {len(value)} graphs, but nodes of one graph are classified: give one of them, "
                "such as dataset[0], or list(dataset) for one graph per party."
            )
        return read_object(value[0], settings, fold, name=name, where=where)
    if kind == "graph":
        where = where or "The graph"
        check(value, where)
        check_fold(fold, 1, where)
        value = value if getattr(settings, "edge_weights", True) else replace(value, edge_weight=None)
        return PartyGraph(name, where, value, numbered=True, node_ids=tuple(map(str, value.ids.tolist())))
    if kind in ("networkx", "frames"):
        check_fold(fold, 1, where or "The graph")
        return _from_tables(value, kind, settings, name, where)
    if kind == "hetero":
        from atoll.data.hetero import merged_types

        return _from_pyg(merged_types(value, where or "The PyG graph"), settings, fold, name, where)
    if kind == "pyg":
        return _from_pyg(value, settings, fold, name, where)
    raise AtollError(f"{where or 'dataset'} is a {type(value).__name__}; give {ACCEPTED}.")


def _from_pyg(data: Any, settings: DataSettings, fold: int, name: str, where: str) -> PartyGraph:
    where = where or "The PyG graph"
    how: dict[str, Any] = {"directed": settings.directed, "edge_weights": settings.edge_weights, "target": settings.target}
    graph = from_pyg(data, fold=fold, where=where, **how)
    ids = node_ids(data, graph.num_nodes, where)
    if ids is None:
        return PartyGraph(name, where, graph)
    numbered = isinstance(ids[0], int)
    if numbered:
        graph = replace(graph, ids=torch.tensor(ids))
    return PartyGraph(name, where, graph, numbered, tuple(map(str, ids)))


def _from_tables(value: Any, kind: str, settings: DataSettings, name: str, where: str) -> PartyGraph:
    from atoll.data import frames
    from atoll.data.tables import parse, warn_inferred

    if kind == "networkx":
        where = where or "NetworkX"
        tables = frames.tables_of_networkx(value, Path(where), settings.directed)
    else:
        where = where or "DataFrames"
        tables = frames.tables_of_frames(value, Path(where), settings.encode)
    graph, nodes, choices = parse(tables, settings.directed, settings.encode, settings.edge_weights, settings.target)
    if choices is not None:
        warn_inferred(nodes, choices, 'give {"nodes": …, "edges": …, "features": …}')
    return PartyGraph(name, where, graph, "index" in nodes.frame.columns, tuple(nodes.texts("id")))
