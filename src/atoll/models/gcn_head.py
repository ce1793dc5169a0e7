"""GCN with a linear head: the "two-layer GCN" of FED-PUB (Baek et al., ICML 2023) and of those that follow its protocol."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense
from atoll.random import Draws


class GCNHead(Backbone):
    """Baek et al., ICML 2023: H⁺ = relu(Â·H·W + b) in every one of `layers` convolutions, then a linear layer: logits = H·W + b.

    With two convolutions w = d·h + h + h² + h + h·C + C parameters (Cora, h = 128: 200,967). `gcn` has no linear layer.
    """

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        widths = [shape.features, *[shape.hidden] * shape.layers]
        self.layers = nn.ModuleList(
            Dense(shape.parties, fan_in, fan_out, draws, bias=shape.bias, glorot=True) for fan_in, fan_out in pairwise(widths)
        )
        self.output = Dense(shape.parties, shape.hidden, shape.classes, draws, bias=shape.bias)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is a hidden representation below the linear layer, with one convolution, too."""
        return shape.hidden

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """H after the last convolution."""
        first, *rest = self.layers
        x: Tensor = first(self.inputs(graph, draws), graph.blocks, graph.normalized_adjacency, relu=True)
        for layer in rest:
            x = layer(self.drop(x, graph, draws), graph.blocks, graph.normalized_adjacency, relu=True)
        return x

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        out: Tensor = self.output(self.drop(self.embed(graph, draws), graph, draws), graph.blocks)
        return out
