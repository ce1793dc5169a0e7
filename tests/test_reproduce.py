"""The papers' data files: every cell can be configured, what is stated is marked, pages say what came out."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from atoll import reproduce
from atoll.errors import AtollError
from atoll.reproduce import Cell, Exhibit, Line, execute, pages

EXHIBITS = [exhibit for paper in reproduce.papers() for exhibit in reproduce.exhibits(paper)]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_every_cell_can_be_configured(exhibit: Exhibit) -> None:
    """Runs name known algorithms and settings, labels are unique, paper's values belong to the exhibit's metrics."""
    labels = [cell.row for cell in exhibit.cells]
    assert len(labels) == len(set(labels))
    assert exhibit.kind in ("table", "figure", "facts")
    assert exhibit.cells or exhibit.missing
    for cell in exhibit.cells:
        assert set(cell.paper) <= set(exhibit.metrics), cell.row
        assert set(cell.range) <= set(exhibit.metrics), cell.row
        if not cell.missing and not exhibit.missing and exhibit.kind != "facts":
            over = {name: value for name, value in exhibit.quick.items() if name != "seeds"}
            for chosen in (cell.configs(1, {}), cell.configs(1, over)):
                assert chosen[0].algorithm == cell.run["algorithm"]


def test_every_promised_exhibit_has_an_entry() -> None:
    """Every table and figure that is to be reproduced is there, if only with the reason why it cannot be."""
    promised = {
        "fedspray": "table1 table2 table3 table5 figure2 figure4 figure5",
        "fedgl": "table2 table3 table4 table5 table6 figure10",
        "glasu": "table1 table2 table3 table6",
        "gfl_appnp": "table1 table2",
        "nfedgnn": "table1",
    }
    there = {exhibit.name for exhibit in EXHIBITS}
    for paper, names in promised.items():
        if paper in reproduce.papers():
            assert {f"{paper}/{name}" for name in names.split()} <= there


SMALL: dict[str, Any] = {
    "algorithm": "fedavg",
    "dataset": "csbm",
    "partition": "random",
    "parties": 2,
    "nodes": 60,
    "rounds": 2,
}


def example(**changes: Any) -> Exhibit:
    """An exhibit of two cells on a small graph; one cannot be run."""
    cells = (
        Cell("ours", run=SMALL, paper={"accuracy": [50.0, 1.0]}, range={"accuracy": [0.0, 100.0]}, note="as expected"),
        Cell("theirs", paper={"accuracy": [60.0]}, missing="no data"),
    )
    return Exhibit("p/t", "A paper", "A table", cells, metrics=("accuracy", "bytes.up"), percent=True, seeds=2, **changes)


def test_runs_are_made_once_and_told(tmp_path: Path) -> None:
    """Every seed has a folder; a second time nothing runs; ours stand beside theirs in the paper's unit."""
    exhibit, told = example(), []
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    for _ in range(2):
        execute.execute([config for each in jobs.values() for config in each], tmp_path, 1, lambda *what: told.append(what))
    assert [done for _, done, _ in told] == [1, 2]
    lines = execute.lines(exhibit, jobs, tmp_path)
    assert lines[0].seeds == 2
    mean, spread = lines[0].ours["accuracy"]
    assert 0 < mean <= 100
    assert not math.isnan(spread)
    assert lines[0].ours["bytes.up"][0] > 1000
    page = pages.markdown([(exhibit, lines)])
    assert "| ours | 2 |" in page
    assert "50 ± 1.00" in page
    assert "no data" in page
    assert "as expected" in page


def test_what_is_outside_the_stated_range_is_marked() -> None:
    """A mean outside its range is named, one inside or without a range is not."""
    cell = Cell("x", range={"accuracy": [80.0, 90.0]})
    assert Line(cell, {"accuracy": (85.0, 1.0)}, 5).outside() == []
    outside = Line(cell, {"accuracy": (79.9, 1.0), "macro_f1": (1.0, 1.0)}, 5)
    assert outside.outside() == ["accuracy"]
    assert "‼" in pages.row(example(), outside)[2]


def test_several_at_a_time_give_the_same(tmp_path: Path) -> None:
    """Two processes give what one gives."""
    exhibit = example()
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    configs = [config for each in jobs.values() for config in each]
    execute.execute(configs, tmp_path / "one", 1, lambda *_: None)
    execute.execute(configs, tmp_path / "two", 2, lambda *_: None)
    one, two = (execute.lines(exhibit, jobs, tmp_path / name)[0].ours for name in ("one", "two"))
    assert one == two


def test_unknown_names_get_one_sentence() -> None:
    """A paper or table that is not there, with a suggestion."""
    with pytest.raises(AtollError, match=r"no paper 'fedspry' to reproduce; did you mean 'fedspray'\?"):
        reproduce.find("fedspry/table2")
    with pytest.raises(AtollError, match=r"no 'fedspray/table9' to reproduce; did you mean"):
        reproduce.find("fedspray/table9")
