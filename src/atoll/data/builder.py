"""From arrays to a checked `Graph`: tidy edges, compact features, one clear sentence for each mistake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.edge_weights import checked_weights, tidy_weights
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.symmetric_matrices import goes_both_ways, is_sorted

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Features: TypeAlias = Any  # scipy sparse, numpy or torch, (N, d)
Masks = tuple[Bools, Bools, Bools]

MAX_CLASSES = 10_000  # a larger label is not a class but something else, for instance an id
MAX_FEATURE = float(np.finfo(np.float32).max)
NARROWED = 1 << 24  # stored values from which on indices get 32 bits; of fewer they keep their type, which a graph's digest sees
MAX_CHECKED = 1 << 22  # values that are looked at at once
SPARSE_BELOW = 0.25  # features with a smaller share of non-zeros are kept as CSR


def tidy_edges(edges: Ints, nodes: int, directed: bool = False) -> Ints:
    """(2, E) edges sorted by source and target, without loops and repeats; both directions unless `directed`.

    Edges that are so already are only copied.
    """
    if is_sorted(*edges) and (directed or goes_both_ways(edges[0], edges[1], nodes)):
        return edges.astype(np.int64)
    source, target = edges[0].astype(np.int64), edges[1].astype(np.int64)
    proper = source != target
    if directed:
        return _decoded(distinct((source * nodes + target)[proper]), nodes)
    once = np.minimum(source, target) * nodes
    once += np.maximum(source, target)
    del source, target
    once = distinct(once[proper])
    return _decoded(np.sort(np.concatenate([once, once % max(nodes, 1) * nodes + once // max(nodes, 1)])), nodes)


def _decoded(code: Ints, nodes: int) -> Ints:
    """(2, E) source and target of source·N + target."""
    result = np.empty((2, len(code)), np.int64)
    np.floor_divide(code, max(nodes, 1), out=result[0])
    np.remainder(code, max(nodes, 1), out=result[1])
    return result


def distinct(values: Ints) -> Ints:
    """The sorted distinct values; on millions several times as fast as `np.unique`."""
    values = np.sort(values)
    return values[np.concatenate([[True], values[1:] != values[:-1]])] if len(values) else values


def compact(x: Features) -> sp.csr_array | Tensor:
    """float32 features: CSR (sorted, without stored zeros) where fewer than a quarter are non-zero, else a dense tensor."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().to_dense().numpy()
    if sp.issparse(x):
        matrix = sp.csr_array(x, dtype=np.float32, copy=True)
        matrix.sum_duplicates()
        matrix.eliminate_zeros()
        if NARROWED <= matrix.nnz < 2**31 and matrix.shape[1] < 2**31:
            matrix.indices, matrix.indptr = (
                matrix.indices.astype(np.int32, copy=False),
                matrix.indptr.astype(np.int32, copy=False),
            )
        if matrix.nnz < SPARSE_BELOW * max(np.prod(matrix.shape), 1):
            return matrix
        return torch.from_numpy(matrix.toarray())
    dense = np.require(x, np.float32, ["C", "W"])
    if np.count_nonzero(dense) < SPARSE_BELOW * max(dense.size, 1):
        return sp.csr_array(dense)
    return torch.from_numpy(dense)


def row_normalize(graph: Graph) -> Graph:
    """Each node's features divided by the sum of their absolute values; rows of zeros stay zero."""
    if isinstance(graph.x, Tensor):
        total = graph.x.abs().sum(1, keepdim=True)
        return replace(graph, x=graph.x / torch.where(total > 0, total, 1))
    total = abs(graph.x).sum(1)
    scaled = graph.x.copy()
    scaled.data = (scaled.data / np.repeat(np.where(total > 0, total, 1), np.diff(scaled.indptr))).astype(np.float32)
    return replace(graph, x=scaled)


def no_masks(nodes: int) -> Masks:
    """The masks of a graph without a split."""
    return np.zeros(nodes, bool), np.zeros(nodes, bool), np.zeros(nodes, bool)


def build_graph(
    x: Features,
    edges: Ints,
    y: Ints,
    masks: Masks | None = None,
    *,
    where: str,
    directed: bool = False,
    num_classes: int | None = None,
    class_names: tuple[str, ...] | None = None,
    ids: Ints | None = None,
    feature_names: tuple[str, ...] | None = None,
    edge_weight: Any = None,
) -> Graph:
    """One whole graph (P = 1) from arrays; `where` names their source in error messages.

    `masks` are train, val and test, in which nodes without a class (−1) have no part; `ids` the nodes' numbers in the federation.
    Edges lose loops and repeats and, unless `directed`, go both ways; `edge_weight` is one number per edge (see
    `edge_weights.tidy_weights`).
    """
    check_labels(y, num_classes, where)
    nodes = len(y)
    x = plain(x, where)
    check_features(x, nodes, where)
    check_edges(edges, nodes, where)
    train, val, test = masks if masks is not None else no_masks(nodes)
    for name, mask in (("train", train), ("val", val), ("test", test)):
        if mask.shape != (nodes,):
            raise AtollError(
                f"{where}: the {name} mask has shape {mask.shape} for {nodes} nodes; give one true or false per node."
            )
    if (train & val | train & test | val & test).any():
        node = int(np.flatnonzero(train & val | train & test | val & test)[0])
        raise AtollError(f"{where}: node {node} is in two of train, val and test; put it in one.")
    train, val, test = (mask & (y >= 0) for mask in (train, val, test))  # else a node without a class would count as an item
    weights = None
    if edge_weight is None:
        edges = tidy_edges(edges, nodes, directed)
    else:
        edges, weights = tidy_weights(edges, checked_weights(edge_weight, edges.shape[1], where), nodes, directed, where)
    return Graph(
        x=compact(x),
        edge_index=torch.from_numpy(edges),
        edge_weight=None if weights is None else torch.from_numpy(weights),
        y=torch.from_numpy(y.astype(np.int64)),
        train=torch.from_numpy(train.astype(bool)),
        val=torch.from_numpy(val.astype(bool)),
        test=torch.from_numpy(test.astype(bool)),
        num_classes=num_classes if num_classes is not None else int(y.astype(np.int64).max(initial=-1)) + 1,
        ids=torch.arange(nodes) if ids is None else torch.from_numpy(ids.astype(np.int64)),
        ptr=torch.tensor([0, nodes]),
        class_names=class_names,
        feature_names=feature_names,
    )


def check(graph: Graph, where: str) -> None:
    """Refuse a `Graph` made by hand whose fields do not fit together."""
    x, nodes = plain(graph.x, where), graph.num_nodes
    check_labels(graph.y.numpy(), graph.num_classes, where)
    check_features(x, nodes, where)
    check_edges(graph.edge_index.numpy(), nodes, where)
    if graph.edge_weight is not None:
        checked_weights(graph.edge_weight, graph.edge_index.shape[1], where)
        if graph.edge_weight.dtype != torch.float32 or graph.edge_weight.ndim != 1:
            raise AtollError(f"{where}: edge_weight is {graph.edge_weight.dtype}; give one float32 number per edge.")
    if x.dtype != np.float32:
        raise AtollError(f"{where}: the features are {x.dtype}; give float32.")
    items, what = (nodes, "node") if graph.graph_ptr is None else (len(graph.graph_ptr) - 1, "graph")
    items, what = (items, what) if graph.pairs is None else (graph.pairs.shape[1], "pair")
    for name in ("y", "train", "val", "test"):
        if (shape := tuple(getattr(graph, name).shape)) != (items,):
            raise AtollError(f"{where}: {name} has shape {shape} for {items} {what}s; give one value per {what}.")
    if graph.y_columns is not None and (
        tuple(graph.y_columns.shape) != (items, graph.num_classes) or graph.y_columns.dtype != torch.float32
    ):
        raise AtollError(f"{where}: y_columns must be float32 of shape {(items, graph.num_classes)}, as num_classes says.")
    if (shape := tuple(graph.ids.shape)) != (nodes,):
        raise AtollError(f"{where}: ids has shape {shape} for {nodes} nodes; give one value per node.")


def plain(x: Features, where: str) -> Features:
    """The features as a scipy or numpy array of real numbers, whatever their type."""
    if isinstance(x, Tensor):
        x = x.detach().cpu().to_dense()
        x = (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    try:
        x = x if sp.issparse(x) else np.asarray(x)
    except ValueError as error:
        raise AtollError(f"{where}: the rows of the features differ in length; give every node the same number.") from error
    if x.dtype.kind not in "biuf":
        raise AtollError(f"{where}: the features are {x.dtype}; give real numbers.")
    return x


def check_features(x: Features, nodes: int, where: str) -> None:
    """Refuse features that are not a finite (nodes, d) matrix."""
    if len(x.shape) != 2 or x.shape[0] != nodes:
        raise AtollError(f"{where}: the features have shape {tuple(x.shape)} for {nodes} nodes; give one row per node.")
    if x.shape[1] == 0:
        raise AtollError(f"{where}: the features have no columns; give at least one (for a start, the degree).")
    values = (x.data if sp.issparse(x) else x).reshape(-1)
    for first in range(0, len(values), MAX_CHECKED):
        piece = values[first : first + MAX_CHECKED]
        fine = np.isfinite(piece)
        if values.dtype.itemsize > 4:  # features are kept as float32
            fine &= np.abs(piece) <= MAX_FEATURE
        if fine.all():
            continue
        index = first + int(np.flatnonzero(~fine)[0])
        row = int(np.searchsorted(np.asarray(x.indptr), index, side="right") - 1) if sp.issparse(x) else index // x.shape[1]
        column = int(x.indices[index]) if sp.issparse(x) else index % x.shape[1]
        raise AtollError(
            f"{where}: feature {column} of node {row} is NaN, infinite or too large; "
            "replace it with a number or leave the column out."
        )


def check_edges(edges: Ints, nodes: int, where: str) -> None:
    """Refuse edges that are not a (2, E) array of node numbers."""
    if edges.ndim != 2 or edges.shape[0] != 2:
        raise AtollError(f"{where}: the edges have shape {edges.shape}; give two rows, sources and targets.")
    if not np.issubdtype(edges.dtype, np.integer):
        raise AtollError(f"{where}: the edges are {edges.dtype}; give whole node numbers.")
    if not edges.size or 0 <= edges.min() <= edges.max() < nodes:
        return
    wrong = np.flatnonzero(((edges < 0) | (edges >= nodes)).any(axis=0))
    if len(wrong):
        edge = int(wrong[0])
        raise AtollError(
            f"{where}: edge {edge} goes from {edges[0, edge]} to {edges[1, edge]}, but nodes are numbered 0 to {nodes - 1}; "
            "remove the edge or add the node."
        )


def check_labels(y: Ints, num_classes: int | None, where: str) -> None:
    """Refuse labels that are not classes 0, 1, 2, … or −1 for unlabeled."""
    if y.ndim != 1 or not np.issubdtype(y.dtype, np.integer):
        raise AtollError(f"{where}: the labels have shape {y.shape} and type {y.dtype}; give one whole number per node.")
    if len(y) == 0:
        raise AtollError(f"{where} has no nodes; give at least one.")
    if num_classes is not None and not 0 <= num_classes <= MAX_CLASSES:
        raise AtollError(f"{where}: the number of classes is {num_classes}; it must be between 0 and {MAX_CLASSES}.")
    wrong = np.flatnonzero((y < -1) | (y >= (num_classes if num_classes is not None else MAX_CLASSES)))
    if len(wrong):
        node = int(wrong[0])
        classes = f"0 to {num_classes - 1}" if num_classes else "none here" if num_classes == 0 else "0, 1, 2, …"
        raise AtollError(f"{where}: label {y[node]} of node {node} is not a class; classes are {classes}; -1 means unlabeled.")


def masks_of_fold(masks: Sequence[Bools], fold: int, where: str) -> Masks:
    """Train, val and test of one of several splits: the column `fold` of every (nodes, splits) mask."""
    check_fold(fold, min((mask.shape[1] for mask in masks if mask.ndim == 2), default=1), where)
    train, val, test = (mask[:, fold] if mask.ndim == 2 else mask for mask in masks)
    return train, val, test


def check_fold(fold: int, folds: int, where: str) -> int:
    """Refuse the index of a split that does not exist."""
    if not 0 <= fold < folds:
        raise AtollError(f"{where} has {folds} split{'s' if folds > 1 else ''}, numbered from 0; there is no fold {fold}.")
    return fold
