"""SGC: Wu et al., ICML 2019."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.features import Features, transform
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.backbone import Chain, ModelShape
from atoll.models.layers import Dense
from atoll.random import Draws


class SGC(Chain):
    """Wu et al., ICML 2019: Â²·X·W + b, one linear layer; `layers` and `hidden` are ignored."""

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(replace(shape, layers=1), draws, settings)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is no hidden layer."""
        return shape.classes

    def layer(self, index: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Â·(Â·(X·W)) + b."""
        out: Tensor = self.layers[index](x, graph.blocks, graph.normalized_adjacency, hops=2)
        return out

    @property
    def hops(self) -> int:
        """Two, in its only layer."""
        return 2

    def stages(self, *, embed: bool = False) -> list[Stage]:
        """One per hop."""
        return [Stage(1, self.first), Stage(1, self.second)]

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        if graph.hop(0) is graph:
            return super().forward(graph, draws)
        return self.second(self.first(self.inputs(graph, draws), graph.hop(0)), graph.hop(1))

    @property
    def only(self) -> Dense:
        """The layer."""
        layer = self.layers[0]
        assert isinstance(layer, Dense)
        return layer

    def first(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """Â·(X·W)."""
        return transform(x, self.only.weight, graph.blocks, through=graph.normalized_adjacency)

    def second(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """Â·(Â·X·W) + b."""
        assert isinstance(x, Tensor)
        out, bias = graph.normalized_adjacency @ x, self.only.bias
        return out if bias is None else out + broadcast_to_rows(bias, graph.out_blocks)
