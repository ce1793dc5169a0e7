"""GAMLP: Zhang et al., KDD 2022."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.features import Features, transform
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense, parameter
from atoll.random import Draws
from atoll.settings import setting

SLOPE = 0.25  # of a PReLU below 0, at first


@dataclass(frozen=True)
class Settings:
    """How far the features are propagated."""

    steps: int = setting(3, "Propagation steps, K.", low=0, high=100)


class HopAttention(nn.Module):
    """Scores of a node's hops: s_k = σ(Σ_j x⁽ʲ⁾·r_j + x⁽ᵏ⁾·o + c)."""

    def __init__(self, shape: ModelShape, steps: int, draws: Draws | None) -> None:
        super().__init__()
        bound = 1 / math.sqrt((steps + 2) * shape.features)
        self.reference = parameter(draws, bound, shape.parties, shape.features, steps + 1)  # r_0 … r_K
        self.own = parameter(draws, bound, shape.parties, shape.features, 1)  # o
        self.bias = parameter(draws, bound, shape.parties, 1) if shape.bias else None  # c


class GAMLP(Backbone):
    """Zhang et al., KDD 2022, with "JK" attention: an MLP of Σ_k a_k·Âᵏ·x, a = softmax(σ(scores of a node's K + 1 hops)), PReLU.

    The first layer is applied before the propagation, which gives the same: (Σ_k a_k·Âᵏ·X)·W = Σ_k a_k·Âᵏ·(X·W).
    """

    settings_type = Settings

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        self.last = shape.layers - 1
        self.slope = nn.Parameter(torch.full((shape.parties, 1), 0.0 if draws is None else SLOPE))
        self.attention = HopAttention(shape, self.settings.steps, draws)
        self.layers = nn.ModuleList(
            Dense(shape.parties, fan_in, fan_out, draws, bias=shape.bias, glorot=True)
            for fan_in, fan_out in pairwise(shape.widths)
        )
        for layer in self.layers:
            assert isinstance(layer, Dense)
            layer.weight.data.mul_(math.sqrt(2))  # the gain of a ReLU

    @property
    def hops(self) -> int:
        """K."""
        steps: int = self.settings.steps
        return steps

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, hidden) what the last layer takes; the logits with one layer."""
        x = self.enter(self.inputs(graph, draws), graph.hop(0))
        for number in range(self.hops):
            x = self.step(x, graph.hop(number))
        return self.leave(True, x, graph.hop(self.hops), draws)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        return self.embed_and_output(graph, draws)[1]

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the last layer takes, before dropout, and the logits."""
        embedded, top = self.embed(graph, draws), graph.hop(self.hops)
        if not self.last:
            return embedded, embedded
        return embedded, self.layers[self.last](self.drop(embedded, top, draws), top.blocks)

    def stages(self, *, embed: bool = False) -> list[Stage]:
        """X·W and the scores, one stage per step with all hops so far side by side, and the rest of the MLP."""
        return [Stage(0, self.enter), *[Stage(1, self.step)] * self.hops, Stage(0, partial(self.finish, embed))]

    @property
    def width(self) -> int:
        """Columns of one hop: the first layer's, and those of the scores."""
        return self.shape.widths[1] + self.hops + 2

    def enter(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """X·[W ‖ r_0 … r_K ‖ o]."""
        first, attention = self.layers[0], self.attention
        return transform(x, torch.cat([first.weight, attention.reference, attention.own], 2), graph.blocks)  # type: ignore[list-item]

    def step(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """[Z_0 ‖ … ‖ Z_k] → [Z_0 ‖ … ‖ Z_k ‖ Â·Z_k]."""
        assert isinstance(x, Tensor)
        return torch.cat([graph.targets(x), graph.normalized_adjacency @ x[:, -self.width :].contiguous()], 1)

    def leave(self, embed: bool, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """The mixture of the hops through all layers, or all but the last."""
        assert isinstance(x, Tensor)
        first, fan_out, number = self.layers[0], self.shape.widths[1], self.hops + 1
        every = x.view(len(x), number, self.width)
        reference = torch.diagonal(every[:, :, fan_out : fan_out + number], dim1=1, dim2=2).sum(1, keepdim=True)  # Σ_j x⁽ʲ⁾·r_j
        scores = reference + every[:, :, -1]
        if self.attention.bias is not None:
            scores = scores + broadcast_to_rows(self.attention.bias, graph.blocks)
        shares = torch.softmax(torch.sigmoid(scores), 1)  # (N, K + 1)
        out = (every[:, :, :fan_out] * shares[:, :, None]).sum(1)
        if first.bias is not None:
            out = out + broadcast_to_rows(first.bias, graph.blocks)  # type: ignore[arg-type]
        if not self.last:
            return out
        slope = broadcast_to_rows(self.slope, graph.blocks)
        out = torch.where(out > 0, out, slope * out)
        for layer in self.layers[1 : self.last]:
            out = layer(self.drop(out, graph, draws), graph.blocks)
            out = torch.where(out > 0, out, slope * out)
        return out if embed else self.layers[self.last](out, graph.blocks)

    def finish(self, embed: bool, x: Features | Tensor, graph: Hop) -> Tensor:
        """The rest, without dropout."""
        return self.leave(embed, x, graph, None)
