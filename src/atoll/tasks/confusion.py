"""Metrics from a confusion matrix: rows are true classes, columns predictions. Noised counts below 0 count as 0."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

MAX_LISTED_CLASSES = 16  # up to which lists of numbers are faster than tensors


def macro_f1(confusion: Tensor) -> float:
    """The mean over classes of F1 = 2·TP / (2·TP + FP + FN), over the classes that occur or are predicted."""
    if confusion.dtype == torch.int64 and len(confusion) <= MAX_LISTED_CLASSES:
        return _macro_f1_of_few(confusion.tolist())
    confusion = confusion.clamp(min=0)
    occurring = confusion.sum(0) + confusion.sum(1)
    present = occurring > 0
    return float((2 * confusion.diagonal().double()[present] / occurring[present]).mean()) if bool(present.any()) else 0.0


def _macro_f1_of_few(confusion: list[list[int]]) -> float:
    """The same numbers, without an operation on tensors for each step: they take longer than the arithmetic of a few classes."""
    counts = [[max(count, 0) for count in row] for row in confusion]
    occurring = [sum(row) + sum(column) for row, column in zip(counts, zip(*counts, strict=True), strict=True)]
    present = [2 * counts[index][index] / total for index, total in enumerate(occurring) if total]
    return float(torch.tensor(present, dtype=torch.float64).mean()) if present else 0.0


def weighted_f1(confusion: Tensor) -> float | None:
    """The mean of F1 over items, each counted with the F1 of its class; None without items."""
    rows = by_class(confusion)
    items = sum(row["items"] for row in rows)
    return sum(row["items"] * (row["f1"] or 0.0) for row in rows) / items if items > 0 else None


def by_class(confusion: Tensor) -> list[dict[str, Any]]:
    """Items, precision, recall and F1 of each class; None where there is nothing to divide by."""
    confusion = confusion.double().clamp(min=0)
    rows = []
    for right, items, predicted in zip(
        confusion.diagonal().tolist(), confusion.sum(1).tolist(), confusion.sum(0).tolist(), strict=True
    ):
        rows.append(
            {
                "items": items,
                "precision": right / predicted if predicted > 0 else None,
                "recall": right / items if items > 0 else None,
                "f1": 2 * right / (items + predicted) if items + predicted > 0 else None,
            }
        )
    return rows
