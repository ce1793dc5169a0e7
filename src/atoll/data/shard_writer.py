"""Writing shards: the parties' graphs as folders of plain arrays (.npy), which a process can map into memory one by one.

    manifest.json           what the shards hold, where they come from, the SHA-256 of every file
    party-0/x.npy …         one folder per party: the arrays of an .npz (see `files`), and `ptr`
    sizes.npy, train.npy    nodes and training nodes of each party
    whole-….npy             the union of the parties' graphs: edges, labels, and which rows of the parties' features are its own
    source-….npy            the original graph without its features, where it has nodes that no party holds

Of very many parties, or of parties of one node, several share a folder (`parties-0-9`). All of it appears at once or not at all.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import storage
from atoll.data import files
from atoll.data.datasets import encoded_alone
from atoll.data.federated_data import FederatedData
from atoll.data.manifest import Manifest
from atoll.data.npz import Arrays
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.selection import EDGES_AT_ONCE, edge_starts
from atoll.graphs.table import Table

MAX_SHARDS = 1000
MAX_NODE_SHARDS = 16  # where every party is a node
COMPARED_ROWS = 1 << 16  # features are compared that many rows at a time
ITEM_ARRAYS = ("graph_ptr", "graph_ids", "pairs", "pair_party")  # tensors of a graph whose items are not its nodes
WHOLE, SOURCE = "whole", "source"  # what the names of the files of graphs of all parties begin with


def write_shards(data: FederatedData, folder: Path, origin: Mapping[str, Any]) -> Manifest:
    """Write the parties' data into a new folder.

    Parameters:
        data: What `federate` gave, with all parties' graphs.
        folder: It must be new or empty.
        origin: The configuration's arguments and tables that made the data: `dataset`, `partition` and so on.
    """
    folder = folder.expanduser()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise AtollError(f"{folder} is not an empty folder; choose another --out.")
    partial = folder.with_name(f".{folder.name}.{secrets.token_hex(8)}.partial")
    with storage.writing(folder):
        partial.mkdir(parents=True)
        try:
            manifest = _write(data, partial, origin)
            partial.replace(folder)
        except BaseException:
            shutil.rmtree(partial, ignore_errors=True)
            raise
        storage.sync_folder(folder.parent)
    return manifest


def _write(data: FederatedData, folder: Path, origin: Mapping[str, Any]) -> Manifest:
    parts = data.parts
    most = MAX_NODE_SHARDS if data.scenario == "node" else MAX_SHARDS
    cuts = np.append(np.arange(0, parts.parties, -(-parts.parties // most)), parts.parties)
    rows = _shared_rows(parts, data.whole)
    manifest = Manifest(
        scenario=data.scenario,
        parties=parts.parties,
        nodes=parts.num_nodes,
        edges=parts.edge_index.shape[1],
        features=parts.num_features,
        classes=parts.num_classes,
        digest=parts.digest,
        cuts=tuple(cuts.tolist()),
        origin=dict(origin),
        files={},
        shared_rows=rows is not None,
        lost_nodes=not torch.equal(data.source.ids, data.whole.ids),
        names=data.names,
        widths=parts.widths,
        encoding=None if data.encoding is None else data.encoding.to_dict(),
        party_encodings=tuple(None if each is None else each.to_dict() for each in data.party_encodings),
        party_columns=data.party_columns,
    )
    for index, block in enumerate(_blocks(parts, cuts)):
        (folder / manifest.shard(index)).mkdir()
        _put(folder, f"{manifest.shard(index)}/", _shard_arrays(block), block.table)
    _put(folder, "", {"sizes": parts.ptr.diff().numpy(), "train": parts.num_train.numpy()})
    _put(folder, f"{WHOLE}-", *_whole_arrays(data.whole, rows))
    if manifest.lost_nodes:
        source = data.source if data.source.table is not None else _featureless(data.source)
        _put(folder, f"{SOURCE}-", _arrays(source), source.table)
    listed = {str(path.relative_to(folder)): _digested(path) for path in sorted(folder.rglob("*.*"))}
    manifest = replace(manifest, files=listed)
    manifest.write(folder)
    return manifest


def _blocks(parts: Graph, cuts: np.ndarray[Any, Any]) -> Iterator[Graph]:
    """The graphs of runs of consecutive parties, without a search through all edges for each."""
    if not parts.of_nodes:
        yield from (replace(parts.select(range(first, end)), widths=None) for first, end in pairwise(cuts.tolist()))
        return
    every: list[slice | Tensor]  # the edges of each run
    if (starts := edge_starts(parts)) is not None:
        every = [slice(*bounds) for bounds in pairwise(starts[torch.from_numpy(cuts)].tolist())]
    else:
        owner = parts.party[parts.edge_index[0]]
        order = owner.argsort(stable=True)
        every = list(order.tensor_split(torch.searchsorted(owner[order], torch.from_numpy(cuts[1:-1]))))
    for first, end, chosen in zip(cuts[:-1], cuts[1:], every, strict=True):
        rows = slice(int(parts.ptr[first]), int(parts.ptr[end]))
        yield replace(
            parts,
            x=parts.x[rows],
            edge_index=parts.edge_index[:, chosen] - rows.start,
            edge_weight=None if parts.edge_weight is None else parts.edge_weight[chosen],
            **{name: getattr(parts, name)[rows] for name in ("y", "train", "val", "test", "ids")},
            ptr=parts.ptr[first : end + 1] - rows.start,
            widths=None,
            majority=None if parts.majority is None else parts.majority[rows],
            y_columns=None if parts.y_columns is None else parts.y_columns[rows],
            table=None if parts.table is None else replace(parts.table, values=parts.table.values[rows]),
            node_names=None if parts.node_names is None else parts.node_names[rows],
            borders=None if parts.borders is None else parts.borders.select(parts.ptr, torch.arange(first, end)),
        )


def _shard_arrays(block: Graph) -> Arrays:
    """A shard's arrays; a table's columns are encoded by its own rows, for those who read the folder as one party's graph."""
    arrays = _arrays(encoded_alone(block)) | {"ptr": block.ptr.numpy()}
    if block.borders is not None:
        arrays |= {name: tensor.numpy() for name, tensor in block.borders.arrays().items()}
    return arrays if block.majority is None else arrays | {"majority": block.majority.numpy()}


def _arrays(graph: Graph) -> Arrays:
    """The graph's arrays, with its edges as they are, and those of its small graphs or pairs."""
    arrays = files.arrays(replace(graph, edge_index=graph.edge_index[:, :0])) | {"edge_index": graph.edge_index.numpy()}
    arrays |= {name: getattr(graph, name).numpy() for name in ITEM_ARRAYS if getattr(graph, name) is not None}
    if graph.graph_names is not None:
        arrays["graph_names"] = np.array(graph.graph_names, dtype=str)
    return arrays if graph.classes is None else arrays | {"classes": np.array(graph.classes)}


def _whole_arrays(whole: Graph, rows: Tensor | None) -> tuple[Arrays, Table | None]:
    """The arrays of the union, without what the parties' rows hold already, and its table."""
    majority = {} if whole.majority is None else {"majority": whole.majority.numpy()}
    if rows is None:
        return _arrays(whole) | majority, whole.table
    return _arrays(_featureless(whole)) | majority | {"rows": rows.numpy()}, None


def _featureless(graph: Graph) -> Graph:
    return replace(graph, x=torch.empty(graph.num_nodes, 0), table=None, node_names=None)


def _shared_rows(parts: Graph, whole: Graph) -> Tensor | None:
    """(N,) the row of the parties' graph that is each node of the whole one; None where their features differ."""
    rows = torch.arange(parts.num_nodes)
    if not torch.equal(parts.ids, whole.ids):
        ids, row = torch.unique(parts.ids, return_inverse=True)
        if not torch.equal(ids, whole.ids):
            return None
        rows = torch.full((len(ids),), parts.num_nodes).scatter_reduce_(0, row, rows, "amin")
    if parts.num_features != whole.num_features or isinstance(parts.x, Tensor) != isinstance(whole.x, Tensor):
        return None
    if (parts.node_names is None) != (whole.node_names is None) or (parts.table is None) != (whole.table is None):
        return None
    return rows if all(_equal_rows(parts, whole, rows, at) for at in range(0, len(rows), COMPARED_ROWS)) else None


def _equal_rows(parts: Graph, whole: Graph, rows: Tensor, start: int) -> bool:
    """Whether some nodes have the same features, names and columns in both graphs."""
    here, there = slice(start, start + COMPARED_ROWS), rows[start : start + COMPARED_ROWS].numpy()
    if isinstance(parts.x, Tensor):
        same = torch.equal(whole.x[here], parts.x[torch.from_numpy(there)])
    else:
        one, other = whole.x[here], parts.x[there]
        same = all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("data", "indices", "indptr"))
    if parts.node_names is not None and whole.node_names is not None:
        same = same and bool((whole.node_names[here] == parts.node_names[there]).all())
    if parts.table is not None and whole.table is not None:
        same = same and parts.table.names == whole.table.names and parts.table.columns == whole.table.columns
        same = same and np.array_equal(whole.table.values[here], parts.table.values[there], equal_nan=True)
    return same


def _put(folder: Path, prefix: str, arrays: Arrays, table: Table | None = None) -> None:
    """Write arrays and a table, one file each."""
    if table is not None:
        arrays = arrays | {"table": table.values}
        about = {"columns": [asdict(column) for column in table.columns], "names": table.names}
        document = json.dumps({**about, "ignored": table.ignored, "roles": table.roles})
        (folder / f"{prefix}table.json").write_text(document)
    for name, array in arrays.items():
        path = folder / f"{prefix}{name}.npy"
        if name == "edge_index":
            _put_edges(path, array)
        else:
            np.save(path, np.asarray(array, order="C"), allow_pickle=False)


def _put_edges(path: Path, edges: np.ndarray[Any, Any]) -> None:
    """Write edges of 64 bits with as many as `files.arrays` gives them, a piece at a time."""
    kind = np.dtype(np.int32 if edges.max(initial=0) < 2**31 else np.int64)
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": kind.str, "fortran_order": False, "shape": edges.shape})
        for row in edges:
            for first in range(0, len(row), EDGES_AT_ONCE):
                file.write(row[first : first + EDGES_AT_ONCE].astype(kind).data)


def _digested(path: Path) -> tuple[int, str]:
    with path.open("rb") as file:
        return path.stat().st_size, hashlib.file_digest(file, "sha256").hexdigest()
