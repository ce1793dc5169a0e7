"""The server's part of a split network: the rest of the first layer, and all others (Eq. 5, Appendices B and D).

Appendix B turns a layer from message passing, then encoding, into encoding, then message passing: the linear map that meets the
features goes to the users and the aggregation, which commutes with it, to the server. What is trained is the same network:

    gcn   x̄ = x·W           relu(Â·X̄)
    gat   x̄ = [x·W¹ … x·Wᴸ]  elu of L heads of attention, side by side
    sage  x̄ = [x·V, x·W]     relu(X·V + D⁻¹A·X·W + b)
    gin   x̄ = x·W           relu(relu((A + I)·X̄ + b)·W' + b'): the first half of the layer's MLP is the users', ε = 0
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from atoll.algorithms.nfedgnn.settings import Split
from atoll.graphs.attention import elu
from atoll.graphs.dropout import relu_dropout
from atoll.graphs.graph import Graph
from atoll.models.layers import AttentionLayer, Dense, SAGELayer
from atoll.random import Draws


class Server(nn.Module):
    """What follows the users' part of the first layer."""

    def __init__(self, settings: Split, classes: int, draws: Draws | None) -> None:
        super().__init__()
        self.settings = settings
        hidden = settings.hidden * (settings.heads if settings.model == "gat" else 1)
        if (first := self._first(draws)) is not None:
            self.first = first
        self.middle = nn.ModuleList(self._layer(hidden, settings.hidden, draws, last=False) for _ in range(settings.layers - 2))
        self.second = self._layer(hidden, classes, draws, last=True)

    def _first(self, draws: Draws | None) -> nn.Module | None:
        """The parameters of the first layer that the server has."""
        s = self.settings
        if s.model == "gat":
            return AttentionLayer(1, None, s.heads, s.hidden, draws)
        if s.model == "sage":
            return Bias(s.hidden)
        return ServerGINLayer(None, s.hidden, s.hidden, draws) if s.model == "gin" else None

    def _layer(self, fan_in: int, fan_out: int, draws: Draws | None, *, last: bool) -> nn.Module:
        """The parameters of a later layer."""
        s = self.settings
        if s.model == "gat":
            return AttentionLayer(1, fan_in, 1 if last else s.heads, fan_out, draws)
        if s.model == "sage":
            return SAGELayer(1, fan_in, fan_out, draws)
        if s.model == "gin":
            return ServerGINLayer(fan_in, s.hidden, fan_out, draws)
        return Dense(1, fan_in, fan_out, draws, bias=False, glorot=True)

    def forward(self, latent: Tensor, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Logits (N, C): Â·relu(Â·X̄)·W⁽¹⁾ (Eq. 5), two layers of attention (Eq. 9), or as above; `draws` in training."""
        hidden = self._activated(self._received(latent, graph, draws), draws)
        for layer in self.middle:
            hidden = self._activated(self._later(layer, hidden, graph, draws), draws)
        return self._later(self.second, hidden, graph, draws)

    def _received(self, latent: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """The first layer's rest, from X̄."""
        if self.settings.model == "gcn":
            return graph.normalized_adjacency @ latent
        if self.settings.model == "sage":
            itself, near = latent.chunk(2, 1)
            return self.first(itself + graph.mean_adjacency @ near.contiguous())  # type: ignore[no-any-return]
        return self._later(self.first, latent, graph, draws)

    def _later(self, layer: nn.Module, hidden: Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """A later layer, before its activation."""
        if isinstance(layer, AttentionLayer):
            out: Tensor = layer(hidden, graph, draws, self.settings.dropout)
        elif isinstance(layer, Dense):
            out = layer(hidden, graph.blocks, graph.normalized_adjacency)
        else:
            out = layer(hidden, graph)
        return out

    def _activated(self, hidden: Tensor, draws: Draws | None) -> Tensor:
        """After the activation and, in training, dropout."""
        if self.settings.model != "gat":
            return relu_dropout(hidden, self.settings.dropout, draws)
        hidden = elu(hidden)
        if draws is None or not self.settings.dropout:
            return hidden
        return hidden * draws.keep(1 - self.settings.dropout, [len(hidden)], hidden.shape[1])


class Bias(nn.Module):
    """The bias of a layer whose weights the users have."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(1, width))

    def forward(self, rows: Tensor) -> Tensor:
        """rows + b."""
        return rows + self.bias


class ServerGINLayer(nn.Module):
    """Xu et al., ICLR 2019, ε = 0: relu((A + I)·H·W + b)·W' + b'; without `fan_in` its input is H·W already."""

    def __init__(self, fan_in: int | None, hidden: int, fan_out: int, draws: Draws | None) -> None:
        super().__init__()
        self.inner = Bias(hidden) if fan_in is None else Dense(1, fan_in, hidden, draws)
        self.outer = Dense(1, hidden, fan_out, draws)

    def forward(self, rows: Tensor, graph: Graph) -> Tensor:
        """(N, in) → (N, out)."""
        near = _degrees(graph) * (graph.mean_adjacency @ rows) + rows
        hidden = self.inner(near) if isinstance(self.inner, Bias) else self.inner(near, graph.blocks)
        out: Tensor = self.outer(hidden.relu(), graph.blocks)
        return out


def _degrees(graph: Graph) -> Tensor:
    """(N, 1) the number of each node's neighbors: what a mean over them is multiplied by for a sum."""
    if "degrees" not in graph.derived:
        graph.derived["degrees"] = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes).float()[:, None]
    degrees: Tensor = graph.derived["degrees"]
    return degrees
