"""Ranking metrics from the scores themselves, as each party computes them of its own items."""

from __future__ import annotations

import torch
from torch import Tensor


def auc(scores: Tensor, positive: Tensor) -> float | None:
    """The share of pairs of a positive and a negative in which the positive's score is higher; ties count half."""
    wins, ties = _compared(scores[positive], scores[~positive])
    pairs = int(positive.sum()) * int((~positive).sum())
    return float(wins.sum() + 0.5 * ties.sum()) / pairs if pairs else None


def average_precision(scores: Tensor, positive: Tensor) -> float | None:
    """Σ_t (R_t − R_{t−1})·P_t over the distinct scores, from the highest, as scikit-learn; None without either kind."""
    total = int(positive.sum())
    if not 0 < total < len(positive):
        return None
    _, level, sizes = (-scores).unique(return_inverse=True, return_counts=True)  # type: ignore[no-untyped-call]  # ascending
    hits = torch.zeros(len(sizes), dtype=torch.float64).index_add_(0, level, positive.double())
    precision = hits.cumsum(0) / sizes.cumsum(0)
    return float((hits * precision).sum()) / total


def hits_at(k: int, scores: Tensor, positive: Tensor) -> float | None:
    """The share of positives whose score is above the k-th highest of the negatives; None with fewer than k negatives."""
    negatives = scores[~positive]
    if len(negatives) < k or not bool(positive.any()):
        return None
    return float((scores[positive] > negatives.topk(k).values[-1]).double().mean())


def reciprocal_rank(scores: Tensor, rivals: Tensor) -> float | None:
    """Mean 1/rank of T scores, each among its own rivals (T, R); of tied ones the mean of the best and the worst rank."""
    if not rivals.numel():
        return None
    above, tied = (rivals > scores[:, None]).sum(1), (rivals == scores[:, None]).sum(1)
    return float((1 / (1 + above + tied / 2).double()).mean())


def _compared(positives: Tensor, negatives: Tensor) -> tuple[Tensor, Tensor]:
    """Of each positive, the negatives below it and those that tie with it."""
    ordered = negatives.contiguous().sort().values
    below = torch.searchsorted(ordered, positives.contiguous())
    return below, torch.searchsorted(ordered, positives.contiguous(), right=True) - below
