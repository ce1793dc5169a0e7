"""Losses beside the task's own: the sum over parties of each party's mean, so that each party's gradient is its own.

What a model is trained for is the task's loss (`atoll.tasks`); these are what algorithms add to it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, node_weights
from atoll.graphs.softmax import softmax_loss
from atoll.graphs.sparse import SparseMatrix


def kl(targets: Tensor, logits: Tensor, graph: Graph, mask: Mask | None = None) -> Tensor:
    """Σ_p mean_{i ∈ mask_p} KL(targets_i ∥ softmax(logits_i)), over all nodes without a mask; targets are constant, of sum 1."""
    weights = node_weights(graph, mask)
    certainty = torch.xlogy(targets, targets).sum(1) @ weights
    return softmax_loss(logits, targets * weights[:, None], weights) + certainty


def smoothness(rows: Tensor, graph: Graph) -> Tensor:
    """Σ_i Σ_{j ∈ N(i) ∪ i} ‖x_i − x_j‖² / Σ_i |N(i) ∪ i|: how far apart neighbors are."""
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
        return product.mul_(2 * gradients[0]), None  # in place: of millions of users a copy is gigabytes
