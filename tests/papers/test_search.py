"""The search behind a table: the grid's best by validation, the same rule for every line, on seeds that are not reported."""

from __future__ import annotations

from pathlib import Path
from statistics import mean

import pytest

from atoll import papers
from atoll.errors import AtollError
from atoll.papers import search
from atoll.papers.search import LineGrid, LineSearch
from atoll.runs.config import Config

GRID = LineGrid("lr", (0.001, 0.01, 0.1, 1.0, 10.0), (0.01, 0.1), (100, 101, 102))
CELL = papers.Cell("csbm", {"algorithm": "standalone", "dataset": "csbm", "rounds": 1})


def scored(scores: dict[float, list[float]], asked: list[tuple[float, int]]) -> search.Measure:
    """A measure by a table of scores, one per seed."""

    def measure(config: Config) -> float:
        asked.append((config.settings.lr, config.seed))
        return scores[config.settings.lr][config.seed - 100]

    return measure


def test_the_finalists_decide_over_all_seeds() -> None:
    """The first seed's best may lose to the second best; the third is not looked at again."""
    asked: list[tuple[float, int]] = []
    grid = LineGrid("lr", (0.01, 0.1, 1.0), (0.01, 0.1, 1.0), (100, 101, 102))
    found = search.search(CELL, grid, scored({0.01: [0.5, 0.9, 0.9], 0.1: [0.8, 0.5, 0.5], 1.0: [0.7, 0.7, 0.7]}, asked))
    assert found.chosen == 1.0
    assert asked == [(0.01, 100), (0.1, 100), (1.0, 100), (0.1, 101), (1.0, 101), (0.1, 102), (1.0, 102)]
    assert {value: mean(known.values()) for value, known in found.tried.items()} == pytest.approx({0.01: 0.5, 0.1: 0.6, 1.0: 0.7})


@pytest.mark.parametrize(
    ("best", "tried"),
    [
        (0.001, [0.001, 0.01, 0.1]),
        (0.01, [0.001, 0.01, 0.1]),
        (0.1, [0.01, 0.1, 1.0]),
        (1.0, [0.01, 0.1, 1.0, 10.0]),
        (10.0, [0.01, 0.1, 1.0, 10.0]),
    ],
)
def test_the_grid_grows_until_the_best_is_inside(best: float, tried: list[float]) -> None:
    """Whichever value is best, it is found; an end of what was tried is only chosen where the grid ends."""
    scores = {value: [1 / (1 + abs(place - GRID.values.index(best)))] * 3 for place, value in enumerate(GRID.values)}
    found = search.search(CELL, GRID, scored(scores, []))
    assert found.chosen == best
    assert sorted(found.tried) == tried


def test_a_search_is_run_recorded_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command, on small runs: each runs once, a second call reads them; the record is read as it was written."""
    folder = tmp_path / "searches"
    folder.mkdir()
    (folder / "glasu.toml").write_text('[table1]\nsetting = "lr"\nvalues = [0.1, 0.2]\nstarts = [0.1, 0.2]\nseeds = [100, 101]\n')
    monkeypatch.setattr(search, "FOLDER", folder)
    run = {"algorithm": "standalone", "dataset": "csbm", "partition": "vertical", "parties": 2, "rounds": 1}
    run |= {"nodes": 40, "split": "random"}
    cells = tuple(papers.Cell(row, {**run, "hidden": width}) for row, width in (("small", 2), ("large", 4)))
    exhibit = papers.Exhibit("glasu/table1", "GLASU", "Table 1", cells)
    monkeypatch.setattr(papers, "find", lambda name: [exhibit])
    command = ["glasu/table1", "--only", "small", "--out", str(tmp_path / "runs"), "--record"]
    search.main(command)
    first = capsys.readouterr()
    assert len(list((tmp_path / "runs").iterdir())) == 4
    (found,) = search.recorded("glasu/table1")
    assert found.row == "small"
    assert {seed for known in found.tried.values() for seed in known} == {100, 101}
    assert f"| small | {search.table([found], 'lr').splitlines()[-1].split('| small | ')[1]}" in first.out
    search.main(command)
    assert capsys.readouterr().out == first.out
    search.record("glasu/table1", [LineSearch("large", {0.1: {100: 0.5}}, 0.1)])
    assert [one.row for one in search.recorded("glasu/table1")] == ["small", "large"]
    with pytest.raises(AtollError, match="is not a table with a grid"):
        search.main(["glasu"])


def test_recorded_searches_are_rows_of_the_page() -> None:
    """Every recorded search has one, with what the record says."""
    for paper in papers.papers():
        found = [(exhibit, one) for exhibit, one in searched() if exhibit.name.startswith(f"{paper}/")]
        rows = search.rows(paper)
        assert [row["chosen"] for row in rows] == [f"{one.chosen:g}" for _, one in found]
        for row, (exhibit, one) in zip(rows, found, strict=True):
            assert one.row == f"{row['data']} {row['method']}" or not exhibit.columns
            best = one.tried[one.chosen or 0.0]
            assert f"{one.chosen:g}: {100 * mean(best.values()):.1f} ({len(best)})" in row["grid"]


def searched() -> list[tuple[papers.Exhibit, LineSearch]]:
    """Every recorded search and its table."""
    tables = [exhibit for paper in papers.papers() for exhibit in papers.exhibits(paper) if search.grid_of(exhibit)]
    return [(exhibit, one) for exhibit in tables for one in search.recorded(exhibit.name)]


@pytest.mark.parametrize(("exhibit", "one"), searched(), ids=lambda value: getattr(value, "row", getattr(value, "name", "")))
def test_what_was_chosen_is_what_runs(exhibit: papers.Exhibit, one: LineSearch) -> None:
    """A recorded search follows the rule, chose what the table's line runs with, and no seed of it is reported."""
    grid = search.grid_of(exhibit)
    assert grid is not None
    (cell,) = (cell for cell in exhibit.runnable if cell.row == one.row)
    configs = cell.configs(exhibit.seeds, {})
    assert getattr(configs[0].settings, grid.setting) == one.chosen
    assert not {config.seed for config in configs} & set(grid.seeds)
    again = search.search(cell, grid, lambda config: one.tried[config.settings.lr][config.seed])
    assert again == one
