"""A multilayer perceptron: the features alone, without the edges."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.hops import Hop
from atoll.models.backbone import Chain, normalized
from atoll.random import Draws


class MLP(Chain):
    """Multilayer perceptron: H⁺ = relu(H·W + b), without the edges."""

    weighted_edges = False
    reach: ClassVar[int | None] = 0
    takes_norm = True

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """H·W + b."""
        relu = index < self.last
        out: Tensor = self.layers[index](x, graph.blocks, relu=relu and not self.normed)
        return normalized(self.layers[index], out, graph, draws).relu() if relu and self.normed else out
