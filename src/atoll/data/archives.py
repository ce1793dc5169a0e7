"""A graph as an `.npz` or a folder of `.npy`: its arrays, each checked, with errors that name the file and the array."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.builder import MAX_CLASSES, Ints, Masks, build_graph, masks_of_fold, plain
from atoll.data.lint import warn_about_edge_columns, warn_about_edges, warn_about_features
from atoll.data.npz import Arrays, read_folder, read_npz
from atoll.data.target_columns import CLASS, checked_targets, known_rows
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

EDGE_ARRAYS = ("edge_attr", "edge_type")  # arrays of other programs that are not used here


def read_archive(
    path: Path, directed: bool, fold: int = 0, edge_weights: bool = True, *, labeled: bool = True, target: str = CLASS
) -> Graph:
    """The whole graph of an `.npz`; unless `labeled`, it may have no `y`, and nothing is said about labels and features."""
    archive = open_archive(path)
    for key, items in (("graph_ptr", "small graphs"), ("pairs", "pairs of nodes")):
        if key in archive and "ptr" in archive:
            raise AtollError(f"{path} is a shard of {items}, which is not read alone; give the folder of all shards, or tables.")
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


def open_archive(path: Path) -> Arrays:
    """The arrays of an .npz or of a folder with one .npy per array, of one party."""
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
