"""DisenGCN: Ma et al., ICML 2019."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """Factors and routing."""

    factors: int = setting(4, "Factors F that a node's representation is divided into, of width hidden / F.", low=1, high=1000)
    iterations: int = setting(6, "Iterations of neighbor routing per layer.", low=1, high=1000)


class Disen(Backbone):
    """Ma et al., ICML 2019: H = relu(X·W + b) in F factors of unit length, `layers` times neighbor routing, then a linear layer.

    Routing (Algorithm 1), `iterations` times, c_k = z_k at first: p_jk = softmax_k(z_jk·c_ik) for a neighbor j of i, then
    c_ik = unit(z_ik + Σ_j p_jk·z_jk): every neighbor is shared out over the factors. Edges have no weights here.
    """

    settings_type = Settings
    weighted_edges = False
    ignores_edge_weight = True

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        if shape.hidden % self.settings.factors:
            raise AtollError(f"disen needs hidden ({shape.hidden}) to be a multiple of model.factors ({self.settings.factors}).")
        self.input = Dense(shape.parties, shape.features, shape.hidden, draws, bias=shape.bias)
        self.output = Dense(shape.parties, shape.hidden, shape.classes, draws, bias=shape.bias)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is a hidden representation below the linear layer, whatever the number of layers."""
        return shape.hidden

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, hidden) the factors after the last routing, side by side."""
        x: Tensor = self.input(self.inputs(graph, draws), graph.blocks, relu=True)
        for layer in range(self.shape.layers):
            x = self.route(x if layer == 0 else self.drop(x, graph, draws), graph)
        return x

    def route(self, x: Tensor, graph: Graph) -> Tensor:
        """(N, hidden) → (N, hidden)."""
        source, target = graph.edge_index
        unit = F.normalize(x.view(len(x), self.settings.factors, -1), dim=2)  # z (N, F, h)
        near = unit.index_select(0, source)  # (E, F, h)
        center = unit
        for _ in range(self.settings.iterations):
            share = torch.softmax((near * center.index_select(0, target)).sum(2), 1)  # p (E, F)
            center = F.normalize(unit.index_add(0, target, near * share[:, :, None]), dim=2)
        return center.reshape(x.shape)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        return self.embed_and_output(graph, draws)[1]

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the linear layer takes, before dropout, and the logits."""
        embedded = self.embed(graph, draws)
        out: Tensor = self.output(self.drop(embedded, graph, draws), graph.blocks)
        return embedded, out
