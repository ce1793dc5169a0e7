"""Metrics from a confusion matrix: rows are true classes, columns predictions. Noised counts below 0 count as 0."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def macro_f1(confusion: Tensor) -> float:
    """The mean over classes of F1 = 2·TP / (2·TP + FP + FN), over the classes that occur or are predicted."""
    confusion = confusion.clamp(min=0)
    occurring = confusion.sum(0) + confusion.sum(1)
    present = occurring > 0
    return float((2 * confusion.diagonal().double()[present] / occurring[present]).mean()) if bool(present.any()) else 0.0


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
