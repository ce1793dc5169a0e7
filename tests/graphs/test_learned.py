"""Learned weights of edges: what constant weights give, and gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from atoll.graphs.learned import reweighted
from atoll.models.registry import MODELS, build, find_model
from atoll.random import Draws
from atoll.runs import runner
from small import small

WEIGHTED = [name for name in MODELS.names() if find_model(name).weighted_edges]


def test_models_that_take_weights() -> None:
    """Those that propagate over the normalized adjacency with loops."""
    assert WEIGHTED == ["appnp", "gamlp", "gcn", "gcn_head", "gcnii", "sgc"]


@pytest.mark.parametrize("name", WEIGHTED)
def test_learned_weights_are_weights_with_gradients(name: str) -> None:
    """The output and its gradients are those of constant weights; the weights' own is the difference quotient."""
    graph = runner.prepare(small("fedavg")).party_data.parts
    source = torch.Generator().manual_seed(0)
    model = build(name, parties=3, features=graph.num_features, classes=3, hidden=5, draws=Draws(0, range(3)))
    weights = (torch.rand(graph.edge_index.shape[1], generator=source) + 0.5).requires_grad_()
    probe = torch.randn(graph.num_nodes, 3, generator=source)

    learned = model(reweighted(graph, weights))
    constant = model(replace(graph, edge_weight=weights.detach()))
    torch.testing.assert_close(learned, constant, atol=1e-5, rtol=1e-4)
    ours = torch.autograd.grad((learned * probe).sum(), [*model.parameters(), weights])
    theirs = torch.autograd.grad((constant * probe).sum(), list(model.parameters()))
    for one, other in zip(ours, theirs, strict=False):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)

    direction = torch.randn(len(weights), generator=source)
    with torch.no_grad():
        above, below = ((model(reweighted(graph, weights + step * direction)) * probe).sum() for step in (0.002, -0.002))
    assert float(ours[-1] @ direction) == pytest.approx(float(above - below) / 0.004, rel=0.02, abs=0.03)


def test_edges_of_weight_0_are_none() -> None:
    """A node whose edges all have weight 0 keeps itself alone."""
    graph = runner.prepare(small("fedavg")).party_data.parts
    model = build("gcn", parties=3, features=graph.num_features, classes=3, hidden=5, draws=Draws(0, range(3)))
    without = replace(graph, edge_index=graph.edge_index[:, :0])
    torch.testing.assert_close(model(reweighted(graph, torch.zeros(graph.edge_index.shape[1]))), model(without))
