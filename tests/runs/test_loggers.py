"""Loggers: called with every round, found by name, and one file to add, in a program or in a package of its own."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.columns import Columns
from atoll.runs.loggers import LOGGERS, open_loggers
from small import small

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 2, "rounds": 3}


class Toy:
    """A logger from outside the package: keeps what it is called with."""

    made: list[Toy] = []

    def __init__(self, label: str, folder: Path | None) -> None:
        self.label, self.folder, self.rounds, self.closed = label, folder, [], False
        Toy.made.append(self)

    def __enter__(self) -> Toy:
        return self

    def __exit__(self, *error: object) -> None:
        self.closed = True

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Keep the round."""
        self.rounds.append((row["round"], rounds))


@pytest.mark.parametrize("how", ["name", "class", "object"])
def test_a_logger_of_ones_own(how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its registered name, as a class or as an object: called with every round, closed at the end."""
    monkeypatch.setattr(Toy, "made", [])
    LOGGERS.register("toy", Toy)
    try:
        given: Any = {"name": "toy", "class": Toy, "object": Toy("local", tmp_path / "run")}[how]
        atoll.run("local", **TINY, out=tmp_path / "run", loggers=[given])
    finally:
        LOGGERS.unregister("toy")
    toy = Toy.made[-1]
    assert (toy.label, toy.folder) == ("local", tmp_path / "run")
    assert (toy.rounds, toy.closed) == ([(1, 3), (2, 3), (3, 3)], True)


def test_a_function_is_a_logger() -> None:
    """Called with each row of the history, in order, under the names of the table's columns."""
    rows: list[Any] = []
    result = atoll.run("local", **TINY, loggers=[lambda row, rounds: rows.append(row)])
    assert rows == result.history.to_dict("records")


def test_a_logger_is_closed_where_the_run_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of a run is the run's, and every logger is closed."""
    monkeypatch.setattr(Toy, "made", [])

    def fail(row: Mapping[str, Any], rounds: int) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        atoll.run("local", **TINY, loggers=[Toy, fail])
    assert Toy.made[0].closed


def test_a_logger_is_told_of_the_beginning_and_the_end() -> None:
    """Where it has `configure` and `finish`: with what config.toml and result.json hold, before and after all rounds."""
    told: list[Any] = []

    class Told(Toy):
        """Keeps what it is told."""

        def configure(self, config: Mapping[str, Any]) -> None:
            """Keep it."""
            told.append(config)

        def finish(self, result: Mapping[str, Any]) -> None:
            """Keep it."""
            told.append((len(self.rounds), result))

    result = atoll.run("local", **TINY, seed=5, loggers=[Told])
    assert told == [result.config.to_dict(), (3, result.to_dict())]
    assert told[0]["seed"] == 5


def test_a_logger_that_cannot_open_closes_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing stays open, and nothing runs."""
    monkeypatch.setattr(Toy, "made", [])

    class Refusing(Toy):
        def __enter__(self) -> Toy:
            raise AtollError("no account")

    with pytest.raises(AtollError, match="no account"):
        atoll.run("local", **TINY, loggers=[Toy, Refusing])
    assert (Toy.made[0].closed, Toy.made[0].rounds) == (True, [])


def test_totals_go_on_after_a_resume_and_when_rounds_are_done_again(tmp_path: Path) -> None:
    """A sum over all rounds so far is that of the whole run, wherever the logger joined."""
    whole = atoll.run("fedavg", **TINY, out=tmp_path / "run")
    expected = whole.history["bytes_up_total"].tolist()
    assert expected[2] == 3 * expected[0] > 0
    seen: list[Any] = []
    with open_loggers([lambda row, rounds: seen.append(row["bytes_up_total"])], "", tmp_path / "run") as logger:
        for row in [*whole.rows[1:], *whole.rows[1:]]:
            logger(row, 3)
    assert seen == 2 * expected[1:]
    atoll.resume(tmp_path / "run", rounds=4, loggers=[lambda row, rounds: seen.append(row["bytes_up_total"])])
    assert seen[-1] == 4 * expected[0]


def test_mistakes_get_one_sentence() -> None:
    """An unknown name is answered with what there is, before anything runs."""
    with pytest.raises(AtollError, match="There is no logger 'tensorbord'; did you mean 'tensorboard'"):
        atoll.run("local", **TINY, loggers=["tensorbord"])
    with pytest.raises(AtollError, match=r"loggers holds 3; give a name \(csv, mlflow, progress, tensorboard, wandb\), a logger"):
        atoll.run("local", **TINY, loggers=[3])  # type: ignore[list-item]
    with pytest.raises(AtollError, match="The logger csv writes into the run's folder; give --out as well"):
        atoll.run("local", **TINY, loggers=["csv"])


def read_csv(path: Path) -> list[dict[str, float | None]]:
    """The table's numbers; None where a cell is empty."""
    with path.open(newline="") as file:
        return [{name: float(value) if value else None for name, value in row.items()} for row in csv.DictReader(file)]


def test_the_csv_is_the_history(tmp_path: Path) -> None:
    """Every number of every round, also where the first rounds are not evaluated."""
    result = runner_with_csv(tmp_path / "run", rounds=4, evaluate_every=2)
    rows = read_csv(tmp_path / "run" / "history.csv")
    assert [row["round"] for row in rows] == [1, 2, 3, 4]
    assert rows[0]["test_accuracy"] is None
    columns = Columns()
    for row, told in zip(rows, map(columns, result.rows), strict=True):
        numbers = {name: value for name, value in told.items() if isinstance(value, (int, float))}
        assert {name: value for name, value in row.items() if value is not None} == numbers


def test_a_resumed_run_continues_its_csv(tmp_path: Path) -> None:
    """Rounds that are run again after a crash replace their lines."""
    folder = tmp_path / "run"
    whole = runner_with_csv(folder, rounds=3)
    with open_loggers(["csv"], "", folder) as logger:
        for row in whole.rows[1:]:
            logger({**row, "accuracy": 0.5}, 3)
    rows = read_csv(folder / "history.csv")
    assert [(row["round"], row["test_accuracy"]) for row in rows] == [(1, whole.rows[0]["accuracy"]), (2, 0.5), (3, 0.5)]
    assert [row["bytes_up_total"] for row in rows] == whole.history["bytes_up_total"].tolist()


def runner_with_csv(folder: Path, **values: Any) -> atoll.Result:
    """A run whose rounds go to history.csv as well."""
    with open_loggers(["csv"], "fedavg", folder) as logger:
        return runner.run(small("fedavg", **values), out=folder, watch=logger)


PACKAGE = '''
"""A package that adds a logger and an engine to atoll."""
from atoll.engines import inprocess

class Lines:
    def __init__(self, label, folder): self.path = folder / "lines.txt"
    def __enter__(self): return self
    def __exit__(self, *error): pass
    def __call__(self, row, rounds):
        with self.path.open("a") as file: print(row["round"], rounds, file=file)

class Counting:
    def __init__(self, inner): self.inner, self.messages = inner, 0
    def deliver(self, message):
        self.messages += 1
        return self.inner.deliver(message)
    def state(self): return self.inner.state()
    def restore(self, memory): self.inner.restore(memory)

def connect(make, parties, settings): return Counting(inprocess.connect(make, parties, settings))
'''


def test_another_package_adds_a_logger_and_an_engine(tmp_path: Path) -> None:
    """Two entry points, no import of the package by the user: `--log lines --engine counting`."""
    site = tmp_path / "site"
    about = site / "atoll_toys-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "atoll_toys.py").write_text(PACKAGE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: atoll-toys\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[atoll.loggers]\nlines = atoll_toys:Lines\n[atoll.engines]\ncounting = atoll_toys\n")
    words = [
        "run",
        "local",
        "--dataset",
        "csbm",
        "--set",
        "nodes=80",
        "--partition",
        "random",
        "--parties",
        "2",
        "--rounds",
        "2",
        "--quiet",
    ]
    words += ["--log", "lines", "--log", "csv", "--engine", "counting", "--out", "run"]
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli.main", *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "lines.txt").read_text() == "1 2\n2 2\n"
    assert len(read_csv(tmp_path / "run" / "history.csv")) == 2
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == 2
