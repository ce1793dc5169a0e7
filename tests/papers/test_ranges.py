"""Ranges: by a rule, from what the paper prints, before anything is run."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest

from atoll import papers
from atoll.papers import Cell, Exhibit, Line, ranges, record
from atoll.papers.ranges import ExpectedRange, range_of, recorded_range

EXHIBITS = papers.all_exhibits()


def exhibit(**changes: object) -> Exhibit:
    """A table in percent: the paper has five repetitions, and so have we."""
    return Exhibit("p/t", "A paper", "A table", (), **{"percent": True, "seeds": 5, **changes})  # type: ignore[arg-type]


def test_a_spread_gives_a_prediction_interval() -> None:
    """In 95 % of the cases the mean of our five seeds lies in it, if the paper's five came from the same distribution."""
    draws = np.random.default_rng(0).normal(80, 3, (20_000, 10))
    theirs, ours = draws[:, :5], draws[:, 5:].mean(1)
    hits = 0
    for mean, std, our in zip(theirs.mean(1), theirs.std(1, ddof=1), ours, strict=True):
        found = range_of(exhibit(), Cell("x", paper={"accuracy": [float(mean), float(std)]}), "accuracy")
        assert found is not None
        hits += found.holds(our)
    assert hits / len(ours) == pytest.approx(0.95, abs=0.02)  # a little more: the paper's value is rounded


def test_a_confidence_interval_is_not_a_standard_deviation() -> None:
    """Half an interval of the mean of 20, against 20 of ours: √2 of it."""
    found = range_of(exhibit(plus_minus="ci95", repetitions=20, seeds=20), Cell("x", paper={"accuracy": [70.0, 0.5]}), "accuracy")
    assert found is not None
    assert found.high - 70.0 == pytest.approx(0.5 * math.sqrt(2) + ranges.ROUNDING)


def test_what_the_paper_prints_alone_has_two_points_or_the_error_of_printing() -> None:
    """A percentage two points, bytes half a percent; nothing printed, or another quantity, gives no range."""
    cell = Cell("x", paper={"accuracy": 70.0, "bytes.up": 1000.0})
    assert range_of(exhibit(), cell, "accuracy") == ExpectedRange(68.0, 72.0, "paper")
    assert range_of(exhibit(), cell, "bytes.up") == ExpectedRange(995.0, 1005.0, "paper")
    assert range_of(exhibit(), cell, "macro_f1") is None
    assert range_of(exhibit(incomparable=["accuracy"]), cell, "accuracy") is None


def test_a_record_gives_the_range_of_a_repetition() -> None:
    """Wider than the record's own interval; two points where there is one run."""
    line = Line(Cell("x"), {"accuracy": (80.0, 1.0)}, 5)
    found = recorded_range(exhibit(), "accuracy", line)
    assert found is not None
    assert found.high - 80.0 == pytest.approx(2.776 * math.sqrt(0.4) + 0.2, abs=0.001)
    alone = recorded_range(exhibit(), "accuracy", Line(Cell("x"), {"accuracy": (80.0, math.nan)}, 1))
    assert alone == ExpectedRange(78.0, 82.0, "record")


def printed() -> Iterator[tuple[Exhibit, Cell, str]]:
    """Every value that a paper prints and that means what ours does."""
    for each in EXHIBITS:
        yield from ((each, cell, name) for cell in each.cells for name in cell.paper if name not in each.incomparable)


def test_every_printed_value_has_a_range_that_was_not_chosen_after_the_fact() -> None:
    """It follows from the printed value alone; a stated one has its reason, and holds the printed value or names a misprint."""
    for each, cell, name in printed():
        found = range_of(each, cell, name)
        assert found is not None
        if found.source == "stated":
            value = cell.paper[name][0] if isinstance(cell.paper[name], list) else cell.paper[name]
            assert cell.range_reason, f"{each.name}, {cell.row}: a stated range needs its reason (range_reason)"
            assert found.holds(value) or "misprint" in cell.range_reason, f"{each.name}, {cell.row}"
    for each in EXHIBITS:
        for cell in each.cells:
            assert cell.range.keys() <= cell.paper.keys(), f"{each.name}, {cell.row}: a range of what the paper does not print"


@pytest.mark.parametrize("each", [each for each in EXHIBITS if each.runnable], ids=lambda each: each.name)
def test_every_recorded_value_has_a_range(each: Exhibit) -> None:
    """One around the paper's value or around our record's; the record's own values repeat it."""
    for line in record.judged(each, record.alone(each)):
        for metric in line.ours:
            assert metric in {**line.ranges, **line.expected}, line.cell.row
            assert line.expected[metric].holds(line.ours[metric][0])
