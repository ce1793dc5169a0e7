"""DisenGCN against neighbor routing written out, node by node."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import plain
from atoll.errors import AtollError
from atoll.graphs.graph import stack
from atoll.models.batching import fan_outs
from atoll.models.registry import build
from atoll.models.standalone.check import random_graph
from atoll.random import Draws
from atoll.runs import runner
from atoll.settings import BatchedTraining
from small import small


def unit(row: Tensor) -> Tensor:
    """A vector of length 1; zeros stay zeros."""
    length = row.norm()
    return row / length if float(length.detach()) > 0 else row


def routed(rows: Tensor, adjacency: Tensor, factors: int, iterations: int) -> Tensor:
    """Algorithm 1 for one node after the other."""
    size = rows.shape[1] // factors
    z = [[unit(row[k * size : (k + 1) * size]) for k in range(factors)] for row in rows]
    out = []
    for i in range(len(rows)):
        near = adjacency[i].nonzero()[:, 0].tolist()
        center = list(z[i])
        for _ in range(iterations):
            total = list(z[i])
            for j in near:
                share = torch.softmax(torch.stack([z[j][k] @ center[k] for k in range(factors)]), 0)
                total = [total[k] + share[k] * z[j][k] for k in range(factors)]
            center = [unit(each) for each in total]
        out.append(torch.cat(center))
    return torch.stack(out)


@pytest.mark.parametrize(("factors", "iterations", "layers"), [(1, 2, 1), (4, 6, 1), (2, 3, 2)])
def test_outputs_and_gradients(factors: int, iterations: int, layers: int) -> None:
    """Of two parties in one block, on directed graphs."""
    settings = {"factors": factors, "iterations": iterations}
    shape = {"parties": 2, "features": 6, "classes": 3, "hidden": 8, "layers": layers}
    model = build("disen", **shape, settings=settings, draws=Draws(0, [0, 1]))
    graphs = [random_graph(model.shape, size, seed=size) for size in (9, 12)]
    out = model(stack(graphs))
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    ours = torch.autograd.grad((out * direction).sum(), list(model.parameters()))
    start = 0
    for party, graph in enumerate(graphs):
        weights = plain.leaves({name: value[party] for name, value in model.named_parameters()})
        own = plain.dense(graph)
        h = (own.x @ weights["input.weight"] + weights["input.bias"]).relu()
        for _ in range(layers):
            h = routed(h, own.adjacency, factors, iterations)
        h = h @ weights["output.weight"] + weights["output.bias"]
        rows = slice(start, start + graph.num_nodes)
        start += graph.num_nodes
        torch.testing.assert_close(out[rows], h, atol=1e-5, rtol=1e-5)
        theirs = torch.autograd.grad((h * direction[rows]).sum(), list(weights.values()))
        for mine, gradient in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine[party], gradient, atol=1e-4, rtol=1e-4)


def test_what_it_refuses() -> None:
    """Factors that do not divide the width, and sampled neighbors, of which it has no matrix."""
    with pytest.raises(AtollError, match="disen needs hidden"):
        build("disen", parties=1, features=6, classes=3, hidden=10, settings={"factors": 4})
    model = build("disen", parties=1, features=6, classes=3, draws=Draws(0, [0]))
    with pytest.raises(AtollError, match="cannot be trained on sampled neighbors"):
        fan_outs(BatchedTraining(model="disen", batch_size=4), model.hops)


def test_training_with_dropout_goes_down() -> None:
    """FedAvg trains it; its representation is as wide as `hidden`."""
    result = runner.run(small("fedavg", model="disen", hidden=16, dropout=0.2, rounds=12, lr=0.02))
    assert result.rows[-1]["train_loss"] < result.rows[0]["train_loss"] - 0.1
