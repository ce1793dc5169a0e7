"""GCN with a linear head: the "two-layer GCN" of FED-PUB (Baek et al., ICML 2023) and of those that follow its protocol."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import Any

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.backbone import Backbone, ModelShape, add_norms, normalized
from atoll.models.layers import Dense
from atoll.random import Draws


class GCNHead(Backbone):
    """Baek et al., ICML 2023: H⁺ = relu(Â·H·W + b) in every one of `layers` convolutions, then a linear layer: logits = H·W + b.

    With two convolutions w = d·h + h + h² + h + h·C + C parameters (Cora, h = 128: 200,967). `gcn` has no linear layer.
    """

    takes_norm = True

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        widths = [shape.features, *[shape.hidden] * shape.layers]
        self.layers = nn.ModuleList(
            Dense(shape.parties, fan_in, fan_out, draws, bias=shape.bias and shape.norm == "none", glorot=True)
            for fan_in, fan_out in pairwise(widths)
        )
        if shape.norm != "none":
            add_norms(self.layers, shape)
        self.output = Dense(shape.parties, shape.hidden, shape.classes, draws, bias=shape.bias)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is a hidden representation below the linear layer, with one convolution, too."""
        return shape.hidden

    def last_convolution(self, graph: Graph) -> Tensor:
        """(N, hidden) what the last convolution gives before its ReLU, without dropout."""
        x: Features | Tensor = graph.hop(0).features
        for index in range(len(self.layers) - 1):
            x = self.convolve(index, x, graph.hop(index))
        top = graph.hop(len(self.layers) - 1)
        out: Tensor = self.layers[-1](x, top.blocks, top.normalized_adjacency)
        return normalized(self.layers[-1], out, top, None)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """H after the last convolution."""
        x = self.convolve(0, self.inputs(graph, draws), graph.hop(0), draws)
        for index in range(1, len(self.layers)):
            x = self.convolve(index, self.drop(x, graph.hop(index), draws), graph.hop(index), draws)
        return x

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        top = graph.hop(len(self.layers))
        return self.head(self.drop(self.embed(graph, draws), top, draws), top)

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the linear layer takes, before dropout, and the logits."""
        embedded, top = self.embed(graph, draws), graph.hop(len(self.layers))
        return embedded, self.head(self.drop(embedded, top, draws), top)

    @property
    def hops(self) -> int:
        """One per convolution."""
        return len(self.layers)

    def stages(self, *, embed: bool = False) -> list[Stage]:
        """The convolutions, then the linear layer."""
        convolutions = [Stage(1, partial(self.convolve, index)) for index in range(len(self.layers))]
        return convolutions if embed else [*convolutions, Stage(0, self.head)]

    def convolve(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None = None) -> Tensor:
        """relu(Â·H·W + b)."""
        normed = self.shape.norm != "none"
        out: Tensor = self.layers[index](x, graph.blocks, graph.normalized_adjacency, relu=not normed)
        return normalized(self.layers[index], out, graph, draws).relu() if normed else out

    def head(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """H·W + b."""
        out: Tensor = self.output(x, graph.blocks)
        return out
