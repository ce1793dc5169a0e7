"""Layers of P parties at once: every parameter has a leading party axis, every layer is one product for all parties."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from atoll.graphs.attention import Attention, attend
from atoll.graphs.blocks import Blocks, broadcast_to_rows
from atoll.graphs.features import Features, Kept, transform
from atoll.graphs.hops import Hop
from atoll.graphs.sparse import SparseMatrix
from atoll.random import Draws


def parameter(draws: Draws | None, bound: float, parties: int, *shape: int) -> nn.Parameter:
    """(P, *shape) from U(−bound, bound), drawn separately for each party; zeros without draws."""
    return nn.Parameter(torch.zeros(parties, *shape) if draws is None else draws.uniform(*shape, low=-bound, high=bound))


class Dense(nn.Module):
    """The weights (P, in, out) and biases (P, out) of one layer; call it for relu(M·(X_p·W_p) + b_p)."""

    def __init__(
        self, parties: int, fan_in: int, fan_out: int, draws: Draws | None, *, bias: bool = True, glorot: bool = False
    ) -> None:
        super().__init__()
        bound = math.sqrt(6 / (fan_in + fan_out)) if glorot else 1 / math.sqrt(fan_in)
        self.weight = parameter(draws, bound, parties, fan_in, fan_out)
        self.bias = parameter(None if glorot else draws, bound, parties, fan_out) if bias else None

    def forward(
        self,
        x: Features | Tensor,
        blocks: Blocks,
        through: SparseMatrix | None = None,
        *,
        hops: int = 1,
        relu: bool = False,
        kept: Kept | None = None,
    ) -> Tensor:
        """(N, in) → (N, out); `through` is M, applied `hops` times; with relu, dropout may follow."""
        return transform(x, self.weight, blocks, self.bias, through=through, hops=hops, relu=relu, kept=kept)


class SAGELayer(nn.Module):
    """A GraphSAGE layer: one weight for the mean of the neighbors (with the bias), one for the node itself."""

    def __init__(self, parties: int, fan_in: int, fan_out: int, draws: Draws | None, *, bias: bool = True) -> None:
        super().__init__()
        self.near = Dense(parties, fan_in, fan_out, draws, bias=bias)  # W, b
        self.own = Dense(parties, fan_in, fan_out, draws, bias=False)  # V

    def forward(self, x: Features | Tensor, graph: Hop) -> Tensor:
        """D⁻¹A·(H·W) + b + H·V."""
        out: Tensor = self.near(x, graph.blocks, graph.mean_adjacency) + self.own(graph.targets(x), graph.out_blocks)
        return out


class GINLayer(nn.Module):
    """A GIN layer: the sum of a node and its neighbors through an MLP of two layers."""

    def __init__(
        self,
        parties: int,
        fan_in: int,
        hidden: int,
        fan_out: int,
        draws: Draws | None,
        *,
        bias: bool = True,
        last_bias: bool = True,
    ) -> None:
        super().__init__()
        self.first = Dense(parties, fan_in, hidden, draws, bias=bias)
        self.second = Dense(parties, hidden, fan_out, draws, bias=last_bias)

    def forward(self, x: Features | Tensor, graph: Hop, *, relu: bool, kept: Kept | None = None) -> Tensor:
        """relu((A + I)·(H·W) + b)·V + c; with relu, dropout may follow."""
        inner = self.first(x, graph.blocks, graph.summed_adjacency, relu=True)
        out: Tensor = self.second(inner, graph.out_blocks, relu=relu, kept=kept)
        return out


class AttentionLayer(nn.Module):
    """A GAT layer of H heads of width C, side by side; without `fan_in` it has no W: its input is W·h already."""

    def __init__(
        self, parties: int, fan_in: int | None, heads: int, width: int, draws: Draws | None, *, bias: bool = True
    ) -> None:
        super().__init__()
        bound = math.sqrt(6 / (heads + width))
        self.weight = None
        if fan_in is not None:
            self.weight = parameter(draws, math.sqrt(6 / (fan_in + heads * width)), parties, fan_in, heads * width)
        self.source = parameter(draws, bound, parties, heads, width)  # a_s
        self.target = parameter(draws, bound, parties, heads, width)  # a_t
        self.bias = parameter(None, bound, parties, heads * width) if bias else None

    def forward(self, x: Features | Tensor, graph: Hop, draws: Draws | None, dropout: float) -> Tensor:
        """(N, in) → (N', H·C); in training, dropout is applied to the attention coefficients α."""
        heads = self.source.shape[1]
        attention = graph.attention(heads)
        rows = self.project(x, graph.blocks)
        kept = None
        if draws is not None and dropout:
            kept = draws.keep(1 - dropout, attention.counts(graph.blocks), heads).t().flatten()
        out = self.attend(rows, graph.blocks, attention, kept)
        if graph.beside_attention is not None:
            out = out + graph.beside_attention @ rows
        out = graph.targets(out)
        return out if self.bias is None else out + broadcast_to_rows(self.bias, graph.out_blocks)

    def project(self, x: Features | Tensor, blocks: Blocks) -> Tensor:
        """W·h (N, H·C)."""
        if self.weight is not None:
            return transform(x, self.weight, blocks)
        assert isinstance(x, Tensor)
        return x

    def attend(self, rows: Tensor, blocks: Blocks, attention: Attention, kept: Tensor | None = None) -> Tensor:
        """Σ_j α_ij·W·h_j of every head, without the bias; `kept` masks the coefficients."""
        parties, heads, width = self.source.shape
        vectors = torch.stack([self.source, self.target], 3)  # (P, H, C, 2)
        apart = (
            vectors[..., None] * torch.eye(heads, device=rows.device)[:, None, None]
        )  # (P, H, C, 2, H): each head sees only its own columns
        scores = transform(rows, apart.view(parties, heads * width, 2 * heads), blocks)  # (N, 2·H)
        source, target = scores.t().reshape(2, -1)  # (H·N,) each
        by_head = rows.view(-1, heads, width).transpose(0, 1).reshape(-1, width)  # (H·N, C)
        out = attend(by_head, source, target, attention, kept)
        return out.view(heads, -1, width).transpose(0, 1).reshape(rows.shape)


class GCNIILayer(nn.Module):
    """Layer l = 1, 2, … of GCNII: relu((1−β)·Z + β·Z·W) with Z = (1−α)·Â·H + α·H⁰ and β = log(θ/l + 1)."""

    def __init__(
        self, parties: int, hidden: int, number: int, draws: Draws | None, *, teleport: float = 0.1, theta: float = 0.5
    ) -> None:
        super().__init__()
        self.weight = parameter(draws, math.sqrt(6 / (2 * hidden)), parties, hidden, hidden)
        self.teleport, self.beta = teleport, math.log(theta / number + 1)

    def forward(self, near: Tensor, initial: Tensor, blocks: Blocks) -> Tensor:
        """From Â·H and H⁰, as one product Z·((1−β)·I + β·W)."""
        mixed = torch.lerp(near, initial, self.teleport)  # Z
        weight = self.beta * self.weight + (1 - self.beta) * torch.eye(self.weight.shape[1], device=near.device)
        return transform(mixed, weight, blocks, relu=True)
