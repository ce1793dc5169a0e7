"""Reading shards: the graphs of some parties from a folder that `atoll partition --out` wrote, and nothing of the others.

Every file that is read is compared with its digest first. Dense features that are larger than `memory_budget` stay on disk: the
graph's `x` is then a tensor over a file.
"""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data import files
from atoll.data.encoding import column_of
from atoll.data.manifest import AGAIN, Manifest
from atoll.data.npz import Arrays
from atoll.data.scratch import exceeds, gathered, scratch_array
from atoll.data.shard_writer import ITEM_ARRAYS, SOURCE, WHOLE
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.borders import Borders
from atoll.graphs.graph import Graph, stack
from atoll.graphs.table import Table

SPARSE = ("x_data", "x_indices", "x_indptr", "x_shape")
PER_ITEM = ("y", "train", "val", "test", "majority", "targets", "graph_ids", "graph_names")
FEATURES = ("x", *SPARSE, "table")


class Shards:
    """A folder of shards.

    Parameters:
        folder: What `atoll partition --out` wrote.
        budget: Gigabytes of dense features that are held in memory; larger ones stay on disk. 0 is no limit.
    """

    def __init__(self, folder: Path, budget: float = 0.0) -> None:
        self.folder = folder.expanduser()
        self.manifest = Manifest.read(self.folder)
        self.budget = budget

    def graph(self, parties: Sequence[int] | NDArray[np.int64] | None = None) -> Graph:
        """The graph of some parties, in the given order (all by default); only their shards are read."""
        cuts = np.array(self.manifest.cuts)
        numbers = np.arange(cuts[-1]) if parties is None else np.array(parties, np.int64)
        if len(numbers) == 0 or not 0 <= numbers.min() <= numbers.max() < cuts[-1]:
            raise AtollError(f"{self.folder} holds the parties 0 to {cuts[-1] - 1}, and others were asked for.")
        used = np.unique(np.searchsorted(cuts, numbers, "right") - 1)
        held = np.concatenate([np.arange(cuts[index], cuts[index + 1]) for index in used])
        return self._stacked(used.tolist()).select(np.searchsorted(held, numbers))

    def outline(self) -> Graph:
        """All parties' graphs without their content, for a process that holds none: sizes, classes and columns are right."""
        manifest, folder = self.manifest, self.manifest.shard(0)
        sizes, train = (torch.from_numpy(self._array(f"{name}.npy")) for name in ("sizes", "train"))
        no, number = torch.zeros(1, dtype=torch.bool).expand(manifest.nodes), torch.full((1,), -1).expand(manifest.nodes)
        graph = Graph(
            x=torch.zeros(1, 1).expand(manifest.nodes, manifest.features),
            edge_index=torch.empty(2, 0, dtype=torch.int64),
            y=number,
            train=no | bool(train.any()),
            val=no,
            test=no,
            num_classes=manifest.classes,
            ids=number,
            ptr=torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]),
            widths=manifest.widths,
            class_names=self._names(f"{folder}/class_names.npy"),
            feature_names=self._names(f"{folder}/feature_names.npy"),
            edge_weight=torch.empty(0) if f"{folder}/edge_weight.npy" in manifest.files else None,
        )
        graph.__dict__["num_train"] = train
        return graph

    @property
    def of_nodes(self) -> bool:
        """Whether the parties' items are nodes."""
        return not {f"{self.manifest.shard(0)}/{name}.npy" for name in ("graph_ptr", "pairs")} & self.manifest.files.keys()

    @property
    def has_table(self) -> bool:
        """Whether the parties' columns are still to be encoded."""
        return f"{self.manifest.shard(0)}/table.npy" in self.manifest.files

    def whole(self, parts: Graph | None = None) -> Graph:
        """The union of the parties' graphs; `parts` are all parties' graphs, where they are here already."""
        stored = self._arrays(f"{WHOLE}-")
        graph = self._as_graph(stored, f"{WHOLE}-")
        if graph.graph_ptr is not None:  # all parties' small graphs
            return self.graph() if parts is None else parts
        if not self.manifest.shared_rows:
            return graph
        parts, rows = self.graph() if parts is None else parts, stored["rows"]
        if len(rows) != graph.num_nodes or not ((rows >= 0) & (rows < parts.num_nodes)).all():
            raise self._inconsistent(f"{WHOLE}-rows.npy")
        return replace(
            graph,
            x=_rows_of(parts.x, rows, self.budget),
            table=None if parts.table is None else parts.table.rows(rows),
            node_names=None if parts.node_names is None else parts.node_names[rows],
        )

    def source(self, whole: Graph) -> Graph:
        """The original graph: the whole one, or that with the nodes that no party holds, without their features."""
        return self._as_graph(self._arrays(f"{SOURCE}-"), f"{SOURCE}-") if self.manifest.lost_nodes else whole

    def topology(self) -> Graph:
        """The union of the parties' graphs without features: no shard is read."""
        return self._as_graph(self._arrays(f"{WHOLE}-", without=(*FEATURES, "rows", "node_names")), f"{WHOLE}-")

    def _stacked(self, shards: Sequence[int]) -> Graph:
        graphs = [self._shard(index) for index in shards]
        graph = stack(graphs) if len(graphs) > 1 else graphs[0]
        majority = [one.majority for one in graphs if one.majority is not None]
        widths = self.manifest.widths
        return replace(
            graph,
            x=graph.x if graph.table is not None else self._features([self.manifest.shard(index) for index in shards]),
            majority=torch.cat(majority) if len(majority) == len(graphs) else None,
            widths=None if widths is None else tuple(w for s in shards for w in widths[slice(*self.manifest.cuts[s : s + 2])]),
        )

    def _shard(self, index: int) -> Graph:
        """The graph of a shard without features; with its table, where it has one."""
        folder = f"{self.manifest.shard(index)}/"
        stored = self._arrays(folder, without=FEATURES)
        graph = self._as_graph(stored, folder)
        table = self._table(folder)
        ptr, parties = stored["ptr"], self.manifest.cuts[index + 1] - self.manifest.cuts[index]
        if ptr.shape != (parties + 1,) or ptr[0] != 0 or ptr[-1] != graph.num_nodes or (np.diff(ptr) < 0).any():
            raise self._inconsistent(f"{folder}ptr.npy")
        names = None if table is not None else graph.feature_names
        return replace(graph, ptr=torch.from_numpy(ptr), table=table, feature_names=names)

    def _features(self, folders: Sequence[str]) -> Any:
        """The features of some shards, one after the other."""
        if f"{folders[0]}/x.npy" not in self.manifest.files:
            return self._sparse(folders)
        pieces = [self._array(f"{folder}/x.npy", mapped=True) for folder in folders]
        width = self.manifest.features
        if any(piece.ndim != 2 or piece.shape[1] != width or piece.dtype != np.float32 for piece in pieces):
            raise self._inconsistent(f"{folders[0]}/x.npy")
        rows = sum(map(len, pieces))
        if not exceeds(rows * width * 4, self.budget):
            return torch.from_numpy(np.concatenate(pieces))
        if len(pieces) == 1:
            return torch.from_numpy(pieces[0])
        x, start = scratch_array((rows, width), np.float32), 0
        for piece in pieces:
            x[start : start + len(piece)] = piece
            start += len(piece)
        return torch.from_numpy(x)

    def _sparse(self, folders: Sequence[str]) -> sp.csr_array:
        try:
            pieces = [_csr({name: self._array(f"{folder}/{name}.npy") for name in SPARSE}) for folder in folders]
        except (TypeError, ValueError) as error:
            raise self._inconsistent(f"{folders[0]}/x_data.npy") from error
        if exceeds(sum(piece.data.nbytes + piece.indices.nbytes for piece in pieces), self.budget):
            sentence = f"The features in {self.folder} are sparse: they are held in memory whatever memory_budget says."
            warnings.warn(sentence, AtollWarning, stacklevel=2)
        return pieces[0] if len(pieces) == 1 else sp.csr_array(sp.vstack(pieces, format="csr"))

    def _as_graph(self, stored: Arrays, prefix: str) -> Graph:
        """The graph of arrays that fit together; of features that were left out, there are none."""
        try:
            y, edges = stored["y"], stored["edge_index"]
            nodes = len(stored["ids"])
            absent = "x" not in stored and "x_shape" not in stored
            graph = files.graph_of({"x": np.empty((nodes, 0), np.float32)} | stored if absent else stored)
            per_node = [stored[name] for name in ("ids", "node_names") if name in stored]
            per_item = [stored[name] for name in PER_ITEM if name in stored]
            graph = replace(graph, ptr=torch.tensor([0, nodes]), **_items(stored))
            items = len(graph.owner)
            fits = all(len(each) == nodes for each in per_node) and all(len(each) == items for each in per_item)
            fits = fits and graph.x.shape[0] == nodes and _items_fit(graph)
            fits = fits and edges.ndim == 2 and len(edges) == 2 and (not edges.size or 0 <= edges.min() <= edges.max() < nodes)
            fits = fits and graph.num_classes == self.manifest.classes and bool(((y >= -1) & (y < graph.num_classes)).all())
            fits = fits and len(stored.get("edge_weight", edges[0])) == edges.shape[1]
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise self._inconsistent(prefix) from error
        if not fits:
            raise self._inconsistent(prefix)
        graph = replace(graph, borders=self._borders(stored, prefix))
        majority = stored.get("majority")
        return graph if majority is None else replace(graph, majority=torch.from_numpy(majority))

    def _borders(self, stored: Arrays, prefix: str) -> Borders | None:
        """The edges to other parties, where they were kept."""
        arrays = {name: torch.from_numpy(value) for name, value in stored.items() if name.startswith("border_")}
        try:
            borders = Borders.of(arrays)
        except KeyError as error:
            raise self._inconsistent(prefix) from error
        if borders is None:
            return None
        row, fits = borders.row, len({len(each) for each in arrays.values()}) == 1
        if not fits or (
            len(row) and not (int(row[0]) >= 0 and bool((row.diff() >= 0).all()) and int(row[-1]) < len(stored["y"]))
        ):
            raise self._inconsistent(prefix)
        return borders

    def _table(self, prefix: str) -> Table | None:
        if f"{prefix}table.npy" not in self.manifest.files:
            return None
        values, about = self._array(f"{prefix}table.npy"), json.loads(self._checked(f"{prefix}table.json").read_text())
        columns, names = tuple(map(column_of, about["columns"])), tuple(tuple(each) for each in about["names"])
        return Table(columns, values, names, tuple(about["ignored"]), tuple((name, role) for name, role in about["roles"]))

    def _arrays(self, prefix: str, without: Sequence[str] = ()) -> Arrays:
        """The arrays whose files' names begin with the prefix."""
        listed = [name for name in self.manifest.files if name.startswith(prefix) and name.endswith(".npy")]
        paths = {name.removeprefix(prefix).removesuffix(".npy"): name for name in listed}
        large = {name for name, path in paths.items() if name == "x" and exceeds(self.manifest.files[path][0], self.budget)}
        return {name: self._array(path, mapped=name in large) for name, path in paths.items() if name not in without}

    def _names(self, path: str) -> tuple[str, ...] | None:
        return tuple(str(name) for name in self._array(path)) if path in self.manifest.files else None

    def _array(self, name: str, *, mapped: bool = False) -> NDArray[Any]:
        """One array; `mapped`, it stays on disk, and a change of it in memory does not reach the file."""
        path = self._checked(name)
        try:
            array: NDArray[Any] = np.load(path, mmap_mode="c" if mapped else None, allow_pickle=False)
            return array
        except (OSError, ValueError, EOFError) as error:
            raise AtollError(f"{path} is not a plain array ({error}); {AGAIN}") from error

    def _checked(self, name: str) -> Path:
        """The path of a file that is as it was written."""
        path, expected = self.folder / name, self.manifest.files.get(name)
        if expected is None:
            raise self._inconsistent(name)
        try:
            size = path.stat().st_size
            if size != expected[0]:
                raise AtollError(f"{path} has {size} bytes, but {expected[0]} were written; copy it again, or {AGAIN}")
            with path.open("rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != expected[1]:
                    raise AtollError(f"{path} is not the file that was written (its SHA-256 differs); copy it again, or {AGAIN}")
        except OSError as error:
            raise AtollError(f"{path} cannot be read ({error.strerror}); copy it again, or {AGAIN}") from error
        return path

    def _inconsistent(self, name: str) -> AtollError:
        return AtollError(f"The shards in {self.folder} do not fit together ({name}); {AGAIN}")


def _items(stored: Arrays) -> dict[str, Any]:
    """What a graph has whose items are small graphs or pairs, or whose parties' classes differ."""
    items: dict[str, Any] = {name: torch.from_numpy(stored[name]) for name in ITEM_ARRAYS if name in stored}
    items |= {"graph_names": stored["graph_names"].astype(object)} if "graph_names" in stored else {}
    return items | ({"classes": tuple(stored["classes"].tolist())} if "classes" in stored else {})


def _items_fit(graph: Graph) -> bool:
    """Whether small graphs and pairs are of the graph's nodes."""
    ptr, pairs, owner = graph.graph_ptr, graph.pairs, graph.pair_party
    if ptr is not None and not (ptr[0] == 0 and ptr[-1] == graph.num_nodes and bool((ptr.diff() >= 0).all())):
        return False
    if owner is not None and (pairs is None or owner.shape != pairs.shape[1:]):
        return False
    return pairs is None or not pairs.numel() or bool(pairs.min() >= 0 and pairs.max() < graph.num_nodes)


def _csr(stored: Arrays) -> sp.csr_array:
    x = sp.csr_array((stored["x_data"], stored["x_indices"], stored["x_indptr"]), shape=tuple(stored["x_shape"]))
    x.check_format(full_check=True)
    x.has_sorted_indices = True
    return x


def _rows_of(x: Any, rows: NDArray[np.int64], budget: float) -> Any:
    """Rows of features; the features themselves where all are wanted in their order."""
    if len(rows) == x.shape[0] and np.array_equal(rows, np.arange(len(rows))):
        return x
    if isinstance(x, Tensor):
        return torch.from_numpy(gathered(x.numpy(), rows, budget))
    return sp.csr_array(x[rows])
