"""Nodes that arrive after training, in the form that a model was trained with: its columns, its encoding, its classes.

Columns are matched by name, in any order. Nothing is fitted: the model's own encoding is applied. Labels are optional, and so are
edges. An edge may name nodes of the training data: then all of the graph that they are in is the new nodes' context.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch

from atoll.data.archives import read_archive
from atoll.data.builder import Ints, build_graph, check, row_normalize
from atoll.data.encoding import Encoding
from atoll.data.files import archive_of
from atoll.data.graph_objects import kind_of
from atoll.data.new_edges import Context, ends_of, joined
from atoll.data.new_targets import known_targets, with_model_targets
from atoll.data.pyg import from_pyg
from atoll.data.target_columns import CLASS
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph

if TYPE_CHECKING:
    from atoll.data.table_files import TableFile


ACCEPTED = "a folder, an .npz, a torch_geometric Data, a NetworkX graph, DataFrames (nodes, edges) or an atoll Graph"


@dataclass(frozen=True)
class InputForm:
    """What a model expects of its input."""

    features: int
    num_classes: int
    columns: tuple[str, ...] | None = None  # their names, after encoding
    class_names: tuple[str, ...] | None = None
    encoding: Encoding | None = None
    directed: bool = False
    normalize: bool = False  # each row divided by its sum
    edge_weights: bool = False  # whether edges had weights in training
    target: str = CLASS  # what of the new nodes may be known: their class, labels or values
    links: bool = False  # whether items are pairs: labels are not read, a split of the edges is
    at_sites: bool = False  # whether only the sites know the columns and their encoding


@dataclass(frozen=True, eq=False)
class NewNodes:
    """New nodes and what they are connected to."""

    graph: Graph  # P = 1: the new nodes first, then the known ones
    count: int  # of the new ones


class NewTables(NamedTuple):
    """New nodes as tables: a folder's, or what a script has instead."""

    nodes: TableFile
    edges: TableFile | None
    where: Path  # the folder, or what error messages call it
    said: Mapping[str, Any]  # what is known of columns: by the model, and by a features.toml


def read_new(data: Any, form: InputForm, context: Context | None = None) -> NewNodes:
    """New nodes from a path or an object (`ACCEPTED`); `context` finds the known nodes that edges name."""
    if (kind := kind_of(data)) in ("frames", "networkx"):
        return _read_tables(_tables_of(data, kind, form), form, context)
    if kind != "path":
        graph = fitted(_of_object(data, form), form, "The graph")
        return NewNodes(graph, graph.num_nodes)
    path = Path(data).expanduser()
    if not path.exists():
        raise AtollError(f"There is no folder or file {path}; check the path.")
    archive = archive_of(path)
    if archive is None:
        return _read_tables(_tables_in(path, form), form, context)
    if archive.suffix in (".csv", ".parquet", ".txt"):
        raise AtollError(f"{path} is a single table; give the folder that holds the tables `nodes` and `edges`.")
    graph = read_archive(archive, form.directed, edge_weights=form.edge_weights, labeled=False, target=form.target)
    graph = fitted(graph, form, str(archive))
    return NewNodes(graph, graph.num_nodes)


def party_sources(data: Any) -> dict[str, Any] | None:
    """One source per party, by name: a mapping, or a folder that holds folders; None where it is a single graph."""
    if kind_of(data) == "frames":
        return None
    if isinstance(data, Mapping):
        return {str(name): each for name, each in data.items()}
    if not isinstance(data, str | Path) or not (path := Path(data).expanduser()).is_dir() or _is_graph(path):
        return None
    folders = {each.name: each for each in sorted(path.iterdir()) if each.is_dir() and _is_graph(each)}
    return folders or None


def _is_graph(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ("nodes.csv", "nodes.parquet", "graph.npz", "edge_index.npy"))


def _of_object(data: Any, form: InputForm) -> Graph:
    if isinstance(data, Graph):
        check(data, "The graph")
        if data.parties != 1:
            raise AtollError(f"The graph has {data.parties} parties; give the graph of one, or a dict with one per party.")
        return data
    if not all(hasattr(data, name) for name in ("x", "edge_index")):
        raise AtollError(f"data is a {type(data).__name__}; give {ACCEPTED}.")
    if getattr(data, "y", None) is None and data.x is not None:
        data = copy.copy(data)
        unknown = torch.full((len(data.x), form.num_classes), torch.nan)
        data.y = torch.full((len(data.x),), -1) if form.target == CLASS else unknown
    return from_pyg(data, directed=form.directed, target=form.target)


def fitted(graph: Graph, form: InputForm, where: str) -> Graph:
    """The graph with the model's columns and classes, encoded and scaled as in training."""
    if form.encoding is not None:
        if graph.table is None:
            raise AtollError(f"{where} has plain numbers, but the model was trained on a table that was encoded; give a table.")
        graph = form.encoding.encode(graph)
    elif form.columns is None and graph.feature_names is not None:
        sentence = f"{where}: the model does not know the names of its columns; they are taken in the order of the file."
        warnings.warn(sentence, AtollWarning, stacklevel=4)
    elif form.columns is not None and graph.feature_names is not None:
        _require_columns(graph.feature_names, form.columns, where)
        graph = _with_columns(graph, form.columns)
    if graph.num_features != form.features:
        width = f"{graph.num_features} column{'' if graph.num_features == 1 else 's'}"
        raise AtollError(f"{where} has {width}, but the model was trained with {form.features}; give it the same ones.")
    graph = _with_model_classes(graph, form, where)
    graph = graph if form.edge_weights else replace(graph, edge_weight=None)
    return row_normalize(graph) if form.normalize else graph


def _with_columns(graph: Graph, columns: tuple[str, ...]) -> Graph:
    """The graph with some of its columns, by name."""
    if graph.feature_names == columns:
        return graph
    number_of = {name: number for number, name in enumerate(graph.feature_names or ())}
    index = [number_of[name] for name in columns]
    x = graph.x[:, index] if isinstance(graph.x, torch.Tensor) else sp.csr_array(graph.x[:, index])
    return replace(graph, x=x, feature_names=columns)


def _with_model_classes(graph: Graph, form: InputForm, where: str) -> Graph:
    """The graph with the model's classes; those that its data names are matched by name."""
    if form.links:
        return replace(graph, y=torch.full_like(graph.ids, -1), num_classes=form.num_classes, class_names=form.class_names)
    if form.target != CLASS:
        return with_model_targets(graph, form.class_names, form.num_classes, where)
    if graph.class_names is not None and form.class_names is not None:
        number = {name: index for index, name in enumerate(form.class_names)}
        if unknown := [name for name in graph.class_names if name not in number]:
            raise AtollError(f"{where} has the class {unknown[0]!r}, which the model does not know; correct its labels.")
        renumbered = torch.tensor([number[name] for name in graph.class_names])
        graph = replace(graph, y=torch.where(graph.y >= 0, renumbered[graph.y.clamp(min=0)], graph.y))
    elif int(graph.y.max()) >= form.num_classes:
        raise AtollError(
            f"{where} has the label {int(graph.y.max())}, but the model knows the classes 0 to {form.num_classes - 1}."
        )
    return replace(graph, num_classes=form.num_classes, class_names=form.class_names)


def _require_columns(present: Sequence[str], wanted: Sequence[str], where: str, ignored: Sequence[str] = ()) -> None:
    """Refuse a missing column; say which further ones are not used."""
    if missing := [name for name in wanted if name not in set(present)]:
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        raise AtollError(f"{where} has no column `{missing[0]}`{more}, which the model was trained with; add it.")
    if extra := [name for name in present if name not in {*wanted, *ignored}]:
        listed = ", ".join(f"`{name}`" for name in extra[:5]) + (f" and {len(extra) - 5} more" if len(extra) > 5 else "")
        sentence = f"{where}: the model was not trained with {listed}, which is not used."
        warnings.warn(sentence, AtollWarning, stacklevel=4)


def _tables_in(folder: Path, form: InputForm) -> NewTables:
    """The tables of a folder; those that training had a features.toml for need none."""
    from atoll.data.columns import read_features
    from atoll.data.table_files import read_table
    from atoll.data.tables import read_nodes

    said = _choices(form.encoding) | (read_features(folder) or {})
    nodes = read_nodes(folder, said or None)
    has_edges = any((folder / f"edges.{suffix}").is_file() for suffix in ("csv", "parquet"))
    return NewTables(nodes, read_table(folder, "edges", ("source", "target")) if has_edges else None, folder, said)


def _tables_of(data: Any, kind: str, form: InputForm) -> NewTables:
    """The tables of DataFrames or of a NetworkX graph."""
    from atoll.data import frames

    choices = _choices(form.encoding)
    if kind == "networkx":
        tables = frames.tables_of_networkx(data, Path("NetworkX"), form.directed)
        return NewTables(tables.nodes, tables.edges, tables.where, choices)
    roles = {} if form.encoding is None else dict(form.encoding.roles)
    tables = frames.tables_of_frames(frames.with_roles(data, roles), Path("DataFrames"))
    given = data.get("features") or {} if isinstance(data, Mapping) else {}
    chosen = {name: each for name, each in (tables.said or {}).items() if name in given}
    return NewTables(tables.nodes, tables.edges, tables.where, choices | chosen)


def _read_tables(tables: NewTables, form: InputForm, context: Context | None) -> NewNodes:
    """The new nodes of tables, and their context."""
    from atoll.data.columns import typed_table
    from atoll.data.table_edge_splits import edge_roles
    from atoll.data.table_files import RESERVED, TableFile
    from atoll.data.table_weights import weight_column, weights_of
    from atoll.data.tables import features_of, index_of, is_plain, node_ids, splits_of

    nodes, edges, where, said = tables
    if len(nodes.frame) == 0:
        raise AtollError(f"{nodes.path} has no nodes; give at least one row.")
    ids = node_ids(nodes)
    if form.links:
        y, targets = np.full(len(ids), -1, np.int64), None
    elif form.target == CLASS:
        y, targets = _labels(nodes, form), None
    else:
        y, targets = known_targets(nodes, form.target, form.class_names, form.num_classes)
    present = [str(name) for name in nodes.frame.columns if name not in RESERVED]
    table, x, columns = None, np.zeros((len(y), 1)), form.columns
    if form.encoding is not None:
        wanted = [each.column.name for each in form.encoding.columns]
        _require_columns(present, wanted, str(nodes.path), form.encoding.ignored)
        table, columns = typed_table(nodes, [said[name] for name in wanted]), None
        for sentence in form.encoding.unknown_values(table):
            warnings.warn(f"{nodes.path}: {sentence}", AtollWarning, stacklevel=3)
    else:
        columns = tuple(present) if form.columns is None else form.columns
        _require_columns(present, columns, str(nodes.path))
        if form.at_sites and (len(columns) != form.features or not is_plain(nodes)):
            raise AtollError(
                f"{nodes.path} has other columns than the {form.features} numbers that the model takes: the server's folder does "
                "not hold how the sites encode theirs; predict at a site: atoll predict KIT --data FOLDER."
            )
        kept = [*(name for name in nodes.frame.columns if name in RESERVED), *columns]
        x = features_of(TableFile(nodes.frame[kept], nodes.path, nodes.separator))[1]
    ends, known, weights = np.empty((2, 0), np.int64), dict[str, str](), None
    if edges is None:
        warnings.warn(f"{where} has no table `edges`: its nodes are predicted by themselves.", AtollWarning, stacklevel=3)
    else:
        ends, known = ends_of(edges, ids, nodes.path, context)
        if form.edge_weights and (weight := weight_column(edges)) is not None:
            weights = weights_of(edges, weight)
    inner = (ends < len(ids)).all(0)
    graph = build_graph(
        x.astype(np.float32),
        ends[:, inner],
        y,
        None if form.links else splits_of(nodes, y, form.target),
        where=str(where),
        directed=form.directed,
        num_classes=form.num_classes,
        class_names=form.class_names,
        ids=index_of(nodes),
        feature_names=columns,
        edge_weight=None if weights is None else weights[inner],
    )
    graph = replace(graph, node_names=np.asarray(ids, dtype=object), y_columns=targets)
    if form.links and edges is not None:
        graph = replace(graph, edge_split=edge_roles(edges, ends, graph))
    if table is not None:
        graph = replace(graph, x=torch.empty(len(y), 0), table=table)
    graph = fitted(graph, form, str(nodes.path))
    if known and context is not None:
        between = None if weights is None else weights[~inner]
        graph = joined(graph, context(known), ends[:, ~inner], tuple(known), form.directed, form.edge_weights, between)
    return NewNodes(graph, len(ids))


def _choices(encoding: Encoding | None) -> dict[str, Any]:
    """What the model's columns are, as if a features.toml said so."""
    from atoll.data.columns import ColumnChoice

    if encoding is None:
        return {}
    choices = {name: ColumnChoice(name, role) for name, role in encoding.roles}
    for each in encoding.columns:
        column = each.column
        choices[column.name] = ColumnChoice(
            column.name, column.kind, column=column, missing=column.missing_texts, format=column.date_format
        )
    return choices


def _labels(nodes: Any, form: InputForm) -> Ints:
    """The labels as the model's classes, −1 where there is none."""
    texts = nodes.texts("label") if "label" in nodes.frame.columns else np.full(len(nodes.frame), "", object)
    names = form.class_names
    if names is None:
        names = tuple(map(str, range(form.num_classes)))
        texts = np.array([text.split(".")[0] if re.fullmatch(r"\d+\.0*", text) else text for text in texts], object)
    number = {name: index for index, name in enumerate(names)}
    y = np.array([number.get(text, -1) for text in texts], np.int64)
    wrong = np.flatnonzero((y < 0) & (texts != ""))
    if len(wrong):
        raise AtollError(
            f"Label '{texts[wrong[0]]}' in {nodes.location(int(wrong[0]))} is not a class of the model, which knows "
            f"{', '.join(names[:5])}{', …' if len(names) > 5 else ''}; correct it or leave it empty."
        )
    return y
