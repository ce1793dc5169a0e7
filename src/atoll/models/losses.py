"""Losses of many parties at once: the sum over parties of each party's mean, so that each party's gradient is its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix
from atoll.random import Draws

Mask = str | Tensor  # "train", "val", "test", or (N,) bool


def cross_entropy(logits: Tensor, graph: Graph, mask: Mask = "train", *, balance: bool = False) -> Tensor:
    """Σ_p mean_{i ∈ mask_p} −log softmax(logits_i)[y_i]; unlabelled nodes are left out, a party without any counts 0.

    With `balance` each party's mean is one over its classes, of every class's mean.
    """
    result: Tensor = _CrossEntropy.apply(logits, *_labelled(graph, mask, balance))  # type: ignore[no-untyped-call]
    return result


class _CrossEntropy(torch.autograd.Function):
    """Σ_i w_i·log Σ_c exp z_ic − Σ_ic T_ic·z_ic, the rows of T summing to w; torch's softmax is slow on few columns."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        shifted = logits - logits.amax(1, keepdim=True)
        fitted = torch.dot(targets.flatten(), shifted.flatten())
        shares = shifted.exp_()
        total = shares.sum(1, keepdim=True)
        if ctx.needs_input_grad[0]:
            ctx.save_for_backward(shares.mul_(weights[:, None] / total).sub_(targets))
        return torch.dot(total.log_().flatten(), weights) - fitted

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (of_logits,) = ctx.saved_tensors
        return of_logits * gradients[0], None, None


def kl(targets: Tensor, logits: Tensor, graph: Graph, mask: Mask | None = None) -> Tensor:
    """Σ_p mean_{i ∈ mask_p} KL(targets_i ∥ softmax(logits_i)), over all nodes without a mask; targets are constant, of sum 1."""
    weights = node_weights(graph, mask)
    certainty = torch.xlogy(targets, targets).sum(1) @ weights
    cross: Tensor = _CrossEntropy.apply(logits, targets * weights[:, None], weights)  # type: ignore[no-untyped-call]
    return cross + certainty


def smoothness(rows: Tensor, graph: Graph) -> Tensor:
    """Σ_i Σ_{j ∈ N(i) ∪ i} ‖x_i − x_j‖² / Σ_i |N(i) ∪ i|: how far neighbours are apart."""
    total: Tensor = _Smoothness.apply(rows, graph.laplacian)  # type: ignore[no-untyped-call]
    return total / (graph.edge_index.shape[1] + graph.num_nodes)


class _Smoothness(torch.autograd.Function):
    """xᵀ·L·x and its gradient 2·L·x, with one product for both."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, laplacian: SparseMatrix) -> Tensor:
        product = laplacian @ rows
        ctx.save_for_backward(product)
        return torch.dot(product.flatten(), rows.flatten())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (product,) = ctx.saved_tensors
        return 2 * gradients[0] * product, None


def by_party(values: Tensor, graph: Graph, mask: Mask | None = None) -> Tensor:
    """(N, …) → (P, …): each party's sum over its (masked) nodes."""
    if mask is not None:
        chosen = resolve(graph, mask).view(-1, *[1] * (values.ndim - 1))
        values = torch.where(chosen, values, torch.zeros((), dtype=values.dtype))
    return graph.blocks.sum(values)


def node_weights(graph: Graph, mask: Mask | None = None) -> Tensor:
    """(N,) 1/n_p at the n_p masked nodes of party p, 0 elsewhere; kept with the graph for its own masks."""
    name = _name(graph, mask)
    if name is None:
        return _shares(graph, resolve(graph, mask))
    key = f"weights.{name}"
    if key not in graph.derived:
        graph.derived[key] = _shares(graph, resolve(graph, mask))
    return graph.derived[key]


def batch(graph: Graph, size: int, draws: Draws) -> Mask:
    """So many training nodes of each party, drawn by itself; all of a party that has no more, and of every party for 0."""
    most = int(graph.num_train.max())
    if not 0 < size < most:
        return "train"
    rows = graph.train.nonzero()[:, 0]
    starts = graph.num_train.cumsum(0) - graph.num_train
    keys = torch.full((graph.parties, most), 2.0)
    places = graph.party[rows], torch.arange(len(rows)) - starts[graph.party[rows]]
    keys[places] = draws.uniform(most)[places]
    chosen = torch.zeros(graph.num_nodes, dtype=torch.bool)
    chosen[rows] = (keys.argsort(1).argsort(1) < size)[places]
    return chosen


def resolve(graph: Graph, mask: Mask | None) -> Tensor:
    """(N,) bool: the mask of that name, or the mask itself; all nodes for None."""
    if mask is None:
        return torch.ones(graph.num_nodes, dtype=torch.bool)
    if isinstance(mask, Tensor):
        return mask
    if mask not in ("train", "val", "test"):
        raise AtollError(f"there is no mask {mask!r}; a graph has train, val and test")
    chosen: Tensor = getattr(graph, mask)
    return chosen


def _labelled(graph: Graph, mask: Mask, balance: bool) -> tuple[Tensor, Tensor]:
    """Weighted one-hot targets (N, C) and weights (N,) of the labelled nodes in the mask, 0 elsewhere."""
    name = _name(graph, mask)
    keys = f"targets.{name}.{balance}", f"labelled.{name}.{balance}"
    if name is not None and keys[0] in graph.derived:
        return graph.derived[keys[0]], graph.derived[keys[1]]
    chosen = resolve(graph, mask) & (graph.y >= 0)
    weights = _class_shares(graph, chosen) if balance else _shares(graph, chosen)
    targets = torch.zeros(graph.num_nodes, graph.num_classes).scatter_(1, graph.y.clamp(min=0)[:, None], weights[:, None])
    if name is not None:
        graph.derived[keys[0]], graph.derived[keys[1]] = targets, weights
    return targets, weights


def _name(graph: Graph, mask: Mask | None) -> str | None:
    """The name to keep a mask's weights under; None for a passing mask."""
    if not isinstance(mask, Tensor):
        return mask or "all"
    return next((name for name in ("train", "val", "test") if getattr(graph, name) is mask), None)


def _shares(graph: Graph, chosen: Tensor) -> Tensor:
    counts = graph.blocks.sum(chosen.to(torch.float64))
    return (chosen / counts.clamp(min=1)[graph.party]).to(torch.float32)


def _class_shares(graph: Graph, chosen: Tensor) -> Tensor:
    """(N,) shares that sum to the same for every class that a party has chosen nodes of, and to 1 for the party."""
    cells = graph.party * graph.num_classes + graph.y.clamp(min=0)
    counts = torch.bincount(cells[chosen], minlength=graph.parties * graph.num_classes)
    classes = (counts.view(graph.parties, -1) > 0).sum(1)
    return (chosen / (counts[cells] * classes[graph.party]).clamp(min=1).double()).to(torch.float32)
