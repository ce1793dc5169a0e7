"""The backbones in plain torch with dense matrices, one party at a time: a reference for the algorithms' tests."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.runner import Experiment, Result

Weights = dict[str, Tensor]


@dataclass
class Party:
    """One party's graph, dense."""

    x: Tensor
    adjacency: Tensor  # row i: the sources of the edges into i
    y: Tensor
    train: Tensor

    @property
    def n(self) -> int:
        """Training nodes."""
        return int(self.train.sum())

    @property
    def normalized_adjacency(self) -> Tensor:
        """D^(-1/2)(A + I)D^(-1/2)."""
        return normalized(self.adjacency)

    @property
    def mean(self) -> Tensor:
        """D⁻¹A."""
        return self.adjacency / self.adjacency.sum(1, keepdim=True).clamp(min=1)

    def loss(self, logits: Tensor) -> Tensor:
        """The mean over the training nodes."""
        return F.cross_entropy(logits[self.train], self.y[self.train])


def normalized(adjacency: Tensor) -> Tensor:
    """D^(-1/2)(A + I)D^(-1/2)."""
    looped = adjacency + torch.eye(len(adjacency))
    scale = looped.sum(1) ** -0.5
    return scale[:, None] * looped * scale


def prepare(config: Config) -> tuple[Experiment, list[Party]]:
    """An experiment and its parties' graphs, dense."""
    experiment = runner.prepare(config)
    return experiment, parties(experiment.party_data.parts)


def parties(parts: Graph) -> list[Party]:
    """Each block as a dense graph."""
    return [dense(parts.select([p])) for p in range(parts.parties)]


def dense(graph: Graph) -> Party:
    """A graph of one party, dense."""
    x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    return Party(x, adjacency, graph.y, graph.train)


def forward(model: str, w: Mapping[str, Tensor], party: Party) -> Tensor:
    """Logits of a two-layer backbone (SGC: one) with parameters named as atoll's."""
    if model == "sgc":
        return party.normalized_adjacency @ party.normalized_adjacency @ party.x @ w["layers.0.weight"] + w["layers.0.bias"]
    h = party.x
    for layer in (0, 1):
        if model == "gcn":
            h = party.normalized_adjacency @ h @ w[f"layers.{layer}.weight"] + w[f"layers.{layer}.bias"]
        else:
            h = (
                party.mean @ h @ w[f"layers.{layer}.near.weight"]
                + w[f"layers.{layer}.near.bias"]
                + h @ w[f"layers.{layer}.own.weight"]
            )
        h = h.relu() if layer == 0 else h
    return h


def leaves(weights: Mapping[str, Tensor]) -> Weights:
    """A copy that trains."""
    return {name: value.detach().clone().requires_grad_() for name, value in weights.items()}


def descend(weights: Weights, loss: Tensor, lr: float) -> None:
    """One step of plain gradient descent."""
    gradients = torch.autograd.grad(loss, list(weights.values()))
    with torch.no_grad():
        for value, gradient in zip(weights.values(), gradients, strict=True):
            value -= lr * gradient


def descend_both(one: Weights, other: Weights, loss: Tensor, lr: float) -> None:
    """One step of plain gradient descent by two sets of weights that may have names in common."""
    together = {("one", name): value for name, value in one.items()} | {("other", name): value for name, value in other.items()}
    descend({" ".join(key): value for key, value in together.items()}, loss, lr)


def average(models: list[Weights], counts: list[int]) -> Weights:
    """Σ_k (n_k / n)·w_k."""
    total = sum(counts)
    return {name: sum(m[name].detach() * n / total for m, n in zip(models, counts, strict=True)) for name in models[0]}


def close(one: Mapping[str, Tensor], other: Mapping[str, Tensor], tolerance: float = 1e-5) -> None:
    """The same weights, nearly."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name].detach(), atol=tolerance, rtol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> None:
    """The same weights, bit for bit."""
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


def metrics(result: Result) -> list[dict[str, Any]]:
    """The history without clock and bytes."""
    return [{name: value for name, value in row.items() if name not in ("seconds", "up", "down")} for row in result.rows]


def size(weights: Mapping[str, Tensor]) -> int:
    """The number of parameters."""
    return sum(value.numel() for value in weights.values())
