"""How good decisions between two classes are, by scikit-learn: what a threshold may be chosen by."""

from __future__ import annotations

from collections.abc import Callable

from sklearn.metrics import accuracy_score, balanced_accuracy_score, f1_score

SCORES: dict[str, Callable[..., float]] = {
    "f1": lambda y, decided: f1_score(y, decided, zero_division=0.0),
    "youden": lambda y, decided: 2 * balanced_accuracy_score(y, decided) - 1,
    "accuracy": accuracy_score,
}
