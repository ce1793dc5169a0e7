"""GAMLP in plain torch: every node is weighed by its own scores."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.graphs.graph import stack
from atoll.models.gamlp import GAMLP
from atoll.models.registry import build
from atoll.models.standalone.check import random_graph
from atoll.random import Draws


def naive(weights: plain.Weights, party: plain.Party, steps: int, layers: int) -> torch.Tensor:
    """Node by node: the scores of its hops, their softmax, the mixture, and the MLP."""
    hops = [party.x]
    for _ in range(steps):
        hops.append(party.normalized_adjacency @ hops[-1])
    rows = []
    for node in range(len(party.x)):
        own = [hop[node] for hop in hops]
        reference = sum(x @ weights["attention.reference"][:, k] for k, x in enumerate(own))
        scores = torch.stack([reference + x @ weights["attention.own"][:, 0] + weights["attention.bias"][0] for x in own])
        shares = torch.softmax(torch.sigmoid(scores), 0)
        rows.append(sum(share * x for share, x in zip(shares, own, strict=True)))
    out = torch.stack(rows)  # type: ignore[arg-type]
    for index in range(layers):
        out = torch.where(out > 0, out, weights["slope"] * out) if index else out
        out = out @ weights[f"layers.{index}.weight"] + weights[f"layers.{index}.bias"]
    return out


@pytest.mark.parametrize(("steps", "layers"), [(3, 3), (2, 1), (0, 2)])
def test_outputs_and_gradients(steps: int, layers: int) -> None:
    """Of two parties in one block, against a loop over nodes."""
    parties = [0, 1]
    options = {"features": 6, "classes": 3, "hidden": 8, "layers": layers, "settings": {"steps": steps}}
    model = build("gamlp", parties=2, draws=Draws(0, parties), **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.3 * Draws(0, parties, "more").normal(*parameter.shape[1:])
    graphs = [random_graph(model.shape, size, seed=size) for size in (15, 20)]
    out = model(stack(graphs))
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    ours = dict(
        zip(
            dict(model.named_parameters()),
            torch.autograd.grad((out * direction).sum(), list(model.parameters()), allow_unused=True),
            strict=True,
        )
    )
    start = 0
    for party, graph in enumerate(graphs):
        weights = plain.leaves({name: value[party] for name, value in model.named_parameters()})
        expected = naive(weights, plain.dense(graph), steps, layers)
        rows = slice(start, start + graph.num_nodes)
        start += graph.num_nodes
        torch.testing.assert_close(out[rows], expected, atol=1e-5, rtol=1e-5)
        used = {name: value for name, value in weights.items() if layers > 1 or name != "slope"}
        theirs = torch.autograd.grad((expected * direction[rows]).sum(), list(used.values()))
        for name, gradient in zip(used, theirs, strict=True):
            torch.testing.assert_close(ours[name][party], gradient, atol=1e-4, rtol=1e-4)


def test_first_values() -> None:
    """A PReLU begins with 0.25, weights with Glorot's bound times √2, biases with 0."""
    model = build("gamlp", parties=1, features=30, classes=3, hidden=20, layers=3, draws=Draws(0, [0]))
    assert isinstance(model, GAMLP)
    values = {name: value.detach() for name, value in model.named_parameters()}
    assert float(values["slope"]) == 0.25
    assert float(values["layers.0.bias"].abs().max()) == 0
    bound = (2 * 6 / 50) ** 0.5
    assert 0.9 * bound < float(values["layers.0.weight"].abs().max()) <= bound
    assert model.layer_of("slope") == "slope"
    assert list(values)[-1].startswith("layers.2")  # the last layer comes last
