"""Split networks for parties that hold the same nodes but different features and edges: an encoder, L graph layers, a classifier.

    H[0] = relu(X·W_in + b),   H⁺[l] = layer_l(A(E[l]), H[l]),   logits = H[L]·W_out + b

Between two layers the server may replace H[l + 1]; a network therefore runs layer by layer, on the levels of a `Batch`.
Every parameter has a leading party axis, every layer is one product for all parties of a cohort.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.attention import elu
from atoll.graphs.blocks import Blocks, broadcast_to_rows
from atoll.graphs.sampling import Batch
from atoll.models.layers import AttentionLayer, Dense, GCNIILayer
from atoll.models.link_level import make_decoder, pair_logits, represent_pairs
from atoll.random import Draws


@dataclass(frozen=True)
class SplitShape:
    """The size of a split network, and the settings of its layers."""

    parties: int  # P, of this cohort
    features: int
    classes: int
    hidden: int
    layers: int  # L
    dropout: float = 0.0
    heads: int = 8  # GAT
    teleport: float = 0.1  # GCNII: α
    theta: float = 0.5  # GCNII: β_l = log(θ/l + 1)
    joined: tuple[int, ...] = ()  # the levels whose representation is a concatenation
    everyone: int = 1  # M: all parties, in this cohort or not
    decoder: str = ""  # link prediction: what scores two rows of the classifier's output

    def width(self, level: int) -> int:
        """Columns of H[level]."""
        return self.hidden * (self.everyone if level in self.joined else 1)


class SplitModel(nn.Module):
    """A network that runs layer by layer; with draws it is in training, with dropout."""

    edges = True  # whether layers use the edges

    def __init__(self, shape: SplitShape, draws: Draws | None, common: Draws | None) -> None:
        """`common` draws the classifier, which is the same at all parties, as they all see the same H[L]."""
        super().__init__()
        self.shape = shape
        self.encoder = Dense(shape.parties, shape.features, shape.hidden, draws)
        self.layers = nn.ModuleList(self.make(index, draws) for index in range(shape.layers))
        inner = [level for level in shape.joined if level < shape.layers]
        self.merges = nn.ModuleDict(
            {str(level): Dense(shape.parties, shape.width(level), shape.hidden, draws, bias=False) for level in inner}
        )
        self.classifier = Dense(shape.parties, shape.width(shape.layers), shape.classes, common)
        self.decoder = make_decoder(shape.decoder, shape.parties, shape.classes, common)

    def make(self, index: int, draws: Draws | None) -> nn.Module:
        """The parameters of one layer, counted from 0."""
        return Dense(self.shape.parties, self.shape.hidden, self.shape.hidden, draws, glorot=True)

    def encode(self, batch: Batch) -> Tensor:
        """H[0] on level 0."""
        out: Tensor = self.encoder(batch.features, batch.blocks(0), relu=True)
        return out

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """H⁺[l] on level l + 1, from H[0] … H[l]."""
        raise NotImplementedError

    def merge(self, level: int, hidden: Tensor, batch: Batch) -> Tensor:
        """The input of the next layer: H[level], or a concatenation projected back to the hidden width."""
        key = str(level)
        return self.merges[key](hidden, batch.blocks(level)) if key in self.merges else hidden

    def classify(self, hidden: Tensor, batch: Batch, draws: Draws | None) -> Tensor:
        """Logits on level L."""
        top = self.shape.layers
        out: Tensor = self.classifier(self.drop(hidden, batch.blocks(top), draws), batch.blocks(top))
        return out

    def score_pairs(self, hidden: Tensor, pairs: Tensor, items: Blocks, batch: Batch, draws: Draws | None) -> Tensor:
        """(M, 2) the logits of pairs of rows of level L: the classifier's outputs, Z = H[L]·W + b, through the decoder."""
        z = self.classify(hidden, batch, draws)
        return pair_logits(self.decoder, represent_pairs(self.decoder, z, pairs, batch.blocks(self.shape.layers), items), items)

    def drop(self, hidden: Tensor, blocks: Blocks, draws: Draws | None) -> Tensor:
        """Dropout of hidden units in training."""
        if draws is None or not self.shape.dropout:
            return hidden
        return hidden * draws.keep(1 - self.shape.dropout, blocks.sizes, hidden.shape[1])


class SplitGCN(SplitModel):
    """Kipf & Welling, ICLR 2017: relu(A·H·W + b)."""

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """A is applied first: that leaves fewer rows."""
        near = batch.matrix(index) @ self.drop(hidden[index], batch.blocks(index), draws)
        out: Tensor = self.layers[index](near, batch.blocks(index + 1), relu=True)
        return out


class SplitMLP(SplitModel):
    """relu(H·W + b): A = I, the conventional vertical federation (Liu et al., 2022)."""

    edges = False

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """Without neighbors."""
        dropped = self.drop(hidden[index], batch.blocks(index), draws)
        out: Tensor = self.layers[index](dropped, batch.blocks(index + 1), relu=True)
        return out


class SplitGCNII(SplitModel):
    """Chen et al., ICML 2020: relu(Z·((1−β_l)·I + β_l·W_l)), Z = (1−α)·A·H[l] + α·H[0], β_l = log(θ/l + 1)."""

    def make(self, index: int, draws: Draws | None) -> nn.Module:
        """W_l, without a bias."""
        shape = self.shape
        return GCNIILayer(shape.parties, shape.hidden, index + 1, draws, teleport=shape.teleport, theta=shape.theta)

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """H[0] is the party's own, even after later levels were aggregated."""
        near = batch.matrix(index) @ self.drop(hidden[index], batch.blocks(index), draws)
        out: Tensor = self.layers[index](near, batch.take(hidden[0], 0, index + 1), batch.blocks(index + 1))
        return out


class SplitGAT(SplitModel):
    """Veličković et al., ICLR 2018: elu(Σ_j α_ij·W·h_j + b), α_i = softmax_j(leaky(a_s·W·h_j + a_t·W·h_i)); several heads."""

    def make(self, index: int, draws: Draws | None) -> nn.Module:
        """W, a_s, a_t and b."""
        parties, hidden, heads = self.shape.parties, self.shape.hidden, self.shape.heads
        if hidden % heads:
            raise AtollError(f"gat needs hidden ({hidden}) to be a multiple of heads ({heads}).")
        return AttentionLayer(parties, hidden, heads, hidden // heads, draws)

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """Attention over level l, of which the rows of level l + 1 are kept."""
        layer: AttentionLayer = self.layers[index]  # type: ignore[assignment]
        blocks = batch.blocks(index)
        rows = layer.project(self.drop(hidden[index], blocks, draws), blocks)
        out = layer.attend(rows, blocks, batch.attention(index, self.shape.heads))
        assert layer.bias is not None
        return elu(batch.take(out, index, index + 1) + broadcast_to_rows(layer.bias, batch.blocks(index + 1)))


class NormedLayer(nn.Module):
    """A linear layer and the scale and shift of its batch norm."""

    def __init__(self, shape: SplitShape, draws: Draws | None) -> None:
        super().__init__()
        self.linear = Dense(shape.parties, shape.hidden, shape.hidden, draws)
        self.scale = nn.Parameter(torch.ones(shape.parties, shape.hidden))
        self.shift = nn.Parameter(torch.zeros(shape.parties, shape.hidden))


class SplitResidual(SplitModel):
    """The block of GLASU's authors: two layers A·H → linear → relu → batch norm → dropout, then μ·out + (1−μ)·block input.

    μ = 2⁻ᵇ for block b = 1, 2, …. Batch norm takes the mean and variance of the nodes at hand: of the batch's level in
    training, of all nodes in evaluation. Deviation: no running averages are kept, so only parameters are remembered.
    """

    def make(self, index: int, draws: Draws | None) -> nn.Module:
        """The linear layer and its norm."""
        return NormedLayer(self.shape, draws)

    def layer(self, index: int, hidden: Sequence[Tensor], batch: Batch, draws: Draws | None) -> Tensor:
        """The second layer of a block adds the block's input."""
        layer: NormedLayer = self.layers[index]  # type: ignore[assignment]
        blocks = batch.blocks(index + 1)
        out = layer.linear(batch.matrix(index) @ hidden[index], blocks, relu=True)
        parts = zip(out.split(blocks.sizes), layer.scale, layer.shift, strict=True)
        out = torch.cat([F.batch_norm(rows, None, None, scale, shift, training=True) for rows, scale, shift in parts])
        out = self.drop(out, blocks, draws)
        first = index - index % 2  # of this block
        if index == first and index + 1 < self.shape.layers:
            return out
        share = 2.0 ** -(index // 2 + 1)  # μ
        return torch.lerp(batch.take(hidden[first], first, index + 1), out, share)

    def classify(self, hidden: Tensor, batch: Batch, draws: Draws | None) -> Tensor:
        """Dropout was applied inside the block."""
        return super().classify(hidden, batch, None)


SPLITS: dict[str, type[SplitModel]] = {
    "gcnii": SplitGCNII,
    "gcn": SplitGCN,
    "gat": SplitGAT,
    "residual": SplitResidual,
    "mlp": SplitMLP,
}
