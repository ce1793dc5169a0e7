"""Graphs of PyG: `torch_geometric.data.Data` → `Graph`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from atoll.data.builder import build_graph, check_fold, plain
from atoll.data.lint import warn_about_edges, warn_about_features
from atoll.errors import AtollError
from atoll.graphs.graph import Graph

WHERE = "The PyG graph"


def from_pyg(data: Any, *, fold: int = 0, directed: bool = False) -> Graph:
    """The whole graph (P = 1) of a `torch_geometric.data.Data`: `x`, `edge_index`, `y` and, where it has them, its masks."""
    edges, y = _tensor(data, "edge_index"), _tensor(data, "y")
    if getattr(data, "x", None) is None:
        raise AtollError("The PyG graph has no `x`; set data.x.")
    if y.dim() == 2 and y.shape[1] == 1:
        y = y[:, 0]
    whole = torch.where(torch.isnan(y), -1, y) if y.is_floating_point() else y
    if y.is_complex() or (y.is_floating_point() and not (whole.isfinite() & (whole == whole.round())).all()):
        raise AtollError(
            "The PyG graph's `y` holds numbers that are not classes; give whole numbers, and -1 or NaN where unlabeled."
        )
    masks = []
    for part in ("train_mask", "val_mask", "test_mask"):
        mask = getattr(data, part, None)
        if mask is None:
            masks.append(np.zeros(whole.numel(), bool))
            continue
        mask = _tensor(data, part).bool()
        masks.append((mask[:, check_fold(fold, mask.shape[1], WHERE)] if mask.dim() == 2 else mask).numpy())
    labels = whole.to(torch.int64).numpy()
    graph = build_graph(data.x, edges.numpy(), labels, (masks[0], masks[1], masks[2]), where=WHERE, directed=directed)
    warn_about_features(plain(data.x, WHERE), labels, None, WHERE)
    warn_about_edges(
        edges.numpy(), WHERE, [name for name in ("edge_attr", "edge_weight") if getattr(data, name, None) is not None]
    )
    return graph


def _tensor(data: Any, name: str) -> torch.Tensor:
    """A field of a PyG graph; lists and arrays are converted."""
    value = getattr(data, name, None)
    if value is None:
        raise AtollError(f"The PyG graph has no `{name}`; set data.{name}.")
    try:
        tensor = torch.as_tensor(value).detach().cpu()
    except (TypeError, ValueError, RuntimeError) as error:
        raise AtollError(f"`{name}` of the PyG graph is a {type(value).__name__} that is not a tensor; give a tensor.") from error
    if tensor.layout != torch.strided:
        raise AtollError(f"`{name}` of the PyG graph is a sparse tensor; give a plain one.")
    return tensor
