"""ChebNet against PyG's layers and against the polynomials written out."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.errors import AtollError
from atoll.graphs.graph import stack
from atoll.graphs.minibatch import epoch
from atoll.models.batching import fan_outs
from atoll.models.registry import build
from atoll.models.standalone.check import random_graph
from atoll.random import Draws
from atoll.settings import BatchedTraining


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_outputs_and_gradients(order: int) -> None:
    """Of two parties in one block: Σ_k T_k(L̂)·H·W_k with T_k = 2·L̂·T_{k−1} − T_{k−2}, on directed graphs."""
    model = build("cheb", parties=2, features=6, classes=3, hidden=8, settings={"order": order}, draws=Draws(0, [0, 1]))
    graphs = [random_graph(model.shape, size, seed=size) for size in (15, 20)]
    out = model(stack(graphs))
    direction = torch.randn(out.shape, generator=torch.Generator().manual_seed(0))
    ours = torch.autograd.grad((out * direction).sum(), list(model.parameters()))
    start = 0
    for party, graph in enumerate(graphs):
        weights = plain.leaves({name: value[party] for name, value in model.named_parameters()})
        own = plain.dense(graph)
        degree = own.adjacency.sum(0)
        scale = torch.where(degree > 0, degree, torch.inf) ** -0.5
        laplacian = -(scale[:, None] * own.adjacency * scale)
        h = own.x
        for layer in (0, 1):
            terms = [h, laplacian @ h]
            while len(terms) < order:
                terms.append(2 * laplacian @ terms[-1] - terms[-2])
            h = sum(term @ weights[f"layers.{layer}.weight"][k] for k, term in enumerate(terms[:order]))
            h = h + weights[f"layers.{layer}.bias"]
            h = h.relu() if layer == 0 else h
        rows = slice(start, start + graph.num_nodes)
        start += graph.num_nodes
        torch.testing.assert_close(out[rows], h, atol=1e-5, rtol=1e-5)
        theirs = torch.autograd.grad((h * direction[rows]).sum(), list(weights.values()))
        for mine, gradient in zip(ours, theirs, strict=True):
            torch.testing.assert_close(mine[party], gradient, atol=1e-4, rtol=1e-4)


def test_sampled_neighbors_are_refused_and_clusters_work() -> None:
    """It has no matrix of sampled neighbors; a cluster is a graph of its own."""
    model = build("cheb", parties=1, features=6, classes=3, draws=Draws(0, [0]))
    with pytest.raises(AtollError, match="cannot be trained on sampled neighbors"):
        fan_outs(BatchedTraining(model="cheb", batch_size=4), model.hops)
    graph = random_graph(model.shape, 40, seed=0)
    batches = list(epoch(graph, 4, [], "clusters", Draws(0, [0], "batches"), torch.ones(40, dtype=torch.bool)))
    assert len(batches) > 1
    assert all(model(batch).shape == (batch.num_nodes, 3) for batch in batches)
