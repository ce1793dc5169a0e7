"""TU datasets: many small graphs, each with a class (Morris et al., 2020), as text files of one folder."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch

from atoll.data.builder import Ints, Masks, build_graph, check_edges, no_masks
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.joining import joined_ptr
from atoll.settings import setting

FEATURES = ("auto", "labels", "attributes", "degree", "constant")


@dataclass(frozen=True)
class GraphDataSettings:
    """What the columns of the nodes are."""

    features: str = setting(
        "auto",
        "A node's columns: its label as one-hot, its attributes, its degree as one-hot, or a constant; auto is labels, else "
        "attributes (Letter), else degree, as GCFL and FedStar do.",
        choices=FEATURES,
    )


def read_tu(folder: Path, name: str, features: str = "auto") -> Graph:
    """The graphs of NAME_A.txt, NAME_graph_indicator.txt, NAME_graph_labels.txt and, where they are there, NAME_node_labels.txt
    and NAME_node_attributes.txt, as one party (P = 1) that holds all of them."""
    member = _numbers(folder / f"{name}_graph_indicator.txt")[:, 0].astype(np.int64) - 1
    labels = _numbers(folder / f"{name}_graph_labels.txt")[:, 0].astype(np.int64)
    edges = _numbers(folder / f"{name}_A.txt").astype(np.int64).T - 1
    sizes = np.bincount(member, minlength=len(labels)) if len(member) and member.min() >= 0 else np.zeros(len(labels), int)
    if len(sizes) != len(labels) or (np.diff(member) < 0).any():
        raise AtollError(f"{folder}: {name}_graph_indicator.txt does not number {len(labels)} graphs one after the other.")
    columns = _columns(folder, name, edges, len(member), features)
    return graph_of_graphs(columns, edges, sizes, labels, where=f"{name} in {folder}")


def graph_of_graphs(x: sp.csr_array | np.ndarray, edges: Ints, sizes: Ints, labels: Ints, *, where: str) -> Graph:
    """A party's graphs from arrays: `sizes` (G,) are their numbers of nodes, which stand one graph after the other."""
    if not len(sizes):
        raise AtollError(f"{where} has no graphs; give at least one.")
    if not sizes.all():
        raise AtollError(f"{where}: graph {int(np.flatnonzero(sizes == 0)[0])} has no nodes; leave it out.")
    member = np.repeat(np.arange(len(sizes)), sizes)
    check_edges(edges, len(member), where)
    crossing = np.flatnonzero(member[edges[0]] != member[edges[1]])
    if len(crossing):
        edge = int(crossing[0])
        raise AtollError(f"{where}: edge {edge} joins graph {member[edges[0, edge]]} and graph {member[edges[1, edge]]}.")
    names, y = np.unique(labels, return_inverse=True)
    return small_graphs(x, edges, sizes, y.reshape(-1), len(names), tuple(map(str, names.tolist())), where=where)


def small_graphs(
    x: sp.csr_array | np.ndarray,
    edges: Ints,
    sizes: Ints,
    y: Ints,
    num_classes: int,
    class_names: tuple[str, ...] | None = None,
    masks: Masks | None = None,
    *,
    where: str,
    directed: bool = False,
) -> Graph:
    """The same with classes as numbers, −1 where there is none, and perhaps the graphs' split."""
    nodes = build_graph(x, edges, np.full(int(sizes.sum()), -1), where=where, num_classes=num_classes, directed=directed)
    train, val, test = (torch.from_numpy(mask) for mask in (no_masks(len(sizes)) if masks is None else masks))
    return Graph(
        x=nodes.x,
        edge_index=nodes.edge_index,
        y=torch.from_numpy(y.astype(np.int64)),
        train=train,
        val=val,
        test=test,
        num_classes=num_classes,
        ids=nodes.ids,
        ptr=nodes.ptr,
        class_names=class_names,
        graph_ptr=joined_ptr([torch.from_numpy(np.cumsum([0, *sizes]))]),
        graph_ids=torch.arange(len(sizes)),
    )


def one_hot(values: Ints, first: int, width: int) -> sp.csr_array:
    """(N, width) a one in column `value − first` of each row."""
    rows = np.arange(len(values) + 1)
    return sp.csr_array((np.ones(len(values), np.float32), values - first, rows), shape=(len(values), width))


def degrees(edges: Ints, nodes: int) -> Ints:
    """(N,) distinct neighbors of each node."""
    pairs = np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1)
    counted: Ints = np.bincount(pairs[0][pairs[0] != pairs[1]], minlength=nodes)
    return counted


def _columns(folder: Path, name: str, edges: Ints, nodes: int, features: str) -> sp.csr_array | np.ndarray:
    files = {kind: folder / f"{name}_node_{kind}.txt" for kind in ("labels", "attributes")}
    if features == "auto":
        features = next((kind for kind, path in files.items() if path.is_file()), "degree")
    if features in files and not files[features].is_file():
        raise AtollError(f"The nodes of {name} have no {features}; choose another data.features, for instance degree.")
    if features == "labels":
        labels = _numbers(files["labels"])[:, 0].astype(np.int64)
        return one_hot(labels, int(labels.min()), int(labels.max() - labels.min()) + 1)
    if features == "attributes":
        return _numbers(files["attributes"]).astype(np.float32)
    if features == "constant":
        return np.ones((nodes, 1), np.float32)
    counted = degrees(edges, nodes)
    return one_hot(counted, 0, int(counted.max()) + 1)


def _numbers(path: Path) -> np.ndarray:
    """(lines, columns) the numbers of a text file, separated by commas."""
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):  # an empty file is one
            numbers = np.loadtxt(path, delimiter=",", ndmin=2)
    except (OSError, ValueError, UserWarning) as error:
        raise AtollError(f"{path} cannot be read ({error}); put a fresh copy there.") from error
    if not np.isfinite(numbers).all():
        raise AtollError(f"{path} holds numbers that are not finite; put a fresh copy there.")
    return numbers
