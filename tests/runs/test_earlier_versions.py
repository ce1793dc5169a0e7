"""Run folders of version 0.1.0 (made by it, in files/0.1.0) are read, reported and resumed, although settings have new names."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import reports
from atoll.errors import AtollError
from atoll.runs import config, runner
from atoll.runs.folder import Folder
from earlier import agree, tolerance

FILES = Path(__file__).parent / "files" / "0.1.0"
ALGORITHMS = ("fedavg", "gcfl", "nfedgnn")
RENAMED = {  # what the folders' config.toml say by the old names
    "fedavg": {"run.select_by": "accuracy", "data.edge_signal": 1.5, "dp.protected_unit": "party", "dp.evaluation_noise": 0.5},
    "gcfl": {
        "settings.rounds_before_split": 1,
        "settings.sequence_length": 2,
        "run.on_missing": "stop",
        "data.flip_probability": 0.1,
    },
    "nfedgnn": {"settings.initial_weights": "own", "settings.regularization": 7.0, "data.connected_train_share": 0.2},
}


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A copy of one of the folders."""
    shutil.copytree(FILES / request.param, tmp_path / request.param)
    return tmp_path / request.param


def named(kind: str) -> Any:
    """A parametrization with all folders of a kind."""
    return pytest.mark.parametrize("folder", [f"{name}-{kind}" for name in ALGORITHMS], indirect=True)


@named("finished")
def test_their_settings_have_the_values_of_the_old_names(folder: Path) -> None:
    """The old names are read in silence: nobody typed them."""
    config = Folder.open(folder)[1]
    for name, value in RENAMED[config.algorithm].items():
        group, _, setting = name.partition(".")
        assert getattr(getattr(config, group), setting) == value, name


@named("interrupted")
def test_an_interrupted_run_ends_as_it_would_have_in_its_own_version(folder: Path) -> None:
    """Resumed after round 2, every later round and the last state have the same bits on a machine that rounds alike.

    Evaluations have counted training nodes too since then: a metric more, and 16 bytes more of each party.
    """
    expected = FILES / folder.name.replace("interrupted", "finished")
    apart = tolerance(expected)
    result = runner.resume(folder)
    rows = [json.loads(line) for line in (expected / "history.jsonl").read_text().splitlines()]
    assert agree([common(row, old) for row, old in zip(result.rows, rows, strict=True)], [untimed(row) for row in rows], apart)
    written, wanted = (json.loads((path / "result.json").read_text()) for path in (folder, expected))
    for name in ("rounds", "best_round", "parties", "setting"):
        assert written[name] == wanted[name], name
    for name in ("metrics", "last"):
        assert agree(common(written[name], wanted[name]), untimed(wanted[name]), apart), name
    pairs = zip(result.rows, rows, strict=True)
    counted = 16 * written["parties"] * sum("train_loss" in row and "train_loss" not in old for row, old in pairs)
    traffic, before = (dict(each["bytes"]) for each in (written, wanted))
    assert traffic.pop("evaluation")["up"] == before.pop("evaluation")["up"] + counted
    assert traffic == before
    mine, theirs = Folder(folder).look(), Folder(expected).look()
    assert mine is not None
    assert theirs is not None
    for part in ("state", "memory"):
        assert agree(mine[part], theirs[part], apart), part
    training = torch.tensor([is_training for _, _, is_training in theirs["ledger"]["keys"]])
    assert mine["ledger"]["keys"] == theirs["ledger"]["keys"]
    assert torch.equal(mine["ledger"]["rows"][training], theirs["ledger"]["rows"][training])


@named("interrupted")
def test_a_setting_that_was_changed_under_its_old_name_is_noticed(folder: Path) -> None:
    """The checkpoint says what the run began with, by the old names; another value in config.toml is refused by the new name."""
    source = folder / "config.toml"
    text = source.read_text()
    assert "mu = 4.0" in text
    source.write_text(text.replace("mu = 4.0", "feature_signal = 4.5"))
    with pytest.raises(AtollError, match="does not fit") as caught:
        runner.resume(folder)
    assert "feature_signal is 4.5 and was 4.0" in str(caught.value) or "the data has" in str(caught.value)


@pytest.mark.parametrize("folder", ["nfedgnn-interrupted"], indirect=True)
def test_the_target_still_only_moves_the_end(folder: Path) -> None:
    """`target` was one of the settings that may change on resume; it is under its new name too."""
    source = folder / "config.toml"
    text = source.read_text()
    source.write_text(text.replace("\ntarget = 0.0", "\ntarget_accuracy = 0.01"))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = runner.resume(folder)
    assert any("run.target_accuracy in config.toml is 0.01; the run began with 0.0" in str(each.message) for each in caught)
    assert result.rounds == 2


@named("finished")
def test_a_finished_run_is_reported(folder: Path, tmp_path: Path) -> None:
    """A page is made of it."""
    reports.write(reports.make([folder], embeddings="none"), html=tmp_path / "report.html")
    assert json.loads((folder / "result.json").read_text())["algorithm"] in (tmp_path / "report.html").read_text()


def untimed(row: dict[str, Any]) -> dict[str, Any]:
    """A row without its time, and without ε: round 3 was released before the interruption too, and counts twice."""
    return {name: value for name, value in row.items() if "seconds" not in name and name != "epsilon"}


def common(row: dict[str, Any], old: dict[str, Any]) -> dict[str, Any]:
    """What a row says that an earlier version's said too."""
    return untimed({name: value for name, value in row.items() if name in old or name != "train_loss"})


def test_an_algorithm_that_was_renamed_is_found_by_its_settings() -> None:
    """`fedlit` of 0.1.0 is `fedlit_deep`; a configuration of today's `fedlit` stays what it is."""
    before = {"algorithm": "fedlit", "dataset": "csbm", "settings": {"types": 3, "iterations": 2}}
    read = config.from_dict(before, "config.toml", warn=False)
    assert (read.algorithm, read.settings.link_types, read.settings.em_steps) == ("fedlit_deep", 3, 2)
    today = config.resolve("fedlit", dataset="csbm").to_dict()
    assert config.from_dict(today, "config.toml").algorithm == "fedlit"
