"""TensorBoard's events say what the history says."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from atoll.cli import main

GRAPH = ["--dataset", "csbm", "--set", "nodes=80", "--partition", "random", "--parties", "2"]
RUN = ["run", "local", *GRAPH, "--rounds", "2", "--quiet", "--tensorboard"]


def call(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """The exit code of a command, run in this process."""
    monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
    try:
        main.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def test_events_are_the_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scalar for every number of every round, under the run's folder."""
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason='pip install "atoll[tensorboard]"'
    )
    assert call(monkeypatch, *RUN, "--out", str(tmp_path / "run")) == 0
    events = accumulator.EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    rows = [json.loads(line) for line in (tmp_path / "run" / "history.jsonl").read_text().splitlines()]
    found = [(event.step, event.value) for event in events.Scalars("test_accuracy")]
    assert found == [(row["round"], pytest.approx(row["accuracy"])) for row in rows]
    assert {"train_loss", "val_loss", "bytes_up", "bytes_down_total", "seconds_total"} <= set(events.Tags()["scalars"])
    assert [event.value for event in events.Scalars("bytes_up_total")] == [0.0, 0.0]  # local sends nothing


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Without --out, or without the library: one sentence, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    assert call(monkeypatch, *RUN) == 2
    assert "give --out as well" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    assert call(monkeypatch, *RUN, "--out", "run") == 2
    assert 'pip install "atoll[tensorboard]"' in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
