"""A run's configuration and numbers, changed by one bit between two uses of its folder."""

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import main
from atoll.deploy import kit as kits
from atoll.deploy import launch
from atoll.errors import AtollError, AtollWarning
from atoll.reports import runs
from atoll.runs import runner
from atoll.runs.folder import Folder
from atoll.runs.resumed_config import ENDINGS, HARMLESS, record
from small import small


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four rounds."""
    path = tmp_path_factory.mktemp("unchanged") / "run"
    runner.run(small("fedavg", rounds=4, lr=0.003, checkpoint_every=1), out=path)
    return path


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Path:
    """A copy of it that may be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


def edit(path: Path, before: str, after: str) -> None:
    """Replace what stands in a file."""
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("lr = 0.003", "lr = 0.007", r"settings.lr is 0.007 and was 0.003"),  # one bit
        ("epochs = 5", "epochs = 7", r"settings.epochs is 7 and was 5"),  # one bit
        ("participation = 1.0", "participation = 0.5", r"run.participation is 0.5 and was 1.0"),
        ('robust = "none"', 'robust = "median"', r"run.robust is median and was none"),
        ('select_by = "loss"', 'select_by = "accuracy"', r"run.select_by is accuracy and was loss"),
        ('algorithm = "fedavg"', 'algorithm = "fedprox"', r"algorithm is fedprox and was fedavg"),
    ],
)
def test_another_configuration_is_not_resumed(run: Path, before: str, after: str, sentence: str) -> None:
    """Neither half a run nor one that is over goes on under settings that it did not begin with; nothing is touched."""
    edit(run / "config.toml", before, after)
    there = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    with pytest.raises(AtollError, match=sentence):
        runner.resume(run)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == there


def test_noise_that_is_switched_on_is_another_configuration(run: Path) -> None:
    """Its table does not stand in the config.toml of a run without noise."""
    with (run / "config.toml").open("a") as file:
        file.write('\n[dp]\nverb = "fit"\nclip = 1.0\nnoise = 1.0\n')
    with pytest.raises(AtollError, match=r"dp.verb is fit and was not set"):
        runner.resume(run)


def test_more_rounds_are_said(run: Path) -> None:
    """A run may be made longer; its result says that it was."""
    edit(run / "config.toml", "rounds = 4", "rounds = 6")
    with pytest.warns(AtollWarning, match="run.rounds in config.toml is 6; the run began with 4."):
        assert runner.resume(run).rounds == 6
    told = ["run.rounds in config.toml is 6; the run began with 4."]
    assert json.loads((run / "result.json").read_text())["warnings"] == told
    assert runner.resume(run).warnings == told


def test_what_changes_no_number_may_be_changed(run: Path) -> None:
    """How often checkpoints are written, and where the data lies."""
    edit(run / "config.toml", "checkpoint_every = 1", "checkpoint_every = 3")
    assert runner.resume(run).warnings == []


def test_the_record_names_every_setting() -> None:
    """All that config.toml holds is recorded, but for what is harmless: a new setting is guarded unless somebody says so."""
    config = replace(small("fedavg"), start_from="runs/a", start_digest="0", device="cuda")
    named = set()
    for name, value in config.to_dict().items():
        named |= {f"{name}.{key}" for key in value} if isinstance(value, dict) else {name}
    recorded = set(record(config)[0])
    assert named - recorded == HARMLESS
    assert recorded >= ENDINGS


@pytest.mark.parametrize("name", ["result.json", "history.jsonl"])
def test_a_changed_digit_is_not_reported(run: Path, name: str, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Another number is valid JSON; the report refuses it, and a resume writes the right result again."""
    good = (run / "result.json").read_bytes()
    text = (run / name).read_text()
    place = text.index('"val_loss": ') + len('"val_loss": 0.')
    (run / name).write_text(text[:place] + str((int(text[place]) + 1) % 10) + text[place + 1 :])
    with pytest.raises(AtollError, match=f"{name} is damaged .its checksum does not match"):
        runs.read_run(run)
    monkeypatch.setattr(sys, "argv", ["atoll", "report", str(run), "--html", str(run / "page.html")])
    with pytest.raises(SystemExit) as end:
        main.main()
    assert end.value.code == 2
    assert not (run / "page.html").exists()
    if name == "result.json":
        runner.resume(run)
        assert json.loads((run / "result.json").read_bytes()) == json.loads(good)
        assert runs.read_run(run).result.finished


def test_a_result_of_an_earlier_version_is_read(run: Path) -> None:
    """It has no checksums."""
    result = json.loads((run / "result.json").read_text())
    del result["sha256"], result["history_sha256"]
    (run / "result.json").write_text(json.dumps(result))
    assert runs.read_run(run).result.finished


def test_a_damaged_history_is_named_and_not_the_checkpoints(run: Path) -> None:
    """Both checkpoints are whole: it is the history that must be restored."""
    edit(run / "history.jsonl", '"round": 1,', '"round": 3,')
    with pytest.raises(AtollError, match=r"history.jsonl is damaged: .*, and no checkpoint fits it; restore it") as told:
        runner.resume(run)
    assert "Both" not in str(told.value)


def test_serve_names_what_differs(tmp_path: Path) -> None:
    """Started again with another configuration, the server says which setting is another."""
    pytest.importorskip("nvflare", reason="NVFlare is not installed: pip install 'atoll[deploy]'")
    kits.provision(["bank-a"], "localhost", tmp_path / "kits")
    kit = kits.Kit.open(tmp_path / "kits" / "server", server=True)
    one, other = (launch.deployment_config({"algorithm": "fedavg", "run": {"rounds": n}}, "run.toml", kit.sites) for n in (3, 4))
    Folder.create(tmp_path / "out", one)
    with pytest.raises(AtollError, match=r"out holds a run with another configuration \(run.rounds is 4 and was 3\); give"):
        launch.serve(kit, other, tmp_path / "out")
