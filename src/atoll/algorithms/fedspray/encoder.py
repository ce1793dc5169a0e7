"""FedSpray's feature-structure encoder, which all parties share."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.algorithms.fedspray.settings import Settings
from atoll.federation.cohort import Schema
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.models.layers import Dense
from atoll.models.parameters import get_parameters, set_parameters
from atoll.random import Draws


class Encoder(nn.Module):
    """The feature-structure encoder ω: e = relu(g_e(x)), p = softmax(g_p(e + s)), q = softmax(g_q(e)).

    With `combine=concat` p = softmax(g_p([e ‖ s])).
    """

    def __init__(self, settings: Settings, schema: Schema, parties: int, draws: Draws | None) -> None:
        super().__init__()
        width, classes = settings.proxy_dim, schema.classes
        self.embedding = Dense(parties, schema.features, width, draws)  # g_e
        self.concat = settings.combine == "concat"
        self.classifier = Dense(parties, 2 * width if self.concat else width, classes, draws)  # g_p
        self.projector = Dense(parties, width, classes, draws)  # g_q

    def embed(self, features: Features, blocks: Blocks) -> Tensor:
        """Features → e (N, d_s)."""
        embedded: Tensor = self.embedding(features, blocks, relu=True)
        return embedded

    def classify(self, embedded: Tensor, structure: Tensor, blocks: Blocks) -> Tensor:
        """e and s (N, d_s) → the logits of p (N, C)."""
        fused = torch.cat([embedded, structure], 1) if self.concat else embedded + structure
        logits: Tensor = self.classifier(fused, blocks)
        return logits

    def tie(self) -> None:
        """The projector becomes the classifier."""
        set_parameters(self.projector, get_parameters(self.classifier))
