"""`atoll predict`: a file that is whole or not there, a summary, and one sentence for each mistake."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import atoll
from atoll.cli import main
from atoll.runs import runner
from small import small

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run."""
    folder = tmp_path_factory.mktemp("runs") / "a"
    runner.run(small("fedper"), out=folder)
    return folder


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Call:
    """Exit code, output and errors of a command."""
    monkeypatch.chdir(tmp_path)

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", "predict", *map(str, words)])
        try:
            main.main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        told = capsys.readouterr()
        return code, told.out, told.err

    return call


def test_tables_for_other_programs(run: Path, call: Call) -> None:
    """CSV and Parquet hold what `predict` gives in Python."""
    expected = atoll.load_model(run).predict()
    assert call(run, "--out", "some/p.csv")[0] == 0
    assert call(run, "--out", "p.parquet", "--party", 1)[0] == 0
    written = pd.read_csv("some/p.csv")
    assert list(written.columns) == ["id", "party", "split", "label", "class", "p[0]", "p[1]", "p[2]"]
    assert written["class"].tolist() == expected["class"].tolist()
    assert written["p[1]"].to_numpy(dtype="float32") == pytest.approx(expected["p[1]"].to_numpy())
    part = pd.read_parquet("p.parquet")
    assert part.astype(object).equals(expected[expected["party"] == 1].reset_index(drop=True).astype(object))


def test_the_summary(run: Path, call: Call) -> None:
    """Nodes by class, and the metrics of the run."""
    code, out, _ = call(run)
    result = atoll.read(run)
    assert code == 0
    assert f"fedper, round {result.best_round}: 60 rows" in out
    counts = atoll.load_model(run).predict()["class"].value_counts()
    assert all(f"class {label}" in out for label in counts.index)
    assert f"{100 * result.metrics['accuracy']:.2f} %  of test nodes" in out
    assert "training loss" not in out
    assert not list(Path().iterdir())


def test_new_nodes(run: Path, call: Call) -> None:
    """From a folder, for a party."""
    from atoll.data import files

    files.save(atoll.load("csbm", nodes=20, features=12, classes=3, graph_seed=8), Path("new"))
    code, out, _ = call(run, "--data", "new", "--party", 2, "--out", "p.csv")
    assert code == 0
    assert "20 rows" in out
    assert "of labeled nodes" in out
    assert "minority" not in out
    assert pd.read_csv("p.csv")["party"].tolist() == [2] * 20


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--out", "p.txt"], "--out is p.txt; name a file that ends in .csv or .parquet"),
        (["--out", "old.csv"], "old.csv exists already; choose another --out, or overwrite it with --force"),
        (["--party", "9"], "The model has no party '9'; it has 3, numbered from 0"),
        (["--data", "nowhere"], "Every party of fedper has a model of its own; say whose the new nodes are"),
        (["--data", "nowhere", "--party", "1"], "There is no folder or file nowhere"),
        (["--run", "a"], "is not a kit, so it holds one run; leave --run out"),
    ],
)
def test_mistakes(words: list[str], sentence: str, run: Path, call: Call) -> None:
    """Exit code 2, one line, nothing written."""
    Path("old.csv").write_text("mine")
    code, out, told = call(run, *words)
    assert (code, out) == (2, "")
    assert sentence in told
    assert len(told.strip().splitlines()) == 1
    assert [path.name for path in Path().iterdir()] == ["old.csv"]
    assert Path("old.csv").read_text() == "mine"


def test_overwriting_has_to_be_said(run: Path, call: Call) -> None:
    """With --force the file is replaced."""
    Path("old.csv").write_text("mine")
    assert call(run, "--out", "old.csv", "--force")[0] == 0
    assert len(pd.read_csv("old.csv")) == 60


def test_a_folder_that_is_not_a_run(call: Call) -> None:
    """Nothing is there, or no model."""
    Path("empty").mkdir()
    assert "There is no folder nowhere" in call("nowhere")[2]
    assert "empty holds no trained model" in call("empty")[2]
