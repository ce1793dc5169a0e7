"""The user's own graphs: a folder of two tables, or one `.npz`.

Tables, `.parquet` or `.csv`: `nodes` has `id`, one column per feature and, optionally, `label` (empty: unlabeled), `split`
(train, val, test or empty) and `index` (the node's number in the federation, where parties share nodes); `edges` has `source`,
`target` and, optionally, `weight`. `classes.txt`, one class per line, fixes the classes and their order: parties that share a
model must agree on it. Without it the classes are 0, 1, 2, … or the sorted names.

An `.npz` (or `graph.npz` in a folder, or a folder with one `.npy` per array: the shard of a party) has `x` or the CSR parts
`x_data x_indices x_indptr x_shape`, `edge_index`, `y` and, optionally, `edge_weight`, `train val test` masks ((N, k) for several
splits), `ids`, `class_names`, `num_classes`, `feature_names`, the columns' names, and `node_names`, the nodes' ids as text.

Several labels or values per node are columns `label:NAME` and `value:NAME`, in an `.npz` an array `targets` (`target_columns`).
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import storage
from atoll.data.builder import (
    MAX_CLASSES,
    Ints,
    Masks,
    build_graph,
    check_fold,
    masks_of_fold,
    plain,
)
from atoll.data.lint import warn_about_edge_columns, warn_about_edges, warn_about_features
from atoll.data.npz import Arrays, read_folder, read_npz
from atoll.data.target_columns import CLASS, checked_targets, known_rows
from atoll.errors import AtollError
from atoll.graphs.graph import Graph


def read(
    path: Path,
    *,
    directed: bool = False,
    encode: str = "auto",
    fold: int = 0,
    edge_weights: bool = True,
    target: str = CLASS,
) -> Graph:
    """The whole graph (P = 1) of a folder or an `.npz`; `fold` selects one of several splits.

    Columns of tables that need an encoding are in its `table`, not in x (see `tables.read_tables`).
    """
    path = path.expanduser()
    if path.is_dir():
        if (archive := archive_of(path)) is not None:
            return read_archive(archive, directed, fold, edge_weights, target=target)
        check_fold(fold, 1, str(path))
        from atoll.data.tables import read_tables  # pandas takes a while to import

        return read_tables(path, directed, encode, edge_weights, target)
    if not path.exists():
        raise AtollError(f"There is no folder or file {path}; check the path.")
    if path.suffix in (".csv", ".parquet", ".txt"):
        raise AtollError(f"{path} is a single table; give the folder that holds the tables `nodes` and `edges`.")
    return read_archive(path, directed, fold, edge_weights, target=target)


def archive_of(path: Path) -> Path | None:
    """What holds a graph as plain arrays: the .npz, that of a folder, or a folder of .npy; None for a folder of tables."""
    if not path.is_dir():
        return path
    if (path / "graph.npz").is_file():
        return path / "graph.npz"
    return path if (path / "edge_index.npy").is_file() else None


def has_ids(archive: Path) -> bool:
    """Whether the arrays of `archive_of` number the nodes."""
    if archive.is_dir():
        return (archive / "ids.npy").is_file()
    with np.load(archive) as arrays:
        return "ids" in arrays.files


def save(graph: Graph, folder: Path, form: str = "npz") -> None:
    """Write one party's graph as a folder that `read` takes: `npz` (exact and compact), `parquet` or `csv` (readable tables)."""
    if graph.parties != 1:
        raise AtollError(f"A folder holds one party, not {graph.parties}; save graph.select([p]) for each party p.")
    folder.mkdir(parents=True, exist_ok=True)
    if form == "npz":
        write_npz(folder / "graph.npz", arrays(graph))
    elif form in ("parquet", "csv"):
        from atoll.data.tables import write_tables

        write_tables(graph, folder, form)
    else:
        raise AtollError(f"A graph cannot be saved as {form!r}; choose npz, parquet or csv.")


def arrays(graph: Graph) -> Arrays:
    """The graph as plain arrays, for an .npz without pickles."""
    index_type = np.int32 if graph.num_nodes < 2**31 else np.int64
    result: Arrays = {
        "edge_index": graph.edge_index.numpy().astype(index_type),
        "y": graph.y.numpy(),
        "train": graph.train.numpy(),
        "val": graph.val.numpy(),
        "test": graph.test.numpy(),
        "ids": graph.ids.numpy(),
        "num_classes": np.array(graph.num_classes),
    }
    if isinstance(graph.x, torch.Tensor):
        result["x"] = graph.x.numpy()
    else:
        result |= {
            "x_data": graph.x.data,
            "x_indices": graph.x.indices,
            "x_indptr": graph.x.indptr,
            "x_shape": np.array(graph.x.shape),
        }
    if graph.class_names is not None:
        result["class_names"] = np.array(graph.class_names, dtype=str)
    if graph.feature_names is not None:
        result["feature_names"] = np.array(graph.feature_names, dtype=str)
    if graph.node_names is not None:
        result["node_names"] = np.array(graph.node_names, dtype=str)
    if graph.edge_weight is not None:
        result["edge_weight"] = graph.edge_weight.numpy()
    if graph.y_columns is not None:
        result["targets"] = graph.y_columns.numpy()
    return result


def graph_of(stored: Arrays) -> Graph:
    """The graph of `arrays`, without the checks and the tidying that a user's arrays need."""
    nodes = len(stored["y"])
    x: Any
    if "x" in stored:
        x = torch.from_numpy(stored["x"])
    else:
        x = sp.csr_array((stored["x_data"], stored["x_indices"], stored["x_indptr"]), shape=tuple(stored["x_shape"]))
        x.has_sorted_indices = True
    return Graph(
        x=x,
        edge_index=torch.from_numpy(stored["edge_index"].astype(np.int64)),
        y=torch.from_numpy(stored["y"]),
        train=torch.from_numpy(stored["train"]),
        val=torch.from_numpy(stored["val"]),
        test=torch.from_numpy(stored["test"]),
        num_classes=int(stored["num_classes"]),
        ids=torch.from_numpy(stored["ids"]),
        ptr=torch.tensor([0, nodes]),
        class_names=tuple(str(name) for name in stored["class_names"]) if "class_names" in stored else None,
        feature_names=tuple(str(name) for name in stored["feature_names"]) if "feature_names" in stored else None,
        node_names=stored["node_names"].astype(object) if "node_names" in stored else None,
        edge_weight=torch.from_numpy(stored["edge_weight"]) if "edge_weight" in stored else None,
        y_columns=torch.from_numpy(stored["targets"]) if "targets" in stored else None,
    )


def write_npz(path: Path, content: Arrays) -> None:
    """An .npz that appears whole or not at all."""
    with storage.replacing(path) as file:
        np.savez(file, allow_pickle=False, **content)


def read_archive(
    path: Path, directed: bool, fold: int = 0, edge_weights: bool = True, *, labeled: bool = True, target: str = CLASS
) -> Graph:
    """The whole graph of an `.npz`; unless `labeled`, it may have no `y`, and nothing is said about labels and features."""
    archive = _open_npz(path)
    targets = None if not labeled and "targets" not in archive else _targets(archive, path, target)
    if not labeled and "y" not in archive:
        archive["y"] = np.full(len(archive["x"]) if "x" in archive else len(archive.get("x_indptr", [0])) - 1, -1)
    for key, content in (
        ("edge_index", "the edges as two rows, sources and targets"),
        ("y", "one class per node, -1 where unlabeled"),
    ):
        if key not in archive:
            raise AtollError(f"{path} has no array `{key}`; add {content}.")
    parts = ("x_data", "x_indices", "x_indptr", "x_shape")
    if "x" not in archive and not all(part in archive for part in parts):
        raise AtollError(f"{path} has no features; add `x`, or its CSR parts {', '.join(parts)}.")
    x: Any = archive.get("x")
    if x is None:
        try:
            if not all(np.issubdtype(archive[part].dtype, np.integer) for part in parts[1:]):
                raise ValueError(f"{', '.join(parts[1:])} must be whole numbers")
            x = sp.csr_array(
                (archive["x_data"], archive["x_indices"], archive["x_indptr"]), shape=tuple(int(n) for n in archive["x_shape"])
            )
            x.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise AtollError(
                f"The CSR parts of x in {path} do not fit together ({error}); write them from one scipy CSR matrix."
            ) from error
    num_classes, names = _class_names(archive, path)
    y = _whole_numbers(archive["y"], path)
    weights = archive.get("edge_weight", archive.get("edge_weights")) if edge_weights else None
    graph = build_graph(
        x,
        archive["edge_index"],
        y,
        _masks(archive, y.size, fold, path),
        where=str(path),
        directed=directed,
        num_classes=num_classes,
        class_names=names,
        ids=_ids(archive, y, path),
        feature_names=_feature_names(archive, path),
        edge_weight=weights,
    )
    graph = replace(graph, node_names=_node_names(archive, y, path), y_columns=targets)
    if labeled:
        warn_about_features(plain(x, str(path)), y, graph.feature_names, str(path))
    warn_about_edge_columns([name for name in EDGE_ARRAYS if name in archive], str(path), "array")
    warn_about_edges(archive["edge_index"], str(path), weighted=weights is not None)
    return graph


def _targets(archive: Arrays, path: Path, target: str) -> Tensor | None:
    """The labels or values that the target asks for; `y` and the number of classes follow from them."""
    if target == CLASS:
        return None
    if "targets" not in archive:
        raise AtollError(f"{path} has no array `targets`, which target={target} needs; add one row of {target} per node.")
    if archive["targets"].dtype.kind not in "biuf":
        raise AtollError(f"`targets` in {path} is {archive['targets'].dtype}; give numbers, NaN where one is not known.")
    values = archive["targets"].astype(np.float64)
    targets = checked_targets(values, len(values), target, str(path))
    archive["y"], archive["num_classes"] = known_rows(targets.numpy()), np.array(targets.shape[1])
    return targets


def _class_names(archive: Arrays, path: Path) -> tuple[int | None, tuple[str, ...] | None]:
    """The number of classes and their names, as far as an .npz gives them."""
    count = archive.get("num_classes")
    if count is not None and (count.size != 1 or not np.issubdtype(count.dtype, np.integer)):
        raise AtollError(f"`num_classes` in {path} has shape {count.shape} and type {count.dtype}; give one whole number.")
    num_classes = None if count is None else int(count.item())
    listed = archive.get("class_names")
    if listed is None:
        return num_classes, None
    names = tuple(str(name) for name in listed.ravel())
    if listed.ndim != 1 or len(set(names)) < len(names):
        raise AtollError(f"`class_names` in {path} must be a list that names each class once.")
    if num_classes is not None and num_classes != len(names):
        raise AtollError(f"{path} names {len(names)} classes but says num_classes={num_classes}; make them agree.")
    return len(names), names


EDGE_ARRAYS = ("edge_attr", "edge_type")  # arrays of other programs that are not used here


def _feature_names(archive: Arrays, path: Path) -> tuple[str, ...] | None:
    """The names of the features."""
    listed = archive.get("feature_names")
    if listed is None:
        return None
    names = tuple(str(name) for name in listed.ravel())
    width = int(archive["x"].shape[-1] if "x" in archive else archive["x_shape"][-1])
    if listed.ndim != 1 or len(set(names)) < len(names) or len(names) != width:
        raise AtollError(f"`feature_names` in {path} must be a list that names each of the {width} features once.")
    return names


def _node_names(archive: Arrays, y: Ints, path: Path) -> NDArray[np.object_] | None:
    """The nodes' ids as text."""
    names = archive.get("node_names")
    if names is None:
        return None
    if names.shape != y.shape or names.dtype.kind != "U" or len(np.unique(names)) < len(names):
        raise AtollError(
            f"`node_names` in {path} has shape {names.shape} and type {names.dtype}; give each node a text of its own."
        )
    return names.astype(object)


def _ids(archive: Arrays, y: Ints, path: Path) -> Ints | None:
    """The nodes' numbers in the federation."""
    ids = archive.get("ids")
    if ids is None:
        return None
    if ids.shape != y.shape or not np.issubdtype(ids.dtype, np.integer):
        raise AtollError(f"`ids` in {path} has shape {ids.shape} and type {ids.dtype}; give one whole number per node.")
    wrong = np.flatnonzero((ids < 0) | (ids > np.iinfo(np.int64).max))
    if len(wrong):
        raise AtollError(f"`ids` in {path} numbers node {wrong[0]} with {ids[wrong[0]]}; count the federation's nodes from 0.")
    return ids


def _open_npz(path: Path) -> Arrays:
    try:
        stored = read_folder(path) if path.is_dir() else read_npz(path)
    except ValueError as error:
        raise AtollError(f"{path} cannot be read as an .npz of plain arrays ({error}); write it with numpy.savez.") from error
    if (parties := len(stored.get("ptr", (0, 0))) - 1) != 1:
        raise AtollError(f"{path} is a shard of {parties} parties, not the graph of one; give the folder of all shards.")
    return stored


def _whole_numbers(y: np.ndarray[Any, Any], path: Path) -> Ints:
    """Labels as integers; floats must be whole numbers, and NaN means unlabeled."""
    if np.issubdtype(y.dtype, np.floating):
        y = np.where(np.isnan(y), -1, y)
        wrong = np.flatnonzero((y != np.round(y)) | (np.abs(y) > MAX_CLASSES))
        if len(wrong):
            raise AtollError(f"{path}: label {y[wrong[0]]} of node {wrong[0]} is not a class; classes are 0, 1, 2, …")
        return y.astype(np.int64)
    return y


def _masks(archive: Arrays, nodes: int, fold: int, path: Path) -> Masks:
    masks = []
    for name in ("train", "val", "test"):
        mask = archive.get(name, archive.get(f"{name}_mask"))
        if mask is None:
            mask = np.zeros(nodes, bool)
        if mask.dtype != bool:
            raise AtollError(f"The mask `{name}` in {path} is {mask.dtype}; give true or false for every node.")
        masks.append(mask)
    return masks_of_fold(masks, fold, str(path))
