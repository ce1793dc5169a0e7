"""Networks whose items are graphs: convolutions between dense layers, with a readout over the nodes of each graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from atoll.graphs.distinct_rows import DistinctRows
from atoll.graphs.features import Kept, transform
from atoll.graphs.gin import gin
from atoll.graphs.graph import Graph
from atoll.graphs.segments import segment_max
from atoll.models.backbone import Backbone, Chain, ModelShape
from atoll.models.gcfl_network import one_layer
from atoll.models.layers import Dense, GINLayer
from atoll.random import Draws
from atoll.settings import setting

READOUTS = ("sum", "mean", "max")


@dataclass(frozen=True)
class GraphNetworkSettings:
    """Which convolutions, which readout, and the columns of parties that have fewer than others."""

    model: str = setting("gin", "The backbone whose layers are the convolutions.")
    readout: str = setting("sum", "How a graph's nodes become one row.", choices=READOUTS)
    features: tuple[int, ...] = setting((), "Each party's own columns, where they differ.")
    classes: tuple[int, ...] = setting((), "Each party's own classes, where they differ.")


class GraphNetwork(Backbone):
    """H⁰ = X·W + b; `layers` convolutions H⁺ = relu(conv(H)); z = readout of H over each graph; relu(z·V + c)·U + d.

    Where parties have different columns or classes, the widest party's shape is everybody's. A party's first values of `input`
    and `output` are drawn for its own columns and classes; the rest is zero, has gradient zero, and so stays zero.
    """

    settings_type = GraphNetworkSettings

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: GraphNetworkSettings | None = None) -> None:
        super().__init__(shape, draws, settings)
        parties, hidden, chosen = shape.parties, shape.hidden, self.settings
        self.input = padded(Dense(parties, shape.features, hidden, draws), draws, chosen.features, 1)
        self.layers = nn.ModuleList(one_layer(chosen.model, shape, hidden, draws) for _ in range(shape.layers))
        self.post = Dense(parties, hidden, hidden, draws)
        self.output = padded(Dense(parties, hidden, shape.classes, draws), draws, chosen.classes, 2)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (G, C)."""
        return self.embed_and_output(graph, draws)[1]

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the last layer takes, before dropout, and the logits."""
        embedded = self.embed(graph, draws)
        return embedded, self.output(self.drop_items(embedded, graph, draws), graph.items)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(G, hidden) what the last layer takes."""
        embedded: Tensor = self.post(read_out(self.nodes(graph, draws), graph, self.settings.readout), graph.items, relu=True)
        return embedded

    def nodes(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, hidden) the last representation of the nodes."""
        rest = list(self.layers)
        first = inner_layer(rest[0])
        dropped = draws is not None and self.shape.input_dropout > 0
        if isinstance(first, GINLayer) and not dropped and graph.distinct is not None:
            x, rest = self.begin(first, graph.distinct, graph, draws), rest[1:]
        else:
            x = self.input(self.inputs(graph, draws), graph.blocks)
        for convolution in rest:
            x = self.convolve(convolution, x, graph, draws)
        return x

    def begin(self, layer: GINLayer, distinct: DistinctRows, graph: Graph, draws: Draws | None) -> Tensor:
        """The input and the first GIN layer, of distinct rows of [(A + I)·X ‖ row sums]: these times [W·W₁; bᵀ·W₁], and so on."""
        assert self.input.bias is not None
        weight, first = torch.cat([self.input.weight, self.input.bias[:, None]], 1), layer.first
        hidden = transform(distinct.features, weight @ first.weight, distinct.blocks, first.bias, relu=True)
        return distinct.to_nodes(layer.second(hidden, distinct.blocks, relu=True), self.mask(graph, draws))

    def convolve(self, convolution: nn.Module, x: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """relu(conv(H)), and dropout."""
        layer = inner_layer(convolution)
        if isinstance(layer, GINLayer):
            kept, first, second = self.mask(graph, draws), layer.first, layer.second
            if isinstance(x, Tensor) and first.bias is not None and second.bias is not None:
                weights = (first.weight, first.bias), (second.weight, second.bias)
                return gin(x, *weights, graph.summed_adjacency, graph.blocks, kept)
            activated: Tensor = layer(x, graph, relu=True, kept=kept)
            return activated
        assert isinstance(convolution, Chain)
        if draws is None or not self.shape.dropout:
            return convolution.layer(0, x, graph, draws).relu()
        mask = draws.keep(1 - self.shape.dropout, graph.sizes, self.shape.hidden)  # before the layer draws
        return convolution.layer(0, x, graph, draws).relu() * mask

    def mask(self, graph: Graph, draws: Draws | None) -> Kept | None:
        """What dropout keeps of the hidden units of the nodes; None outside training."""
        if draws is None or not self.shape.dropout:
            return None
        return Kept(*draws.masks(1 - self.shape.dropout, graph.sizes, self.shape.hidden))

    def drop_items(self, hidden: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """Dropout of the units of graphs in training."""
        if draws is None or not self.shape.dropout:
            return hidden
        return hidden * draws.keep(1 - self.shape.dropout, graph.items.sizes, hidden.shape[1])

    @torch.no_grad()
    def narrowed(self, features: int, classes: int) -> GraphNetwork:
        """The same network with as many columns and classes as a party has, where others have more."""
        made = GraphNetwork(
            replace(self.shape, features=features, classes=classes), None, replace(self.settings, features=(), classes=())
        )
        kept: dict[str, Tensor] = dict(self.named_parameters())
        kept["input.weight"] = kept["input.weight"][:, :features]
        kept |= {name: kept[name][..., :classes] for name in ("output.weight", "output.bias")}
        made.load_state_dict(kept)
        return made

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """There is always a hidden layer."""
        return shape.hidden


def inner_layer(convolution: nn.Module) -> nn.Module:
    """The one layer of a backbone that serves as a convolution."""
    assert isinstance(convolution, Chain)
    return convolution.layers[0]


def read_out(nodes: Tensor, graph: Graph, how: str) -> Tensor:
    """(N, h) → (G, h): the sum, mean or maximum over the nodes of each graph."""
    assert graph.graph_ptr is not None
    if how == "max":
        return segment_max(nodes, graph.graph_ptr)
    total = graph.pool @ nodes
    return total / graph.graph_ptr.diff()[:, None] if how == "mean" else total


@torch.no_grad()
def padded(layer: Dense, draws: Draws | None, widths: Sequence[int], axis: int) -> Dense:
    """The layer with zeros beyond each party's own width along an axis of its weights; first values are of that width.

    A party with d of D inputs has U(±1/√d) instead of U(±1/√D).
    """
    if draws is None or not widths:
        return layer
    biases = [] if layer.bias is None else [layer.bias]
    for party, width in enumerate(widths):
        if axis == 1:
            for values in (layer.weight, *biases):
                values[party] *= math.sqrt(layer.weight.shape[1] / width)
            layer.weight[party, width:] = 0
        else:
            layer.weight[party, :, width:] = 0
            for bias in biases:
                bias[party, width:] = 0
    return layer


def shared_names(model: nn.Module, share: str) -> list[str]:
    """The parameters that travel: the convolutions (`layers`), or these and the layer after the readout (`layers+post`)."""
    kept = share.split("+")
    return [name for name, _ in model.named_parameters() if name.partition(".")[0] in kept]
