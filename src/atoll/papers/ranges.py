"""The ranges of every cell: one around the paper's value, by a rule that does not look at results, and one around our record.

A result in the first agrees with the paper, one in the second repeats ours.

- Where the paper prints a mean and its spread: the 95 % prediction interval of the mean of our seeds, if both sides drew from the
  same distribution, m ± t·s·√(1/n + 1/n′) with the paper's s and n, our n′ and Student's t with n − 1 degrees of freedom.
- Where it prints a mean alone: two points around it; a count, a share or a number of bytes: the error of printing three digits.
- A cell may state another range, with the reason: a misprint, for instance.
- Where the paper prints nothing, or another quantity (`incomparable`), there is no such range, and no verdict on the paper.
- Around our record: the prediction interval of its mean, for whoever runs the cell again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

from atoll.papers import Cell, Exhibit, Line

CONFIDENCE = 0.95
POINTS = 2.0  # where a percentage is printed without a spread
THREE_DIGITS = 0.005  # relative error of a number printed to three digits
ROUNDING = 0.05  # of a percentage printed with one decimal


@dataclass(frozen=True)
class ExpectedRange:
    """An interval, and what it comes from: the `paper`, the cell (`stated`, with a reason) or our `record`."""

    low: float
    high: float
    source: str

    def holds(self, value: float) -> bool:
        """Whether a value lies in it."""
        return self.low <= value <= self.high


def range_of(exhibit: Exhibit, cell: Cell, metric: str) -> ExpectedRange | None:
    """The range that the paper or the cell gives, without a look at any result; None where neither does."""
    if metric in cell.range:
        low, high = cell.range[metric]
        return ExpectedRange(low, high, "stated")
    printed = cell.paper.get(metric)
    if printed is None or metric in exhibit.incomparable:
        return None
    mean, *spread = printed if isinstance(printed, list) else [printed]
    if not spread:
        half = _half_alone(exhibit, metric, mean)
    elif exhibit.plus_minus == "ci95":  # half an interval of the paper's mean: s = half·√n / t
        half = spread[0] * math.sqrt(1 + exhibit.repetitions / exhibit.wanted) + ROUNDING
    else:
        half = _prediction(spread[0], exhibit.repetitions, exhibit.wanted) + ROUNDING
    return ExpectedRange(mean - half, mean + half, "paper")


def recorded_range(exhibit: Exhibit, metric: str, line: Line) -> ExpectedRange | None:
    """Where a repetition of a recorded line is expected."""
    if metric not in line.ours:
        return None
    mean, std = line.ours[metric]
    alone = _half_alone(exhibit, metric, mean)
    half = alone if math.isnan(std) or line.seeds < 2 else _prediction(std, line.seeds, exhibit.wanted) + alone / 10
    return ExpectedRange(mean - half, mean + half, "record")


def with_ranges(exhibit: Exhibit, lines: Sequence[Line], recorded: Mapping[str, Line]) -> list[Line]:
    """The lines with the ranges of their metrics; `recorded` are those of the record alone, by row."""
    result = []
    for line in lines:
        kept = recorded.get(line.cell.row)
        printed = {metric: range_of(exhibit, line.cell, metric) for metric in exhibit.metrics}
        expected = {metric: recorded_range(exhibit, metric, kept) for metric in exhibit.metrics} if kept else {}
        result.append(replace(line, ranges=_known(printed), expected=_known(expected)))
    return result


def _known(ranges: Mapping[str, ExpectedRange | None]) -> dict[str, ExpectedRange]:
    return {metric: limits for metric, limits in ranges.items() if limits is not None}


def _half_alone(exhibit: Exhibit, metric: str, mean: float) -> float:
    """Half the range around a value without a spread."""
    percentage = exhibit.percent and metric.rpartition(".")[0] not in ("seconds", "bytes") and metric != "rounds"
    return POINTS if percentage and exhibit.kind != "facts" else max(THREE_DIGITS * abs(mean), THREE_DIGITS)


def _prediction(std: float, before: int, now: int) -> float:
    """Half the prediction interval of the mean of `now` values, after `before` values with this standard deviation."""
    return _quantile(before - 1) * std * math.sqrt(1 / before + 1 / now)


@cache
def _quantile(freedom: int) -> float:
    from scipy.special import stdtrit  # scipy.stats takes half a second to import

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))
