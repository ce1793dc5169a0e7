"""Mean ranks over datasets: Friedman's test, and Nemenyi's critical difference between two of them (Demšar, JMLR 2006)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError
from atoll.runs.metrics import metric_format

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison

SIGNIFICANCE = 0.05
MIN_ROWS, MIN_DATASETS = 2, 2
MIN_FRIEDMAN = 3  # rows that Friedman's test is for
FEW = 5  # datasets below which the test sees only large differences
TEST = "Friedman's test, then Nemenyi's"


@dataclass(frozen=True)
class Ranks:
    """Mean ranks of rows over datasets; `atoll.mean_ranks` makes one.

    Attributes:
        rows: The rows, best mean rank first.
        datasets: The datasets.
        metric: The test metric whose means over the seeds are ranked.
        mean: Each row's mean rank; 1 is best. Equal values share the mean of their ranks.
        by_dataset: Each row's rank on each dataset.
        chi_square, p: Friedman's statistic (corrected for equal values) and its p; None for fewer than three rows.
        critical_difference: Mean ranks that differ by less are not significantly different at 5 % (Nemenyi).
        groups: Rows that are not significantly different, each as long as it can be; a row that stands alone is in none.

    Examples:
        >>> import atoll
        >>> small = {"partition": "random", "parties": 2, "nodes": 100, "rounds": 2, "seeds": 2}
        >>> compared = [atoll.compare("local,fedavg,fedprox", graph_seed=seed, **small) for seed in (0, 1)]
        >>> ranks = atoll.mean_ranks(compared, names=["first", "second"])
        >>> sorted(ranks.rows), ranks.datasets
        (['fedavg', 'fedprox', 'local'], ('first', 'second'))
    """

    rows: tuple[str, ...]
    datasets: tuple[str, ...]
    metric: str
    mean: tuple[float, ...]
    by_dataset: tuple[tuple[float, ...], ...]
    chi_square: float | None
    p: float | None
    critical_difference: float
    groups: tuple[tuple[str, ...], ...]

    @property
    def significant(self) -> bool:
        """Whether Friedman's test finds any difference at 5 %."""
        return self.p is not None and self.p < SIGNIFICANCE

    @property
    def caption(self) -> str:
        """What the ranks rest on, in words."""
        words = f"Mean ranks by {metric_format(self.metric).words} over {len(self.datasets)} datasets (1 is best). "
        if self.p is None or self.chi_square is None:
            words += "Friedman's test needs three rows. "
        else:
            verdict = "there are differences" if self.significant else "no difference is significant"
            words += f"Friedman's test: χ² = {self.chi_square:.2f}, p = {self.p:.3f}, {verdict} at 5 %. "
        words += (
            f"Mean ranks that differ by less than {self.critical_difference:.2f} are not significantly different (Nemenyi, 5 %)."
        )
        if len(self.datasets) < FEW:
            words += f" {len(self.datasets)} datasets are few: only large differences can be significant."
        return words

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as ranks.json holds them."""
        by_row = dict(zip(self.rows, map(list, self.by_dataset), strict=True))
        return {
            "metric": self.metric,
            "datasets": list(self.datasets),
            "mean_ranks": dict(zip(self.rows, self.mean, strict=True)),
            "ranks": by_row,
            "friedman": {"chi_square": self.chi_square, "p": self.p},
            "nemenyi": {"critical_difference": self.critical_difference, "significance": SIGNIFICANCE},
            "groups": [list(group) for group in self.groups],
        }


def rank(values: Mapping[str, Sequence[float]], datasets: Sequence[str], metric: str, *, higher_is_better: bool) -> Ranks:
    """Ranks from each row's values, one per dataset.

    >>> ranks = rank({"a": [0.9, 0.8], "b": [0.7, 0.8]}, ["x", "y"], "accuracy", higher_is_better=True)
    >>> ranks.rows, ranks.mean, ranks.by_dataset
    (('a', 'b'), (1.25, 1.75), ((1.0, 1.5), (2.0, 1.5)))
    """
    rows, count, blocks = list(values), len(values), len(datasets)
    if count < MIN_ROWS or blocks < MIN_DATASETS:
        raise AtollError(f"Ranks need at least {MIN_ROWS} rows and {MIN_DATASETS} datasets, but there are {count} and {blocks}.")
    sign = -1 if higher_is_better else 1
    columns = [_ranks([sign * values[row][number] for row in rows]) for number in range(blocks)]
    by_row = {row: tuple(column[index] for column in columns) for index, row in enumerate(rows)}
    means = {row: math.fsum(ranks) / blocks for row, ranks in by_row.items()}
    ordered = sorted(rows, key=lambda row: means[row])
    chi_square, p = _friedman(columns) if count >= MIN_FRIEDMAN else (None, None)
    difference = critical_difference(count, blocks)
    return Ranks(
        tuple(ordered),
        tuple(datasets),
        metric,
        tuple(means[row] for row in ordered),
        tuple(by_row[row] for row in ordered),
        chi_square,
        p,
        difference,
        tuple(tuple(ordered[start:end]) for start, end in groups([means[row] for row in ordered], difference)),
    )


def mean_ranks(comparisons: Iterable[Comparison], names: Sequence[str] | None = None, metric: str | None = None) -> Ranks:
    """Rank the rows of comparisons of the same algorithms on several datasets.

    Parameters:
        comparisons: One per dataset, as `compare` returns them; all have the same rows.
        names: The datasets' names; those of the comparisons by default.
        metric: The test metric whose means over the seeds are ranked; that of the comparisons by default.

    Returns:
        Mean ranks, Friedman's test and Nemenyi's critical difference.

    Examples:
        >>> import atoll
        >>> small = {"partition": "random", "parties": 2, "nodes": 100, "rounds": 2, "seeds": 1}
        >>> compared = [atoll.compare("local,fedavg", graph_seed=seed, **small) for seed in (0, 1)]
        >>> sum(atoll.mean_ranks(compared, names=["first", "second"]).mean)
        3.0
    """
    several = list(comparisons)
    listed = list(names) if names is not None else [str(one.dataset) for one in several]
    if len(listed) != len(several) or len(set(listed)) < len(listed):
        raise AtollError(f"Ranks need one name for each of {len(several)} comparisons, each once, but they are {listed}.")
    if not several or any(list(one.results) != list(several[0].results) for one in several):
        raise AtollError("Ranks need comparisons with the same rows; compare the same algorithms and settings on every dataset.")
    name = metric or several[0].metric
    values: dict[str, list[float]] = {row: [] for row in several[0].results}
    for one in several:
        for summary in one.summary():
            if not isinstance(summary.get(name), float):
                raise AtollError(f"{summary['row']} on {one.dataset} has no {name} to rank; choose another metric.")
            values[summary["row"]].append(summary[name])
    return rank(values, listed, name, higher_is_better=metric_format(name).higher_is_better)


def critical_difference(rows: int, datasets: int) -> float:
    """Nemenyi's critical difference of mean ranks at 5 %: q √(k (k + 1) / 6 N), q of the Studentized range over √2."""
    from scipy.stats import studentized_range  # takes a while to import

    quantile = float(studentized_range.ppf(1 - SIGNIFICANCE, rows, math.inf)) / math.sqrt(2)
    return quantile * math.sqrt(rows * (rows + 1) / (6 * datasets))


def groups(means: Sequence[float], difference: float) -> list[tuple[int, int]]:
    """Maximal runs [start, end) of sorted mean ranks whose ends differ by less than `difference`; single ones are left out.

    >>> groups([1.0, 1.5, 2.0, 4.0], 1.2)
    [(0, 3)]
    >>> groups([1.0, 2.0, 3.0], 1.5)
    [(0, 2), (1, 3)]
    """
    spans: list[tuple[int, int]] = []
    for start in range(len(means)):
        end = max(index + 1 for index in range(start, len(means)) if means[index] - means[start] < difference or index == start)
        if end - start > 1 and not any(end <= other for _, other in spans):
            spans.append((start, end))
    return spans


def _ranks(values: Sequence[float]) -> list[float]:
    """Rank 1 for the smallest; equal values share the mean of their ranks."""
    return [sum(other < one for other in values) + (1 + sum(other == one for other in values)) / 2 for one in values]


def _friedman(columns: Sequence[Sequence[float]]) -> tuple[float, float]:
    """χ² and p from the ranks within each dataset, corrected for equal values; all equal proves nothing."""
    from scipy.special import chdtrc

    blocks, count = len(columns), len(columns[0])
    means = [math.fsum(column[index] for column in columns) / blocks for index in range(count)]
    plain = 12 * blocks / (count * (count + 1)) * (math.fsum(mean**2 for mean in means) - count * (count + 1) ** 2 / 4)
    ties = sum(column.count(one) ** 3 - column.count(one) for column in map(list, columns) for one in set(column))
    correction = 1 - ties / (blocks * count * (count**2 - 1))
    if correction <= 0:
        return 0.0, 1.0
    return plain / correction, float(chdtrc(count - 1, plain / correction))
