"""Counts beside the usual ones, and the metrics made of their sums."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll.deferred import Deferred
from atoll.device import precise
from atoll.tasks import confusion as matrices
from atoll.tasks.counting import share
from atoll.tasks.decisions import decide
from atoll.tasks.histograms import BINS, MEASURES, bin_edges, bins_of
from atoll.tasks.tallies import tally
from atoll.tasks.task import CountField

CALIBRATION_BINS = 15
FIELDS = {  # of one split; those of validation items begin with val_
    "confusion": CountField(("classes", "classes"), whole=True),
    "decided": CountField(("classes", "classes"), whole=True),
    "minority": CountField((2,)),
    "brier": CountField((), "sum"),
    "calibration": CountField((CALIBRATION_BINS, 3), ("items", "items", "sum")),
    "histogram": CountField(("classes", 2, BINS), whole=True),
}
NEEDED = {  # metric → the field it is made of
    "macro_f1": "confusion",
    "weighted_f1": "confusion",
    "precision": "confusion",
    "recall": "confusion",
    "f1": "confusion",
    "minority_accuracy": "minority",
    "brier": "brier",
    "calibration_error": "calibration",
    "auc": "histogram",
    "average_precision": "histogram",
}


def count(
    names: Sequence[str],
    logits: Tensor,
    y: Tensor,
    party: Tensor,
    minority: Tensor,
    parties: int,
    threshold: Mapping[str, Any] | None = None,
) -> dict[str, Tensor | Deferred]:
    """The fields `names` of the items of one split: each party's sums, (P, …). `threshold` is for `decided`."""
    classes = logits.shape[1]
    logits = precise(logits)
    counts: dict[str, Tensor | Deferred] = {}

    def sums(columns: Sequence[Tensor], cell: Tensor | None = None, cells: int = 1) -> Tensor:
        row = party if cell is None else party * cells + cell
        stacked = torch.stack([precise(column) for column in columns], 1)
        return stacked.new_zeros(parties * cells, len(columns)).index_add_(0, row, stacked)

    predicted = logits.argmax(1)
    correct = predicted == y
    if "confusion" in names:
        counts["confusion"] = tally(party, (y * classes + predicted)[:, None], parties, (classes, classes))
    if "minority" in names:
        counts["minority"] = sums([minority, minority * correct])
    if {"decided", "brier", "calibration", "histogram"}.isdisjoint(names):
        return counts
    shares = logits.softmax(1)
    if "decided" in names:
        counts["decided"] = tally(party, (y * classes + decide(shares, threshold))[:, None], parties, (classes, classes))
    if "brier" in names:
        wrong = shares.square().sum(1) - 2 * shares.gather(1, y[:, None])[:, 0] + 1  # Σ_c (p_c − [y = c])²
        counts["brier"] = sums([wrong.clamp(min=0)])[:, 0]
    if "calibration" in names:
        confidence = shares.amax(1)
        cell = (torch.ceil(confidence * CALIBRATION_BINS).long() - 1).clamp(0, CALIBRATION_BINS - 1)
        table = sums([torch.ones_like(confidence), correct, confidence], cell, CALIBRATION_BINS)
        counts["calibration"] = table.view(parties, CALIBRATION_BINS, 3)
    if "histogram" in names:
        bins = bins_of(shares, bin_edges().to(shares.dtype).to(shares.device))
        column = torch.arange(classes, device=shares.device)
        cells = (column * 2 + (y[:, None] == column)) * BINS + bins
        counts["histogram"] = tally(party, cells, parties, (classes, 2, BINS))
    return counts


def metrics_of(fields: Mapping[str, Any], items: float, classes: int) -> dict[str, float]:
    """Metrics of one split from its sums; undefined ones are left out."""
    metrics: dict[str, float | None] = {}
    if "confusion" in fields:
        metrics["macro_f1"] = matrices.macro_f1(fields["confusion"]) if items > 0 else None
        metrics["weighted_f1"] = matrices.weighted_f1(fields["confusion"])
    if "minority" in fields:
        count, right = fields["minority"].tolist()
        metrics["minority_accuracy"] = share(right, count) if count > 0 else None
    if "histogram" in fields:
        for name, measure in MEASURES.items():
            values = [measure(*pair.unbind(0)) for pair in _judged_classes(fields["histogram"])]
            defined = [value for value in values if value is not None]
            metrics[name] = sum(defined) / len(defined) if defined else None
    if "brier" in fields and items > 0:
        metrics["brier"] = max(float(fields["brier"]), 0.0) / items / (2 if classes == 2 else 1)
    if "calibration" in fields:
        count, right, confidence = fields["calibration"].double().clamp(min=0).unbind(1)
        total = float(count.sum())
        metrics["calibration_error"] = min(float((right - confidence).abs().sum()) / total, 1.0) if total > 0 else None
    return {name: value for name, value in metrics.items() if value is not None}


def class_value(kind: str, index: int, sums: Mapping[str, Any]) -> float | None:
    """A metric of one class."""
    if kind in MEASURES:
        return MEASURES[kind](*sums["histogram"][index].unbind(0))
    value: float | None = matrices.by_class(sums["confusion"])[index][kind]
    return value


def _judged_classes(histogram: Tensor) -> Tensor:
    """The classes whose mean is taken: all, one against the rest; of two classes the second alone."""
    return histogram[1:] if len(histogram) == 2 else histogram
