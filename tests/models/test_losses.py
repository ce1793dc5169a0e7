"""The losses against loops over parties."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.models import losses
from labeled import SIZES, blocks, labeled_graph, random_logits


@pytest.fixture
def graph() -> Graph:
    """Three parties; the last has no validation nodes; some nodes have no label."""
    return labeled_graph()


@pytest.fixture
def logits() -> Tensor:
    """Logits with a gradient."""
    return random_logits()


@pytest.mark.parametrize("mask", [None, "val"])
def test_kl_is_a_sum_of_means(graph: Graph, logits: Tensor, mask: str | None) -> None:
    """Each party's mean of Σ t·log(t / p), summed; targets of zero count zero."""
    targets = torch.randn(sum(SIZES), 3).mul(2).softmax(1)
    targets[0] = torch.tensor([1.0, 0.0, 0.0])
    chosen = torch.ones(sum(SIZES), dtype=torch.bool) if mask is None else graph.val
    expected = torch.zeros(())
    for t, z, own in zip(blocks(targets), blocks(logits), blocks(chosen), strict=True):
        each = (torch.special.xlogy(t, t) - t * z.log_softmax(1)).sum(1)
        if own.any():
            expected = expected + each[own].mean()
    loss = losses.kl(targets, logits, graph, mask)
    torch.testing.assert_close(loss, expected)
    ours, wanted = (torch.autograd.grad(value, logits)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, wanted)


def test_kl_of_no_nodes_is_nothing(graph: Graph, logits: Tensor) -> None:
    """An empty mask gives loss 0 and gradient 0, not NaN."""
    loss = losses.kl(logits.detach().softmax(1), logits, graph, torch.zeros_like(graph.train))
    assert loss.item() == 0
    assert torch.equal(torch.autograd.grad(loss, logits)[0], torch.zeros_like(logits))
