"""A multilayer perceptron: the features alone, without the edges."""

from __future__ import annotations

from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.models.backbone import Chain
from atoll.random import Draws


class MLP(Chain):
    """Multilayer perceptron: H⁺ = relu(H·W + b), without the edges."""

    weighted_edges = False

    def layer(self, index: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """H·W + b."""
        out: Tensor = self.layers[index](x, graph.blocks, relu=index < self.last)
        return out
