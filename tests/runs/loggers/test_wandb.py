"""Weights & Biases gets configuration, rounds and summary: the real package offline, and what it is called with by a stand-in."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError
from atoll.runs.loggers.wandb import ID_FILE

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 2, "rounds": 2, "loggers": ["wandb"]}


class NoAccount(Exception):
    """Stands for the package's own error."""


class StandIn(SimpleNamespace):
    """What atoll uses of the package."""

    def __init__(self) -> None:
        super().__init__(run=None, started=[], errors=SimpleNamespace(Error=NoAccount), Settings=SimpleNamespace)
        self.logins = 0

    def setup(self) -> SimpleNamespace:
        """Its own settings."""
        return SimpleNamespace(settings=SimpleNamespace(mode="online"))

    def login(self) -> None:
        """Without an account."""
        self.logins += 1
        raise NoAccount("No API key configured.")

    def init(self, **given: Any) -> SimpleNamespace:
        """A run that keeps everything."""
        run = SimpleNamespace(given=given, rows=[], summary={}, codes=[])
        run.log = lambda row, step, commit: run.rows.append((step, row))
        run.finish = lambda exit_code: run.codes.append(exit_code)
        self.started.append(run)
        return run


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """The stand-in, offline; no setting of the user's own."""
    made = StandIn()
    monkeypatch.setitem(sys.modules, "wandb", made)  # type: ignore[arg-type]
    for name in ("PROJECT", "NAME", "DIR", "RUN_ID"):
        monkeypatch.delenv(f"WANDB_{name}", raising=False)
    monkeypatch.setenv("WANDB_MODE", "offline")
    return made


def test_it_gets_configuration_rounds_and_summary(package: StandIn, tmp_path: Path) -> None:
    """Numbers of every round under the names of the history's columns; the best round's at the end."""
    result = atoll.run("fedavg", **TINY, seed=4, out=tmp_path / "run")
    (run,) = package.started
    assert run.given["config"] == result.config.to_dict()
    assert (run.given["project"], run.given["name"]) == ("atoll", "fedavg csbm seed 4")
    assert run.given["dir"] == tmp_path / "run"
    table = result.history.drop(columns=["test_party_accuracy", "test_party_minority_accuracy"])
    assert run.rows == [(row["round"], row) for row in table.to_dict("records")]
    assert run.summary["best_test_accuracy"] == result.metrics["accuracy"]
    assert (run.summary["best_round"], run.codes) == (result.best_round, [0])


def test_a_resumed_run_is_the_same_run_there(package: StandIn, tmp_path: Path) -> None:
    """By the id that the run's folder keeps."""
    atoll.run("local", **TINY, out=tmp_path / "run")
    atoll.resume(tmp_path / "run", rounds=3, loggers=["wandb"])
    first, second = package.started
    assert first.given["id"] == second.given["id"] == (tmp_path / "run" / ID_FILE).read_text()
    assert second.given["resume"] == "allow"
    assert [step for step, _ in second.rows] == [3]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"../../x", b"a" * 1000])
def test_a_damaged_id_is_not_used(package: StandIn, content: bytes, tmp_path: Path) -> None:
    """A new run there, and its id in place of the damaged one."""
    atoll.run("local", **TINY, out=tmp_path / "run")
    (tmp_path / "run" / ID_FILE).write_bytes(content)
    atoll.resume(tmp_path / "run", rounds=3, loggers=["wandb"])
    assert len(package.started[1].given["id"]) == 8
    assert (tmp_path / "run" / ID_FILE).read_text() == package.started[1].given["id"]


def test_its_own_variables_say_where_it_goes(package: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Project, name and id; a folder is not needed."""
    for name, value in (("PROJECT", "banks"), ("NAME", "tuesday"), ("RUN_ID", "abc")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    atoll.run("local", **TINY)
    given = package.started[0].given
    assert (given["project"], given["name"], given["id"]) == ("banks", "tuesday", "abc")


def test_a_run_that_fails_is_marked(package: StandIn) -> None:
    """It ends with another exit code."""

    def fail(row: Any) -> None:
        raise RuntimeError("no room")

    with pytest.raises(RuntimeError, match="no room"):
        atoll.run("local", **TINY, on_round=fail)
    assert package.started[0].codes == [1]


def test_what_is_missing_is_said_before_the_first_round(
    package: StandIn, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An account, or the package: one sentence, and nothing is written."""
    monkeypatch.delenv("WANDB_MODE")
    with pytest.raises(
        AtollError, match=r"cannot log in \(No API key configured\); run `wandb login`, or set WANDB_MODE=offline"
    ):
        atoll.run("local", **TINY, out=tmp_path / "run")
    assert package.logins == 1
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(AtollError, match=r'needs wandb, which is not installed; run `pip install "atoll\[wandb\]"`'):
        atoll.run("local", **TINY, out=tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_the_real_package_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into a run of the program's own, which stays open; then a run of atoll's own, in its folder."""
    wandb = pytest.importorskip("wandb", reason='pip install "atoll[wandb]"')
    for name, value in (("MODE", "offline"), ("SILENT", "true"), ("ERROR_REPORTING", "false")):
        monkeypatch.setenv(f"WANDB_{name}", value)
    mine = wandb.init(project="mine", dir=str(tmp_path), config={"mine": 1})
    try:
        result = atoll.run("fedavg", **TINY)
        assert dict(mine.config)["settings"]["model"] == "gcn"
        assert dict(mine.config)["mine"] == 1
        logged = dict(mine.summary)
        assert mine.step == 2
        assert logged["test_accuracy"] == pytest.approx(result.rows[-1]["accuracy"])
        assert logged["best_train_loss"] == pytest.approx(result.metrics["train_loss"])
    finally:
        mine.finish()
    atoll.run("fedavg", **TINY, out=tmp_path / "run")
    made = (tmp_path / "run" / ID_FILE).read_text()
    assert len(list((tmp_path / "run" / "wandb").glob(f"offline-run-*-{made}/run-{made}.wandb"))) == 1
    assert wandb.run is None
