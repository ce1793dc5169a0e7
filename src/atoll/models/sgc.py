"""SGC: Wu et al., ICML 2019."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.models.backbone import Chain, ModelShape
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
