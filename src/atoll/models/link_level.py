"""Networks whose items are pairs of nodes: an encoder, and a decoder that scores two representations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.graphs.features import transform
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.layers import Dense
from atoll.random import Draws
from atoll.settings import setting

DECODERS = ("dot", "bilinear", "mlp")


@dataclass(frozen=True)
class LinkNetworkSettings:
    """How two representations become a score."""

    decoder: str = setting("dot", "How two representations become a score.", choices=DECODERS)


class LinkNetwork(Backbone):
    """Z = encoder(X, A), (N, h); the score of a pair is s(z_u, z_v), its logits are 0 (no edge) and s (an edge).

    dot: z_u·z_v, no parameters. bilinear: z_uᵀ·½(W + Wᵀ)·z_v. mlp: relu((z_u ∘ z_v)·V + c)·U + d. None depends on the order of
    the two nodes. `encoder` is a backbone whose last, linear layer has h columns.
    """

    settings_type = LinkNetworkSettings

    def __init__(
        self, shape: ModelShape, encoder: Backbone, draws: Draws | None = None, settings: LinkNetworkSettings | None = None
    ) -> None:
        super().__init__(shape, draws, settings)
        self.encoder, width = encoder, shape.hidden
        self.decoder: nn.Module | None = None
        if self.settings.decoder == "bilinear":
            self.decoder = Dense(shape.parties, width, width, draws, bias=False)
        elif self.settings.decoder == "mlp":
            self.decoder = nn.ModuleList(
                [Dense(shape.parties, width, width, draws), Dense(shape.parties, width, 1, draws)],
            )

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (M, 2)."""
        return self.embed_and_output(graph, draws)[1]

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(M, h) what a pair's score is a linear function of."""
        z: Tensor = self.encoder(graph, draws)
        assert graph.pairs is not None
        one, other = (z.index_select(0, end) for end in graph.pairs)
        if isinstance(self.decoder, Dense):
            mapped = transform(z, 0.5 * (self.decoder.weight + self.decoder.weight.transpose(1, 2)), graph.blocks)
            return 0.5 * (one * mapped.index_select(0, graph.pairs[1]) + other * mapped.index_select(0, graph.pairs[0]))
        if isinstance(self.decoder, nn.ModuleList):
            hidden: Tensor = self.decoder[0](one * other, graph.items, relu=True)
            return hidden
        return one * other

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the score is a linear function of, and the logits."""
        embedded = self.embed(graph, draws)
        if isinstance(self.decoder, nn.ModuleList):
            score = self.decoder[1](embedded, graph.items)
        else:
            score = embedded.sum(1, keepdim=True)
        return embedded, torch.cat([torch.zeros_like(score), score], 1)

    def layer_of(self, name: str) -> str:
        """A layer of the encoder, or the decoder."""
        first, _, rest = name.partition(".")
        return f"encoder.{self.encoder.layer_of(rest)}" if first == "encoder" else first

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """h, with every decoder."""
        return shape.hidden
