"""GCNII: Chen et al., ICML 2020."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
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
        initial: Tensor = self.input(self.inputs(graph, draws), graph.hop(0).blocks, relu=True)  # H⁰
        x = initial
        for index in range(len(self.layers)):
            hop = graph.hop(index)
            initial = hop.targets(initial)
            x = self.layers[index](hop.normalized_adjacency @ self.drop(x, hop, draws), initial, hop.out_blocks)
        return x

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        top = graph.hop(len(self.layers))
        out: Tensor = self.output(self.drop(self.embed(graph, draws), top, draws), top.blocks)
        return out

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the linear layer takes, before dropout, and the logits."""
        embedded, top = self.embed(graph, draws), graph.hop(len(self.layers))
        return embedded, self.output(self.drop(embedded, top, draws), top.blocks)

    @property
    def hops(self) -> int:
        """One per convolution."""
        return len(self.layers)

    def stages(self, *, embed: bool = False) -> list[Stage]:
        """The input layer, the convolutions with H and H⁰ side by side, and the output layer."""
        convolutions = [Stage(1, partial(self.convolve, index)) for index in range(len(self.layers))]
        return [Stage(0, self.enter), *convolutions, Stage(0, partial(self.leave, embed))]

    def enter(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """[H⁰ ‖ H⁰]."""
        initial = self.input(x, graph.blocks, relu=True)
        return torch.cat([initial, initial], 1)

    def convolve(self, index: int, x: Features | Tensor, graph: Hop) -> Tensor:
        """[H ‖ H⁰] → [H⁺ ‖ H⁰]."""
        assert isinstance(x, Tensor)
        now, initial = x.chunk(2, 1)
        initial = graph.targets(initial).contiguous()
        near = graph.normalized_adjacency @ now.contiguous()
        return torch.cat([self.layers[index](near, initial, graph.out_blocks), initial], 1)

    def leave(self, embed: bool, x: Features | Tensor, graph: Hop) -> Tensor:
        """[H ‖ H⁰] → H, or the logits."""
        assert isinstance(x, Tensor)
        hidden = x.chunk(2, 1)[0].contiguous()
        out: Tensor = hidden if embed else self.output(hidden, graph.blocks)
        return out
