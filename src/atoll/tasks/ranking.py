"""Ranking metrics from histograms of a class's probability: what parties count is summed, so `total` and secure totals work.

The 256 bins are equal in σ(logit(p) / 4): fine near 0 and 1, where the probabilities of a rare class and of a confident model
are, and with an edge at ½. AUC and average precision are exact but for the order within a bin; the bound says by how much that
order could move them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

BINS = 256
SPREAD = 4.0  # log-odds are divided by it


class Estimate(NamedTuple):
    """A metric from a histogram, and by how much the exact one may differ at most."""

    value: float
    bound: float


def bin_edges() -> Tensor:
    """(BINS − 1,) ascending probabilities between the bins."""
    return torch.sigmoid(SPREAD * torch.logit(torch.arange(1, BINS, dtype=torch.float64) / BINS))


def bins_of(probabilities: Tensor, edges: Tensor) -> Tensor:
    """The bin of each probability (float64): bin b is at or above edge b − 1 and below edge b."""
    return torch.bucketize(probabilities, edges, right=True)


def exact_bins(scores: Tensor, positive: Tensor) -> tuple[Tensor, Tensor]:
    """Negatives and positives by distinct score, ascending: with a bin of its own for each, the metrics below are exact."""
    distinct, bins = torch.unique(scores, return_inverse=True)
    negatives, positives = (torch.bincount(bins[positive == kind], minlength=len(distinct)) for kind in (False, True))
    return negatives, positives


def auc(negatives: Tensor, positives: Tensor) -> Estimate | None:
    """Area under the ROC curve from two histograms (BINS,), ties in a bin counted half; None where a class is missing.

    The exact area differs by at most ½·Σ_b p_b·n_b / (p·n): the pairs in one bin.
    """
    n, p = negatives.double().clamp(min=0), positives.double().clamp(min=0)
    pairs = float(n.sum() * p.sum())
    if not pairs > 0:
        return None
    above = p.sum() - p.cumsum(0)
    tied = float((n * p).sum()) / pairs / 2
    return Estimate(float((n * above).sum()) / pairs + tied, tied)


def average_precision(negatives: Tensor, positives: Tensor) -> Estimate | None:
    """Σ_b (share of positives in bin b)·(precision at or above b); None where there is no positive or no negative.

    The exact one is between the values for which every bin's negatives come first or last.
    """
    n, p = (counts.double().clamp(min=0).flip(0) for counts in (negatives, positives))
    total = float(p.sum())
    if not (total > 0 and float(n.sum()) > 0):
        return None
    hits, misses = p.cumsum(0), n.cumsum(0)
    value = float((p * hits / (hits + misses).clamp(min=1e-300)).sum()) / total
    lowest, highest = (_in_order(hits - p, p, before) / total for before in (misses, misses - n))
    return Estimate(value, max(value - lowest, highest - value, 0.0))


def _in_order(hits: Tensor, positives: Tensor, misses: Tensor) -> float:
    """Σ_b Σ_{j ≤ p_b} (hits_b + j) / (hits_b + j + misses_b): precision at each positive behind so many negatives."""
    first = hits + misses + 1
    harmonic = torch.digamma(first + positives) - torch.digamma(first)
    return float((positives - misses * harmonic).sum())
