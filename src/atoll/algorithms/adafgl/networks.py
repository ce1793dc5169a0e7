"""AdaFGL's personal networks: MLPs of features that were propagated over edges and relations, and signed propagation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.features import transform
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import SparseMatrix
from atoll.models.layers import Dense
from atoll.random import Draws

STEPS = 3  # of the propagation of features: X̃ = [X, ÃX, Ã²X, Ã³X]
MAX_PAIRS = 1 << 22  # pairs of nodes whose similarities are in memory at once
SLOPE, TINY = 0.25, 1e-9


class PReLUMLP(nn.Module):
    """Layers with one PReLU between them, for all parties; the first takes X, or X̃ (`propagated`)."""

    def __init__(self, parties: int, widths: Sequence[int], draws: Draws | None, *, propagated: bool) -> None:
        super().__init__()
        self.propagated = propagated
        first = widths[0] * (STEPS + 1 if propagated else 1)
        self.slope = nn.Parameter(torch.full((parties, 1), SLOPE))
        self.layers = nn.ModuleList(Dense(parties, a, b, draws, glorot=True) for a, b in pairwise([first, *widths[1:]]))
        for layer in self.layers:
            assert isinstance(layer, Dense)
            layer.weight.data.mul_(math.sqrt(2))  # the gain of a ReLU

    def forward(self, graph: Graph, smoothing: SparseMatrix, draws: Draws | None, dropout: float) -> Tensor:
        """(N, C); `smoothing` is Ã. X̃·W is computed as Ã·(Ã·(Ã·X·W₃ + X·W₂) + X·W₁) + X·W₀."""
        first = self.layers[0]
        assert isinstance(first, Dense)
        parties, _, width = first.weight.shape
        if self.propagated:
            apart = first.weight.view(parties, STEPS + 1, -1, width).transpose(1, 2).flatten(2)
            every = torch.split(transform(graph.features, apart, graph.blocks), width, 1)
            out = every[STEPS]
            for number in range(STEPS - 1, -1, -1):
                out = smoothing @ out.contiguous() + every[number]
        else:
            out = transform(graph.features, first.weight, graph.blocks)
        assert first.bias is not None
        out = out + broadcast_to_rows(first.bias, graph.blocks)
        slope = broadcast_to_rows(self.slope, graph.blocks)
        for layer in list(self.layers)[1:]:
            out = torch.where(out > 0, out, slope * out)
            if draws is not None and dropout:
                out = out * draws.keep(1 - dropout, graph.sizes, out.shape[1])
            out = layer(out, graph.blocks)
        return out


class PersonalNetwork(nn.Module):
    """Both branches of every party: one MLP for homophily; an MLP of X, one of X̃ and signed propagation for heterophily."""

    def __init__(self, parties: int, features: int, hidden: int, classes: int, draws: Draws | None) -> None:
        super().__init__()
        two, three = [features, hidden, classes], [features, hidden, hidden, classes]
        self.homophilous = PReLUMLP(parties, two, draws, propagated=True)
        self.own = PReLUMLP(parties, three, draws, propagated=False)
        self.smooth = PReLUMLP(parties, three, draws, propagated=True)
        self.signed = PReLUMLP(parties, three, draws, propagated=True)


def unit_similarity_rows(rows: Tensor) -> Tensor:
    """Softmax rows of length 1: their products are cosines."""
    return torch.nn.functional.normalize(torch.softmax(rows, 1), dim=1, eps=TINY)


def related_pairs(predictions: Tensor, threshold: float) -> Tensor:
    """(n, n) bool R: pairs of different nodes whose softmax (of predictions that are shares already) has a cosine above it."""
    unit = unit_similarity_rows(predictions)
    related = torch.empty(len(unit), len(unit), dtype=torch.bool, device=unit.device)
    step = max(1, MAX_PAIRS // max(len(unit), 1))
    for first in range(0, len(unit), step):
        related[first : first + step] = unit[first : first + step] @ unit.t() > threshold
    return related.fill_diagonal_(False)


def signed_propagation(rows: Tensor, related: Tensor, slope: Tensor, share: float, negative: str) -> Tensor:
    """½·(softmax(prelu(M)·B) − softmax(prelu(−M)·B) + B) of one party's B (n, C).

    M is made of β·R + (1−β)·cosines of softmax(B), without a diagonal, around its mean, plus I. A block of rows at a time, which
    the backward pass computes again where there is more than one, so that no (n, n) matrix of numbers is kept.
    """
    count = len(rows)
    unit = unit_similarity_rows(rows)
    step = max(1, MAX_PAIRS // max(count, 1))
    mean, top = _mean_and_maximum(unit, related, share, step)
    pieces = []
    for first in range(0, count, step):
        last = min(first + step, count)
        block = partial(_signed_block, related=related, first=first, last=last, share=share, negative=negative)
        if step < count:
            pieces.append(checkpoint(block, rows, unit, slope, mean, top, use_reentrant=False))
        else:
            pieces.append(block(rows, unit, slope, mean, top))
    positive, opposite = (torch.cat(part) for part in zip(*pieces, strict=True))
    return (torch.softmax(positive, 1) - torch.softmax(opposite, 1) + rows) / 2


def _similarities(unit: Tensor, related: Tensor, first: int, last: int, share: float) -> Tensor:
    """Rows of β·R + (1−β)·cosines; 0 on the diagonal."""
    cosines = unit[first:last] @ unit.t()
    own = torch.zeros_like(cosines, dtype=torch.bool)
    own[:, first:last].fill_diagonal_(True)
    return share * related[first:last].to(cosines) + (1 - share) * cosines.masked_fill(own, 0)


def _mean_and_maximum(unit: Tensor, related: Tensor, share: float, step: int) -> tuple[Tensor, Tensor]:
    """Both with gradients: the mean from the sum of the rows, the maximum as that of one pair, found without gradients."""
    count = len(unit)
    cosines = unit.sum(0).square().sum() - unit.square().sum()
    mean = (share * related.sum() + (1 - share) * cosines) / count**2
    best, pair = -math.inf, (0, 0)
    with torch.no_grad():
        for first in range(0, count, step):
            block = _similarities(unit, related, first, min(first + step, count), share)
            index = int(block.argmax())
            value = float(block.view(-1)[index])
            if value > best:
                best, pair = value, (first + index // count, index % count)
    i, j = pair
    if i == j:  # nothing is above the diagonal's 0
        return mean, mean.new_zeros(())
    return mean, share * related[i, j].to(unit) + (1 - share) * (unit[i] @ unit[j])


def _signed_block(
    rows: Tensor,
    unit: Tensor,
    slope: Tensor,
    mean: Tensor,
    top: Tensor,
    *,
    related: Tensor,
    first: int,
    last: int,
    share: float,
    negative: str,
) -> tuple[Tensor, Tensor]:
    """Rows of prelu(M)·B and of prelu(−M)·B."""
    similar = _similarities(unit, related, first, last, share)
    centered, low = similar - mean, mean.clamp(min=TINY)
    below = -similar / low if negative == "authors" else centered / low
    signed = torch.where(centered > 0, centered / (top - mean).clamp(min=TINY), below)
    signed[:, first:last].diagonal().add_(1)
    positive = torch.where(signed > 0, signed, slope * signed)
    opposite = torch.where(signed < 0, -signed, -slope * signed)
    return positive @ rows, opposite @ rows
