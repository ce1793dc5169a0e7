"""Reports of every kind of run: what is drawn, what is written, what is refused."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from atoll import reports
from atoll.cli import main
from atoll.errors import AtollError
from atoll.reports import matplotlib, page, partitions, table
from atoll.reports.figures import Figure, Series
from atoll.reports.gaps import Gaps
from atoll.reports.runs import gather, grouped
from atoll.runs import runner
from small import small
from stored import DETAIL, rewrite_result

EARLIER = Path(__file__).parents[1] / "runs" / "files"


@pytest.mark.parametrize("algorithm", ["centralized", "fedgl", "glasu", "nfedgnn"])
def test_every_setting_has_a_report(algorithm: str, tmp_path: Path) -> None:
    """Whole, overlapping, vertical and node-level runs are drawn as far as they can be, and the page says what cannot."""
    runner.run(small(algorithm, rounds=2), out=tmp_path / "run")
    made = reports.make([tmp_path], embeddings="pca")
    names = {figure.name for figure in made.figures}
    assert "accuracy-round" in names
    assert ("party-sizes" in names) != any("partition" in note for note in made.notes)
    assert ("embedding-class" in names) != any("embeddings" in note for note in made.notes)
    assert all(len(matplotlib.draw(figure, "svg")) > 1000 for figure in made.figures if figure.name in ("party-sizes", "edges"))
    assert "accuracy&nbsp;%" in page.render(made)


def test_sections_have_an_order(runs: Path) -> None:
    """What was learned first, what it cost and how the data was divided later; names are unique; no figure is empty."""
    made = reports.make([runs], embeddings="pca")
    sections = list(dict.fromkeys(card.section for card in made.cards))
    assert sections == ["Learning", "Classes", "Parties", "Cost", "Partition", "Embeddings"]
    assert len({figure.name for figure in made.figures}) == len(made.figures)
    assert all(figure.heat or any(len(series.x) for series in figure.series) for figure in made.figures)
    assert made.notes == []


@pytest.mark.parametrize("version", sorted(item.name for item in EARLIER.iterdir()))
def test_runs_of_earlier_versions_have_reports(version: str) -> None:
    """Finished or interrupted: curves of score and loss; classes, or a sentence why not."""
    for folder in sorted((EARLIER / version).iterdir()):
        made = reports.make([folder], embeddings="pca")
        names = {figure.name for figure in made.figures}
        assert {"accuracy-round", "loss-round"} <= names, folder.name
        if (folder / "result.json").exists():
            assert ("confusion" in names) != any("classes and calibration" in note for note in made.notes)
        assert "accuracy&nbsp;%" in page.render(made)


def test_a_partition_is_drawn_once(runs: Path, tmp_path: Path) -> None:
    """Rows that share it share its figures; others have titles that tell them apart."""
    names = [figure.name for figure in reports.make([runs], embeddings="none").figures]
    assert names.count("party-sizes") == 1
    for seed in (0, 5):
        runner.run(small("fedavg", rounds=1, seed=seed, lr=0.1 + seed, partition_seed=seed), out=tmp_path / str(seed))
    titles = [figure.title for figure in reports.make([tmp_path], embeddings="none").figures if "party-sizes" in figure.name]
    assert titles == [f"Nodes of each party: csbm, random, 3 parties, seed {seed}" for seed in (0, 5)]


def test_what_is_missing_is_one_sentence_per_reason() -> None:
    """Not one per figure and row."""
    gaps = Gaps()
    for row in ("a", "b"):
        for part in ("classes", "embeddings", "partition"):
            gaps.add(row, part, "the data is not here")
    gaps.add("c", "partition", "every node is a party of its own")
    assert gaps.sentences() == [
        "Not shown of a and b: classes, embeddings and partition; the data is not here.",
        "Not shown of c: partition; every node is a party of its own.",
    ]


def test_the_same_seed_twice_is_named(runs: Path, tmp_path: Path) -> None:
    """A standard deviation over copies of one run would be too small."""
    for name in ("a", "b"):
        shutil.copytree(runs / "fedavg-0", tmp_path / name)
    assert "fedavg: seed 0 occurs more than once." in reports.make([tmp_path], embeddings="none").notes


def test_following_ends_with_the_run(runs: Path, going: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written again and again, until the run is over."""
    looks: list[bool] = []

    def meanwhile(_: float) -> None:
        looks.append("http-equiv=refresh" in (tmp_path / "report.html").read_text())
        shutil.copytree(runs / "fedavg-0", going, dirs_exist_ok=True)

    monkeypatch.setattr(reports.time, "sleep", meanwhile)
    assert reports.follow([going], tmp_path / "report.html", embeddings="none").done
    assert looks == [True]
    assert "http-equiv=refresh" not in (tmp_path / "report.html").read_text()


def test_tables_for_papers(runs: Path) -> None:
    """Markdown and LaTeX say the same numbers, and the best of a column is bold."""
    rows = grouped(gather([runs]))
    made = table.table(rows, partitions.majority)
    cell = made.columns[1].cells[0].text()
    assert re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cell)
    assert cell in table.markdown(made)
    assert cell.replace("±", "\\pm") in table.latex(made)
    assert table.markdown(made).count("**") % 2 == 0
    assert "accuracy \\%" in table.latex(made)
    best = made.columns[1].best()
    assert best is not None
    assert f"**{made.columns[1].cells[best].text()}**" in table.markdown(made)


def test_the_best_is_bold_whichever_way_is_better(runs: Path, tmp_path: Path) -> None:
    """The lowest Brier score, not the highest; metrics that no task lists have no best; shares are %, others are not."""
    for name, brier in {"fedavg-0": 0.25, "local-0": 0.125}.items():
        shutil.copytree(runs / name, tmp_path / name)
        metrics = {"accuracy": 0.5, "brier": brier, "auc": 0.75, "epsilon": 3.0}
        rewrite_result(tmp_path / name, metrics=metrics)
    made = table.table(grouped(gather([tmp_path])), lambda _: None)
    columns = {column.heading: column for column in made.columns}
    assert columns["Brier"].best() == 1
    assert [cell.text() for cell in columns["Brier"].cells] == ["0.2500", "0.1250"]
    assert columns["AUC %"].cells[0].text() == "75.00"
    assert columns["epsilon"].best() is None
    assert "±" not in made.caption


def test_metrics_that_only_the_detail_has_are_compared_too(runs: Path, tmp_path: Path) -> None:
    """AUC, Brier score and calibration error; where a run reports a metric itself, that value counts."""
    for name in ("fedavg-0", "local-0"):
        shutil.copytree(runs / name, tmp_path / name)
    overall = {"accuracy": 0.0, "auc": 0.875, "brier": 0.125, "calibration_error": 0.0625, "log_loss": 1.0}
    rewrite_result(tmp_path / "fedavg-0", detail=DETAIL | {"overall": overall})
    rewrite_result(tmp_path / "local-0", detail={})
    rows = grouped(gather([tmp_path]))
    columns = {column.heading: column for column in table.table(rows, lambda _: None).columns}
    assert [cell.text() for cell in columns["AUC %"].cells] == ["87.50", "–"]
    assert columns["AUC %"].best() is None
    assert columns["ECE %"].cells[0].text() == "6.25"
    assert "log loss" not in columns
    assert columns["accuracy %"].cells[0].value == pytest.approx(100 * rows[0].runs[0].result.metrics["accuracy"])


def test_figures_for_papers(runs: Path, tmp_path: Path) -> None:
    """One PNG and one SVG per figure; in an SVG text stays text, and the same run gives the same bytes."""
    made = reports.make([runs], embeddings="pca")
    names = {"accuracy-round", "party-homophily", "minority", "bytes", "confusion-0", "calibration", "embedding-party-0"}
    made = replace(made, cards=[figure for figure in made.figures if figure.name in names])  # one of each kind
    reports.write(made, png=tmp_path / "png", svg=tmp_path / "svg")
    assert {figure.name for figure in made.figures} == names
    assert {item.stem for item in (tmp_path / "png").iterdir()} == {item.stem for item in (tmp_path / "svg").iterdir()} == names
    assert all(item.read_bytes().startswith(b"\x89PNG") for item in (tmp_path / "png").iterdir())
    assert ">fedavg</text>" in (tmp_path / "svg" / "accuracy-round.svg").read_text()
    assert matplotlib.draw(made.figures[0], "svg") == (tmp_path / "svg" / f"{made.figures[0].name}.svg").read_bytes()


def test_figures_for_papers_have_room_for_long_names() -> None:
    """Many rows with long labels: the picture grows, and matplotlib does not warn that the axes have vanished."""
    labels = [f"fedavg of a rather long configuration lr=0.{number} rounds=100" for number in range(14)]
    curves = [Series(label, [1, 2, 3], [0.1, 0.2, 0.3], number) for number, label in enumerate(labels)]
    bars = [Series(name, labels, [0.5] * 14, number) for number, name in enumerate(("majority", "minority"))]
    for kind, series in (("lines", curves), ("bars", bars)):
        drawn = matplotlib.draw(Figure("n", "Learning", "t", kind, "round" if kind == "lines" else "", "y", series), "svg")
        assert b"lr=0.13" in drawn


def damaged(folder: Path, name: str, text: str) -> None:
    """A copy of a run with one broken file."""
    (folder / name).write_text(text)


WRONG = {
    "nothing": ([], "There is no run to report"),
    "no such folder": (["nowhere"], "nowhere does not exist"),
    "no run": (["empty"], "empty is not a run"),
    "only files": (["notes.txt"], "There is no run to report"),
    "history": (["history"], "history.jsonl is damaged"),
    "lines": (["lines"], "it lacks one of round, up, down"),
    "result": (["result"], "result.json is damaged"),
    "method": (["good", "--embeddings", "umap"], "--embeddings is 'umap' but must be one of tsne, pca, none"),
    "kinds": (["kinds"], "it lacks one of metrics, best_round, rounds, bytes, seconds"),
    "numbers": (["numbers"], "it lacks one of round, up, down"),
    "no name": (["good", "--html", ""], "'.' is not the name of a file"),
    "place": (["good", "--html", "notes.txt/report.html"], "cannot be written"),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_get_one_sentence(
    case: str, runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 2, what and where, and nothing is written."""
    arguments, sentence = WRONG[case]
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("notes.txt").write_text("")
    for name in ("good", "history", "lines", "result", "kinds", "numbers"):
        shutil.copytree(runs / "local-0", name)
    damaged(Path("history"), "history.jsonl", '{"round": 1, "up"\n{}\n')
    damaged(Path("lines"), "history.jsonl", '{"accuracy": 1}\n')
    damaged(Path("result"), "result.json", '{"metrics":')
    damaged(Path("kinds"), "result.json", '{"metrics": [], "best_round": 1, "rounds": 1, "bytes": 3, "seconds": "x"}')
    damaged(Path("numbers"), "history.jsonl", '{"round": "x", "up": 1, "down": 1}\n')
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(sys, "argv", ["atoll", "report", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main.main()
    printed = capsys.readouterr().err
    assert stopped.value.code == 2
    assert sentence in printed
    assert len(printed.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("module", "forms"), [("plotly", {"html": "r.html"}), ("matplotlib", {"png": "p"})])
def test_a_missing_library_is_named(
    module: str, forms: dict[str, str], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra, the sentence says what to install, and nothing is written."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AtollError, match=rf"{module}, which is not installed; run `pip install \"atoll\[report\]\"`"):
        reports.write(reports.make([runs], embeddings="none"), **{name: tmp_path / path for name, path in forms.items()})
    assert not list(tmp_path.iterdir())
