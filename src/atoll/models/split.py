"""Split networks for parties that hold the same nodes but other features and edges: an encoder, L graph layers, a classifier.

    H[0] = relu(X·W_in + b),   H⁺[l] = layer_l(A(E[l]), H[l]),   logits = H[L]·W_out + b

Between two layers a server may put its own H[l + 1]; a network therefore runs layer by layer, on the levels of a `Batch`.
Every parameter has a leading party axis, every layer is one product for all parties of a cohort.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.attention import attend, elu
from atoll.graphs.kernels import Blocks, spread, transform
from atoll.graphs.sampling import Batch
from atoll.models.backbones import Dense, parameter
from atoll.random import Draws


@dataclass(frozen=True)
class Shape:
    """What a split network is made from."""

    parties: int  # P: those of this cohort
    features: int
    classes: int
    hidden: int
    layers: int  # L
    dropout: float = 0.0
    heads: int = 8  # GAT
    teleport: float = 0.1  # GCNII: α
    theta: float = 0.5  # GCNII: β_l = log(θ/l + 1)
    joined: tuple[int, ...] = ()  # the levels whose representation is a concatenation
    everyone: int = 1  # M: of how many parties

    def width(self, level: int) -> int:
        """Columns of H[level]."""
        return self.hidden * (self.everyone if level in self.joined else 1)


class SplitModel(nn.Module):
    """A backbone that runs layer by layer; with draws it is in training, with dropout."""

    edges = True  # whether layers look at neighbours

    def __init__(self, shape: Shape, draws: Draws | None, common: Draws | None) -> None:
        """`common` draws the classifier: it is the same everywhere, as all parties see the same H[L]."""
        super().__init__()
        self.shape = shape
        self.encoder = Dense(shape.parties, shape.features, shape.hidden, draws)
        self.layers = nn.ModuleList(self.make(place, draws) for place in range(shape.layers))
        inner = [level for level in shape.joined if level < shape.layers]
        self.merges = nn.ModuleDict(
            {str(level): Dense(shape.parties, shape.width(level), shape.hidden, draws, bias=False) for level in inner}
        )
        self.classifier = Dense(shape.parties, shape.width(shape.layers), shape.classes, common)

    def make(self, place: int, draws: Draws | None) -> nn.Module:
        """The parameters of one layer."""
        return Dense(self.shape.parties, self.shape.hidden, self.shape.hidden, draws, glorot=True)

    def encode(self, batch: Batch) -> Tensor:
        """H[0] on level 0."""
        out: Tensor = self.encoder(batch.features, batch.blocks(0), relu=True)
        return out

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """H⁺[l] on level l + 1, from H[0] … H[l]."""
        raise NotImplementedError

    def merge(self, level: int, hidden: Tensor, batch: Batch) -> Tensor:
        """What the next layer takes of H[level]: itself, or a concatenation brought back to the hidden width."""
        key = str(level)
        return self.merges[key](hidden, batch.blocks(level)) if key in self.merges else hidden

    def classify(self, hidden: Tensor, batch: Batch, draws: Draws | None) -> Tensor:
        """Logits on level L."""
        top = self.shape.layers
        out: Tensor = self.classifier(self.drop(hidden, batch.blocks(top), draws), batch.blocks(top))
        return out

    def drop(self, hidden: Tensor, blocks: Blocks, draws: Draws | None) -> Tensor:
        """Dropout of hidden units in training."""
        if draws is None or not self.shape.dropout:
            return hidden
        return hidden * draws.keep(1 - self.shape.dropout, blocks.sizes, hidden.shape[1])


class GCN(SplitModel):
    """Kipf & Welling, ICLR 2017: relu(A·H·W + b)."""

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """A is applied first: it makes fewer rows."""
        near = batch.matrix(place) @ self.drop(hidden[place], batch.blocks(place), draws)
        out: Tensor = self.layers[place](near, batch.blocks(place + 1), relu=True)
        return out


class MLP(SplitModel):
    """relu(H·W + b): A = I, the conventional vertical federation (Liu et al., 2022)."""

    edges = False

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """No neighbours."""
        own = self.drop(hidden[place], batch.blocks(place), draws)
        out: Tensor = self.layers[place](own, batch.blocks(place + 1), relu=True)
        return out


class GCNII(SplitModel):
    """Chen et al., ICML 2020: relu(Z·((1−β_l)·I + β_l·W_l)), Z = (1−α)·A·H[l] + α·H[0], β_l = log(θ/l + 1)."""

    def make(self, place: int, draws: Draws | None) -> nn.Module:
        """W_l, without a bias."""
        return Dense(self.shape.parties, self.shape.hidden, self.shape.hidden, draws, bias=False, glorot=True)

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """H[0] is the party's own, whatever was aggregated since."""
        shape = self.shape
        beta = math.log(shape.theta / (place + 1) + 1)
        near = batch.matrix(place) @ self.drop(hidden[place], batch.blocks(place), draws)
        mixed = torch.lerp(near, batch.take(hidden[0], 0, place + 1), shape.teleport)  # Z
        own: Dense = self.layers[place]  # type: ignore[assignment]
        weight = beta * own.weight + (1 - beta) * torch.eye(shape.hidden)
        return transform(mixed, weight, batch.blocks(place + 1), relu=True)


class Heads(nn.Module):
    """The parameters of a GAT layer: W (P, h, h), a_s and a_t (P, heads, h / heads), b."""

    def __init__(self, shape: Shape, draws: Draws | None) -> None:
        super().__init__()
        parties, hidden, heads = shape.parties, shape.hidden, shape.heads
        bound = math.sqrt(6 / (heads + hidden // heads))
        self.weight = parameter(draws, math.sqrt(6 / (2 * hidden)), parties, hidden, hidden)
        self.source = parameter(draws, bound, parties, heads, hidden // heads)
        self.target = parameter(draws, bound, parties, heads, hidden // heads)
        self.bias = parameter(None, bound, parties, hidden)


class GAT(SplitModel):
    """Veličković et al., ICLR 2018: elu(Σ_j α_ij·W·h_j + b), α_i = softmax_j(leaky(a_s·W·h_j + a_t·W·h_i)); many heads."""

    def make(self, place: int, draws: Draws | None) -> nn.Module:
        """W, a_s, a_t and b."""
        if self.shape.hidden % self.shape.heads:
            raise AtollError(f"gat needs hidden ({self.shape.hidden}) to be a multiple of heads ({self.shape.heads}).")
        return Heads(self.shape, draws)

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """Attention over level l, of which the rows of level l + 1 are kept."""
        own: Heads = self.layers[place]  # type: ignore[assignment]
        blocks = batch.blocks(place)
        parties, heads, width = own.source.shape
        rows = transform(self.drop(hidden[place], blocks, draws), own.weight, blocks)
        vectors = torch.stack([own.source, own.target], 3)  # (P, H, C, 2)
        apart = vectors[..., None] * torch.eye(heads)[:, None, None]  # (P, H, C, 2, H): a head sees its own columns only
        scores = transform(rows, apart.view(parties, heads * width, 2 * heads), blocks)  # (n, 2·H)
        source, target = scores.t().reshape(2, -1)
        by_head = rows.view(-1, heads, width).transpose(0, 1).reshape(-1, width)  # (H·n, C)
        seen = attend(by_head, source, target, batch.attention(place, heads))
        out = seen.view(heads, -1, width).transpose(0, 1).reshape(rows.shape)
        return elu(batch.take(out, place, place + 1) + spread(own.bias, batch.blocks(place + 1)))


class Normed(nn.Module):
    """A linear layer and the scale and shift of its batch norm."""

    def __init__(self, shape: Shape, draws: Draws | None) -> None:
        super().__init__()
        self.linear = Dense(shape.parties, shape.hidden, shape.hidden, draws)
        self.scale = nn.Parameter(torch.ones(shape.parties, shape.hidden))
        self.shift = nn.Parameter(torch.zeros(shape.parties, shape.hidden))


class Residual(SplitModel):
    """The block of GLASU's authors: two layers A·H → linear → relu → batch norm → dropout, then μ·out + (1−μ)·block input.

    μ = 2⁻ᵇ for block b = 1, 2, …. Batch norm takes the mean and variance of the nodes at hand: of the batch's level in
    training, of all nodes in evaluation. Deviation: no running averages are kept, so nothing but parameters is remembered.
    """

    def make(self, place: int, draws: Draws | None) -> nn.Module:
        """The linear layer and its norm."""
        return Normed(self.shape, draws)

    def layer(self, place: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """The second layer of a block adds the block's input."""
        own: Normed = self.layers[place]  # type: ignore[assignment]
        blocks = batch.blocks(place + 1)
        out = own.linear(batch.matrix(place) @ hidden[place], blocks, relu=True)
        parts = zip(out.split(blocks.sizes), own.scale, own.shift, strict=True)
        out = torch.cat([F.batch_norm(rows, None, None, scale, shift, training=True) for rows, scale, shift in parts])
        out = self.drop(out, blocks, draws)
        first = place - place % 2
        if place == first and place + 1 < self.shape.layers:
            return out
        share = 2.0 ** -(place // 2 + 1)  # μ
        return torch.lerp(batch.take(hidden[first], first, place + 1), out, share)

    def classify(self, hidden: Tensor, batch: Batch, draws: Draws | None) -> Tensor:
        """Dropout has been."""
        return super().classify(hidden, batch, None)


SPLITS: dict[str, type[SplitModel]] = {"gcnii": GCNII, "gcn": GCN, "gat": GAT, "residual": Residual, "mlp": MLP}
