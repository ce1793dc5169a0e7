"""Models for links of several types: a channel per type, each a backbone that sees the links of its type only."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call

from atoll.graphs.graph import Graph
from atoll.graphs.links import TypedCopies
from atoll.models.backbone import Backbone
from atoll.models.parameters import Parameters, set_parameters
from atoll.random import Draws


class RelationalModel:
    """K channels per party, whose outputs are added; the parameters are those of a backbone with the axes (P, K, …)."""

    def __init__(self, backbone: Backbone, graph: Graph, types: int) -> None:
        """`backbone` is for P·K parties: a party's channels one after the other."""
        self.backbone, self.types = backbone, types
        self.nodes = TypedCopies(graph, types)
        shapes = {name: value.shape[1:] for name, value in backbone.named_parameters()}
        self.channels = {name: nn.Parameter(torch.zeros(graph.parties, types, *shape)) for name, shape in shapes.items()}

    def __call__(self, types: Tensor, draws: Draws | None = None) -> Tensor:
        """(N, C): the sum of the channels' outputs, for links (L,) of these types; a party's channels share its draws."""
        repeated = None if draws is None else draws.repeated(self.types)
        stacked: Tensor = functional_call(self.backbone, self._stacked(), (self.nodes.linked(types), repeated))  # (N·K, C)
        return self.nodes.total @ stacked

    @torch.no_grad()
    def embed_alone(self) -> Tensor:
        """(N, h): the sum of what the channels' hidden layers make of each node without any links."""
        set_parameters(self.backbone, self._stacked())
        return self.nodes.total @ self.backbone.embed(self.nodes.unlinked)

    @torch.no_grad()
    def load(self, channels: Mapping[str, Tensor]) -> None:
        """The same channels (K, …) for every party."""
        for name, value in self.channels.items():
            value.copy_(channels[name])

    def parameters(self) -> Parameters:
        """A copy of the channels, (P, K, …)."""
        return {name: value.detach().clone() for name, value in self.channels.items()}

    def _stacked(self) -> Parameters:
        """(P, K, …) → (P·K, …)."""
        return {name: value.flatten(0, 1) for name, value in self.channels.items()}
