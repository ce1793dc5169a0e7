"""Networks with a projection between a backbone and the classifier, as MOON's authors have."""

from __future__ import annotations

from functools import partial

from torch import Tensor, nn

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.inference import Stage
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense
from atoll.random import Draws


class ProjectedNetwork(Backbone):
    """Z = relu(relu(encoder(X, A))·V + c)·U + d, logits Z·W + b: the classifier sits on the projection.

    `encoder` is a backbone whose last, linear layer has h columns; Z, of `width` columns, is what `embed` gives.
    """

    def __init__(self, shape: ModelShape, encoder: Backbone, width: int, draws: Draws | None = None) -> None:
        super().__init__(shape, draws)
        self.encoder = encoder
        widths = (shape.hidden, shape.hidden), (shape.hidden, width), (width, shape.classes)
        self.head = nn.ModuleList(Dense(shape.parties, *pair, draws, bias=shape.bias) for pair in widths)

    @property
    def hops(self) -> int | None:
        """The encoder's."""
        return self.encoder.hops

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C)."""
        return self.embed_and_output(graph, draws)[1]

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, width) the projection."""
        return self.project(self.encoder(graph, draws), self.top(graph))

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """The projection, and the logits."""
        embedded = self.embed(graph, draws)
        logits: Tensor = self.head[2](embedded, self.top(graph).out_blocks)
        return embedded, logits

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """The encoder's, and the rest."""
        below = self.encoder.stages()
        return None if below is None else [*below, Stage(0, partial(self._finish, embed))]

    def _finish(self, embed: bool, x: Features | Tensor, graph: Hop) -> Tensor:
        assert isinstance(x, Tensor)
        embedded = self.project(x, graph)
        out: Tensor = embedded if embed else self.head[2](embedded, graph.out_blocks)
        return out

    def top(self, graph: Graph) -> Hop:
        """The rows that are computed, without a propagation."""
        return graph.hop(self.encoder.hops or 0)

    def project(self, rows: Tensor, graph: Hop) -> Tensor:
        """(N, h) → (N, width)."""
        inner = self.head[0](rows.relu(), graph.out_blocks, relu=True)
        out: Tensor = self.head[1](inner, graph.out_blocks)
        return out

    def layer_of(self, name: str) -> str:
        """A layer of the encoder, or one of the head."""
        first, _, rest = name.partition(".")
        return f"encoder.{self.encoder.layer_of(rest)}" if first == "encoder" else super().layer_of(name)
