"""Ranking metrics from histograms of a class's probability: what parties count is summed, so `total` and secure totals work.

The 256 bins are equal in σ(logit(p) / 4): fine near 0 and 1, where the probabilities of a rare class and of a confident model
are, and with an edge at ½. AUC and average precision are exact but for the order within a bin: the exact area differs by at most
½·Σ_b p_b·n_b / (p·n), half the pairs in one bin; the exact average precision lies between the values for which every bin's
negatives come first or last.
"""

from __future__ import annotations

import torch
from torch import Tensor

BINS = 256
SPREAD = 4.0  # log-odds are divided by it


def bin_edges() -> Tensor:
    """(BINS − 1,) ascending probabilities between the bins."""
    return torch.sigmoid(SPREAD * torch.logit(torch.arange(1, BINS, dtype=torch.float64) / BINS))


def bins_of(probabilities: Tensor, edges: Tensor) -> Tensor:
    """The bin of each probability (float64): bin b is at or above edge b − 1 and below edge b."""
    return torch.bucketize(probabilities, edges, right=True)


def auc_of_bins(negatives: Tensor, positives: Tensor) -> float | None:
    """Area under the ROC curve from two histograms (BINS,), ties in a bin counted half; None where a class is missing."""
    n, p = negatives.double().clamp(min=0), positives.double().clamp(min=0)
    pairs = float(n.sum() * p.sum())
    if not pairs > 0:
        return None
    above = p.sum() - p.cumsum(0)
    tied = float((n * p).sum()) / pairs / 2
    return float((n * above).sum()) / pairs + tied


def average_precision_of_bins(negatives: Tensor, positives: Tensor) -> float | None:
    """Σ_b (share of positives in bin b)·(precision at or above b); None where there is no positive or no negative."""
    n, p = (counts.double().clamp(min=0).flip(0) for counts in (negatives, positives))
    total = float(p.sum())
    if not (total > 0 and float(n.sum()) > 0):
        return None
    hits, misses = p.cumsum(0), n.cumsum(0)
    return float((p * hits / (hits + misses).clamp(min=1e-300)).sum()) / total


MEASURES = {"auc": auc_of_bins, "average_precision": average_precision_of_bins}
