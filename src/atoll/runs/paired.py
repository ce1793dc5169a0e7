"""Paired differences between the rows of a comparison, with confidence intervals and significance."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import mean, stdev

CONFIDENCE = 0.95
SIGNIFICANCE = 0.05
ROUNDING = 1e-9  # differences whose spread is a smaller share of them than this are all the same
TEST = "paired t-test, Holm's correction"


@dataclass(frozen=True)
class Difference:
    """One row minus another, over the seeds that both have."""

    row: str
    against: str
    pairs: int
    mean: float
    low: float  # of the 95 % confidence interval of the mean, by Student's t; infinite where there is none
    high: float
    wins: int  # seeds in which `row` is higher
    p: float | None = None  # two-sided, corrected for the number of rows; None where there is no interval

    @property
    def has_interval(self) -> bool:
        """Whether the mean has an interval: not with fewer than two pairs, nor where all differences are the same."""
        return self.pairs > 1 and math.isfinite(self.low)

    @property
    def significant(self) -> bool:
        """Whether the corrected p is below 0.05."""
        return self.p is not None and self.p < SIGNIFICANCE


def compare_rows(values: Mapping[str, Mapping[int, float | None]], against: str) -> list[Difference]:
    """All other rows minus `against`; `values` are by row and seed, None where a run does not have the metric.

    >>> rows = {"a": {0: 0.5, 1: 0.6, 2: 0.7}, "b": {0: 0.61, 1: 0.70, 2: 0.82}}
    >>> [difference] = compare_rows(rows, "a")
    >>> round(difference.mean, 3), difference.wins, difference.significant
    (0.11, 3, True)
    """
    base = values[against]
    differences = []
    for row, there in values.items():
        if row == against:
            continue
        shared = [seed for seed in base if base[seed] is not None and there.get(seed) is not None]
        differences.append(_difference(row, against, [float(there[seed]) - float(base[seed]) for seed in shared]))  # type: ignore[arg-type]
    return holm(differences)


def holm(differences: Sequence[Difference]) -> list[Difference]:
    """The differences with p corrected for their number: the k-th smallest times n − k + 1, never decreasing."""
    tested = sorted((one for one in differences if one.p is not None), key=lambda one: one.p or 0.0)
    corrected: dict[str, float] = {}
    largest = 0.0
    for rank, one in enumerate(tested):
        largest = max(largest, min(1.0, (one.p or 0.0) * (len(tested) - rank)))
        corrected[one.row] = largest
    return [replace(one, p=corrected.get(one.row)) for one in differences]


def _difference(row: str, against: str, values: Sequence[float]) -> Difference:
    wins = sum(value > 0 for value in values)
    middle = mean(values) if values else math.nan
    std = stdev(values) if len(values) > 1 else 0.0
    if std <= ROUNDING * max(map(abs, values), default=0.0):  # Student's t needs differences
        return Difference(row, against, len(values), middle, -math.inf, math.inf, wins)
    from scipy.special import stdtr, stdtrit  # scipy.stats has them as t, and takes half a second to import

    error = std / math.sqrt(len(values))
    half = float(stdtrit(len(values) - 1, (1 + CONFIDENCE) / 2)) * error
    p = 2 * float(stdtr(len(values) - 1, -abs(middle) / error))
    return Difference(row, against, len(values), middle, middle - half, middle + half, wins, p)
