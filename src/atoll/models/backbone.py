"""What a backbone is: a model of P parties at once, from features and edges to logits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, ClassVar

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.layers import Dense
from atoll.models.normalization import BatchNorm
from atoll.random import Draws


@dataclass(frozen=True)
class ModelShape:
    """The size of a backbone, and the dropout that all backbones have in common."""

    parties: int
    features: int
    classes: int
    hidden: int = 64
    layers: int = 2
    dropout: float = 0.0
    input_dropout: float = 0.0
    bias: bool = True
    norm: str = "none"  # or batch: after every hidden layer
    propagate_first: bool = False  # (Â·X)·W in place of Â·(X·W) in the first layer, of dense features

    @property
    def widths(self) -> list[int]:
        """Features, hidden widths, classes."""
        return [self.features, *[self.hidden] * (self.layers - 1), self.classes]


@dataclass(frozen=True)
class NoSettings:
    """A backbone without settings of its own."""


class Backbone(nn.Module):
    """A model of P parties: `model(graph)` gives logits (N, C); `model(graph, draws)` does so in training, with dropout.

    Every parameter has a leading party axis. Initial values come from `draws`; they are zero without.
    The first paragraph of a subclass's docstring is what `atoll models` shows.

    Parameters:
        shape: Parties, features, classes, hidden width, layers and dropout.
        draws: Where initial values come from.
        settings: The backbone's own settings, an instance of `settings_type`.

    Examples:
        >>> import atoll
        >>> from atoll.models.registry import build
        >>> model = build("gcn", parties=2, features=5, classes=3)
        >>> isinstance(model, atoll.Backbone), next(model.parameters()).shape[0]
        (True, 2)
    """

    settings_type: ClassVar[type] = NoSettings  # a frozen dataclass of `atoll.settings.setting` fields, set as model.NAME
    weighted_edges: ClassVar[bool] = True  # whether it propagates through the normalized adjacency, which may have other weights
    attends: ClassVar[bool] = False  # whether it propagates by attention over the graph's edges
    ignores_edge_weight: ClassVar[bool] = False  # whether it uses the graph's edges, but not their weights
    takes_norm: ClassVar[bool] = False  # whether its hidden layers can have batch norm
    propagates_first: ClassVar[bool] = False  # whether its first layer can be (Â·X)·W

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__()
        self.shape = shape
        self.settings = self.settings_type() if settings is None else settings

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        raise NotImplementedError

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The last hidden representation (N, hidden); the logits where there is no hidden layer."""
        raise NotImplementedError

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What `embed` and a call give: from one pass where a subclass can do so, here from two, each with its own dropout."""
        return self.embed(graph, draws), self(graph, draws)

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """Columns of what `embed` gives."""
        return shape.hidden if shape.layers > 1 else shape.classes

    @property
    def hops(self) -> int | None:
        """Over how many edges it reads: propagation i takes `graph.hop(i)`. None: it cannot be trained on sampled neighbors."""
        return None

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """`forward`, or `embed`, one propagation at a time, to be computed in blocks of rows; None where it cannot be."""
        return None

    def layer_of(self, name: str) -> str:
        """The layer that a parameter belongs to: `layers.1.near.weight` is in `layers.1`, `output.bias` in `output`."""
        parts = name.split(".")
        return ".".join(parts[:2]) if isinstance(self._modules.get(parts[0]), nn.ModuleList) else parts[0]

    def inputs(self, graph: Graph, draws: Draws | None) -> Features:
        """The features, after input dropout in training."""
        features = graph.hop(0).features
        if draws is None or not self.shape.input_dropout:
            return features
        return features.dropped(self.shape.input_dropout, draws)

    def drop(self, hidden: Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Dropout of hidden units in training."""
        if draws is None or not self.shape.dropout:
            return hidden
        return hidden * draws.keep(1 - self.shape.dropout, graph.sizes, hidden.shape[1])


def add_norms(layers: Iterable[nn.Module], shape: ModelShape) -> None:
    """Give these layers a batch norm each, which belongs to the layer."""
    for layer in layers:
        layer.norm = BatchNorm(shape.parties, shape.hidden)


def normalized(layer: nn.Module, out: Tensor, graph: Hop, draws: Draws | None) -> Tensor:
    """What a layer gives, after its batch norm, if it has one."""
    norm = getattr(layer, "norm", None)
    if norm is None:
        return out
    normed: Tensor = norm(out, graph.out_blocks, training=draws is not None, active=getattr(graph, "active", None))
    return normed


class Chain(Backbone):
    """A backbone of one layer after the other, with dropout between them; the first takes the features.

    Where `reach` says over how many edges a layer reads (0 or 1), it can be trained on sampled neighbors: `layer` then gets a hop
    from more rows (`blocks`) to fewer (`out_blocks`).
    """

    glorot = False
    reach: ClassVar[int | None] = None

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None) -> None:
        super().__init__(shape, draws, settings)
        self.last = shape.layers - 1
        self.layers = nn.ModuleList()
        for fan_in, fan_out in pairwise(shape.widths):
            self.layers.append(self.make(fan_in, fan_out, draws))
        if self.normed:
            add_norms(self.layers[:-1], shape)

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """The next layer's parameters."""
        return Dense(self.shape.parties, fan_in, fan_out, draws, bias=self.next_has_bias, glorot=self.glorot)

    @property
    def next_has_bias(self) -> bool:
        """Whether the next layer has a bias: below a batch norm its gradient is mere rounding, which Adam would magnify."""
        return self.shape.bias and not (self.normed and len(self.layers) < self.last)

    def layer(self, index: int, x: Features | Tensor, graph: Any, draws: Draws | None) -> Tensor:
        """(N, in) → (N, out): one layer, activated unless it is the last; `graph` is a `Graph` or another `Hop`."""
        raise NotImplementedError

    @property
    def normed(self) -> bool:
        """Whether batch norm stands between hidden layers and their activations."""
        return self.shape.norm != "none"

    @property
    def hops(self) -> int | None:
        """One per layer that reads neighbors."""
        return None if self.reach is None else self.reach * len(self.layers)

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """One per layer."""
        if self.reach is None:
            return None
        count = self.last if embed and self.last else len(self.layers)
        return [Stage(self.reach, partial(self._undropped, index)) for index in range(count)]

    def _undropped(self, index: int, x: Features | Tensor, graph: Hop) -> Tensor:
        return self.layer(index, x, graph, None)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        top = graph.hop(self.last * (self.reach or 0))
        x = self.drop(self.embed(graph, draws), top, draws) if self.last else self.inputs(graph, draws)
        return self.layer(self.last, x, top, draws)

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the last layer takes of the nodes whose logits it gives, before dropout, and these logits."""
        embedded = self.embed(graph, draws)
        if not self.last:
            return embedded, embedded
        top = graph.hop(self.last * (self.reach or 0))
        return top.targets(embedded), self.layer(self.last, self.drop(embedded, top, draws), top, draws)

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The representation below the last layer."""
        if not self.last:
            return self.forward(graph, draws)
        x = self.layer(0, self.inputs(graph, draws), graph.hop(0), draws)
        for index in range(1, self.last):
            hop = graph.hop(index * (self.reach or 0))
            x = self.layer(index, self.drop(x, hop, draws), hop, draws)
        return x
