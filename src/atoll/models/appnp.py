"""APPNP: Gasteiger et al., ICLR 2019."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.graphs.sparse import diffuse
from atoll.models.mlp import MLP
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """How far and how strongly the logits are propagated."""

    steps: int = setting(10, "Propagation steps, K.", low=0, high=10**4)
    teleport: float = setting(0.1, "Share of the MLP's own output in every step, α.", low=0, high=1)


class APPNP(MLP):
    """Gasteiger et al., ICLR 2019: Z⁰ = MLP(X), Zᵏ⁺¹ = (1−α)·Â·Zᵏ + α·Z⁰, logits = Zᴷ."""

    settings_type = Settings
    weighted_edges = True

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """The MLP's layer; the output of the last one is propagated."""
        out = super().layer(index, x, graph, draws)
        if index < self.last:
            return out
        return diffuse(graph.normalized_adjacency, out, self.settings.steps, self.settings.teleport)

    @property
    def hops(self) -> int:
        """K."""
        steps: int = self.settings.steps
        return steps

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        bottom = graph.hop(0)
        if bottom is graph:
            return super().forward(graph, draws)
        x = self.drop(self.embed(graph, draws), bottom, draws) if self.last else self.inputs(graph, draws)
        return self.propagated(x, graph)

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the MLP's last layer takes of the nodes whose logits it gives, before dropout, and these logits."""
        bottom = graph.hop(0)
        if bottom is graph:
            return super().embed_and_output(graph, draws)
        embedded = self.embed(graph, draws)
        if not self.last:
            return embedded, embedded
        out = self.propagated(self.drop(embedded, bottom, draws), graph)
        for number in range(self.hops):
            embedded = graph.hop(number).targets(embedded)
        return embedded, out

    def propagated(self, x: Features | Tensor, graph: Graph) -> Tensor:
        """The last layer of the MLP and K steps of propagation, over the hops of a mini-batch."""
        out = start = self.undiffused(self.last, x, graph.hop(0))  # Z⁰
        for number in range(self.hops):
            hop = graph.hop(number)
            start = hop.targets(start)
            out = torch.lerp(hop.normalized_adjacency @ out, start, self.settings.teleport)
        return out

    def stages(self, *, embed: bool = False) -> list[Stage]:
        """The MLP's layers, then one per step, with Zᵏ and Z⁰ side by side."""
        layers = [Stage(0, partial(self.undiffused, index)) for index in range(len(self.layers))]
        if embed and self.last:
            return layers[:-1]
        return [*layers, Stage(0, self.twice), *[Stage(1, self.step)] * self.hops, Stage(0, self.final)]

    def undiffused(self, index: int, x: Features | Tensor, graph: Hop) -> Tensor:
        """The MLP's layer."""
        return super().layer(index, x, graph, None)

    def twice(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """[Z⁰ ‖ Z⁰]."""
        assert isinstance(x, Tensor)
        return torch.cat([x, x], 1)

    def step(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """[Zᵏ ‖ Z⁰] → [Zᵏ⁺¹ ‖ Z⁰]."""
        assert isinstance(x, Tensor)
        now, start = x.chunk(2, 1)
        start = graph.targets(start)
        return torch.cat([torch.lerp(graph.normalized_adjacency @ now.contiguous(), start, self.settings.teleport), start], 1)

    def final(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """[Zᴷ ‖ Z⁰] → Zᴷ."""
        assert isinstance(x, Tensor)
        return x.chunk(2, 1)[0].contiguous()
