"""Convolutions between dense layers: the network of GCFL's authors, for nodes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, Chain, ModelShape
from atoll.models.layers import Dense
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class FramedSettings:
    """Which convolutions."""

    model: str = setting("gcn", "The backbone whose layers are the convolutions.")


class Framed(Backbone):
    """H⁰ = X·W + b; `layers` convolutions H⁺ = relu(conv(H)), each a layer of a backbone; logits = relu(H·V + c)·U + d.

    With SGC there is one convolution, Â²·H·W + b, without activation.
    """

    settings_type = FramedSettings

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: FramedSettings | None = None) -> None:
        super().__init__(shape, draws, settings)
        parties, hidden, name = shape.parties, shape.hidden, self.settings.model
        self.linear = name == "sgc"
        self.input = Dense(parties, shape.features, hidden, draws)
        self.convolutions = nn.ModuleList(
            one_layer(name, shape, hidden, draws) for _ in range(1 if self.linear else shape.layers)
        )
        self.post = Dense(parties, hidden, hidden, draws)
        self.output = Dense(parties, hidden, shape.classes, draws)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        out: Tensor = self.output(self.drop(self.embed(graph, draws), graph, draws), graph.blocks)
        return out

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, hidden) what the last layer takes."""
        x: Tensor = self.input(self.inputs(graph, draws), graph.blocks)
        for convolution in self.convolutions:
            assert isinstance(convolution, Chain)
            x = convolution.layer(0, x, graph, draws)
            x = self.drop(x if self.linear else x.relu(), graph, draws)
        embedded: Tensor = self.post(x, graph.blocks, relu=True)
        return embedded

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is always a hidden layer."""
        return shape.hidden


def one_layer(name: str, shape: ModelShape, fan_in: int, draws: Draws | None) -> Chain:
    """A single layer of a backbone from `fan_in` to the hidden width."""
    sizes = ModelShape(shape.parties, fan_in, shape.hidden, shape.hidden, 1, shape.dropout)
    layer = find_model(name)(sizes, draws)
    if not isinstance(layer, Chain):
        raise AtollError(
            f"The layers of {short_name(name)} cannot be taken one by one, which this needs; choose gcn, gin, sage, sgc or gat."
        )
    return layer
