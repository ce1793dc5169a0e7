"""What a class weighs in the loss: `none`, `balanced`, or given numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from atoll.errors import AtollError, closest
from atoll.tasks.options import class_index

NONE, BALANCED = "none", "balanced"
FORMS = "none, balanced, one number per class (0.2,0.8), or CLASS:NUMBER pairs (sick:5)"


def check(text: str) -> None:
    """Refuse a `class_weight` that cannot be one, whatever the classes are."""
    if text in (NONE, BALANCED):
        return
    pairs = [_pair(item) for item in text.split(",")]
    if len({bool(label) for label, _ in pairs}) > 1:
        raise AtollError(f"class_weight is {text!r}, which names some classes and not others; name all or none.")
    if len({label for label, _ in pairs}) < len(pairs) and pairs[0][0]:
        raise AtollError(f"class_weight is {text!r}, which names a class twice.")
    if not any(weight > 0 for _, weight in pairs):
        raise AtollError(f"class_weight is {text!r}, which leaves nothing to learn; give one class a weight above 0.")


def given(text: str, class_names: Sequence[str], classes: int) -> tuple[float, ...]:
    """The weight of each class that `class_weight` gives; a class that is not named weighs 1. Empty for none and balanced."""
    check(text)
    if text in (NONE, BALANCED):
        return ()
    pairs = [_pair(item) for item in text.split(",")]
    if not pairs[0][0]:
        if len(pairs) != classes:
            raise AtollError(f"class_weight has {len(pairs)} numbers for {classes} classes; give one per class.")
        return tuple(weight for _, weight in pairs)
    weights = [1.0] * classes
    for label, weight in pairs:
        weights[class_index(label, class_names, classes, "class_weight")] = weight
    return tuple(weights)


def balanced(counts: Tensor) -> Tensor:
    """(C,) n / (C·n_c), scikit-learn's formula, from the numbers of training nodes n_c; C are the classes that have any.

    A class without training nodes weighs 0: nothing is multiplied by it.
    """
    counts = counts.double()
    present = counts > 0
    return torch.where(present, counts.sum() / (present.sum() * counts).clamp(min=1), torch.zeros((), dtype=torch.float64))


def _pair(item: str) -> tuple[str, float]:
    label, _, number = item.rpartition(":")
    try:
        weight = float(number)
    except ValueError:
        near = closest(item.strip(), (NONE, BALANCED)) or f"; it is {FORMS}."
        raise AtollError(f"class_weight has {item.strip()!r}, which is not a weight{near}") from None
    if not 0 <= weight < math.inf:
        raise AtollError(f"class_weight has {item.strip()!r}, but a weight is a finite number of at least 0.")
    return label.strip(), weight
