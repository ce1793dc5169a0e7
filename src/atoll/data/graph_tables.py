"""The user's own small graphs: tables `graphs`, `nodes` and `edges` in a folder, or a list of PyG's `Data`.

`graphs` has `id`, `label` (or columns `label:NAME` or `value:NAME`, see `target_columns`) and, optionally, `split`; `nodes` has
`id`, `graph` (the id of its graph) and numbers as features; `edges` has `source` and `target`, both of one graph.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.data.builder import Ints, check_features, plain, row_normalize
from atoll.data.new_targets import known_targets
from atoll.data.target_columns import CLASS, apart, checked_targets, kind_of_targets, with_targets
from atoll.data.tu import small_graphs
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

FILES = ("graphs.csv", "graphs.parquet")


def has_graphs(folder: Path) -> bool:
    """Whether a folder, or the first of the folders in it, holds many small graphs."""
    if not folder.is_dir():
        return False
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    return any((place / name).is_file() for place in (folder, *inner[:1]) for name in FILES)


def read_graph_tables(folder: Path, settings: Any, *, labeled: bool = True, classes: Sequence[str] | None = None) -> Graph:
    """All graphs of a folder as those of one party; unless `labeled`, labels are optional, and `classes` are the model's."""
    from atoll.data.table_files import RESERVED, TableFile, read_table
    from atoll.data.table_labels import labels_of, read_classes
    from atoll.data.tables import features_of, node_ids, splits_of
    from atoll.data.target_columns import read_targets

    target = getattr(settings, "target", CLASS)
    graphs, nodes = apart(read_table(folder, "graphs", ("id",))), read_table(folder, "nodes", ("id", "graph"), ("graph",))
    edges = read_table(folder, "edges", ("source", "target"))
    if not len(graphs.frame):
        raise AtollError(f"{graphs.path} has no graphs; give at least one row.")
    names, ids = _graph_ids(graphs), node_ids(nodes)
    targets: Tensor | None = None
    if target == CLASS:
        y, count, class_names = labels_of(graphs, tuple(classes) if classes else read_classes(folder), folder)
    elif labeled:
        y, class_names, targets = read_targets(graphs, target)
        count = len(class_names)
    else:
        count, class_names = len(classes or ()), tuple(classes or ())
        y, targets = known_targets(graphs, target, classes, count)
    member = _members(nodes, names, graphs.path)
    order = np.argsort(member, kind="stable")
    columns = nodes.frame[[name for name in nodes.frame.columns if name in RESERVED or name != "graph"]]
    feature_names, x = features_of(TableFile(columns.iloc[order], nodes.path, nodes.separator))
    position = np.empty(len(order), np.int64)
    position[order] = np.arange(len(order))
    ends = _edges(edges, ids, member, nodes.path)
    made = small_graphs(
        x.astype(np.float32),
        position[ends],
        np.bincount(member, minlength=len(names)),
        y,
        count,
        class_names,
        splits_of(graphs, y, target),
        where=str(folder),
        directed=settings.directed,
    )
    texts = np.asarray(ids, dtype=object)[order]
    made = replace(
        made, feature_names=feature_names, node_names=texts, graph_names=np.asarray(names, dtype=object), y_columns=targets
    )
    return row_normalize(made) if getattr(settings, "normalize_features", False) else made


def _graph_ids(graphs: Any) -> list[str]:
    from atoll.data.tables import node_ids

    try:
        return [str(name) for name in node_ids(graphs)]
    except AtollError as error:
        raise AtollError(str(error).replace("The node in", "The graph in").replace("Node id", "Graph id")) from error


def _members(nodes: Any, names: Sequence[str], graphs: Path) -> Ints:
    """(N,) the row of each node's graph."""
    import pandas as pd

    texts = nodes.texts("graph")
    member: Ints = pd.Index(names).get_indexer(pd.Index(texts)).astype(np.int64)
    unknown = np.flatnonzero(member < 0)
    if len(unknown):
        row = int(unknown[0])
        raise AtollError(f"The graph '{texts[row]}' in {nodes.location(row)} is not a graph of {graphs.name}; add it there.")
    empty = np.flatnonzero(np.bincount(member, minlength=len(names)) == 0)
    if len(empty):
        raise AtollError(f"The graph '{names[int(empty[0])]}' of {graphs} has no nodes; give it one, or leave it out.")
    return member


def _edges(edges: Any, ids: Any, member: Ints, nodes: Path) -> Ints:
    """(2, E) rows of nodes; both ends are of one graph."""
    from atoll.data.tables import edge_ends

    ends = edge_ends(edges, ids, nodes)
    crossing = np.flatnonzero(member[ends[0]] != member[ends[1]])
    if len(crossing):
        raise AtollError(f"The edge in {edges.location(int(crossing[0]))} joins nodes of two graphs; remove it.")
    return ends


def graphs_of_pyg(
    several: Sequence[Any], target: str, where: str = "The dataset", *, labeled: bool = True, count: int = 0
) -> Graph:
    """PyG's `Data`, each a small graph with a `y` of its own: a class, or a row of labels or values.

    Unless `labeled`, a `Data` may have no `y`; `count` is then the number of classes, labels or values that a model knows.
    """
    if not len(several):
        raise AtollError(f"{where} is empty; give at least one graph.")
    xs: list[Any] = []
    edges: list[Any] = []
    sizes: list[int] = []
    for number, data in enumerate(several):
        here = f"{where}: graph {number}"
        if getattr(data, "x", None) is None or getattr(data, "edge_index", None) is None:
            raise AtollError(f"{here} has no `{'x' if getattr(data, 'x', None) is None else 'edge_index'}`; set it.")
        x = plain(data.x, here)
        if not x.shape[0]:
            raise AtollError(f"{here} has no nodes; leave it out.")
        check_features(x, x.shape[0], here)
        if x.shape[1] != (width := xs[0].shape[1] if xs else x.shape[1]):
            raise AtollError(f"{here} has {x.shape[1]} features and graph 0 has {width}; give all graphs the same.")
        given = torch.as_tensor(data.edge_index).cpu().numpy()
        ends = given.astype(np.int64)
        whole = ends.ndim == 2 and len(ends) == 2 and bool((ends == given).all())
        if not whole or (ends.size and not 0 <= ends.min() <= ends.max() < x.shape[0]):
            raise AtollError(f"{here} has an edge_index that is not two rows of its {x.shape[0]} nodes; correct it.")
        xs.append(np.asarray(x.toarray() if hasattr(x, "toarray") else x, np.float32))
        edges.append(ends + sum(sizes))
        sizes.append(int(x.shape[0]))
    rows = _rows_of_y(several, where, labeled=labeled)
    known = rows if rows is not None else np.full((len(sizes), 1 if target == CLASS else max(count, 1)), np.nan)
    arrays = np.concatenate(xs), np.concatenate(edges, 1), np.array(sizes, np.int64)
    if target != CLASS:
        made = small_graphs(*arrays, np.zeros(len(sizes), np.int64), known.shape[1], where=where)
        return with_targets(made, checked_targets(known, len(sizes), target, where))
    y = np.where(np.isnan(known[:, 0]), -1, known[:, 0])
    if known.shape[1] != 1 or (y != np.round(y)).any() or (y < -1).any():
        raise AtollError(f"{where}: `y` holds numbers that are not classes; say target=labels or target=values, or give classes.")
    return small_graphs(*arrays, y.astype(np.int64), max(int(y.max()) + 1, count), where=where)


def _rows_of_y(several: Sequence[Any], where: str, *, labeled: bool) -> np.ndarray | None:
    """(G, T) what the graphs' `y` say; None where they say nothing and need not."""
    values = [getattr(data, "y", None) for data in several]
    if not labeled and any(value is None for value in values):
        return None
    if None in [None if value is None else 0 for value in values]:
        number = next(index for index, value in enumerate(values) if value is None)
        raise AtollError(f"{where}: graph {number} has no `y`; set data.y, NaN where it is not known.")
    rows = [torch.as_tensor(value).double().reshape(-1).cpu().numpy() for value in values]
    if len({len(row) for row in rows}) > 1 or not len(rows[0]):
        raise AtollError(f"{where}: `y` has {len(rows[0])} entries at graph 0 and others elsewhere; give every graph as many.")
    stacked: np.ndarray = np.stack(rows)
    return stacked


def are_graphs(dataset: Any) -> bool:
    """Whether these are PyG's `Data` with one `y` for a whole graph each; a list of them, not one."""
    pyg = sys.modules.get("torch_geometric.data")
    if not isinstance(dataset, (list, tuple)) and (pyg is None or not isinstance(dataset, pyg.Dataset)):
        return False
    several = [dataset[index] for index in range(len(dataset))] if len(dataset) else []
    if not several or not all(hasattr(each, "edge_index") and hasattr(each, "num_nodes") for each in several):
        return False
    told = [each for each in several if getattr(each, "y", None) is not None]  # one without is refused where it is read
    for number, each in enumerate(several):
        _require_numbers(getattr(each, "y", None), number)
    return all(_of_one_graph(each) for each in told) and any(each.num_nodes > 1 for each in told)


def _require_numbers(y: Any, number: int) -> None:
    """Refuse a `y` that no tensor can hold."""
    try:
        torch.as_tensor(0 if y is None else y)
    except (TypeError, ValueError, RuntimeError) as error:
        raise AtollError(
            f"The dataset: `y` of graph {number} is a {type(y).__name__} that is not numbers; give a tensor."
        ) from error


def _of_one_graph(data: Any) -> bool:
    """Whether y is of the graph, not of its nodes: a number, or one row."""
    y = getattr(data, "y", None)
    if y is None or isinstance(data, Graph):
        return False
    shape = tuple(torch.as_tensor(y).shape)
    return shape == () or shape[0] == 1


def target_of_graphs(several: Sequence[Any]) -> str:
    """What a list of graphs is for: classes where every y is one whole number of a whole type, else labels or values."""
    known = (several[index].y for index in range(len(several)))
    values = [torch.as_tensor(value) for value in known if value is not None]
    if all(value.numel() == 1 and not value.is_floating_point() for value in values):
        return CLASS
    return kind_of_targets(np.concatenate([value.double().reshape(-1).numpy() for value in values]))
