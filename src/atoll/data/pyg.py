"""Graphs of PyG: `torch_geometric.data.Data` → `Graph`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from atoll.data.builder import Bools, build_graph, masks_of_fold, plain
from atoll.data.lint import warn_about_edge_columns, warn_about_edges, warn_about_features
from atoll.data.target_columns import CLASS, checked_targets, with_targets
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

WHERE = "The PyG graph"
ID_NAMES = ("n_id", "node_id", "name")  # fields of a Data that may hold the nodes' ids


def from_pyg(
    data: Any,
    *,
    fold: int = 0,
    directed: bool = False,
    where: str = WHERE,
    edge_weights: bool = True,
    target: str = CLASS,
) -> Graph:
    """The whole graph (P = 1) of a `torch_geometric.data.Data`: `x`, `edge_index`, `y` and, where it has them, its masks.

    `edge_weight` is used, unless `edge_weights` is false; `feature_names` and `class_names`, lists of texts, are kept. `fold`
    selects a column of (N, k) masks; `where` names the graph in error messages.
    """
    edges, y = _tensor(data, "edge_index", where), _tensor(data, "y", where)
    if not _has(data, "x"):
        raise AtollError(f"{where} has no `x`; set data.x.")
    targets = None if target == CLASS else pyg_targets(y, int(y.shape[0]) if y.dim() else 0, target, where)
    if targets is not None:
        y = torch.where(targets.isnan().all(1), -1, 0)
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = torch.where(torch.isnan(y), -1, y) if y.is_floating_point() else y
    if y.is_complex() or (y.is_floating_point() and not (whole.isfinite() & (whole == whole.round())).all()):
        raise AtollError(
            f"{_possessive(where)} `y` holds numbers that are not classes; give whole numbers, and -1 or NaN where unlabeled."
        )
    masks: list[Bools] = [
        _tensor(data, part, where).bool().numpy() if _has(data, part) else np.zeros(whole.numel(), bool)
        for part in ("train_mask", "val_mask", "test_mask")
    ]
    labels, x = whole.to(torch.int64).numpy(), plain(data.x, where)
    names = _names(data, "feature_names", x.shape[-1], where)
    classes = _names(data, "class_names", None, where)
    weights = _tensor(data, "edge_weight", where) if edge_weights and _has(data, "edge_weight") else None
    graph = build_graph(
        x,
        edges.numpy(),
        labels,
        masks_of_fold(masks, fold, where),
        where=where,
        directed=directed,
        num_classes=targets.shape[1] if targets is not None else None if classes is None else len(classes),
        class_names=classes,
        feature_names=names,
        edge_weight=weights,
    )
    if targets is not None:
        if classes is not None and len(classes) != targets.shape[1]:
            raise AtollError(f"{where} has {targets.shape[1]} {target} and {len(classes)} class_names; give one name each.")
        labels, graph = np.full_like(labels, -1), with_targets(graph, targets, classes)
        known = graph.y >= 0  # what has no known label or value has no role, as in tables
        graph = replace(graph, train=graph.train & known, val=graph.val & known, test=graph.test & known)
    warn_about_features(x, labels, names, where)
    warn_about_edge_columns([name for name in ("edge_attr", "edge_type") if _has(data, name)], where, "field")
    warn_about_edges(edges.numpy(), where, weighted=weights is not None)
    return graph


def pyg_targets(y: torch.Tensor, items: int, target: str, where: str) -> torch.Tensor:
    """`y` as labels or values, (I, T)."""
    if y.is_complex():
        raise AtollError(f"{_possessive(where)} `y` is complex; give real numbers.")
    return checked_targets(y.double().numpy(), items, target, where)


def node_ids(data: Any, nodes: int, where: str = WHERE) -> list[int] | list[str] | None:
    """The nodes' ids, whole numbers or texts, as far as the Data has any (`ID_NAMES`)."""
    for name in ID_NAMES:
        value = getattr(data, name, None)
        if value is None or isinstance(value, str):  # the name of the graph
            continue
        ids = value.tolist() if hasattr(value, "tolist") else list(value)
        if len(ids) != nodes or not (all(type(each) is int and each >= 0 for each in ids) or all(map(_is_text, ids))):
            raise AtollError(f"`{name}` of {_inside(where)} must hold one whole number (from 0) or text per node.")
        if len(set(ids)) < nodes:
            raise AtollError(f"`{name}` of {_inside(where)} names a node twice; make ids unique.")
        return ids
    return None


def _has(data: Any, name: str) -> bool:
    return getattr(data, name, None) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _names(data: Any, field: str, count: int | None, where: str) -> tuple[str, ...] | None:
    """A list of texts, each once."""
    value = getattr(data, field, None)
    if value is None:
        return None
    names = tuple(map(str, value)) if not isinstance(value, str) else ()
    if len(set(names)) < len(names) or not names or len(names) != (count if count is not None else len(names)):
        what = "class" if count is None else f"of the {count} features"
        raise AtollError(f"`{field}` of {_inside(where)} must be a list that names each {what} once.")
    return names


def _tensor(data: Any, name: str, where: str) -> torch.Tensor:
    """A field of a PyG graph; lists and arrays are converted."""
    value = getattr(data, name, None)
    if value is None:
        raise AtollError(f"{where} has no `{name}`; set data.{name}.")
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise AtollError(
            f"`{name}` of {_inside(where)} is a {type(value).__name__} that is not a tensor; give a tensor."
        ) from error
    if tensor.layout != torch.strided:
        raise AtollError(f"`{name}` of {_inside(where)} is a sparse tensor; give a plain one.")
    return tensor


def _inside(where: str) -> str:
    """`where` within a sentence."""
    return where[0].lower() + where[1:]


def _possessive(where: str) -> str:
    return f"{where}'s"
