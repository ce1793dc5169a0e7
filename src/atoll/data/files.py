"""The user's own graphs: a folder of two tables, or one `.npz`.

Tables, `.parquet` or `.csv`: `nodes` has `id`, a column a feature and, where wanted, `label` (empty: unlabelled), `split` (train,
val, test or empty) and `index` (the node's number in the federation, where parties share nodes); `edges` has `source`, `target`.
`classes.txt`, one class a line, fixes the classes and their order: parties that share a model must agree on it. Without it the
classes are 0, 1, 2, … or the names seen, sorted.

An `.npz` (or `graph.npz` in a folder) has `x` or the CSR parts `x_data x_indices x_indptr x_shape`, `edge_index`, `y` and, where
wanted, `train val test` masks, `ids`, `class_names`, `num_classes` and `feature_names`, the columns' names.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from atoll import storage
from atoll.data.builder import MOST_CLASSES, Arrays, Ints, Masks, assemble, plain, read_npz
from atoll.data.doubts import mind_edges, mind_features
from atoll.errors import AtollError
from atoll.graphs.graph import Graph


def read(path: Path, *, directed: bool = False) -> Graph:
    """The whole graph (P = 1) of a folder or an `.npz`."""
    path = path.expanduser()
    if path.is_dir():
        if (path / "graph.npz").is_file():
            return _read_npz(path / "graph.npz", directed)
        from atoll.data.tables import read_tables  # pandas takes a while to import

        return read_tables(path, directed)
    if not path.exists():
        raise AtollError(f"There is no folder or file {path}; check the path.")
    if path.suffix in (".csv", ".parquet", ".txt"):
        raise AtollError(f"{path} is a single table; give the folder that holds the tables `nodes` and `edges`.")
    return _read_npz(path, directed)


def save(graph: Graph, folder: Path, form: str = "npz") -> None:
    """One party's graph as a folder that `read` takes: `npz` (exact and compact), `parquet` or `csv` (tables for people)."""
    if graph.parties != 1:
        raise AtollError(f"A folder holds one party, not {graph.parties}; save graph.select([p]) for each party p.")
    folder.mkdir(parents=True, exist_ok=True)
    if form == "npz":
        write_npz(folder / "graph.npz", arrays(graph))
    elif form in ("parquet", "csv"):
        from atoll.data.tables import write_tables

        write_tables(graph, folder, form)
    else:
        raise AtollError(f"A graph cannot be saved as '{form}'; choose npz, parquet or csv.")


def arrays(graph: Graph) -> Arrays:
    """The graph as plain arrays, for an .npz without pickles."""
    small = np.int32 if graph.num_nodes < 2**31 else np.int64
    found: Arrays = {
        "edge_index": graph.edge_index.numpy().astype(small),
        "y": graph.y.numpy(),
        "train": graph.train.numpy(),
        "val": graph.val.numpy(),
        "test": graph.test.numpy(),
        "ids": graph.ids.numpy(),
        "num_classes": np.array(graph.num_classes),
    }
    if isinstance(graph.x, torch.Tensor):
        found["x"] = graph.x.numpy()
    else:
        found |= {
            "x_data": graph.x.data,
            "x_indices": graph.x.indices,
            "x_indptr": graph.x.indptr,
            "x_shape": np.array(graph.x.shape),
        }
    if graph.class_names is not None:
        found["class_names"] = np.array(graph.class_names, dtype=str)
    if graph.feature_names is not None:
        found["feature_names"] = np.array(graph.feature_names, dtype=str)
    return found


def graph_of(found: Arrays) -> Graph:
    """What `arrays` gave, without the checks and the tidying that foreign arrays need."""
    nodes = len(found["y"])
    x: Any
    if "x" in found:
        x = torch.from_numpy(found["x"])
    else:
        x = sp.csr_array((found["x_data"], found["x_indices"], found["x_indptr"]), shape=tuple(found["x_shape"]))
        x.has_sorted_indices = True
    return Graph(
        x=x,
        edge_index=torch.from_numpy(found["edge_index"].astype(np.int64)),
        y=torch.from_numpy(found["y"]),
        train=torch.from_numpy(found["train"]),
        val=torch.from_numpy(found["val"]),
        test=torch.from_numpy(found["test"]),
        num_classes=int(found["num_classes"]),
        ids=torch.from_numpy(found["ids"]),
        ptr=torch.tensor([0, nodes]),
        class_names=tuple(str(name) for name in found["class_names"]) if "class_names" in found else None,
        feature_names=tuple(str(name) for name in found["feature_names"]) if "feature_names" in found else None,
    )


def write_npz(path: Path, found: Arrays) -> None:
    """An .npz that appears whole or not at all."""
    with storage.replacing(path) as file:
        np.savez(file, allow_pickle=False, **found)


def _read_npz(path: Path, directed: bool) -> Graph:
    found = _open_npz(path)
    for key, instead in (
        ("edge_index", "the edges as two rows, sources and targets"),
        ("y", "a class a node, -1 where unlabelled"),
    ):
        if key not in found:
            raise AtollError(f"{path} has no array `{key}`; add {instead}.")
    parts = ("x_data", "x_indices", "x_indptr", "x_shape")
    if "x" not in found and not all(part in found for part in parts):
        raise AtollError(f"{path} has no features; add `x`, or its CSR parts {', '.join(parts)}.")
    x: Any = found.get("x")
    if x is None:
        try:
            if not all(np.issubdtype(found[part].dtype, np.integer) for part in parts[1:]):
                raise ValueError(f"{', '.join(parts[1:])} must be whole numbers")
            x = sp.csr_array(
                (found["x_data"], found["x_indices"], found["x_indptr"]), shape=tuple(int(n) for n in found["x_shape"])
            )
            x.check_format(full_check=True)
        except (ValueError, TypeError, IndexError) as error:
            raise AtollError(
                f"The CSR parts of x in {path} do not fit together ({error}); write them from one scipy CSR matrix."
            ) from error
    num_classes, names = _named(found, path)
    y = _whole_numbers(found["y"], path)
    graph = assemble(
        x,
        found["edge_index"],
        y,
        _masks(found, y.size, path),
        where=str(path),
        directed=directed,
        num_classes=num_classes,
        class_names=names,
        ids=_numbered(found, y, path),
        feature_names=_columns(found, path),
    )
    mind_features(plain(x, str(path)), y, graph.feature_names, str(path))
    mind_edges(found["edge_index"], str(path), [name for name in WEIGHTS if name in found])
    return graph


def _named(found: Arrays, path: Path) -> tuple[int | None, tuple[str, ...] | None]:
    """How many classes an .npz says there are, and their names."""
    count = found.get("num_classes")
    if count is not None and (count.size != 1 or not np.issubdtype(count.dtype, np.integer)):
        raise AtollError(f"`num_classes` in {path} has shape {count.shape} and type {count.dtype}; give one whole number.")
    num_classes = None if count is None else int(count.item())
    listed = found.get("class_names")
    if listed is None:
        return num_classes, None
    names = tuple(str(name) for name in listed.ravel())
    if listed.ndim != 1 or len(set(names)) < len(names):
        raise AtollError(f"`class_names` in {path} must be a list that names each class once.")
    if num_classes is not None and num_classes != len(names):
        raise AtollError(f"{path} names {len(names)} classes but says num_classes={num_classes}; make them agree.")
    return len(names), names


WEIGHTS = ("edge_weight", "edge_weights", "edge_attr")  # arrays that other programs write and that are not used here


def _columns(found: Arrays, path: Path) -> tuple[str, ...] | None:
    """The names of the features."""
    listed = found.get("feature_names")
    if listed is None:
        return None
    names = tuple(str(name) for name in listed.ravel())
    width = int(found["x"].shape[-1] if "x" in found else found["x_shape"][-1])
    if listed.ndim != 1 or len(set(names)) < len(names) or len(names) != width:
        raise AtollError(f"`feature_names` in {path} must be a list that names each of the {width} features once.")
    return names


def _numbered(found: Arrays, y: Ints, path: Path) -> Ints | None:
    """The nodes' numbers in the federation."""
    ids = found.get("ids")
    if ids is None:
        return None
    if ids.shape != y.shape or not np.issubdtype(ids.dtype, np.integer):
        raise AtollError(f"`ids` in {path} has shape {ids.shape} and type {ids.dtype}; give one whole number a node.")
    wrong = np.flatnonzero((ids < 0) | (ids > np.iinfo(np.int64).max))
    if len(wrong):
        raise AtollError(f"`ids` in {path} numbers node {wrong[0]} with {ids[wrong[0]]}; count the federation's nodes from 0.")
    return ids


def _open_npz(path: Path) -> Arrays:
    try:
        return read_npz(path)
    except ValueError as error:
        raise AtollError(f"{path} cannot be read as an .npz of plain arrays ({error}); write it with numpy.savez.") from error


def _whole_numbers(y: np.ndarray[Any, Any], path: Path) -> Ints:
    """Labels as int64; float labels are fine where they are whole, NaN means unlabelled."""
    if np.issubdtype(y.dtype, np.floating):
        y = np.where(np.isnan(y), -1, y)
        wrong = np.flatnonzero((y != np.round(y)) | (np.abs(y) > MOST_CLASSES))
        if len(wrong):
            raise AtollError(f"{path}: label {y[wrong[0]]} of node {wrong[0]} is no class; classes are 0, 1, 2, …")
        return y.astype(np.int64)
    return y


def _masks(found: Arrays, nodes: int, path: Path) -> Masks:
    masks = []
    for name in ("train", "val", "test"):
        mask = found.get(name, found.get(f"{name}_mask"))
        if mask is None:
            mask = np.zeros(nodes, bool)
        if mask.dtype != bool:
            raise AtollError(f"The mask `{name}` in {path} is {mask.dtype}; give true or false for every node.")
        masks.append(mask)
    return masks[0], masks[1], masks[2]
