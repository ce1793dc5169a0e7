"""`on_round` sees every round and may end the run, which a later resume continues with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import atoll
from atoll import wire
from atoll.errors import AtollError
from atoll.runs import loop, runner
from small import small

TINY: dict[str, Any] = {"dataset": "csbm", "nodes": 80, "partition": "random", "parties": 2}


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "gcfl", "nfedgnn"])
@pytest.mark.parametrize("settings", [{}, {"checkpoint_every": 3, "evaluate_every": 2}])
def test_a_stopped_run_is_complete_and_continues_exactly(algorithm: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """It has a result and a model of its rounds; resumed, its bits are those of a run that was never stopped."""
    config = small(algorithm, rounds=5, **settings)
    whole = runner.run(config, out=tmp_path / "whole")
    stopped = runner.run(config, out=tmp_path / "run", watch=lambda row, rounds: row["round"] < 3)
    assert (stopped.rounds, len(stopped.rows)) == (3, 3)
    read = atoll.read(tmp_path / "run")
    assert (read.rounds, read.finished, read.metrics) == (3, True, stopped.metrics)
    assert (tmp_path / "run" / "model" / "model.json").exists()
    resumed = runner.resume(tmp_path / "run")
    assert (resumed.rounds, resumed.best_round, resumed.bytes) == (5, whole.best_round, whole.bytes)
    for one, other in ((resumed.state, whole.state), (resumed.memory, whole.memory)):
        for (name, value), (_, same) in zip(wire.leaves(one), wire.leaves(other), strict=True):
            assert torch.equal(value, same) if isinstance(value, torch.Tensor) else value == same, name
    clock = {"seconds"}
    for row, same in zip(resumed.rows, whole.rows, strict=True):
        assert {name: row[name] for name in row if name not in clock} == {name: same[name] for name in same if name not in clock}


@pytest.mark.parametrize(("answer", "rounds"), [(False, 1), (np.False_, 1), (None, 3), (True, 3), (0, 3), ("", 3)])
def test_only_false_stops(answer: Any, rounds: int) -> None:
    """A function that returns nothing, or something by the way, does not end a run."""
    assert atoll.run("local", **TINY, rounds=3, on_round=lambda row: answer).rounds == rounds


def test_loggers_see_the_last_round_too() -> None:
    """`on_round` is called after them, and any of them may stop the run."""
    seen: list[int] = []
    result = atoll.run(
        "local",
        **TINY,
        rounds=9,
        loggers=[lambda row, rounds: seen.append(row["round"])],
        on_round=lambda row: row["round"] < 2,
    )
    assert (result.rounds, seen) == (2, [1, 2])
    assert atoll.run("local", **TINY, rounds=9, loggers=[lambda row, rounds: False]).rounds == 1


def test_resume_has_it_too(tmp_path: Path) -> None:
    """A finished run calls it for no round."""
    atoll.run("local", **TINY, rounds=2, out=tmp_path / "run", on_round=lambda row: False)
    seen: list[int] = []
    assert atoll.resume(tmp_path / "run", on_round=lambda row: seen.append(row["round"])).rounds == 2
    atoll.resume(tmp_path / "run", on_round=lambda row: seen.append(row["round"]))
    assert seen == [2]


def test_time_in_a_callback_is_not_the_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow logger does not make the run look slow."""
    clock = [0.0]
    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])

    def slow(row: Any, rounds: int) -> None:
        clock[0] += 1000.0

    result = runner.run(small("local", rounds=3), watch=slow)
    assert [row["seconds"] for row in result.rows] == [0.0, 0.0, 0.0]


def test_what_cannot_be_called_is_refused() -> None:
    """In one sentence."""
    with pytest.raises(AtollError, match="on_round is 'print' but must be a function of one argument, a round's row"):
        atoll.run("local", **TINY, on_round="print")  # type: ignore[arg-type]
