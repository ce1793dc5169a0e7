"""Link prediction on small graphs, and the same in plain torch, one party at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.runs import config
from atoll.runs.config import Config
from plain import normalized

GRAPH = {"data.nodes": 90, "data.features": 12, "data.classes": 3, "data.communities": 3, "data.degree": 6.0}
PARTITIONS: dict[str, dict[str, Any]] = {
    "horizontal": {"partition": "metis", "parties": 3},
    "overlapping": {"partition": "overlap", "parties": None, "proportions": "0.5,0.6,0.7"},
    "whole": {"partition": "metis", "parties": 3},
    "vertical": {"partition": "vertical", "parties": 3, "label_holder": 1, "optimizer": "sgd", "batch_size": 6},
}
Weights = Mapping[str, Tensor]


def small_links(algorithm: str, scenario: str = "horizontal", *, seed: int = 3, rounds: int = 3, **values: Any) -> Config:
    """A small run of link prediction."""
    settings = dict(PARTITIONS[scenario])
    partition, parties = settings.pop("partition"), settings.pop("parties")
    shares = {"train": 0.7, "val": 0.1, "test": 0.2, "ranking": 5}
    values = {**GRAPH, **settings, **shares, "hidden": 8, "lr": 0.02, "rounds": rounds, "patience": 0, **values}
    return config.resolve(
        *(algorithm,),
        dataset="csbm",
        partition=partition,
        parties=parties,
        seed=seed,
        values={"task": "link-prediction", **values},
    )


@dataclass
class LinkParty:
    """A party's graph, dense."""

    x: Tensor
    adjacency: Tensor
    n: int  # training edges

    @classmethod
    def of(cls, graph: Graph) -> LinkParty:
        """Of a graph with one party."""
        adjacency = torch.zeros(graph.num_nodes, graph.num_nodes)
        adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
        return cls(graph.dense_features(torch.arange(graph.num_nodes)), adjacency, int(graph.train.sum()))

    def scores(self, w: Weights, pairs: Tensor, decoder: str) -> Tensor:
        """GCN of two layers, then the decoder, pair by pair."""
        a = normalized(self.adjacency)
        hidden = torch.relu(a @ (self.x @ w["encoder.layers.0.weight"]) + w["encoder.layers.0.bias"])
        z = a @ (hidden @ w["encoder.layers.1.weight"]) + w["encoder.layers.1.bias"]
        return torch.stack([self.score(w, z[u], z[v], decoder) for u, v in pairs.t().tolist()])

    @staticmethod
    def score(w: Weights, one: Tensor, other: Tensor, decoder: str) -> Tensor:
        """Of two representations."""
        if decoder == "dot":
            return torch.dot(one, other)
        if decoder == "bilinear":
            m = w["decoder.weight"]
            return (torch.dot(one @ m, other) + torch.dot(other @ m, one)) / 2
        hidden = torch.relu((one * other) @ w["decoder.0.weight"] + w["decoder.0.bias"])
        return (hidden @ w["decoder.1.weight"] + w["decoder.1.bias"])[0]

    def loss(self, w: Weights, pairs: Tensor, y: Tensor, decoder: str) -> Tensor:
        """The mean binary cross-entropy."""
        return F.binary_cross_entropy_with_logits(self.scores(w, pairs, decoder), y.float())
