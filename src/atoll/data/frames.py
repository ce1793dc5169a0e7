"""Graphs of pandas and NetworkX: as tables of nodes and edges, read exactly like `nodes.csv` and `edges.csv`.

edges                                                   an edge list: one DataFrame with `source` and `target`
nodes, edges                                            two DataFrames
{"nodes": …, "edges": …, "features": …, "classes": …}   what a folder holds: two tables, features.toml, classes.txt
G                                                       a NetworkX graph, its attributes as columns
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from atoll.data.columns import ColumnChoice, choice
from atoll.data.table_files import RESERVED, TableFile
from atoll.data.tables import GraphTables, role_columns
from atoll.data.target_columns import apart
from atoll.errors import AtollError, AtollWarning

PARTS = ("nodes", "edges", "features", "classes")
NO_EDGES = pd.DataFrame({"source": [], "target": []}, dtype=str)
MASKS = ("train_mask", "val_mask", "test_mask")


def is_frames(value: Any) -> bool:
    """Whether a value is a graph as DataFrames."""
    if isinstance(value, Mapping):
        return "edges" in value and isinstance(value["edges"], pd.DataFrame)
    if isinstance(value, Sequence) and len(value) == 2 and all(isinstance(one, pd.DataFrame) for one in value):
        return sum(_is_edge_list(one) for one in value) == 1
    return isinstance(value, pd.DataFrame)


def tables_of_frames(value: Any, where: Path, encode: str = "auto") -> GraphTables:
    """The tables of DataFrames; `where` is what error messages call them."""
    given: dict[str, Any] = {}
    if isinstance(value, pd.DataFrame):
        given = {"edges": value, "nodes": _nodes_of(value, where)}
    elif isinstance(value, Mapping):
        given = {str(name): part for name, part in value.items()}
    else:
        first, second = value
        given = {"nodes": second, "edges": first} if _is_edge_list(first) else {"nodes": first, "edges": second}
    if unknown := [name for name in given if name not in PARTS]:
        raise AtollError(f"{where} has a part {unknown[0]!r}; a graph is a dict of {', '.join(PARTS)}.")
    nodes, edges = given.get("nodes"), given["edges"]
    if not isinstance(nodes, pd.DataFrame):
        raise AtollError(f"{where} has no DataFrame `nodes`; give one with the columns id, label and the features.")
    said = None if encode == "never" else _said(nodes, given.get("features"), where)
    table = _with_ids(nodes).rename(columns=role_columns(said, where))
    classes = given.get("classes")
    return GraphTables(
        _table(table, where / "nodes", ("id",)),
        _table(edges.reset_index(drop=True), where / "edges", ("source", "target")),
        where,
        said,
        None if classes is None else tuple(map(str, classes)),
    )


def with_roles(value: Any, roles: Mapping[str, str]) -> Any:
    """The DataFrames with the columns of nodes that stand for id, label or split under these names."""

    def renamed(frame: Any) -> Any:
        if not isinstance(frame, pd.DataFrame) or _is_edge_list(frame):
            return frame
        return frame.rename(columns={name: role for name, role in roles.items() if role not in frame.columns})

    if isinstance(value, pd.DataFrame):
        return value if _is_edge_list(value) else {"nodes": renamed(value), "edges": NO_EDGES}
    if isinstance(value, Mapping):
        features = {name: each for name, each in (value.get("features") or {}).items() if name not in roles}
        return {name: renamed(part) for name, part in value.items()} | ({"features": features} if features else {})
    return [renamed(frame) for frame in value]


def _is_edge_list(frame: pd.DataFrame) -> bool:
    return {"source", "target"} <= set(map(str, frame.columns))


def _with_ids(nodes: pd.DataFrame) -> pd.DataFrame:
    """The nodes with a column `id`, by default the index."""
    nodes = nodes.copy(deep=False)
    nodes.columns = [str(name) for name in nodes.columns]
    if "id" not in nodes.columns:
        nodes.insert(0, "id", [str(each) for each in nodes.index])
    return nodes.reset_index(drop=True)


def _table(frame: pd.DataFrame, path: Path, needed: Sequence[str]) -> TableFile:
    frame = frame.copy(deep=False)
    frame.columns = [str(name) for name in frame.columns]
    for column in needed:
        if column not in frame.columns:
            listed = ", ".join(frame.columns[:8])
            raise AtollError(f"{path} has no column `{column}` (it has {listed}); add or rename it.")
    if frame.columns.has_duplicates:
        twice = frame.columns[frame.columns.duplicated()][0]
        raise AtollError(f"{path} has two columns named `{twice}`; name each once.")
    return apart(TableFile(frame, path))


def _said(nodes: pd.DataFrame, features: Any, where: Path) -> dict[str, ColumnChoice] | None:
    """What `features` says of columns, in the form of features.toml; a column of pandas' type category is one."""
    if features is not None and not isinstance(features, Mapping):
        raise AtollError(f'{where}: features must be a dict such as {{"age": {{"kind": "number"}}}}.')
    said = {str(name): choice(str(name), options, f"{where}: features[{name!r}]") for name, options in (features or {}).items()}
    for name in nodes.columns:
        if isinstance(nodes[name].dtype, pd.CategoricalDtype) and str(name) not in (*said, *RESERVED):
            said[str(name)] = choice(str(name), {"kind": "category"}, str(where))
    return said or None


def _nodes_of(edges: pd.DataFrame, where: Path) -> pd.DataFrame:
    """The nodes that an edge list names, with their degree as the only feature."""
    ends = _table(edges.reset_index(drop=True), where / "edges", ("source", "target"))
    texts = np.stack([ends.texts("source"), ends.texts("target")], 1).ravel()
    ids, degree = pd.factorize(texts)[1], np.bincount(pd.factorize(texts)[0])
    sentence = (
        f"{where / 'edges'} is a graph without a table of nodes: they have no labels, and their degree is the only feature; "
        "give two DataFrames, (nodes, edges), to train a model."
    )
    warnings.warn(sentence, AtollWarning, stacklevel=2)
    return pd.DataFrame({"id": ids, "degree": degree.astype(np.float64)})


def is_networkx(value: Any) -> bool:
    """Whether a value is a NetworkX graph; false where nobody has imported NetworkX."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(value, networkx.Graph)


def tables_of_networkx(graph: Any, where: Path, directed: bool = False) -> GraphTables:
    """The tables of a NetworkX graph: its nodes' names are ids, their attributes columns.

    The label is the attribute `label`, else `y`; a split is `split`, else the masks that PyG writes. A vector (`x`) becomes
    one column per entry. An edge without a weight has 1. Where directions are kept (`directed`), an undirected
    edge goes both ways.
    """
    if graph.number_of_nodes() == 0:
        raise AtollError(f"{where} has no nodes; give at least one.")
    nodes = pd.DataFrame.from_records([dict(data) for _, data in graph.nodes(data=True)])
    nodes.columns = [str(name) for name in nodes.columns]
    ids = [str(node) for node in graph.nodes]
    if "id" in nodes.columns and nodes.pop("id").astype(str).tolist() != ids:
        sentence = f"{where}: the node attribute `id` is not used: the names of the graph's nodes are their ids."
        warnings.warn(sentence, AtollWarning, stacklevel=2)
    if "label" not in nodes.columns and "y" in nodes.columns:
        nodes = nodes.rename(columns={"y": "label"})
    if "split" not in nodes.columns and set(MASKS) & set(nodes.columns):
        nodes = _with_split(nodes, where)
    nodes = _without_vectors(nodes, where)
    nodes.insert(0, "id", ids)
    records = [{"source": str(one), "target": str(other)} | _texts(data) for one, other, data in graph.edges(data=True)]
    edges = pd.DataFrame.from_records(records) if records else pd.DataFrame({"source": [], "target": []}, dtype=str)
    if "weight" in edges.columns:
        edges["weight"] = edges["weight"].where(edges["weight"].notna(), 1)
    if directed and not graph.is_directed():
        edges = pd.concat([edges, edges.rename(columns={"source": "target", "target": "source"})], ignore_index=True)
    return GraphTables(_table(nodes, where / "nodes", ("id",)), _table(edges, where / "edges", ("source", "target")), where)


def _texts(data: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in data.items() if str(name) not in ("source", "target")}


def _with_split(nodes: pd.DataFrame, where: Path) -> pd.DataFrame:
    """Masks as one column `split`."""
    masks = [nodes[name].fillna(False).astype(bool).to_numpy() if name in nodes.columns else None for name in MASKS]
    split = np.full(len(nodes), "", dtype=object)
    for mask, role in zip(masks, ("train", "val", "test"), strict=True):
        if mask is None:
            continue
        if (split[mask] != "").any():
            raise AtollError(f"{where}: a node is in two of train, val and test; put it in one.")
        split[mask] = role
    return nodes.drop(columns=[name for name in MASKS if name in nodes.columns]).assign(split=split)


def _without_vectors(nodes: pd.DataFrame, where: Path) -> pd.DataFrame:
    """A column of vectors becomes one column per entry."""
    for name in list(nodes.columns):
        values = nodes[name].tolist()
        if not any(isinstance(value, (list, tuple, np.ndarray)) for value in values):
            continue
        lengths = {len(value) if isinstance(value, (list, tuple, np.ndarray)) else -1 for value in values}
        if len(lengths) > 1:
            raise AtollError(
                f"{where}: the node attribute `{name}` is a list whose length differs between nodes; give all the same."
            )
        entries = pd.DataFrame(values, index=nodes.index).add_prefix(f"{name}_")
        nodes = pd.concat([nodes.drop(columns=name), entries], axis=1)
    return nodes
