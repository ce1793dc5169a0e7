"""A small graph of three parties for losses and masks: some nodes without a label, a party without validation nodes."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.graphs.graph import Graph

SIZES = [6, 9, 4]


def labeled_graph() -> Graph:
    """Three parties; the last has no validation nodes; some nodes have no label."""
    nodes = sum(SIZES)
    source = torch.Generator().manual_seed(0)
    y = torch.randint(0, 3, (nodes,), generator=source)
    y[[2, 8]] = -1
    role = torch.arange(nodes) % 3
    role[-4:] = torch.tensor([0, 0, 2, 2])
    return Graph(
        x=torch.zeros(nodes, 1),
        edge_index=torch.zeros(2, 0, dtype=torch.int64),
        y=y,
        train=role == 0,
        val=role == 1,
        test=role == 2,
        num_classes=3,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, 6, 15, 19]),
    )


def random_logits() -> Tensor:
    """Logits with a gradient."""
    return torch.randn(sum(SIZES), 3, generator=torch.Generator().manual_seed(1)).mul_(5).requires_grad_()


def blocks(tensor: Tensor) -> tuple[Tensor, ...]:
    """The parties' rows."""
    return tensor.split(SIZES)
