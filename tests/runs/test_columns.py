"""The history's columns: names that say which nodes, and of one round or of all so far; history.jsonl keeps its own."""

from __future__ import annotations

import re
from itertools import accumulate
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import atoll
from atoll.errors import AtollWarning
from atoll.runs import runner
from atoll.runs.columns import column_of
from atoll.runs.history import HistoryTable
from small import ALGORITHMS, small

PAGE = Path(__file__).parents[2] / "docs" / "runs.md"
LATE = {"round": 2, "up": 5, "down": 1, "seconds": 2.5}


@pytest.fixture(scope="module")
def result() -> atoll.Result:
    """Evaluated in every second round, over a simulated network."""
    return runner.run(small("fedavg", rounds=4, evaluate_every=2, latency=0.1))


def test_a_row_for_every_line(result: atoll.Result) -> None:
    """The numbers are those of the lines; totals are running sums of them."""
    table = result.history
    assert isinstance(table, pd.DataFrame)
    for name in ("round", "val_loss", "train_loss", "accuracy", "loss", "macro_f1", "up", "down", "simulated_seconds", "seconds"):
        wanted = pd.Series([row.get(name) for row in result.rows], dtype=float)
        pd.testing.assert_series_equal(table[column_of(name)].astype(float), wanted, check_names=False)
    for column, name in (("bytes_up", "up"), ("bytes_down", "down"), ("simulated_seconds", "simulated_seconds")):
        assert table[f"{column}_total"].tolist() == pytest.approx(list(accumulate(row[name] for row in result.rows)))
    assert list(accumulate(table["round_seconds"])) == pytest.approx(table["seconds_total"].tolist())
    assert table["bytes_up_total"].iloc[-1] == result.bytes["up"]


def test_the_first_columns_are_those_people_look_for(result: atoll.Result) -> None:
    """Also where the first rounds were not evaluated."""
    assert list(result.history.columns)[:6] == ["round", "train_loss", "val_loss", "val_accuracy", "test_loss", "test_accuracy"]


def test_an_old_name_finds_its_column(result: atoll.Result) -> None:
    """With a warning that names the new one; what never was a column is pandas' own error."""
    with pytest.warns(AtollWarning, match="The history's column 'accuracy' is called 'test_accuracy' now"):
        assert result.history["accuracy"].equals(result.history["test_accuracy"])
    with pytest.warns(AtollWarning, match="'seconds' is called 'seconds_total' now"):
        assert result.history["seconds"].iloc[-1] == result.rows[-1]["seconds"]
    with pytest.raises(KeyError, match="acuracy"):
        result.history["acuracy"]


def test_what_a_history_need_not_have() -> None:
    """An empty one, a round in which a party was missing, a clock that went back."""
    assert HistoryTable.of([]).empty
    first = {"round": 1, "mine": 7.0, "up": 1, "down": 1, "missing": {"0": "timed out"}, "partial": True, "seconds": 3.0}
    table = HistoryTable.of([first, LATE])
    assert table["missing"].tolist()[0] == {"0": "timed out"}
    assert table["mine"].tolist()[0] == 7.0
    assert (table["bytes_up_total"].tolist(), table["round_seconds"].tolist()) == ([1, 6], [3.0, 0.0])


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_column_is_on_the_page(algorithm: str) -> None:
    """For every algorithm; a metric's name after test_, val_ or train_ is the task's."""
    text = PAGE.read_text().split("## The history")[1].split("\n## ")[0]
    cells = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    listed = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
    families = tuple(name.removesuffix("…") for name in listed if name.endswith("…"))
    columns = runner.run(small(algorithm, rounds=1)).history.columns
    assert [name for name in columns if name not in listed and not name.startswith(families)] == []


def test_on_round_sees_the_rows_of_the_history() -> None:
    """Each as it happens, under the same names."""
    rows: list[Any] = []
    result = runner_with(on_round=rows.append)
    assert rows == result.history.to_dict("records")


def runner_with(**given: Any) -> atoll.Result:
    """A tiny run."""
    return atoll.run("fedavg", dataset="csbm", nodes=80, partition="random", parties=2, rounds=3, **given)
