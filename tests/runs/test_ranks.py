"""Mean ranks over datasets: Friedman's test against scipy, critical differences against Demšar's table and example."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

import atoll
from atoll.errors import AtollError
from atoll.runs.ranks import critical_difference, groups, rank

Q_05 = {2: 1.960, 3: 2.343, 4: 2.569, 5: 2.728, 6: 2.850, 7: 2.949, 8: 3.031, 9: 3.102, 10: 3.164}  # Demšar 2006, Table 5(a)


@pytest.mark.parametrize("rows", Q_05)
def test_critical_differences_are_those_of_the_table(rows: int) -> None:
    """q_0.05 of two-tailed Nemenyi tests, to the table's three decimals."""
    quantile = critical_difference(rows, 1) / math.sqrt(rows * (rows + 1) / 6)
    assert quantile == pytest.approx(Q_05[rows], abs=1.1e-3)
    assert critical_difference(rows, 9) == pytest.approx(critical_difference(rows, 1) / 3)


def test_the_example_of_the_article() -> None:
    """Four classifiers on fourteen datasets: CD = 1.25 (Demšar 2006, Section 3.2.2)."""
    assert critical_difference(4, 14) == pytest.approx(1.25, abs=0.01)


@pytest.mark.parametrize("ties", [False, True])
def test_friedman_is_that_of_scipy(ties: bool) -> None:
    """Also where values are equal."""
    values = np.random.default_rng(1).random((5, 8)) + np.arange(5)[:, None] / 10
    values = values.round(1) if ties else values
    found = rank(dict(zip("abcde", values.tolist(), strict=True)), list("ABCDEFGH"), "accuracy", higher_is_better=True)
    wanted = stats.friedmanchisquare(*values)
    assert found.chi_square == pytest.approx(wanted.statistic, rel=1e-12)
    assert found.p == pytest.approx(wanted.pvalue, rel=1e-12)
    ranks = stats.rankdata(-values, axis=0)
    assert dict(zip(found.rows, found.mean, strict=True)) == pytest.approx(dict(zip("abcde", ranks.mean(1), strict=True)))
    assert list(found.mean) == sorted(found.mean)
    for row, by_dataset in zip(found.rows, found.by_dataset, strict=True):
        assert list(by_dataset) == list(ranks["abcde".index(row)])


def test_lower_is_better_for_a_loss() -> None:
    """The smallest has rank 1."""
    found = rank({"a": [1.0, 2.0], "b": [3.0, 4.0]}, ["x", "y"], "loss", higher_is_better=False)
    assert (found.rows, found.mean) == (("a", "b"), (1.0, 2.0))
    assert found.p is None
    assert "Friedman's test needs three rows" in found.caption


def test_equal_rows_prove_nothing() -> None:
    """No difference at all: p is 1, and all rows are one group."""
    found = rank({name: [0.5, 0.5, 0.5] for name in "abc"}, list("xyz"), "accuracy", higher_is_better=True)
    assert (found.chi_square, found.p, found.significant) == (0.0, 1.0, False)
    assert found.groups == (("a", "b", "c"),)
    assert "no difference is significant" in found.caption
    assert "3 datasets are few" in found.caption


def test_groups_naively() -> None:
    """All maximal intervals of rows whose ranks differ by less than the critical difference."""
    rng = np.random.default_rng(0)
    for _ in range(200):
        means = sorted(rng.uniform(1, 8, rng.integers(2, 9)).round(1))
        difference = float(rng.uniform(0.1, 4))
        close = [
            (start, end)
            for start in range(len(means))
            for end in range(start + 2, len(means) + 1)
            if means[end - 1] - means[start] < difference
        ]
        wanted = [one for one in close if not any(a <= one[0] and one[1] <= b and (a, b) != one for a, b in close)]
        assert groups(means, difference) == wanted


def test_comparisons_are_ranked() -> None:
    """By the means over the seeds; comparisons must have the same rows and datasets their names."""
    arguments = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60, "rounds": 2, "seeds": 2}
    one, two = (atoll.compare("local,fedavg,fedprox", graph_seed=seed, **arguments) for seed in (0, 1))
    found = atoll.mean_ranks([one, two], ["x", "y"])
    assert found.metric == "accuracy"
    accuracies = np.array([[row["accuracy"] for row in compared.summary()] for compared in (one, two)])
    wanted = dict(zip(one.results, stats.rankdata(-accuracies, axis=1).mean(0), strict=True))
    assert dict(zip(found.rows, found.mean, strict=True)) == pytest.approx(wanted)
    assert found.to_dict()["nemenyi"]["critical_difference"] == found.critical_difference
    assert atoll.mean_ranks([one, two], ["x", "y"], "loss").metric == "loss"
    other = atoll.compare("local,fedavg", **arguments)
    for several, names, metric, sentence in (
        ([one, other], ["x", "y"], None, "the same rows"),
        ([one, two], None, None, "one name for each of 2 comparisons, each once"),
        ([one], ["x"], None, "at least 2 rows and 2 datasets"),
        ([one, two], ["x", "y"], "nothing", "local on csbm has no nothing to rank"),
    ):
        with pytest.raises(AtollError, match=sentence):
            atoll.mean_ranks(several, names, metric)
