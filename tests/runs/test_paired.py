"""Paired differences: the arithmetic against scipy's own tests, and what few seeds cannot say."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll.cli.console import difference_table
from atoll.runs.paired import Difference, compare_rows, holm


def test_the_interval_and_p_are_those_of_the_paired_t_test() -> None:
    """As scipy's ttest_rel, before the correction for several rows."""
    rng = np.random.default_rng(0)
    base, other = rng.normal(0.8, 0.02, 7), rng.normal(0.81, 0.02, 7)
    [found] = compare_rows({"a": dict(enumerate(base)), "b": dict(enumerate(other))}, "a")
    wanted = stats.ttest_rel(other, base)
    interval = wanted.confidence_interval(0.95)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-12)
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), rel=1e-12)
    assert found.mean == pytest.approx(float((other - base).mean()), rel=1e-12)
    assert found.wins == int((other > base).sum())


def test_holm_naively() -> None:
    """The smallest p times n, the next times n − 1, and none below the one before it."""
    given = [Difference(str(k), "z", 5, 0.0, 0.0, 0.0, 0, p) for k, p in enumerate([0.04, 0.01, 0.03, 0.5])]
    assert [one.p for one in holm(given)] == pytest.approx([0.09, 0.04, 0.09, 0.5])


def test_pairs_are_of_the_same_seed() -> None:
    """Only seeds that both rows have count, in whatever order they were run."""
    rows = {"a": {0: 0.5, 1: 0.6, 2: None}, "b": {1: 0.7, 2: 0.9, 0: 0.4}}
    [found] = compare_rows(rows, "a")
    assert found.pairs == 2
    assert found.mean == pytest.approx(0.0)
    assert not found.significant


def test_one_seed_proves_nothing() -> None:
    """No p, and an interval without ends; none in common gives no mean."""
    [found] = compare_rows({"a": {0: 0.5}, "b": {0: 0.9}}, "a")
    assert (found.p, found.low, found.high, found.significant) == (None, -math.inf, math.inf, False)
    [none] = compare_rows({"a": {0: 0.5}, "b": {1: 0.9}}, "a")
    assert math.isnan(none.mean)


@pytest.mark.parametrize("other", [{0: 0.6, 1: 0.7}, {0: 0.5, 1: 0.6}])
def test_without_a_spread_nothing_is_proved(other: dict[int, float]) -> None:
    """Differences that are equal up to rounding (0.6 − 0.5 and 0.7 − 0.6), or all 0: no interval, no p, a dash."""
    [found] = compare_rows({"a": {0: 0.5, 1: 0.6}, "b": dict(other)}, "a")
    assert (found.p, found.has_interval, found.significant, found.pairs) == (None, False, False, 2)
    assert found.mean == pytest.approx(other[0] - 0.5)
    cells = [next(iter(column.cells)) for column in difference_table([found]).columns]
    assert cells[2] == cells[4] == "–"


def test_a_comparison_has_differences() -> None:
    """Against the first row, or the one that is named."""
    arguments = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 80, "rounds": 2, "seeds": 3}
    compared = atoll.compare("local,fedavg", **arguments)
    [found] = compared.differences()
    accuracies = {row: [result.metrics["accuracy"] for result in results] for row, results in compared.results.items()}
    assert found.mean == pytest.approx(float(np.mean(np.subtract(accuracies["fedavg"], accuracies["local"]))))
    compared.against = "fedavg"
    assert compared.differences()[0].mean == pytest.approx(-found.mean)


def test_a_comparison_does_not_wait_for_scipy_stats() -> None:
    """Intervals and tests are there without a module that takes half a second to import."""
    rows = "{'a': {0: 0.5, 1: 0.6, 2: 0.7}, 'b': {0: 0.61, 1: 0.70, 2: 0.82}}"
    compare = f"from atoll.runs import paired; print(paired.compare_rows({rows}, 'a')[0].significant)"
    code = f"import sys; sys.modules['scipy.stats'] = None; {compare}"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "True\n"
