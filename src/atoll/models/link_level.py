"""Networks whose items are pairs of nodes: an encoder, and a decoder that scores two representations."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.graphs.blocks import Blocks
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


def make_decoder(kind: str, parties: int, width: int, draws: Draws | None) -> nn.Module | None:
    """The parameters of a decoder of representations with that many columns; None for `dot`, which has none."""
    if kind == "bilinear":
        return Dense(parties, width, width, draws, bias=False)
    if kind == "mlp":
        return nn.ModuleList([Dense(parties, width, width, draws), Dense(parties, width, 1, draws)])
    return None


def represent_pairs(decoder: nn.Module | None, z: Tensor, pairs: Tensor, nodes: Blocks, items: Blocks) -> Tensor:
    """(M, h) what a pair's score is a linear function of; `pairs` are rows of z, in the parties' blocks `items`."""
    one, other = (z.index_select(0, end) for end in pairs)
    if isinstance(decoder, Dense):
        mapped = transform(z, 0.5 * (decoder.weight + decoder.weight.transpose(1, 2)), nodes)
        return 0.5 * (one * mapped.index_select(0, pairs[1]) + other * mapped.index_select(0, pairs[0]))
    if isinstance(decoder, nn.ModuleList):
        hidden: Tensor = decoder[0](one * other, items, relu=True)
        return hidden
    return one * other


def pair_logits(decoder: nn.Module | None, embedded: Tensor, items: Blocks) -> Tensor:
    """(M, 2) 0 for no edge, and the score for an edge."""
    score = decoder[1](embedded, items) if isinstance(decoder, nn.ModuleList) else embedded.sum(1, keepdim=True)
    return torch.cat([torch.zeros_like(score), score], 1)


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
        self.encoder = encoder
        self.decoder = make_decoder(self.settings.decoder, shape.parties, shape.hidden, draws)

    def forward(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (M, 2)."""
        return self.embed_and_output(graph, draws)[1]

    def embed(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(M, h) what a pair's score is a linear function of."""
        z: Tensor = self.encoder(graph, draws)
        assert graph.pairs is not None
        return represent_pairs(self.decoder, z, graph.pairs, graph.blocks, graph.items)

    def embed_and_output(self, graph: Graph, draws: Draws | None = None) -> tuple[Tensor, Tensor]:
        """What the score is a linear function of, and the logits."""
        embedded = self.embed(graph, draws)
        return embedded, pair_logits(self.decoder, embedded, graph.items)

    def layer_of(self, name: str) -> str:
        """A layer of the encoder, or the decoder."""
        first, _, rest = name.partition(".")
        return f"encoder.{self.encoder.layer_of(rest)}" if first == "encoder" else first

    @classmethod
    def embedding_width(cls, shape: ModelShape) -> int:
        """h, with every decoder."""
        return shape.hidden
