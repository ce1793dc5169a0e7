"""APPNP: Gasteiger et al., ICLR 2019."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
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

    def layer(self, index: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """The MLP's layer; the output of the last one is propagated."""
        out = super().layer(index, x, graph, draws)
        if index < self.last:
            return out
        return diffuse(graph.normalized_adjacency, out, self.settings.steps, self.settings.teleport)
