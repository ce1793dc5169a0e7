"""How a class is decided: the likeliest one or, with two classes, by a threshold on the probability of one of them.

A threshold is chosen on validation items from histograms of the class's probability (`ranking`), which are sums over the
parties: every candidate is an edge between two bins, so that what it decides follows from the histograms exactly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll.errors import AtollError, closest
from atoll.tasks.histograms import BINS, bin_edges
from atoll.tasks.options import class_index, split_class_metric

NONE = "none"
CRITERIA = {  # what a threshold may be chosen by
    "f1": "F1",
    "youden": "recall + specificity − 1 (Youden's J)",
    "accuracy": "accuracy",
}
POSITIVE = 1  # the class that a given number is for, of two, unless a run names it


@dataclass(frozen=True)
class Rule:
    """The setting `threshold`: a number, or the criterion to choose one by; and which of the two classes it is for."""

    by: str
    index: int | None = None  # None for the one that is rarer among validation items
    value: float | None = None  # where it is given


def parse(text: str) -> tuple[str, str, float | None]:
    """`f1[sick]` → ("f1", "sick", None); `0.3[sick]` → ("given", "sick", 0.3); anything else is an error."""
    kind, label = split_class_metric(text)
    if kind in CRITERIA:
        return kind, label, None
    try:
        value = float(kind)
    except ValueError:
        near = closest(kind, (NONE, *CRITERIA)) or f"; it is none, a number between 0 and 1, or {', '.join(CRITERIA)}."
        raise AtollError(f"threshold is {text!r}, which is not a way to decide{near}") from None
    if not 0 < value < 1:
        raise AtollError(f"threshold is {text} but must be strictly between 0 and 1.")
    return "given", label, value


def rule_of(text: str, class_names: Sequence[str], classes: int) -> Rule | None:
    """The rule of a run; None for the likeliest class."""
    if text == NONE:
        return None
    by, label, value = parse(text)
    if classes != 2:
        raise AtollError(
            f"threshold is {text!r}, but a threshold decides between two classes and there are {classes}; leave it out: "
            "the likeliest class is predicted."
        )
    index = class_index(label, class_names, classes, "threshold") if label else None
    return Rule(by, POSITIVE if index is None and value is not None else index, value)


def chosen(rule: Rule, histogram: Tensor) -> tuple[int, float | None]:
    """The class that a threshold is for and its value, from the histograms (2, 2, BINS) of both classes' probabilities."""
    first, second = histogram[:, 1].clamp(min=0).sum(1).tolist()
    index = rule.index if rule.index is not None else int(second <= first)
    return index, choose(histogram[index], rule.by)


def choose(histogram: Tensor, by: str) -> float | None:
    """The threshold that is best by a criterion, from (2, BINS) negatives and positives; None where a class is missing.

    Among equally good thresholds it is the one nearest to ½ in bins: at ½ the decision is the likeliest class.
    """
    negatives, positives = histogram.double().clamp(min=0)
    if not (float(negatives.sum()) > 0 and float(positives.sum()) > 0):
        return None
    above = torch.stack([negatives, positives]).flip(1).cumsum(1).flip(1)  # at or above each bin's lower edge
    wrong, right = above.unbind(0)
    scores = {
        "f1": 2 * right / (right + wrong + positives.sum()),
        "youden": right / positives.sum() - wrong / negatives.sum(),
        "accuracy": (right + negatives.sum() - wrong) / (positives.sum() + negatives.sum()),
    }[by][1:]  # by its lower edge; bin 0 has none
    best = (scores >= scores.max() - 1e-12).nonzero()[:, 0]
    nearest = best[(best - (BINS // 2 - 1)).abs().argmin()]
    return float(bin_edges()[nearest])


def described(by: str, index: int | None, value: float | None, class_names: Sequence[str] | None) -> dict[str, Any] | None:
    """A threshold as model.json and result.json hold it; None where none could be chosen."""
    if index is None or value is None:
        return None
    return {"class": class_names[index] if class_names else str(index), "index": index, "value": value, "by": by}


def decide(probabilities: Tensor, threshold: Mapping[str, Any] | float | None = None) -> Tensor:
    """(n,) the class of each item, from probabilities (n, C).

    Parameters:
        probabilities: A softmax of a model's outputs, best in double precision.
        threshold: As `model.json` holds it: the class `index` from its probability `value` on, else the other of two classes. A
            number is for the second class. None for the likeliest class.

    Examples:
        >>> import torch
        >>> decide(torch.tensor([[0.6, 0.4], [0.9, 0.1]]), 0.3).tolist()
        [1, 0]
        >>> decide(torch.tensor([[0.6, 0.4], [0.9, 0.1]])).tolist()
        [0, 0]
    """
    if threshold is None:
        return probabilities.argmax(1)
    if probabilities.shape[1] != 2:
        raise AtollError(f"A threshold decides between two classes, and there are {probabilities.shape[1]}.")
    index, value = (POSITIVE, threshold) if isinstance(threshold, (int, float)) else (threshold["index"], threshold["value"])
    return torch.where(probabilities[:, index] >= float(value), index, 1 - index)


def confusion_at(histogram: Tensor, threshold: Mapping[str, Any]) -> Tensor | None:
    """(2, 2) the confusion matrix at a threshold, from the histograms (2, 2, BINS) of both classes' probabilities.

    None where the threshold lies inside a bin, so that the histogram does not determine it.
    """
    first = int((bin_edges() < threshold["value"]).sum()) + 1  # the bin that begins there
    if first >= BINS or float(bin_edges()[first - 1]) != threshold["value"]:
        return None
    index = int(threshold["index"])
    below, above = histogram[index][:, :first].sum(1), histogram[index][:, first:].sum(1)  # by negative and positive
    matrix = torch.stack([below, above], 1)  # rows: negative, positive; columns: decided negative, positive
    return matrix if index == 1 else matrix.flip(0).flip(1)
