"""A run that is extended ends with the same bits as one that had this number of rounds from the start."""

from __future__ import annotations

import json
import shutil
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import wire
from atoll.cli import main
from atoll.errors import AtollError, AtollWarning
from atoll.runs import config as configuration
from atoll.runs import extension, runner
from atoll.runs.folder import Folder
from atoll.runs.model_files import ModelFiles
from atoll.runs.reader import read
from earlier import agree, tolerance
from small import ALGORITHMS, small

FILES = Path(__file__).parent / "files" / "0.1.0"
CLOCK = ("seconds", "sha256", "history_sha256", "warnings")


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """Without the clock's values, and without the note that the end was moved."""
    return {name: value for name, value in row.items() if name not in CLOCK}


def assert_same(one: Path, other: Path) -> None:
    """The same bits in state, memory, ledger, best round, model, history, result and configuration."""
    left, right = Folder(one).look(), Folder(other).look()
    assert left is not None
    assert right is not None
    for part in ("state", "memory", "ledger", "best"):
        mine, theirs = (dict(wire.leaves({part: held.get(part, {})})) for held in (left, right))
        assert mine.keys() == theirs.keys(), part
        for name, value in mine.items():
            assert torch.equal(value, theirs[name]) if isinstance(value, torch.Tensor) else value == theirs[name], name
    assert untimed(left["progress"]) == untimed(right["progress"])
    rows = [[untimed(json.loads(line)) for line in (path / "history.jsonl").read_text().splitlines()] for path in (one, other)]
    assert rows[0] == rows[1]
    results = [untimed(json.loads((path / "result.json").read_text())) for path in (one, other)]
    assert results[0] == results[1]
    assert Folder.open(one)[1] == Folder.open(other)[1]


def assert_same_model(one: Path, other: Path) -> None:
    """The same bits in model/."""
    left, right = ModelFiles.read(one), ModelFiles.read(other)
    assert left.description == right.description
    for part in ("state", "memory"):
        mine, theirs = (dict(wire.leaves(getattr(model, part))) for model in (left, right))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(value, theirs[name]) for name, value in mine.items())


EVERY_ROUND = ("fedavg", "gcfl", "glasu", "nfedgnn")  # the others where the last round before is evaluated as it would not be
CASES = [
    *((algorithm, 2) for algorithm in ALGORITHMS),
    *(pytest.param(name, 1, marks=[] if name in EVERY_ROUND else pytest.mark.full) for name in ALGORITHMS),
]


@pytest.mark.parametrize(("algorithm", "every"), CASES)
def test_an_extended_run_is_a_longer_run(algorithm: str, every: int, tmp_path: Path) -> None:
    """Three rounds extended to five equal five; the third is evaluated every second round only because it was the last."""
    settings = {"evaluate_every": every, "checkpoint_every": 10}
    runner.run(small(algorithm, rounds=5, **settings), out=tmp_path / "whole")
    runner.run(small(algorithm, rounds=3, **settings), out=tmp_path / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", ".*nodes are at no party")
        result = runner.resume(tmp_path / "run", ending={"rounds": 5})
    assert result.rounds == 5
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert_same_model(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("previous", [True, False])
def test_without_a_checkpoint_before_the_last_the_rounds_are_done_again(previous: bool, tmp_path: Path) -> None:
    """Earlier versions wrote none right before the last round: an older one serves, or the beginning."""
    settings = {"evaluate_every": 4, "checkpoint_every": 2}
    runner.run(small("fedspray", rounds=9, **settings), out=tmp_path / "whole")
    older = small("fedspray", rounds=3, **settings)
    runner.run(older, out=tmp_path / "run")
    folder = tmp_path / "run"
    if not previous:
        (folder / "checkpoint.previous.safetensors").unlink()
    atoll.resume(folder, rounds=9)
    assert_same(folder, tmp_path / "whole")


def test_killed_while_it_is_extended(tmp_path: Path) -> None:
    """The first resume says how many rounds; the second needs no option, and no result is there in between."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        assert rounds == 7
        if row["round"] == 5:
            raise Broken

    settings = {"evaluate_every": 2, "checkpoint_every": 1, "participation": 0.7}
    runner.run(small("fedavg", rounds=7, **settings), out=tmp_path / "whole")
    runner.run(small("fedavg", rounds=3, **settings), out=tmp_path / "run")
    with pytest.raises(Broken):
        runner.resume(tmp_path / "run", watch=watch, ending={"rounds": 7})
    assert not (tmp_path / "run" / "result.json").exists()
    assert not read(tmp_path / "run").finished
    assert ModelFiles.read(tmp_path / "run").description["best_round"] <= 3
    assert runner.resume(tmp_path / "run").rounds == 7
    assert_same(tmp_path / "run", tmp_path / "whole")
    assert_same_model(tmp_path / "run", tmp_path / "whole")


def test_killed_between_config_and_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """config.toml is written first; whatever comes after it is done by the next resume."""
    settings = {"evaluate_every": 2}
    runner.run(small("fedavg", rounds=5, **settings), out=tmp_path / "whole")
    runner.run(small("fedavg", rounds=3, **settings), out=tmp_path / "run")
    write = extension.storage.write_whole

    def die(path: Path, data: bytes) -> None:
        write(path, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(extension.storage, "write_whole", die)
        with pytest.raises(KeyboardInterrupt):
            runner.resume(tmp_path / "run", ending={"rounds": 5})
    assert Folder.open(tmp_path / "run")[1].run.rounds == 5
    with pytest.warns(AtollWarning, match=r"run.rounds in config.toml is 5; the run began with 3"):
        runner.resume(tmp_path / "run")
    assert_same(tmp_path / "run", tmp_path / "whole")


def test_an_unfinished_run_may_be_made_shorter(tmp_path: Path) -> None:
    """As long as no round is undone: the round that is the last now is evaluated, as it would have been."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 3:
            raise Broken

    settings = {"evaluate_every": 2, "checkpoint_every": 1}
    runner.run(small("fedavg", rounds=3, **settings), out=tmp_path / "whole")
    with pytest.raises(Broken):
        runner.run(small("fedavg", rounds=9, **settings), out=tmp_path / "run", watch=watch)
    runner.resume(tmp_path / "run", ending={"rounds": 3})
    assert_same(tmp_path / "run", tmp_path / "whole")


@pytest.mark.parametrize("name", ["gcfl", "nfedgnn", "fedavg"])
@pytest.mark.parametrize("kind", ["finished", "interrupted"])
def test_a_run_of_an_earlier_version_is_extended(name: str, kind: str, tmp_path: Path) -> None:
    """Begun by 0.1.0 and extended here, every number is that of a longer run; ε only where no round was released twice.

    To the last bit where this machine rounds as the one did that the run was begun on.
    0.1.0 did not count training nodes of gcfl: its rounds have no training loss, and fewer bytes of evaluation.
    """
    folder = Path(shutil.copytree(FILES / f"{name}-{kind}", tmp_path / "run"))
    config, apart = Folder.open(folder)[1], tolerance(FILES / f"{name}-{kind}")
    whole = runner.run(configuration.from_dict(config.to_dict(), "config", {"rounds": 8}, warn=False))
    longer = atoll.resume(folder, rounds=8)
    twice = () if kind == "finished" else ("epsilon",)

    def numbers(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{key: value for key, value in row.items() if key not in (*CLOCK, *twice)} for row in rows]

    for row, same in zip(numbers(longer.rows), numbers(whole.rows), strict=True):
        assert agree(row, {key: value for key, value in same.items() if key in row or key != "train_loss"}, apart)
    traffic, wanted = ({key: value for key, value in run.bytes.items() if key != "evaluation"} for run in (longer, whole))
    assert (longer.rounds, longer.best_round, traffic) == (8, whole.best_round, wanted)
    mine, theirs = ({"state": run.state, "memory": run.memory} for run in (longer, whole))
    assert agree(mine, theirs, apart)
    assert Folder.open(folder)[1].run.rounds == 8
    assert atoll.resume(folder).rounds == 8


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that stopped early, by patience."""
    folder = tmp_path_factory.mktemp("stopped") / "run"
    result = runner.run(small("fedavg", rounds=200, patience=1, lr=0.3), out=folder)
    assert 1 < result.rounds < 200
    return folder


def test_a_run_that_stopped_early_says_so(stopped: Path, tmp_path: Path) -> None:
    """More rounds alone would change nothing; with more patience they do, exactly."""
    folder = Path(shutil.copytree(stopped, tmp_path / "run"))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    done = read(folder).rounds
    with pytest.raises(AtollError, match=rf"stopped after round {done} because 1 rounds had .* also give --set patience=N"):
        atoll.resume(folder, rounds=300)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    atoll.resume(folder, rounds=done + 2, patience=0)
    runner.run(small("fedavg", rounds=done + 2, patience=0, lr=0.3), out=tmp_path / "whole")
    assert_same(folder, tmp_path / "whole")


def test_a_run_that_reached_its_target_says_so(tmp_path: Path) -> None:
    """Likewise."""
    runner.run(small("fedavg", rounds=5, target_accuracy=0.01), out=tmp_path / "run")
    with pytest.raises(AtollError, match=r"stopped after round 1 because the validation accuracy had reached 0\.01; to continue"):
        atoll.resume(tmp_path / "run", rounds=6)
    assert atoll.resume(tmp_path / "run", rounds=3, target_accuracy=0).rounds == 3


OWN = '''
from dataclasses import dataclass
import atoll
from atoll.algorithms.fedavg import Cohort as Base, Settings as Plain, evaluate, start, step

SCENARIOS = ("horizontal",)

@dataclass(frozen=True)
class Settings(Plain):
    """Settings."""
    rounds: int = atoll.setting(3, "How many rounds the schedule has.", low=1)

class Cohort(Base):
    """Parties."""
'''


def test_a_schedule_over_the_rounds_is_not_stretched(tmp_path: Path) -> None:
    """An algorithm that is given the number of rounds may compute with it."""
    own = tmp_path / "own.py"
    own.write_text(OWN)
    shape = {"dataset": "csbm", "partition": "random", "parties": 2, "nodes": 60}
    atoll.run(str(own), **shape, **{"run.rounds": 2}, out=tmp_path / "run")
    with pytest.raises(AtollError, match="has a setting `rounds` of its own, so its rounds may depend on their number"):
        atoll.resume(tmp_path / "run", rounds=4, algorithm=own)


@pytest.mark.parametrize(
    ("ending", "sentence"),
    [
        ({"rounds": 2}, r"run has done 3 rounds, more than 2; give --rounds 3 or more, or start a new run\."),
        ({"rounds": 0}, "rounds is 0 but must be at least 1"),
        ({"rounds": 2.5}, "rounds is 2.5"),
        ({"rounds": "many"}, "rounds is 'many'"),
        ({"lr": "0.1"}, "'lr' cannot be changed when a run is resumed, only patience, rounds, target_accuracy"),
    ],
)
def test_bad_ends_are_one_sentence(ending: dict[str, Any], sentence: str, stopped: Path, tmp_path: Path) -> None:
    """Nothing is touched."""
    runner.run(small("fedavg"), out=tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(AtollError, match=sentence):
        runner.resume(tmp_path / "run", ending=ending)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_that_does_not_fit_is_not_touched(tmp_path: Path) -> None:
    """Not even config.toml, and no checkpoint is dropped."""
    graph = atoll.load("csbm", nodes=60)
    given = {"partition": "random", "parties": 2}
    atoll.run("fedavg", dataset=graph, **given, rounds=3, evaluate_every=2, out=tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(AtollError, match="the data has 50 nodes where there were 60"):
        atoll.resume(tmp_path / "run", dataset=atoll.load("csbm", nodes=50), rounds=5)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`atoll resume RUN --rounds N`; an end that cannot be is exit code 2."""
    runner.run(small("fedavg"), out=tmp_path / "run")

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["atoll", "resume", str(tmp_path / "run"), "--quiet", *words])
        try:
            main.main()
        except SystemExit as end:
            return int(end.code or 0)
        return 0

    assert call("--rounds", "5", "--set", "patience=0") == 0
    assert json.loads((tmp_path / "run" / "result.json").read_text())["rounds"] == 5
    assert "of 5" in capsys.readouterr().out
    assert call("--rounds", "4") == 2
    assert "has done 5 rounds" in capsys.readouterr().err
