"""ChebNet: Defferrard et al., NeurIPS 2016."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.features import Features, transform
from atoll.models.backbone import Chain
from atoll.models.layers import parameter
from atoll.random import Draws
from atoll.settings import setting


@dataclass(frozen=True)
class Settings:
    """How many Chebyshev polynomials."""

    order: int = setting(2, "Chebyshev polynomials per layer, K: over K − 1 edges.", low=1, high=100)


class ChebLayer(nn.Module):
    """The weights (P, K, in, out) of K polynomials, and biases (P, out)."""

    def __init__(self, parties: int, order: int, fan_in: int, fan_out: int, draws: Draws | None, *, bias: bool = True) -> None:
        super().__init__()
        self.weight = parameter(draws, math.sqrt(6 / (fan_in + fan_out)), parties, order, fan_in, fan_out)
        self.bias = parameter(None, 0.0, parties, fan_out) if bias else None


class Cheb(Chain):
    """Defferrard et al., NeurIPS 2016: H⁺ = relu(Σ_k T_k(L̂)·H·W_k + b), T_k Chebyshev's polynomials, L̂ = −D^(-1/2)·A·D^(-1/2)."""

    settings_type = Settings
    weighted_edges = False  # it propagates through the adjacency without loops

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W_0 … W_{K−1} and b."""
        return ChebLayer(self.shape.parties, self.settings.order, fan_in, fan_out, draws, bias=self.shape.bias)

    def layer(self, index: int, x: Features | Tensor, graph: Any, draws: Draws | None) -> Tensor:
        """All H·W_k in one product, then Clenshaw's recurrence: B_k = H·W_k + 2·L̂·B_{k+1} − B_{k+2}."""
        weights: Tensor = self.layers[index].weight  # type: ignore[assignment]
        parties, order, fan_in, fan_out = weights.shape
        together = weights.transpose(1, 2).reshape(parties, fan_in, order * fan_out)
        every = transform(x, together, graph.blocks).view(-1, order, fan_out)  # H·W_k
        near, far = torch.zeros_like(every[:, 0]), torch.zeros_like(every[:, 0])  # B_{k+1}, B_{k+2}
        for k in range(order - 1, 0, -1):
            near, far = (every[:, k] - 2 * (graph.spectral_adjacency @ near) - far if k < order - 1 else every[:, k]), near
        out = every[:, 0] - far
        out = out - graph.spectral_adjacency @ near.contiguous() if order > 1 else out
        bias: Tensor | None = self.layers[index].bias  # type: ignore[assignment]
        out = out if bias is None else out + broadcast_to_rows(bias, graph.blocks)
        return out.relu() if index < self.last else out
