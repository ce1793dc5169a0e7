"""There is one reader of run folders: whoever reads a run gets the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.errors import AtollError
from atoll.papers import execute
from atoll.reports.runs import read_run
from atoll.runs import runner
from atoll.runs.reader import read
from atoll.runs.result import Result
from atoll.runs.trial import Trial
from small import small

FIELDS = [
    *("scenario", "parties", "rounds", "best_round", "metrics", "last", "bytes", "seconds", "rows", "names", "missing"),
    *("partial", "last_partial", "warnings", "finished"),
]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A run on a modeled network, where the papers' tables look for it, and its result."""
    config = small("fedavg", rounds=3, latency=0.1, bandwidth=8.0)
    folder = execute.folder_of(config, tmp_path_factory.mktemp("runs"))
    return folder, runner.run(config, out=folder)


def fields(result: Result) -> dict[str, Any]:
    """Everything but the configuration and the tensors."""
    return {name: getattr(result, name) for name in FIELDS}


def test_every_reader_gives_what_the_run_gave(finished: tuple[Path, Result]) -> None:
    """From Python, for a report, for a paper's table, on resume and in a comparison; simulated seconds too."""
    folder, result = finished
    assert result.seconds["simulated"] > 0
    assert fields(read(folder)) == fields(result)
    assert fields(read_run(folder).result) == fields(result)
    assert fields(atoll.resume(folder)) == fields(result)
    assert fields(Trial("fedavg", result.config).run(folder, None, None)) == fields(result)
    (told,) = execute.results([result.config], folder.parent, {})
    assert told == result.to_dict()
    written = json.loads((folder / "result.json").read_text())
    assert {name: value for name, value in written.items() if not name.endswith("sha256")} == result.to_dict()


def test_the_state_is_that_of_the_last_round(finished: tuple[Path, Result]) -> None:
    """And only where it is asked for."""
    folder, result = finished
    again = read(folder)
    assert again.state["model"].keys() == result.state["model"].keys()
    assert all((again.state["model"][name] == value).all() for name, value in result.state["model"].items())
    assert read(folder, state=False).state == {}
    assert read(folder, history=False).rows == []


def test_a_run_that_is_still_going_is_read_as_far_as_it_is(finished: tuple[Path, Result], tmp_path: Path) -> None:
    """Its best round so far by the history, its traffic by the checkpoint; before one by the history."""
    source, result = finished
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    (folder / "result.json").unlink()
    going = read(folder)
    assert not going.finished
    assert going.seconds == pytest.approx(result.seconds, abs=1e-6)  # the history rounds them
    assert {**fields(going), "finished": True, "seconds": result.seconds} == fields(result)
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        (folder / name).unlink(missing_ok=True)
    with (folder / "history.jsonl").open("a") as file:
        file.write('{"round": 4, "acc')  # half written
    young = read(folder)
    assert (young.rounds, young.state) == (3, {})
    assert {way: young.bytes[way] for way in ("up", "down")} == {way: result.bytes[way] for way in ("up", "down")}


def test_a_result_of_an_earlier_version_is_read(finished: tuple[Path, Result], tmp_path: Path) -> None:
    """Before 0.2 the scenario was called setting, and there were neither checksums nor names nor absences."""
    source, result = finished
    folder = tmp_path / "run"
    shutil.copytree(source, folder)
    written = json.loads((folder / "result.json").read_text())
    new = ("scenario", "task", "sha256", "history_sha256", "names", "missing", "partial", "last_partial", "warnings")
    (folder / "result.json").write_text(json.dumps({name: value for name, value in written.items() if name not in new}))
    assert fields(read(folder)) == fields(result)


def test_a_result_without_its_checkpoint_says_so(finished: tuple[Path, Result], tmp_path: Path) -> None:
    """Its numbers can be read, its model cannot."""
    folder = tmp_path / "run"
    shutil.copytree(finished[0], folder)
    for name in ("checkpoint.safetensors", "checkpoint.previous.safetensors"):
        (folder / name).unlink(missing_ok=True)
    assert read(folder, state=False).metrics == finished[1].metrics
    with pytest.raises(AtollError, match="has no checkpoint that can be read; finish it with `atoll resume"):
        read(folder)
