"""The user's own graphs as tables (`nodes` and `edges`): from tables to a `Graph` and back."""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from atoll import storage
from atoll.data.builder import MAX_FEATURE, Ints, Masks, build_graph
from atoll.data.columns import FEATURES_FILE, ROLES, ColumnChoice, choose, read_features, typed_table
from atoll.data.lint import comparable, warn_about_edge_columns, warn_about_edges, warn_about_features
from atoll.data.table_edge_splits import edge_roles
from atoll.data.table_files import RESERVED, TableFile, read_table
from atoll.data.table_labels import labels_of, read_classes
from atoll.data.table_weights import weight_column, weights_of
from atoll.data.target_columns import CLASS, apart, read_targets, target_columns
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

MAX_NAMED = 12  # columns that one sentence names
SPLITS = {"train": 0, "val": 1, "valid": 1, "validation": 1, "test": 2}


class GraphTables(NamedTuple):
    """A graph as tables: what a folder holds, or what a script has instead."""

    nodes: TableFile
    edges: TableFile
    where: Path  # the folder, or what error messages call it
    said: Mapping[str, ColumnChoice] | None = None  # features.toml
    classes: tuple[str, ...] | None = None  # classes.txt


class ParsedTables(NamedTuple):
    """What tables hold: the graph, and what the columns are unless they are used as they are."""

    graph: Graph
    nodes: TableFile
    choices: list[ColumnChoice] | None


def read_tables(folder: Path, directed: bool, encode: str = "auto", edge_weights: bool = True, target: str = CLASS) -> Graph:
    """The whole graph (P = 1) of a folder's `nodes` and `edges` tables.

    Columns that are not all plain numbers, or that a features.toml describes, are not encoded yet: they are in the graph's
    `table`, and x is empty. `encode` is auto, always (also plain numbers) or never (then they are refused).
    """
    graph, nodes, choices = parse_tables(folder, directed, encode, edge_weights, target)
    if choices is not None:
        warn_inferred(nodes, choices)
    return graph


def parse_tables(
    folder: Path, directed: bool, encode: str = "auto", edge_weights: bool = True, target: str = CLASS
) -> ParsedTables:
    """As `read_tables`, without the sentences on what was inferred."""
    said = None if encode == "never" else read_features(folder)
    nodes, edges = read_nodes(folder, said), read_table(folder, "edges", ("source", "target"))
    return parse(GraphTables(nodes, edges, folder, said, read_classes(folder)), directed, encode, edge_weights, target)


def parse(
    tables: GraphTables, directed: bool, encode: str = "auto", edge_weights: bool = True, target: str = CLASS
) -> ParsedTables:
    """The graph of tables, wherever they come from."""
    nodes, edges, where, said, classes = tables
    if len(nodes.frame) == 0:
        raise AtollError(f"{nodes.path} has no nodes; give at least one row.")
    ids = node_ids(nodes)
    y, num_classes, names, targets = _targets_of(nodes, classes, where, target)
    table, choices, columns, unscaled, x = None, None, None, None, np.zeros((len(y), 1))
    if encode != "never" and (said is not None or encode == "always" or not is_plain(nodes)):
        choices = choose(nodes, said)
        table = replace(typed_table(nodes, choices), roles=tuple(_roles(said).items()))
    else:
        columns, x = features_of(nodes)
    ends, weight = edge_ends(edges, ids, nodes.path), weight_column(edges)
    weights = None if weight is None or not edge_weights else weights_of(edges, weight)
    graph = build_graph(
        x.astype(np.float32),
        ends,
        y,
        splits_of(nodes, y, target),
        where=str(where),
        directed=directed,
        num_classes=num_classes,
        class_names=names,
        ids=index_of(nodes),
        feature_names=columns,
        edge_weight=weights,
    )
    graph = replace(graph, node_names=np.asarray(ids, dtype=object), edge_split=edge_roles(edges, ends, graph), y_columns=targets)
    if table is not None:
        graph = replace(graph, x=torch.empty(len(y), 0), table=table)
        x, columns = comparable(table)
        unscaled = [index for index, column in enumerate(table.columns) if column.numeric and not column.standardize]
    warn_about_features(x, y if target == CLASS else np.full_like(y, -1), columns, str(nodes.path), unscaled)
    unused = [str(name) for name in edges.frame.columns if name not in ("source", "target", weight, "split")]
    warn_about_edge_columns(unused, str(edges.path))
    warn_about_edges(ends, str(edges.path), weighted=weights is not None)
    return ParsedTables(graph, nodes, choices)


def read_nodes(folder: Path, said: Mapping[str, ColumnChoice] | None) -> TableFile:
    """The table of nodes, with the columns that features.toml calls id, label and split under these names."""
    texts = [name for name, each in (said or {}).items() if each.kind in ("category", "boolean", "date", "text")]
    return apart(read_table(folder, "nodes", ("id",), texts, role_columns(said, folder)))


def _targets_of(
    nodes: TableFile, classes: tuple[str, ...] | None, where: Path, target: str
) -> tuple[Ints, int, tuple[str, ...] | None, torch.Tensor | None]:
    """What is predicted of each node: y, how many classes, labels or values there are, their names, and the latter two."""
    if target == CLASS:
        return *labels_of(nodes, classes, where), None
    y, names, targets = read_targets(nodes, target)
    return y, len(names), names, targets


def role_columns(said: Mapping[str, ColumnChoice] | None, where: Path) -> dict[str, str]:
    """The columns that features.toml calls id, label or split but that have other names: name → role."""
    renamed = _roles(said)
    for kind in ROLES:
        if len(twice := [name for name, role in renamed.items() if role == kind]) > 1:
            raise AtollError(f"{where / FEATURES_FILE} names two columns as {kind}, {twice[0]} and {twice[1]}; keep one.")
    return renamed


def _roles(said: Mapping[str, ColumnChoice] | None) -> dict[str, str]:
    """The columns that stand for id, label or split under another name."""
    return {name: each.kind for name, each in (said or {}).items() if each.kind in ROLES and name != each.kind}


def is_plain(nodes: TableFile) -> bool:
    """Whether every feature is a number at every node, which needs no encoding."""
    columns = [column for column in nodes.frame.columns if column not in RESERVED]
    numbers = nodes.frame[columns].apply(_numbers).to_numpy(np.float64) if columns else np.zeros((0, 0))
    return bool((np.abs(numbers) <= MAX_FEATURE).all())


def warn_inferred(nodes: TableFile, choices: Sequence[ColumnChoice], remedy: str = f"write a {FEATURES_FILE} beside it") -> None:
    """One sentence on what was inferred, one for each column that is ignored."""
    inferred = [each for each in choices if each.inferred]
    kinds = [f"{each.name} ({each.kind})" for each in inferred if each.column is not None]
    if kinds:
        listed = ", ".join(kinds[:MAX_NAMED]) + (f" and {len(kinds) - MAX_NAMED} more" if len(kinds) > MAX_NAMED else "")
        warnings.warn(
            f"{nodes.path}: the columns are encoded as inferred: {listed}; to choose, {remedy}.",
            AtollWarning,
            stacklevel=4,
        )
    for each in choices:
        if each.inferred and each.column is None:
            sentence = f"{nodes.path}: column `{each.name}` is ignored: {each.why}."
            warnings.warn(sentence, AtollWarning, stacklevel=4)


def write_tables(graph: Graph, folder: Path, form: str) -> None:
    """Write `nodes` and `edges` tables and `classes.txt`; a node's `index` is its number in the whole graph."""
    x = graph.x.numpy() if isinstance(graph.x, torch.Tensor) else graph.x.toarray()
    roles = np.select([graph.train.numpy(), graph.val.numpy(), graph.test.numpy()], ["train", "val", "test"], "")
    names = graph.class_names or tuple(str(label) for label in range(graph.num_classes))
    labels = np.array([*names, ""], dtype=object)[graph.y.numpy()]  # −1 selects the last, empty one
    ids = np.arange(graph.num_nodes) if graph.node_names is None else graph.node_names
    columns = {"id": ids, "index": graph.ids.numpy(), "label": labels, "split": roles.astype(object)}
    if graph.y_columns is not None:
        del columns["label"]
        columns |= target_columns(graph)
    features = graph.feature_names
    if features is None or {*features} & {*RESERVED}:
        features = tuple(f"x{column}" for column in range(x.shape[1]))
    nodes = pd.DataFrame(columns | {name: x[:, column] for column, name in enumerate(features)})
    source, target = ids[graph.edge_index.numpy()]
    weights = {} if graph.edge_weight is None else {"weight": graph.edge_weight.numpy()}
    edges = pd.DataFrame({"source": source, "target": target} | weights | _edge_splits(graph))
    for name, frame in (("nodes", nodes), ("edges", edges)):
        if form == "csv":
            frame.to_csv(folder / f"{name}.csv", index=False)
        else:
            frame.to_parquet(folder / f"{name}.parquet", index=False)
    if graph.y_columns is None:
        storage.write_whole(folder / "classes.txt", "".join(f"{name}\n" for name in names).encode())


def _edge_splits(graph: Graph) -> dict[str, NDArray[np.object_]]:
    """The column `split` of the edges of a graph whose data splits them."""
    if graph.edge_split is None:
        return {}
    return {"split": np.array(["train", "val", "test"], dtype=object)[graph.edge_split.long().numpy()]}


def node_ids(nodes: TableFile) -> pd.Index:
    """The nodes' ids as text, each once."""
    texts = nodes.texts("id")
    missing = np.flatnonzero(texts == "")
    if len(missing):
        raise AtollError(f"The node in {nodes.location(missing[0])} has no id; give it one.")
    index = pd.Index(texts)
    if index.has_duplicates:
        row = int(np.flatnonzero(index.duplicated())[0])
        first = int(np.flatnonzero(texts == texts[row])[0])
        raise AtollError(
            f"Node id '{texts[row]}' in {nodes.location(row)} was already used in {nodes.location(first)}; make ids unique."
        )
    return index


def features_of(nodes: TableFile) -> tuple[tuple[str, ...], NDArray[np.float64]]:
    """The columns' names and their values, which fit in float32."""
    columns = [column for column in nodes.frame.columns if column not in RESERVED]
    if not columns:
        raise AtollError(
            f"{nodes.path} has no feature column besides {', '.join(RESERVED)}; add at least one (for a start, the degree)."
        )
    numbers = nodes.frame[columns].apply(_numbers).to_numpy(np.float64)
    wrong = np.argwhere(~(np.abs(numbers) <= MAX_FEATURE))  # NaN, infinity, and numbers too large for float32
    if len(wrong):
        row, column = wrong[0]
        value = nodes.frame[columns[column]].iloc[row]
        problem = "is empty" if pd.api.types.is_scalar(value) and pd.isna(value) else f"is '{value}'"
        raise AtollError(
            f"Feature `{columns[column]}` in {nodes.location(row)} {problem}; give a finite number or leave the column out."
        )
    return tuple(str(column) for column in columns), numbers


def _numbers(column: pd.Series) -> pd.Series:
    if pd.api.types.is_bool_dtype(column.dtype) and not column.hasnans:
        return column.astype(np.float64)
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_timedelta64_dtype(column.dtype):
        return pd.Series(np.nan, column.index)  # a date is not a number
    return pd.to_numeric(column, errors="coerce").astype(np.float64)


def edge_ends(edges: TableFile, ids: pd.Index, nodes: Path) -> Ints:
    """(2, E) the rows of the nodes that edges name."""
    ends = []
    for column in ("source", "target"):
        texts = edges.texts(column)
        index = ids.get_indexer(pd.Index(texts))
        unknown = np.flatnonzero(index < 0)
        if len(unknown):
            row = int(unknown[0])
            raise AtollError(
                f"The {column} '{texts[row]}' in {edges.location(row)} is not a node of {nodes.name}; "
                "add the node or remove the edge."
            )
        ends.append(index.astype(np.int64))
    return np.stack(ends)


def splits_of(nodes: TableFile, y: Ints, target: str = CLASS) -> Masks | None:
    """The masks train, val and test; None where there is no column `split`. What has no known label or value has no role."""
    if "split" not in nodes.frame.columns:
        return None
    texts = np.array([text.lower() for text in nodes.texts("split")], dtype=object)
    roles = np.array([SPLITS.get(text, -1) for text in texts])
    unknown = np.flatnonzero((roles < 0) & (texts != ""))
    if len(unknown):
        raise AtollError(
            f"Split '{texts[unknown[0]]}' in {nodes.location(unknown[0])} is unknown; write train, val, test or leave it empty."
        )
    if target != CLASS:
        roles = np.where(y < 0, -1, roles)
    unlabeled = np.flatnonzero((roles >= 0) & (y < 0))
    if len(unlabeled):
        row = int(unlabeled[0])
        raise AtollError(
            f"The node in {nodes.location(row)} has split '{texts[row]}' but no label; give it a label or leave the split empty."
        )
    return roles == 0, roles == 1, roles == 2


def index_of(nodes: TableFile) -> Ints | None:
    """The nodes' numbers in the federation; None where there is no column `index`."""
    if "index" not in nodes.frame.columns:
        return None
    texts = nodes.texts("index")
    wrong = [row for row, text in enumerate(texts) if not re.fullmatch(r"\d{1,18}", text)]
    if wrong:
        raise AtollError(
            f"Index '{texts[wrong[0]]}' in {nodes.location(wrong[0])} is not the number of a node; "
            "count the federation's nodes from 0."
        )
    return texts.astype(np.int64)
