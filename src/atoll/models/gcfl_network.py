"""Convolutions between dense layers: the network of GCFL's authors, for nodes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.backbone import Backbone, Chain, ModelShape
from atoll.models.layers import Dense
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class GCFLNetworkSettings:
    """Which convolutions."""

    model: str = setting("gcn", "The backbone whose layers are the convolutions.")


class GCFLNetwork(Backbone):
    """H⁰ = X·W + b; `layers` convolutions H⁺ = relu(conv(H)), each a layer of a backbone; logits = relu(H·V + c)·U + d.

    With SGC there is one convolution, Â²·H·W + b, without activation.
    """

    settings_type = GCFLNetworkSettings

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: GCFLNetworkSettings | None = None) -> None:
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
        top = graph.hop(len(self.convolutions))
        return self.leave(False, self.drop(self.embed(graph, draws), top, draws), top)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, hidden) what the last layer takes."""
        x = self.enter(self.inputs(graph, draws), graph.hop(0))
        for index in range(len(self.convolutions)):
            x = self.drop(self.convolve(index, x, graph.hop(index), draws), graph.hop(index + 1), draws)
        return self.leave(True, x, graph.hop(len(self.convolutions)))

    @property
    def hops(self) -> int | None:
        """One per convolution; a convolution of SGC or APPNP has several."""
        return len(self.convolutions) if self._reach == 1 else None

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """The input layer, the convolutions, and the dense layers after them."""
        if self._reach != 1:
            return None
        convolutions = [Stage(1, partial(self.convolve, index)) for index in range(len(self.convolutions))]
        return [Stage(0, self.enter), *convolutions, Stage(0, partial(self.finish, embed))]

    @property
    def _reach(self) -> int | None:
        first = self.convolutions[0]
        assert isinstance(first, Chain)
        return first.reach

    def enter(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """H⁰."""
        out: Tensor = self.input(x, graph.blocks)
        return out

    def convolve(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None = None) -> Tensor:
        """relu(conv(H))."""
        convolution = self.convolutions[index]
        assert isinstance(convolution, Chain)
        out = convolution.layer(0, x, graph, draws)
        return out if self.linear else out.relu()

    def leave(self, embed: bool, x: Features | Tensor, graph: Hop) -> Tensor:
        """relu(H·V + c), or the last layer of it."""
        out: Tensor = self.post(x, graph.blocks, relu=True) if embed else self.output(x, graph.blocks)
        return out

    def finish(self, embed: bool, x: Features | Tensor, graph: Hop) -> Tensor:
        """Both dense layers; with `embed` the first."""
        hidden = self.leave(True, x, graph)
        return hidden if embed else self.leave(False, hidden, graph)

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
