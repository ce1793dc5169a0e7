"""GCNII: Chen et al., ICML 2020."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense, GCNIILayer
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """How much of the initial representation and of the identity every layer keeps."""

    teleport: float = setting(0.1, "Share of the initial representation in every layer, α.", low=0, high=1)
    theta: float = setting(0.5, "How slowly the weights fade with depth, θ: β_l = log(θ/l + 1).", low=0, high=1e6)


class GCNII(Backbone):
    """Chen et al., ICML 2020: H⁺ = relu(((1−α)·Â·H + α·H⁰)·((1−β_l)·I + β_l·W_l)), β_l = log(θ/l + 1), H⁰ = relu(X·W + b)."""

    settings_type = Settings

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        parties, hidden, s = shape.parties, shape.hidden, self.settings
        self.input = Dense(parties, shape.features, hidden, draws, bias=shape.bias)
        self.layers = nn.ModuleList(
            GCNIILayer(parties, hidden, number, draws, teleport=s.teleport, theta=s.theta)
            for number in range(1, shape.layers + 1)
        )
        self.output = Dense(parties, hidden, shape.classes, draws, bias=shape.bias)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """The convolutions lie between the input and output layers, so there is always a hidden representation."""
        return shape.hidden

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """H after the last convolution."""
        initial: Tensor = self.input(self.inputs(graph, draws), graph.blocks, relu=True)  # H⁰
        x = initial
        for layer in self.layers:
            x = layer(graph.normalized_adjacency @ self.drop(x, graph, draws), initial, graph.blocks)
        return x

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        out: Tensor = self.output(self.drop(self.embed(graph, draws), graph, draws), graph.blocks)
        return out
