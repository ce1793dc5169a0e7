"""Reports: what they read, what they compute anew, what they refuse, and the page in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np
import pytest
import torch

from atoll import reports
from atoll.cli import main
from atoll.errors import AtollError
from atoll.federation.cohort import backbone
from atoll.graphs.graph import majority_class
from atoll.models.parameters import set_parameters
from atoll.reports import figures, matplotlib, page, recompute, table
from atoll.reports.runs import Row, StoredRun, gather, grouped, read_run
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.progress import Progress
from atoll.runs.result import Result
from browser import CHROMIUM, Browser
from small import ALGORITHMS, small


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with local and fedavg, two seeds each."""
    home = tmp_path_factory.mktemp("runs")
    for algorithm in ("local", "fedavg"):
        for seed in (0, 1):
            runner.run(small(algorithm, seed=seed, rounds=4), out=home / f"{algorithm}-{seed}")
    (home / "comparison.json").write_text("[]")
    return home


@pytest.fixture
def going(runs: Path, tmp_path: Path) -> Path:
    """A run in progress: a configuration and a history whose last line is half written."""
    folder = tmp_path / "going"
    folder.mkdir()
    shutil.copy(runs / "fedavg-0" / "config.toml", folder)
    lines = (runs / "fedavg-0" / "history.jsonl").read_text().splitlines(keepends=True)
    (folder / "history.jsonl").write_text("".join(lines[:2]) + lines[2][:40])
    return folder


def test_runs_that_differ_only_in_seed_are_one_row(runs: Path) -> None:
    """Their metrics are mean and standard deviation; files beside the runs are passed over; a folder of runs is its runs."""
    rows = grouped(gather(sorted(runs.iterdir())))
    assert [(row.label, len(row.runs)) for row in rows] == [("fedavg", 2), ("local", 2)]
    values = [json.loads((runs / f"fedavg-{seed}" / "result.json").read_text())["metrics"]["accuracy"] for seed in (0, 1)]
    assert rows[0].mean("accuracy") == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
    assert [run.path for run in gather([runs])] == [run.path for row in rows for run in row.runs]


def test_rows_are_labeled_by_what_tells_them_apart(runs: Path, tmp_path: Path) -> None:
    """The algorithm alone where that is enough; else the model and the settings that differ."""
    for name, values in {"a": {"lr": 0.1}, "b": {"lr": 0.2}, "c": {"lr": 0.1, "model": "mlp"}}.items():
        runner.run(small("local", rounds=1, **values), out=tmp_path / name)
    labels = [row.label for row in grouped(gather([tmp_path]))]
    assert labels == ["local gcn lr=0.1", "local gcn lr=0.2", "local mlp lr=0.1"]


def stored(name: str, config: Config, rows: list[dict[str, Any]]) -> StoredRun:
    """A run that is still going, with this history."""
    progress = Progress.of(rows, config.run)
    result = Result(config, "", 1, progress.round, progress.best_round, progress.best, progress.last, {}, {}, rows, {}, {})
    return StoredRun(Path(name), "", result)


def test_curves_are_means_as_far_as_all_seeds_went(runs: Path) -> None:
    """Against megabytes both directions add up; rounds without evaluation have no point; the shortest run ends the curve."""
    one = [{"round": 1, "up": 1e6, "down": 1e6, "accuracy": 0.2}, {"round": 2, "up": 1e6, "down": 0, "accuracy": 0.6}]
    other = [
        {"round": 1, "up": 3e6, "down": 1e6, "accuracy": 0.4},
        {"round": 2, "up": 1e6, "down": 0, "accuracy": None},
        {"round": 3, "up": 1e6, "down": 0, "accuracy": 0.9},
    ]
    config = small("fedavg")
    row = Row("both", [stored("a", config, one), stored("b", config, other)])
    assert row.curve("accuracy", "round") == [(1, pytest.approx(0.3), pytest.approx(stdev([0.2, 0.4])))]
    assert row.curve("accuracy", "megabytes")[0][0] == 3
    assert row.curve("accuracy", "simulated_seconds") == []
    assert "simulated s" not in [column.heading for column in table.table([row], lambda _: None).columns]
    told = [{"round": 1, "up": 0, "down": 0, "simulated_seconds": 2.0, "accuracy": 0.1}] * 2
    linked = Row("linked", [stored("a", config, told)])
    assert [x for x, _, _ in linked.curve("accuracy", "simulated_seconds")] == [2.0, 4.0]
    assert table.table([linked], lambda _: None).columns[-1].cells[0].value == 4.0
    assert len(figures.thin([(float(x), 0.0, 0.0) for x in range(5000)])) <= figures.MOST_POINTS


def test_majority_accuracy_is_that_of_the_nodes(tmp_path: Path) -> None:
    """Computed from overall and minority accuracy, it equals counting the majority's nodes."""
    config = small("fedavg", rounds=1)
    result = runner.run(config, out=tmp_path / "run")
    experiment = runner.prepare(config)
    graph = experiment.party_data.parts
    model = backbone(config.settings, experiment.federation.schema, graph.parties, None)
    set_parameters(model, result.state["model"])
    right = model(graph).argmax(1) == graph.y
    common = graph.test & (graph.y == majority_class(graph))
    found = recompute.majority(Row("fedavg", [read_run(tmp_path / "run")]))
    assert found is not None
    assert found[0] == pytest.approx(float(right[common].float().mean()))


def test_edges_flow_between_parties_as_counted_one_by_one() -> None:
    """For every party, the edges from its nodes to each other's, and to nodes nobody holds."""
    config = small("local")
    told = recompute.partition_of(config)
    assert isinstance(told, recompute.Partition)
    data = runner.prepare(config).party_data
    owner = dict(zip(data.parts.ids.tolist(), data.parts.party.tolist(), strict=True))
    expected = np.zeros((3, 4))
    for a, b in data.source.edge_index.t().tolist():
        if a in owner:
            expected[owner[a], owner.get(b, 3)] += 1
    assert told.flows is not None
    assert np.array_equal(told.flows, expected)
    assert sum(told.flows[p, p] for p in range(3)) == 2 * told.facts.edges_kept


@pytest.mark.parametrize("placement", ["together", "apart"])
@pytest.mark.parametrize("algorithm", ["fedavg", "local"])
def test_embeddings_are_those_of_the_checkpoints_model(algorithm: str, placement: str, tmp_path: Path) -> None:
    """The shared model of the server's state, or the parties' own from their memory, wherever they live."""
    config = small(algorithm, placement=placement)
    result = runner.run(config, out=tmp_path / "run")
    run = read_run(tmp_path / "run")
    checkpoint = run.checkpoint()
    assert checkpoint is not None
    found = recompute._hidden(config, checkpoint)
    assert found is not None
    graph = runner.prepare(config).party_data.parts
    model = backbone(config.settings, runner.prepare(config).federation.schema, 3, None)
    memory = result.memory.values()
    own = (
        {}
        if algorithm == "fedavg"
        else {n: torch.cat([site["model"][n] for site in memory]) for n, _ in model.named_parameters()}
    )
    set_parameters(model, own or result.state["model"])
    assert np.allclose(found[0], model.embed(graph).detach().numpy(), atol=1e-5)
    drawn = recompute.embedding(run, "pca", 20)
    assert isinstance(drawn, recompute.Embedding)
    assert (drawn.points.shape, drawn.of) == ((20, 2), graph.num_nodes)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_has_embeddings(algorithm: str, tmp_path: Path) -> None:
    """The last hidden layer, or where no single model has one the class scores, and these are the ones that were judged."""
    result = runner.run(small(algorithm, rounds=2), out=tmp_path / "run")
    run = read_run(tmp_path / "run")
    drawn = recompute.embedding(run, "pca", 30)
    assert isinstance(drawn, recompute.Embedding)
    assert drawn.points.shape == (30, 2)
    assert np.isfinite(drawn.points).all()
    assert len(np.unique(drawn.label)) == result.config.data.classes
    if "hidden layer" not in drawn.what:
        checkpoint = run.checkpoint()
        assert checkpoint is not None
        found = recompute._hidden(result.config, checkpoint)
        assert found is not None
        graph = runner.prepare(result.config).party_data.whole
        val, test = int(graph.val.sum()), int(graph.test.sum())
        expected = (val * result.last["val_accuracy"] + test * result.last["accuracy"]) / (val + test)
        assert float((found.values.argmax(1) == found.label).mean()) == pytest.approx(expected)
        assert figures.embeddings(grouped([run])[0], drawn, "pca", [], "")[0].caption.startswith("PCA of the class scores")


@pytest.mark.parametrize("algorithm", ["glasu", "fedlit"])
def test_parties_of_judged_nodes_are_told_wherever_they_live(algorithm: str, tmp_path: Path) -> None:
    """One cohort or three sites: the same scores, classes and parties."""
    found = []
    for placement in ("together", "apart"):
        runner.run(small(algorithm, rounds=1, placement=placement), out=tmp_path / placement)
        run = read_run(tmp_path / placement)
        found.append(recompute._hidden(run.config, run.checkpoint() or {}))
    one, three = ({(int(p), int(y), *np.round(v, 3)) for v, y, p in zip(*each[:3], strict=True)} for each in found if each)
    assert one == three
    assert {party for party, *_ in one} == {0, 1, 2}


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
    assert "accuracy %" in page.render(made)


def test_the_page_is_one_file_without_a_network(runs: Path, tmp_path: Path) -> None:
    """plotly.js is inside once; nothing is fetched; the configuration to run it again is there; no reload once all is over."""
    made = reports.make([runs], embeddings="none")
    reports.write(made, html=tmp_path / "deep" / "report.html")
    text = (tmp_path / "deep" / "report.html").read_text()
    own = text.replace(page.library(), "")
    assert text.count(page.library()) == 1
    assert not re.findall(r"(?:src|href)=['\"]?+(?!#|data:)", own)
    assert "algorithm = &quot;fedavg&quot;" in own
    assert "http-equiv=refresh" not in own
    assert [item.name for item in (tmp_path / "deep").iterdir()] == ["report.html"]


def test_plots_are_in_plotlys_words() -> None:
    """A line with a band is two lines and no dots; bars with long names lie, with their whiskers along them."""
    line = figures.Series("a", [1, 2], [0.1, 0.3], 0, spread=[0.1, 0.1])
    band, middle = page.plot(figures.Figure("n", "Learning", "t", "lines", "x", "y", [line], percent=True))["data"]
    assert (band["mode"], middle["mode"]) == ("lines", "lines")
    assert band["y"] == pytest.approx([0.2, 0.4, 0.2, 0.0])
    bars = figures.Series("b", ["a rather long name of a row"], [0.5], 0, spread=[0.1])
    (bar,) = page.plot(figures.Figure("n", "Parties", "t", "bars", "", "y", [bars]))["data"]
    assert (bar["orientation"], bar["x"], bar["y"]) == ("h", [0.5], ["a rather long name<br>of a row"])
    assert "error_x" in bar
    assert page.plot(figures.Figure("n", "Parties", "t", "bars", "party", "y", [bars]))["data"][0]["x"] == bars.x


def test_what_a_page_quotes_cannot_break_out(runs: Path, tmp_path: Path) -> None:
    """Markup in a name is shown, not obeyed."""
    odd = tmp_path / "</script><script>alert(1)</script>".replace("/", "_")
    shutil.copytree(runs / "fedavg-0", odd)
    (odd / "result.json").unlink()
    config = (odd / "config.toml").read_text().replace('dataset = "csbm"', 'dataset = "<b>x</b>"')
    (odd / "config.toml").write_text(config[: config.index("[data]")])
    text = page.render(reports.make([odd])).replace(page.library(), "")
    assert "<script>alert" not in text
    assert "<b>x" not in text
    assert page.script_json("</script>") == '"\\u003c/script>"'


def test_a_run_in_progress_loads_itself_again(going: Path) -> None:
    """Its page tells how far it is, from whole lines only, and nothing in its folder is touched."""
    before = {item.name: item.read_bytes() for item in going.iterdir()}
    made = reports.make([going])
    text = page.render(made)
    assert "<meta http-equiv=refresh content=5>" in text
    assert "going: round 2 of 4" in text
    assert "Runs still going: 1" in text
    assert made.rows[0].runs[0].result.rounds == 2
    assert {item.name: item.read_bytes() for item in going.iterdir()} == before


def test_following_ends_with_the_run(runs: Path, going: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page is written anew at every look, until the run is over."""
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
    made = table.table(rows, recompute.majority)
    cell = made.columns[1].cells[0].text()
    assert re.fullmatch(r"\d+\.\d\d ± \d+\.\d\d", cell)
    assert cell in table.markdown(made)
    assert cell.replace("±", "\\pm") in table.latex(made)
    assert table.markdown(made).count("**") % 2 == 0
    assert "accuracy \\%" in table.latex(made)
    best = made.columns[1].best()
    assert best is not None
    assert f"**{made.columns[1].cells[best].text()}**" in table.markdown(made)


def test_figures_for_papers(runs: Path, tmp_path: Path) -> None:
    """One PNG and one SVG a figure; in an SVG text stays text, and the same run gives the same bytes."""
    made = reports.make([runs], embeddings="pca")
    chosen = {"accuracy-round", "party-homophily", "minority", "bytes", "labels", "embedding-party-0"}  # one of each kind
    made = replace(made, figures=[figure for figure in made.figures if figure.name in chosen])
    reports.write(made, png=tmp_path / "png", svg=tmp_path / "svg")
    names = {figure.name for figure in made.figures}
    assert names == chosen
    assert {item.stem for item in (tmp_path / "png").iterdir()} == {item.stem for item in (tmp_path / "svg").iterdir()} == names
    assert all(item.read_bytes().startswith(b"\x89PNG") for item in (tmp_path / "png").iterdir())
    assert ">fedavg</text>" in (tmp_path / "svg" / "accuracy-round.svg").read_text()
    assert matplotlib.draw(made.figures[0], "svg") == (tmp_path / "svg" / f"{made.figures[0].name}.svg").read_bytes()


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
    "no name": (["good", "--html", ""], "'.' is no name for a file"),
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
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert sentence in told
    assert len(told.strip().splitlines()) == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("module", "forms"), [("plotly", {"html": "r.html"}), ("matplotlib", {"png": "p"})])
def test_a_missing_library_is_named(
    module: str, forms: dict[str, str], runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the extra, the sentence says what to install, and nothing is written."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(AtollError, match=rf"{module}, which is not installed; run `pip install \"atoll\[report\]\"`"):
        reports.write(reports.make([runs], embeddings="none"), **{name: tmp_path / place for name, place in forms.items()})
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium")
def test_the_page_in_a_real_browser(runs: Path, tmp_path: Path) -> None:
    """Figures are drawn, a click sorts the table, the theme turns, a phone needs no sideways scrolling; nothing complains."""
    made = reports.make([runs], embeddings="pca")
    reports.write(made, html=tmp_path / "report.html")
    with Browser() as browser:
        browser.open(tmp_path / "report.html")
        drawn = "[...document.querySelectorAll('.plot')].filter(e => e.querySelector('.main-svg .trace, .main-svg .hm')).length"
        assert browser.evaluate(drawn) == len(made.figures)
        shown = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent)"
        assert browser.evaluate(shown) == ["fedavg", "local"]
        browser.click("thead th:first-child button")
        assert browser.evaluate(shown) == ["fedavg", "local"]
        browser.click("thead th:first-child button")
        assert browser.evaluate(shown) == ["local", "fedavg"]
        browser.click("thead th:nth-child(9) button")
        assert browser.evaluate("document.querySelector('thead th:nth-child(9)').textContent") == "MB up"
        assert browser.evaluate("document.querySelector('thead th:nth-child(9)').getAttribute('aria-sort')") == "descending"
        assert browser.evaluate(shown) == ["fedavg", "local"]
        paint = "getComputedStyle(document.body).backgroundColor"
        light = browser.evaluate(paint)
        browser.click("#theme")
        assert browser.evaluate(paint) != light
        assert browser.complaints == []
        browser.click("#theme")
        browser.evaluate("sessionStorage.clear()")
        browser.open(tmp_path / "report.html", width=390, height=844, dark=True)
        assert browser.evaluate(paint) != light
        assert browser.evaluate("document.documentElement.scrollWidth") <= 390
        assert browser.evaluate(drawn) == len(made.figures)
        assert browser.complaints == []
        assert browser.requests == [(tmp_path / "report.html").resolve().as_uri()]
