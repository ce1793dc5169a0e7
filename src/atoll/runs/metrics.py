"""The one table of metrics: their names in words, whether they are shares, which way is better; and mean ± standard deviation.

A metric of the parties' own graphs begins with `local_`, one of validation items with `val_`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import mean, stdev


@dataclass(frozen=True)
class MetricFormat:
    """How one metric is shown."""

    words: str  # in a sentence: "minority accuracy"
    heading: str  # of a column, short: "minority"
    percent: bool = False  # a share from 0 to 1, shown in %
    higher_is_better: bool = True


METRICS = {  # the usual ones, in the order of columns
    "accuracy": MetricFormat("accuracy", "accuracy", percent=True),
    "majority": MetricFormat("majority accuracy", "majority", percent=True),  # computed by a report: runs count the minority
    "minority_accuracy": MetricFormat("minority accuracy", "minority", percent=True),
    "macro_f1": MetricFormat("macro F1", "macro F1", percent=True),
    "loss": MetricFormat("loss", "loss", higher_is_better=False),
}
PREFIXES = {"local_": "local", "val_": "validation"}


def metric_format(name: str) -> MetricFormat:
    """How a metric is shown; one that is not in the table is shown by its name."""
    for prefix, word in PREFIXES.items():
        if name.startswith(prefix):
            plain = metric_format(name.removeprefix(prefix))
            return MetricFormat(f"{word} {plain.words}", f"{word} {plain.heading}", plain.percent, plain.higher_is_better)
    words = name.replace("_", " ")
    return METRICS.get(name, MetricFormat(words, words, name.endswith("accuracy"), not name.endswith("loss")))


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics: the usual ones in the table's order, then those of the parties' own graphs, then the others."""
    there = list(dict.fromkeys(names))
    usual = [*METRICS, *(f"local_{name}" for name in METRICS)]
    return [*(name for name in usual if name in there), *(name for name in there if name not in usual)]


def mean_std(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation (n − 1), which is None for a single value; None for no values.

    >>> mean_std([0.5, 0.75])
    (0.625, 0.1767766952966369)
    """
    if not values:
        return None
    return mean(values), stdev(values) if len(values) > 1 else None


def mean_text(mean: float, std: float | None, digits: int, plus_minus: str = " ± ") -> str:
    """A mean and, where there is one, its standard deviation, to the same number of digits.

    >>> mean_text(84.213, 0.3, 2), mean_text(84.213, None, 1)
    ('84.21 ± 0.30', '84.2')
    """
    return f"{mean:.{digits}f}" + ("" if std is None or math.isnan(std) else f"{plus_minus}{std:.{digits}f}")
