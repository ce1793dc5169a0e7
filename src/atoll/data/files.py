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

from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch

from atoll import storage
from atoll.data.archives import read_archive
from atoll.data.builder import (
    check_fold,
)
from atoll.data.npz import Arrays
from atoll.data.target_columns import CLASS
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
