"""Graph classification in plain torch, one party and one graph at a time: a reference for tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.runner import Experiment

Weights = dict[str, Tensor]


@dataclass
class OneGraph:
    """A small graph of a party, dense."""

    x: Tensor
    adjacency: Tensor
    y: int
    role: str
    rows: slice  # of the party's nodes


@dataclass
class GraphParty:
    """A party's graphs, and how many classes it has."""

    number: int
    graphs: list[OneGraph]
    classes: int
    config: Config

    def role(self, role: str) -> list[OneGraph]:
        """The graphs of one split."""
        return [graph for graph in self.graphs if graph.role == role]

    @property
    def n(self) -> int:
        """Training graphs."""
        return len(self.role("train"))

    def batches(self, round: int, epochs: int = 1, draws: Draws | None = None) -> list[list[OneGraph]]:
        """The batches of a round: shuffled by the party, `batch_size` at a time."""
        draws = draws or Draws(self.config.seed, [self.number], "fit", round, 1)
        training, size, found = self.role("train"), self.config.settings.batch_size, []
        for _ in range(epochs):
            order = draws.orders([self.n])[0].tolist()
            found += [[training[i] for i in sorted(order[start : start + size])] for start in range(0, self.n, size)]
        return found

    def out(self, w: Weights, batch: list[OneGraph], logits: Callable[..., Tensor] | None = None) -> Tensor:
        """Logits of the party's own classes."""
        s = self.config.settings
        make = logits or logits_of
        return torch.stack([make(w, graph, s.readout, s.model) for graph in batch])[:, : self.classes]

    def loss(self, w: Weights, batch: list[OneGraph], logits: Callable[..., Tensor] | None = None) -> Tensor:
        """The mean over a batch."""
        return F.cross_entropy(self.out(w, batch, logits), torch.tensor([graph.y for graph in batch]))

    def accuracy(self, w: Weights, logits: Callable[..., Tensor] | None = None) -> float:
        """Of the test graphs."""
        test = self.role("test")
        right = self.out(w, test, logits).argmax(1) == torch.tensor([graph.y for graph in test])
        return float(right.float().mean())


def prepare(config: Config) -> tuple[Experiment, list[GraphParty], list[Weights]]:
    """An experiment, its parties, and the first values of the models that they keep."""
    experiment = runner.prepare(config)
    parts = experiment.party_data.parts
    classes = parts.classes or (parts.num_classes,) * parts.parties
    parties = [GraphParty(p, graphs_of(parts.select([p])), classes[p], config) for p in range(parts.parties)]
    first: Mapping[str, Any] = experiment.engine.state()["0"].get("model", {})
    return experiment, parties, [{name: value[p].clone() for name, value in first.items()} for p in range(parts.parties)]


def graphs_of(graph: Graph) -> list[OneGraph]:
    """The graphs of one party."""
    assert graph.graph_ptr is not None
    x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    found = []
    for g in range(len(graph.y)):
        rows = slice(*graph.graph_ptr[g : g + 2].tolist())
        role = "train" if graph.train[g] else "val" if graph.val[g] else "test"
        found.append(OneGraph(x[rows], adjacency[rows, rows], int(graph.y[g]), role, rows))
    return found


def pooled(h: Tensor, readout: str) -> Tensor:
    """A graph's nodes as one row."""
    return {"sum": h.sum(0), "mean": h.mean(0), "max": h.amax(0)}[readout]


def convolved(w: Weights, name: str, h: Tensor, adjacency: Tensor, model: str) -> Tensor:
    """relu(conv(h)) of one layer."""
    near = adjacency + torch.eye(len(h))
    if model == "gin":
        h = (near @ h @ w[f"{name}.first.weight"] + w[f"{name}.first.bias"]).relu()
        return (h @ w[f"{name}.second.weight"] + w[f"{name}.second.bias"]).relu()
    if model == "gcn":
        scale = near.sum(1) ** -0.5
        return ((scale[:, None] * near * scale) @ h @ w[f"{name}.weight"] + w[f"{name}.bias"]).relu()
    mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
    return (mean @ h @ w[f"{name}.near.weight"] + w[f"{name}.near.bias"] + h @ w[f"{name}.own.weight"]).relu()


def embedded(w: Weights, graph: OneGraph, readout: str, model: str) -> Tensor:
    """What the last layer takes of one graph."""
    h = graph.x @ w["input.weight"] + w["input.bias"]
    for layer in range(2):
        h = convolved(w, f"layers.{layer}.layers.0", h, graph.adjacency, model)
    return (pooled(h, readout) @ w["post.weight"] + w["post.bias"]).relu()


def logits_of(w: Weights, graph: OneGraph, readout: str, model: str) -> Tensor:
    """The network of one party on one graph."""
    return embedded(w, graph, readout, model) @ w["output.weight"] + w["output.bias"]
