"""Attention over edges against a dense softmax, forward and backward."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from products import gradients, random_matrix

from atoll.graphs.attention import Attention, attend


@pytest.fixture(autouse=True)
def seed() -> None:
    """The same numbers in every run."""
    torch.manual_seed(0)


@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("dropped", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("scale", [1.0, 60.0])
def test_attention_equals_dense_softmax(heads: int, dropped: bool, weighted: bool, scale: float) -> None:
    """Attention over a directed graph equals a dense masked softmax, also where scores are large; weights add their logarithm."""
    nodes, width = 13, 4
    adjacency = sp.csr_array((random_matrix(nodes, nodes).toarray() != 0).astype(float))
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    more = sp.csr_array(abs(random_matrix(nodes, nodes).toarray())) if weighted else None
    attention = Attention(adjacency, heads, more)
    weights = torch.from_numpy(adjacency.toarray() + np.eye(nodes) + (0 if more is None else more.toarray())).float()
    attended = weights > 0
    rows = torch.randn(heads, nodes, width, requires_grad=True)
    source, target = torch.randn(heads, nodes, requires_grad=True), torch.randn(heads, nodes, requires_grad=True)
    scores = torch.nn.functional.leaky_relu(scale * (source[:, None, :] + target[:, :, None]), 0.2)
    share = (scores + weights.log()).softmax(2)
    kept = torch.randint(0, 2, (heads, int(attended.sum()))) * 2.0 if dropped else None
    if kept is not None:
        mask = torch.zeros(heads, nodes, nodes)
        mask[:, attended] = kept
        share = share * mask
    naive = (share @ rows).reshape(-1, width)
    flat = None if kept is None else kept.flatten()
    ours = attend(rows.reshape(-1, width), scale * source.flatten(), scale * target.flatten(), attention, flat)
    torch.testing.assert_close(ours, naive, atol=1e-6 * scale, rtol=1e-4)
    for got, wanted in zip(gradients(ours, [rows, source, target]), gradients(naive, [rows, source, target]), strict=True):
        torch.testing.assert_close(got, wanted, atol=1e-5 * scale, rtol=1e-4)
