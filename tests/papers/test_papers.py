"""The papers' data files: every cell can be configured, what is stated is marked, pages say what came out."""

from __future__ import annotations

import io
import json
import math
import subprocess
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from atoll import papers
from atoll.cli import main
from atoll.cli.papers import status_table
from atoll.data import load
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, execute, pages, pictures, record, snapshots, status, text
from atoll.papers.ranges import ExpectedRange
from atoll.papers.results import Results
from atoll.runs import comparison, runner
from atoll.runs.config import Config, resolve
from atoll.runs.folder import Folder
from atoll.runs.reader import read
from atoll.settings import setting

EXHIBITS = [exhibit for paper in papers.papers() for exhibit in papers.exhibits(paper)]


@pytest.mark.parametrize("exhibit", EXHIBITS, ids=lambda exhibit: exhibit.name)
def test_every_cell_can_be_configured(exhibit: Exhibit) -> None:
    """Runs name known algorithms and settings, labels are unique, paper's values belong to the exhibit's metrics."""
    labels = [cell.row for cell in exhibit.cells]
    assert len(labels) == len(set(labels))
    assert exhibit.kind in ("table", "figure", "boxes", "embeddings", "facts")
    assert exhibit.cells or exhibit.missing
    for cell in exhibit.cells:
        assert set(cell.paper) <= set(exhibit.metrics), cell.row
        assert set(cell.range) <= set(exhibit.metrics), cell.row
        if not cell.missing and not exhibit.missing and exhibit.kind != "facts":
            over = {name: value for name, value in exhibit.quick.items() if name != "seeds"}
            for chosen in (cell.configs(1, {}), cell.configs(1, over)):
                assert chosen[0].algorithm == cell.run["algorithm"]


def test_lines_without_a_result_run_where_their_data_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """WikiCS is not among the graphs of our record; whoever has it runs its lines. A line that says nothing to run stays out."""
    (table,) = papers.find("fedspray/table2")
    monkeypatch.setattr(papers, "_available", lambda: frozenset({"pubmed"}))
    assert not any("WikiCS" in cell.row or "Flickr" in cell.row for cell in table.runnable)
    monkeypatch.setattr(papers, "_available", lambda: frozenset({"wikics"}))
    jobs = execute.jobs_of([table], quick=False, seeds=2)
    configs = jobs["fedspray/table2", "WikiCS GCN FedSpray"]
    assert [(config.dataset, config.parties, config.seed) for config in configs] == [("wikics", 12, 0), ("wikics", 12, 1)]
    assert not any("Flickr" in row for _, row in jobs)
    assert not Cell("x", missing="a photograph").has_data


def test_facts_of_a_graph_that_is_not_here_are_not_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is downloaded for a line whose data is missing."""
    monkeypatch.setattr(papers, "_available", lambda: frozenset())
    monkeypatch.setattr("atoll.data.federated.federate", lambda *args, **more: pytest.fail("looked up"))
    (table,) = papers.find("fedspray/table4")
    cells = tuple(cell for cell in table.cells if cell.missing)
    assert [line.ours for line in execute.lines(replace(table, cells=cells), {}, Path("runs"))] == [{}, {}]


def test_facts_of_parties_are_drawn_panel_by_panel(tmp_path: Path) -> None:
    """Figures 8 and 9 of FedGL: numbers of each party in the exhibit's unit, as bars; the whole graph's are Table 1's."""
    run = {"dataset": "csbm", "nodes": 90, "degree": 4, "partition": "random", "parties": 2}
    cells = tuple(Cell(f"G C{party}", run=run, party=party, series="G", x=f"C{party}") for party in range(2))
    metrics = ("nodes", "labeled share", "degree 0")
    exhibit = Exhibit("p/figure8", "A paper", "Parties", cells, metrics, "facts", panels=("G",), scale={"labeled share": 100.0})
    lines = execute.lines(exhibit, {}, tmp_path)
    assert sum(line.ours["nodes"][0] for line in lines) == 90
    assert all(1 < line.ours["labeled share"][0] <= 100 for line in lines)
    assert all(0 <= line.ours["degree 0"][0] <= 1 for line in lines)
    figures, _ = pictures.means(exhibit, lines)
    assert [(figure.kind, list(figure.series[0].x)) for figure in figures] == [("bars", ["C0", "C1"])] * 3
    assert pictures.draw(exhibit, lines, {}, tmp_path) is not None
    whole = execute.lines(replace(exhibit, cells=(Cell("G", run=run),), metrics=("nodes", "edges")), {}, tmp_path)[0].ours
    graph = load("csbm", nodes=90, degree=4)
    assert (whole["nodes"][0], whole["edges"][0]) == (90, graph.edge_index.shape[1] / 2)


def test_every_promised_exhibit_has_an_entry() -> None:
    """Every table and figure that is to be reproduced is there, if only with the reason why it cannot be."""
    promised = {
        "fedspray": "table1 table2 table3 table4 table5 figure2 figure4 figure5",
        "fedgl": "table1 table2 table3 table4 table5 table6 figures5_7 figure8 figure9 figure10 figure11 figure12 figure13 "
        "figure14",
        "glasu": "table1 table2 table3 table6 figure5",  # printed twice, as Figures 3 and 5
        "gfl_appnp": "table1 table2 figure2a figure2b figure3",
        "why-numbers-disagree": "staircase alone citeseer amazon fedtad fedtad_first fedtad_parties sets",
        "zoo": "fedpub fedgta",
        "tasks": "links chem",
        "gcfl-maximum": "nci1",
        "nfedgnn": "table1 figure3 figure4 figure5 figure6 figure7 figure8 figure9",
    }
    assert {f"{paper}/{name}" for paper, names in promised.items() for name in names.split()} <= {
        exhibit.name for exhibit in EXHIBITS
    }


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
        Cell("ours", run=SMALL, paper={"accuracy": [50.0, 1.0]}, note="as expected"),
        Cell("theirs", paper={"accuracy": [60.0]}, missing="no data"),
    )
    return Exhibit("p/t", "A paper", "A table", cells, metrics=("accuracy", "bytes.up"), percent=True, seeds=2, **changes)


def run_all(jobs: dict[str, list[Config]], root: Path) -> None:
    """Run configurations by row."""
    execute.execute(execute.waiting({("p/t", row): each for row, each in jobs.items()}, root), 1)


def test_runs_are_made_once_and_told(tmp_path: Path) -> None:
    """Every seed has a folder; a second time nothing runs; ours stand beside theirs in the paper's unit."""
    exhibit, told = example(), []
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    for _ in range(2):
        execute.execute(execute.waiting(jobs, tmp_path), 1, lambda trial, folder: told.append(trial.label))
    assert told == ["ours seed 0", "ours seed 1"]
    lines = execute.lines(exhibit, jobs, tmp_path)
    assert lines[0].seeds == 2
    mean, spread = lines[0].ours["accuracy"]
    assert 0 < mean <= 100
    assert not math.isnan(spread)
    assert lines[0].ours["bytes.up"][0] > 1000
    page = pages.markdown(Results("p", [(exhibit, lines)]))
    assert "| ours | 2 |" in page
    assert "50.00 ± 1.00" in page
    assert "Not run: theirs (no data)." in page
    assert "as expected" in page
    broken = execute.finished(next(iter(jobs.values())), tmp_path)[1] / "result.json"
    for damage in ("", "[]", "{}"):
        broken.write_text(damage)
        with pytest.raises(AtollError, match=r"result\.json is damaged .* delete it and finish the run"):
            execute.lines(exhibit, jobs, tmp_path)


def test_what_is_outside_the_range_is_marked() -> None:
    """A mean outside its range is named, one inside or without a range is not."""
    cell, ranges = Cell("x"), {"accuracy": ExpectedRange(80.0, 90.0, "paper")}
    assert Line(cell, {"accuracy": (85.0, 1.0)}, 5, ranges=ranges).outside() == []
    outside = Line(cell, {"accuracy": (79.9, 1.0), "macro_f1": (1.0, 1.0)}, 5, ranges=ranges)
    assert outside.outside() == ["accuracy"]
    assert outside.deviates() == ["accuracy"]
    assert replace(outside, expected={"accuracy": ExpectedRange(79.0, 80.0, "record")}).deviates() == []
    assert replace(outside, recorded=True).deviates() == []
    assert "‼" in text.row(example(), outside)[2]


def test_a_table_of_which_nothing_was_run_is_one_sentence() -> None:
    """Not a page of "not run"."""
    exhibit = example()
    page = pages.markdown(Results("p", [(exhibit, [Line(cell, {}, 0) for cell in exhibit.cells])]))
    assert "Not run yet: 1 line." in page
    assert "|" not in page


def test_a_figure_that_was_hardly_run_shows_what_was() -> None:
    """A line that has neither a result nor a figure of the paper's is only counted, and a few points are not a picture."""
    cells = tuple(Cell(f"x = {x}", run=SMALL, series="ours", x=x) for x in range(5))
    exhibit = Exhibit("p/figure1", "A paper", "A figure", cells, kind="figure")
    lines = [Line(cell, {"accuracy": (80.0, 1.0)} if cell.x == 2 else {}, 2) for cell in cells]
    page = pages.markdown(Results("p", [(exhibit, lines)]))
    assert "x = 2" in page
    assert "x = 3" not in page
    assert "Not run yet: 4 more lines." in page
    assert pictures.draw(exhibit, lines, {}, Path()) is None


def test_several_at_a_time_give_the_same(tmp_path: Path) -> None:
    """Two processes give what one gives."""
    exhibit = example()
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    told: list[Path] = []
    seen: list[str] = []
    execute.execute(execute.waiting(jobs, tmp_path / "one"), 1)
    execute.execute(
        execute.waiting(jobs, tmp_path / "two"),
        2,
        lambda trial, folder: told.append(folder),
        lambda trial, row, rounds: seen.append(f"{trial.label}: {row['round']} of {rounds}"),
    )
    assert sorted(told) == sorted((tmp_path / "two").iterdir())
    assert set(seen) == {f"ours seed {seed}: {number} of 2" for seed in (0, 1) for number in (1, 2)}
    one, two = (execute.lines(exhibit, jobs, tmp_path / name)[0].ours for name in ("one", "two"))
    assert one == two


def test_unknown_names_get_one_sentence() -> None:
    """A paper or table that is not there, with a suggestion."""
    with pytest.raises(AtollError, match=r"no paper 'fedspry' to reproduce; did you mean 'fedspray'\?"):
        papers.find("fedspry/table2")
    with pytest.raises(AtollError, match=r"no 'fedspray/table9' to reproduce; did you mean"):
        papers.find("fedspray/table9")


BOOK = """
paper = "A paper"

[table]
title = "A table"
metrics = ["accuracy", "bytes.up"]
percent = true
seeds = 2
run = { algorithm = "fedavg", dataset = "csbm", partition = "random", parties = 2, nodes = 60, rounds = 2 }
cells = [
    { row = "ours", paper = { accuracy = [94.0, 1.0] } },
    { row = "other, λ = 0.1", run = { lr = 0.1 } },
    { row = "theirs", run = { dataset = "wikics" }, missing = "the graph is not here" },
]

[absent]
title = "A table without data"
cells = [{ row = "theirs", missing = "the graph is not here" }]

[never]
title = "Not for us"
missing = "a photograph"
"""


@pytest.fixture
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A paper `book` with a record of its own; where its runs go."""
    (tmp_path / "book.toml").write_text(BOOK)
    monkeypatch.setattr(papers, "HOME", tmp_path)
    monkeypatch.setattr(papers, "MEASURED", tmp_path / "measured")
    return tmp_path / "runs"


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    """The exit code of `atoll reproduce …`."""
    monkeypatch.setattr("sys.argv", ["atoll", "reproduce", *map(str, arguments)])
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_what_was_measured_is_data_of_the_package(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Recorded runs are shown where there are none at hand, to the digits shown; a page can be made of them alone."""
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--record", "--page", book / "with.md") == 0
    told = papers.recorded("book")
    assert len(told) == 2
    assert all(0 < run["metrics"]["accuracy"] <= 1 and run["bytes"]["up"] > 0 for run in told.values())
    assert "recorded" not in capsys.readouterr().out
    assert call(monkeypatch, "book/table", "--out", book / "elsewhere", "--no-run", "--page", book / "without.md") == 0
    assert "1 of 3 lines are our recorded results" in " ".join(capsys.readouterr().out.split())
    assert (book / "with.md").read_text() == (book / "without.md").read_text()


def test_seeds_are_recorded_one_by_one(book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A second seed joins the first, whichever folder it was run in; `--new` runs what is not recorded and nothing else."""
    exhibit = papers.exhibits("book")[0]
    assert call(monkeypatch, "book/table", "--out", book / "a", "--only", "ours", "--seeds", "1", "--record") == 0
    assert call(monkeypatch, "book/table", "--out", book / "b", "--new", "--record") == 0
    assert call(monkeypatch, "book/table", "--out", book / "a", "--only", "ours", "--seeds", "1", "--record") == 0
    assert len(list((book / "b").iterdir())) == 3  # the other seed, and both of the other line
    assert status.state(exhibit, book / "c", {}) == "done"
    capsys.readouterr()
    assert call(monkeypatch, "book/table", "--out", book / "c", "--no-run", "--page", book / "apart.md") == 0
    assert call(monkeypatch, "book/table", "--out", book / "d", "--page", book / "again.md") == 0
    assert (book / "apart.md").read_text() == (book / "again.md").read_text()
    assert call(monkeypatch, "book/table", "--out", book / "e", "--new") == 0
    assert not (book / "e").exists()


def test_the_pages_of_all_papers_and_their_index(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a paper, `--page` writes one page per paper from the record alone, and the index; runs at hand do not count."""
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--seeds", "1", "--record") == 0
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours") == 0
    assert call(monkeypatch, "--page", book / "pages", "--out", book) == 0
    assert sorted(path.name for path in (book / "pages").glob("*.md")) == ["book.md", "index.md"]
    assert "| ours | 1 |" in (book / "pages" / "book.md").read_text()
    assert "## [A paper](book.md)" in (book / "pages" / "index.md").read_text()


def test_a_recording_can_be_stopped_at_any_time(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What has ended is in the record, with validation scores; a line cut off in the middle does not count; the rest follows."""
    run = comparison.Trial.run

    def stopped(trial: comparison.Trial, *arguments: Any) -> Any:
        if trial.config.seed == 1:
            raise KeyboardInterrupt
        return run(trial, *arguments)

    monkeypatch.setattr(comparison.Trial, "run", stopped)
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--record") != 0
    ((name, kept),) = papers.recorded("book").items()
    assert name.startswith("fedavg-csbm-0-")
    assert {"accuracy", "val_accuracy", "val_loss"} <= kept["metrics"].keys()
    assert (kept["select_by"], kept["rounds"], kept["best_round"] in (1, 2), kept["bytes"].keys()) == (
        "loss",
        2,
        True,
        {"up", "down"},
    )
    file = papers.MEASURED / "book.jsonl"
    file.write_text(file.read_text() + '{"run": "fedavg-csbm-1-')
    assert list(papers.recorded("book")) == [name]
    monkeypatch.setattr(comparison.Trial, "run", run)
    assert call(monkeypatch, "book/table", "--out", book / "elsewhere", "--only", "ours", "--new", "--record") == 0
    assert [each.rpartition("-")[0] for each in papers.recorded("book")] == ["fedavg-csbm-0", "fedavg-csbm-1"]
    assert papers.recorded("book")[name] == kept
    assert "1/1 fedavg-csbm-1-" in capsys.readouterr().err


def test_means_alone_are_run_again_for_the_record(book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--new --record` runs lines that have a recorded mean without its runs, and the mean goes once they are there."""
    means_of_old(book, {"ours": (2, 40.0)})
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--new", "--record") == 0
    assert len(papers.recorded("book")) == 2
    assert papers.measured("book") == {}


def test_only_some_lines_are_run_and_shown(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Other lines are neither run nor shown, a table without such a line not even by its title; an unknown label is refused."""
    assert call(monkeypatch, "book", "--out", book, "--only", "ours") == 0
    assert len(list(book.iterdir())) == 2
    shown = capsys.readouterr().out
    assert "book/table: A table" in shown
    assert "other" not in shown
    assert "without data" not in shown
    assert call(monkeypatch, "book", "--out", book, "--only", "nobody") == 2
    assert "No line of book has 'nobody' in its label" in capsys.readouterr().err


def test_a_mean_without_its_runs_stays_until_runs_make_up_for_it(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recorded line is shown where there are fewer runs, spares them under `--new`, and goes once as many are recorded."""
    means_of_old(book, {"ours": (2, 40.0)})
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--seeds", "1", "--record") == 1  # not as recorded
    assert "40" not in capsys.readouterr().out.split("ours")[-1]  # a run of one's own that was asked for comes first
    assert call(monkeypatch, "book/table", "--out", book, "--no-run") == 0
    assert "40.00 ± 1.00" in capsys.readouterr().out
    assert call(monkeypatch, "book/table", "--out", book / "new", "--only", "ours", "--new") == 0
    assert not (book / "new").exists()
    assert "40.00 ± 1.00" in capsys.readouterr().out
    assert list(papers.measured("book")["table"]) == ["ours"]
    assert call(monkeypatch, "book/table", "--out", book, "--only", "ours", "--record") == 0
    assert "40.00 ± 1.00" not in capsys.readouterr().out
    assert papers.measured("book") == {}


def means_of_old(book: Path, lines: dict[str, tuple[int, float]]) -> None:
    """A record of means alone: seeds and accuracy by row."""
    cells = {cell.row: cell for cell in papers.exhibits("book")[0].cells}
    text = ["[table]"]
    for row, (seeds, accuracy) in lines.items():
        digest = record.digest(cells[row].configs(1, {})[0])
        text.append(f'"{row}" = {{ seeds = {seeds}, config = "{digest}", ours = {{ accuracy = [{accuracy}, 1.0] }} }}')
    record.ready()
    (book.parent / "measured" / "book.toml").write_text("\n".join(text) + "\n")


def test_a_changed_configuration_is_not_shown_as_measured(
    book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is passed over, the list does not count it, and the next record drops it with a word; runs likewise."""
    means_of_old(book, {"ours": (2, 50.0), "other, λ = 0.1": (2, 50.0)})
    (book.parent / "measured" / "book.jsonl").write_text('{"run": "fedavg-csbm-0-0123456789ab", "metrics": {"accuracy": 0.5}}\n')
    exhibit = papers.exhibits("book")[0]
    assert status.state(exhibit, book, papers.measured("book")["table"]) == "done"
    (book.parent / "book.toml").write_text(BOOK.replace("lr = 0.1", "lr = 0.2"))
    exhibit = papers.exhibits("book")[0]
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    told = record.filled(exhibit, execute.lines(exhibit, jobs, book), jobs)
    assert [line.recorded for line in told] == [True, False, False]
    assert status.state(exhibit, book, papers.measured("book")["table"]) == "partly (1 of 2)"
    assert call(monkeypatch, "book", "--no-run", "--record", "--out", book) == 0
    told = capsys.readouterr().err
    assert "book/table, other, λ = 0.1: dropped" in told
    assert "book: 1 recorded runs dropped" in told
    assert list(papers.measured("book")["table"]) == ["ours"]


def test_a_record_needs_a_checkout(book: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence and exit code 2 before anything runs; and no record of a quick version."""
    monkeypatch.setattr(papers, "MEASURED", book.parent / "book.toml" / "measured")
    assert call(monkeypatch, "book", "--record", "--out", book) == 2
    told = capsys.readouterr().err
    assert "--record needs atoll's source checkout" in told
    assert len(told.strip().splitlines()) == 1
    assert call(monkeypatch, "book", "--record", "--quick", "--out", book) == 2
    assert not book.exists()


@pytest.mark.parametrize("width", [80, 200])
def test_the_list_tells_the_state(width: int, book: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not run, partly, done, no data, not applicable; every word can be read in a narrow terminal and in a wide one."""
    exhibits = papers.exhibits("book")
    table = exhibits[0]
    assert status.state(table, book, {}) == "not run"
    assert status.state(exhibits[1], book, {}) == "data missing here: the graph is not here"
    assert status.state(exhibits[2], book, {}) == "not applicable: a photograph"
    monkeypatch.setattr(status, "_absent", lambda: frozenset(["csbm"]))
    assert status.state(table, book, {}) == "data missing here: csbm"
    jobs = execute.jobs_of([table], quick=False, seeds=None)
    for config in jobs["book/table", "ours"]:
        runner.run(config, out=execute.folder_of(config, book))
    assert status.state(table, book, {}) == "partly (1 of 2)"
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(status_table(exhibits, book))
    text = " ".join(console.export_text().split())
    for words in ("book/table", "partly (1 of 2)", "(1 of 3 lines without data)", "done: every line"):
        assert words in text
    assert "…" not in text


@pytest.mark.parametrize("paper", papers.papers())
def test_every_recorded_line_is_of_a_table(paper: str) -> None:
    """A recorded mean names a line that there is, and the digest of its configuration is that line's."""
    exhibits = {exhibit.name: exhibit for exhibit in papers.exhibits(paper)}
    for table, lines in papers.measured(paper).items():
        cells = {cell.row: cell for cell in exhibits[f"{paper}/{table}"].runnable}
        for row, line in lines.items():
            assert line.seeds > 0, row
            assert line.ours, row
            assert line.config == record.digest(cells[row].configs(1, {})[0]), f"{LOST}: {table}, {row}"


@pytest.mark.parametrize("paper", papers.papers())
def test_every_recorded_run_is_of_a_line(paper: str) -> None:
    """A recorded run has the configuration of some line, with any seed."""
    runs = papers.recorded(paper)
    lost = sorted(runs.keys() - record.of_lines(papers.exhibits(paper), runs))
    assert not lost, f"{LOST}: {len(lost)} runs, the first {lost[0]}"


LOST = "no configuration has this digest any more; a setting added to existing ones needs since=, see CONTRIBUTING.md"


def test_the_record_has_no_other_papers() -> None:
    """Every file there belongs to a paper."""
    assert {path.stem for path in papers.MEASURED.iterdir()} <= set(papers.papers())


def test_a_setting_that_is_added_later_loses_no_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `since`, a run has the same folder as before the setting was there; other values have folders of their own."""
    from atoll.algorithms import fedavg

    before = execute.folder_of(resolve("fedavg", dataset="csbm"), Path())

    @dataclass(frozen=True)
    class Added(fedavg.Settings):  # type: ignore[misc]
        later: bool = setting(False, "Added after results had been recorded.", since="0.2")

    monkeypatch.setattr(fedavg, "Settings", Added)
    now = resolve("fedavg", dataset="csbm")
    assert "later" in now.to_dict()["settings"]
    assert execute.folder_of(now, Path()) == before
    assert execute.folder_of(resolve("fedavg", dataset="csbm", values={"later": True}), Path()) != before


def test_the_list_waits_with_torch() -> None:
    """Reading the papers' files does not need it."""
    code = "import sys; from atoll import papers; from atoll.papers import status, text; "
    code += "[papers.exhibits(p) for p in papers.papers()]; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "exhibit", [each for each in EXHIBITS if each.kind == "figure" and each.runnable], ids=lambda exhibit: exhibit.name
)
def test_every_figure_can_be_drawn(exhibit: Exhibit) -> None:
    """Every line that can be run stands in exactly one panel, and the picture of numbers like ours is small."""
    for cell in exhibit.runnable:
        assert len([panel for panel in exhibit.panels if cell.within(panel)]) == (1 if exhibit.panels else 0)
    if exhibit.curves:
        return
    lines = [Line(cell, dict.fromkeys(exhibit.metrics, (50.0, 1.0)), 5) for cell in exhibit.runnable]
    picture = pictures.draw(exhibit, lines, {}, Path())
    assert picture is not None
    assert (picture.form, picture.runs) == ("svg", 5 * len(exhibit.runnable))
    assert len(picture.data) < 150_000


def figure(cells: list[Cell], **changes: Any) -> Exhibit:
    """A figure of a paper."""
    return Exhibit("p/figure1", "A paper", "A figure", tuple(cells), kind="figure", **{"percent": True, **changes})


def test_numbers_are_joined_and_words_are_bars() -> None:
    """A series over numbers is a curve with whiskers, over words bars; lines of several metrics alone stand over the metrics."""
    numbers = figure([Cell("a 1", series="a", x=1), Cell("a 2", series="a", x=2.5), Cell("level", x=1)], axis="λ")
    drawn, runs = pictures.means(numbers, [Line(cell, {"accuracy": (50.0, 1.0)}, 5) for cell in numbers.cells])
    assert ([each.kind for each in drawn], drawn[0].x, drawn[0].y, runs) == (["dots"], "λ", "accuracy (%)", 15)
    assert [(series.name, series.x, series.std) for series in drawn[0].series] == [
        ("a", [1, 2.5], [1.0, 1.0]),
        ("level", [1], [1.0]),
    ]
    words = figure([Cell("Cora a", series="Cora a", x="few"), Cell("Cora b", series="Cora a", x="many")], panels=["Cora"])
    drawn, _ = pictures.means(words, [Line(cell, {"accuracy": (50.0, math.nan)}, 1) for cell in words.cells])
    assert [(each.kind, each.title, each.series[0].name, each.series[0].std) for each in drawn] == [("bars", "Cora", "a", None)]
    alone = figure([Cell("MLP"), Cell("GNN")], metrics=("accuracy", "party_accuracy.3"))
    drawn, _ = pictures.means(
        alone, [Line(cell, {"accuracy": (50.0, 1.0), "party_accuracy.3": (60.0, 1.0)}, 5) for cell in alone.cells]
    )
    assert [(each.kind, [series.x for series in each.series]) for each in drawn] == [("bars", [["all", "party 3"]] * 2)]


def test_a_panel_that_was_hardly_run_is_not_drawn() -> None:
    """One point of three is not a curve; the panel beside it, of which all was run, is drawn."""
    cells = [Cell(f"{panel} {x}", series=panel, x=x) for panel in ("A", "B") for x in (1, 2, 3)]
    exhibit = figure(cells, panels=["A", "B"])
    lines = [Line(cell, {"accuracy": (50.0, 1.0)} if cell.row != "B 2" and cell.row != "B 3" else {}, 2) for cell in cells]
    drawn, runs = pictures.means(exhibit, lines)
    assert ([each.title for each in drawn], runs) == (["A"], 6)


@pytest.mark.parametrize("kind", ["figure", "table"])
def test_panels_compare_lines_of_the_same_seeds(kind: str, tmp_path: Path) -> None:
    """In a panel only the seeds count that all its lines have; a line without runs, and other panels, do not matter."""
    rows = {"A low": [0, 2], "A high": [0, 1, 2], "A idle": [], "B low": [1]}
    run = {"algorithm": "fedavg", "dataset": "csbm"}
    cells = [Cell(row, run={**run, "rounds": place + 1}, x=place) for place, row in enumerate(rows)]
    exhibit = replace(figure(cells, panels=["A", "B"], seeds=3), kind=kind)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    for row, seeds in rows.items():
        for seed in seeds:
            folder = execute.folder_of(jobs[exhibit.name, row][seed], tmp_path)
            folder.mkdir()
            written = {"metrics": {"accuracy": 0.5 + seed}, "rounds": 1, "best_round": 1, "bytes": {}, "seconds": {}}
            (folder / "result.json").write_text(json.dumps(written))
    lines = execute.lines(exhibit, jobs, tmp_path)
    assert [(line.cell.row, line.seeds) for line in lines] == [("A low", 2), ("A high", 2), ("A idle", 0), ("B low", 1)]
    assert lines[0].ours == lines[1].ours


def test_a_line_that_is_shown_as_a_mean_does_not_cut_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Re-recording a figure line by line: one of three runs beside a mean of three leaves the other line its three runs."""
    cells = [
        Cell(row, run={"algorithm": "fedavg", "dataset": "csbm", "rounds": rounds}, x=rounds)
        for rounds, row in ((1, "a"), (2, "b"))
    ]
    exhibit = figure(cells, seeds=3)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    mean = papers.Measured(3, record.digest(jobs[exhibit.name, "b"][0]), {"accuracy": (70.0, 1.0)})
    monkeypatch.setattr(papers, "measured", lambda paper: {"figure1": {"b": mean}})
    monkeypatch.setattr(execute, "measured", papers.measured)
    known = {
        execute.folder_of(config, Path()).name: {"metrics": {"accuracy": 0.5}}
        for config in [*jobs[exhibit.name, "a"], jobs[exhibit.name, "b"][0]]
    }
    monkeypatch.setattr(execute, "recorded", lambda paper: known)
    lines = record.filled(exhibit, execute.lines(exhibit, jobs, tmp_path), jobs)
    assert [(line.seeds, line.ours["accuracy"][0]) for line in lines] == [(3, 50.0), (3, 70.0)]


@pytest.mark.parametrize(("kind", "shown"), [("figure", [1, 1, 3, 3]), ("table", [1, 3, 3, 3])])
def test_a_figure_compares_runs_with_runs(kind: str, shown: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded mean of more seeds replaces a line's own runs, but not where the panel has lines of just as many runs only."""
    rows = ["A runs only", "A runs and mean", "A mean", "B runs and mean"]
    cells = tuple(Cell(row, run={"algorithm": "fedavg", "dataset": "csbm"}, x=place) for place, row in enumerate(rows))
    exhibit = Exhibit("p/figure", "A paper", "A figure", cells, kind=kind, panels=["A", "B"], seeds=3)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    mean = papers.Measured(3, record.digest(jobs[exhibit.name, rows[0]][0]), {"accuracy": (50.0, 1.0)})
    monkeypatch.setattr(papers, "measured", lambda paper: {"figure": dict.fromkeys(rows[1:], mean)})
    lines = [Line(cell, {"accuracy": (40.0, math.nan)} if "runs" in cell.row else {}, "runs" in cell.row) for cell in cells]
    assert [line.seeds for line in record.filled(exhibit, lines, jobs)] == shown


def test_curves_are_those_of_the_histories(tmp_path: Path) -> None:
    """A curve a row, its mean over the seeds; a page shows the picture; what shows more runs than there are stays."""
    cell = Cell("Cora ours", run=SMALL | {"rounds": 3})
    exhibit = figure([cell, Cell("Cora other", run=SMALL | {"lr": 0.5})], curves=["accuracy"], panels=["Cora"], seeds=2)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    configs = jobs[exhibit.name, "Cora ours"]
    run_all({"": configs}, tmp_path)
    ((drawn,), runs) = pictures.curves(exhibit, jobs, tmp_path)
    assert (drawn.title, drawn.kind, [series.name for series in drawn.series], runs) == ("Cora", "lines", ["ours"], 2)
    histories = [Folder(execute.folder_of(config, tmp_path)).rows() for config in configs]
    means = [(first["accuracy"] + second["accuracy"]) / 2 for first, second in zip(*histories, strict=True)]
    assert drawn.series[0].y == pytest.approx(means)
    told = [(exhibit, execute.lines(exhibit, jobs, tmp_path))]
    (file,) = pictures.save(told, jobs, tmp_path, tmp_path / "img").values()
    assert file == tmp_path / "img" / "p-figure1.svg"
    assert "![A figure](img/p-figure1.svg)" in pages.markdown(Results("p", told), {exhibit.name: f"img/{file.name}"})
    before = file.read_bytes()
    assert pictures.save(told, jobs, tmp_path / "gone", tmp_path / "img") == {exhibit.name: file}
    fewer = execute.jobs_of([exhibit], quick=False, seeds=1)
    assert pictures.save(told, fewer, tmp_path, tmp_path / "img") == {exhibit.name: file}
    assert file.read_bytes() == before
    run_all({"": jobs[exhibit.name, "Cora other"]}, tmp_path)
    pictures.save(told, jobs, tmp_path, tmp_path / "img")
    assert b"atoll: 4 runs" in file.read_bytes()


def test_boxes_are_over_the_seeds(tmp_path: Path) -> None:
    """A box a row, of all its seeds' values in the paper's unit."""
    exhibit = Exhibit("p/figure2", "A paper", "Boxes", (Cell("ours", run=SMALL),), kind="boxes", percent=True, seeds=3)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    assert pictures.draw(exhibit, [], jobs, tmp_path) is None
    run_all({"": jobs[exhibit.name, "ours"]}, tmp_path)
    ((drawn,), runs) = pictures.boxes(exhibit, jobs, tmp_path)
    found = [100 * result["metrics"]["accuracy"] for result in execute.results(jobs[exhibit.name, "ours"], tmp_path, {})]
    assert (drawn.kind, list(drawn.series[0].y), runs) == ("boxes", found, 3)
    picture = pictures.draw(exhibit, [], jobs, tmp_path)
    assert picture is not None
    assert b"ours" in picture.data


def test_figure_2b_is_of_table_2s_runs() -> None:
    """Nothing is run twice for the box plot."""
    table, boxes = papers.find("gfl_appnp/table2")[0], papers.find("gfl_appnp/figure2b")[0]
    runs = {cell.row: cell.run for cell in table.cells}
    assert len(boxes.cells) == 10
    assert all(runs[f"SC {cell.row}"] == cell.run for cell in boxes.cells)


def test_embeddings_are_drawn_from_finished_runs(tmp_path: Path) -> None:
    """A map a row, a cloud a class; the number is the silhouette; without the runs neither is there, and nothing is written."""
    run = SMALL | {"partition": "overlap", "parties": 3, "proportions": "0.5,0.6,0.7", "split": "random"}
    cells = (Cell("FedGL", run=run | {"algorithm": "fedgl"}), Cell("Centralized", run=run | {"algorithm": "centralized"}))
    exhibit = Exhibit("p/figure5", "A paper", "Maps", cells, metrics=("silhouette",), kind="embeddings", seeds=1)
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    assert pictures.draw(exhibit, [], jobs, tmp_path) is None
    assert [line.ours for line in execute.lines(exhibit, jobs, tmp_path)] == [{}, {}]
    run_all({"": jobs[exhibit.name, "FedGL"]}, tmp_path)
    folder = execute.folder_of(jobs[exhibit.name, "FedGL"][0], tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    found, none = execute.lines(exhibit, jobs, tmp_path)
    assert -1 <= found.ours["silhouette"][0] <= 1
    assert (found.seeds, none.seeds) == (1, 0)
    (drawn,) = pictures.maps(exhibit, jobs, tmp_path)
    graph = runner.prepare(jobs[exhibit.name, "FedGL"][0]).party_data.whole
    assert drawn.title == "FedGL"
    assert [len(series.x) for series in drawn.series] == graph.y[graph.test].unique(return_counts=True)[1].tolist()
    picture = pictures.draw(exhibit, [], jobs, tmp_path)
    assert picture is not None
    assert picture.data.startswith(b"\x89PNG")
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before


def test_figures_5_to_7_are_of_table_2s_runs() -> None:
    """The maps are of the five methods of Table 2 on three graphs, run as there, with a seed that nothing was chosen with."""
    table, maps = papers.find("fedgl/table2")[0], papers.find("fedgl/figures5_7")[0]
    runs = {cell.row: {**cell.run, "seed": 5} for cell in table.cells}
    assert len(maps.cells) == 15
    assert all(runs[cell.row] == cell.run for cell in maps.cells)


def test_other_rounds_than_the_best_are_shown_and_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last round, and each party's highest test accuracy of some rounds, from a folder and, without it, from the record."""
    rows = [{"party_accuracy": values} for values in ([0.5, 0.2], [0.1, 0.4], [0.6, None], [0.3, 0.3])]
    assert [snapshots.highest(rows, count) for count in (1, 2, 4)] == pytest.approx([0.3, 0.35, 0.5])
    monkeypatch.setattr(papers, "HOME", tmp_path)
    monkeypatch.setattr(papers, "MEASURED", tmp_path)
    document = f"""paper = "A paper"
[t]
title = "A table"
seeds = 1
metrics = ["accuracy", "last.accuracy", "snapshots.2"]
cells = [{{ row = "ours" }}]
run = {{ {", ".join(f"{name} = {json.dumps(value)}" for name, value in (SMALL | {"rounds": 4}).items())} }}
"""
    (tmp_path / "p.toml").write_text(document)
    (exhibit,) = papers.exhibits("p")
    jobs = execute.jobs_of([exhibit], quick=False, seeds=None)
    todo = execute.waiting(jobs, tmp_path / "runs")
    execute.execute(todo, 1, lambda trial, folder: record.add("p", trial, folder))
    (here,) = execute.lines(exhibit, jobs, tmp_path / "runs")
    history = read(todo[0][1]).rows
    assert here.ours["last.accuracy"][0] == history[-1]["accuracy"]
    assert here.ours["snapshots.2"][0] == pytest.approx(snapshots.highest(history, 2))
    (recorded,) = execute.lines(exhibit, jobs, tmp_path / "elsewhere")
    assert recorded.recorded
    for metric, (mean, _) in here.ours.items():
        assert recorded.ours[metric][0] == pytest.approx(mean, rel=1e-5)
