"""`model/` holds the best round, bit for bit, whatever happened on the way; damage to it is one sentence."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from atoll import storage, wire
from atoll.errors import AtollError
from atoll.runs import model_files, runner
from atoll.runs.documents import checksum
from atoll.runs.model_files import ModelFiles
from atoll.runs.progress import Progress
from small import ALGORITHMS, small

BEST = 2


@pytest.fixture
def best_is_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the validation nodes say, round 2 is the best."""
    update = Progress.update

    def second(self: Progress, metrics: dict[str, Any], *args: Any, **arguments: Any) -> None:
        update(self, {**metrics, "val_loss": float(abs(self.round - BEST))}, *args, **arguments)

    monkeypatch.setattr(Progress, "update", second)


def assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    """The same names and bits."""
    left, right = dict(wire.leaves(one)), dict(wire.leaves(other))
    assert left.keys() == right.keys()
    for name, value in left.items():
        assert value.dtype == right[name].dtype, name
        assert torch.equal(value, right[name]), name


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_model_is_that_of_the_best_round(algorithm: str, tmp_path: Path, best_is_second: None) -> None:
    """After four rounds of which the second was best, `model/` equals a run of two rounds; the last round differs."""
    result = runner.run(small(algorithm, rounds=4, checkpoint_every=3, select_by="loss", evaluate_every=1), out=tmp_path / "run")
    stopped = runner.prepare(small(algorithm, rounds=BEST, select_by="loss", evaluate_every=1))
    at_best = runner.rounds(stopped)
    written = ModelFiles.read(tmp_path / "run")
    assert written.description["best_round"] == result.best_round == BEST
    assert_equal(written.state, at_best.state)
    assert_equal(written.memory, stopped.engine.snapshot())  # type: ignore[attr-defined]
    assert result.trained is not None
    assert_equal(result.trained.state, at_best.state)
    assert written.memory.keys() <= at_best.memory["0"].keys()
    for name, value in written.memory.items():
        assert_equal({name: value}, {name: at_best.memory["0"][name]})
    last = {**result.state, **{name: result.memory["0"][name] for name in written.memory}}
    kept = {**written.state, **written.memory}
    assert any(not torch.equal(a, b) for (_, a), (_, b) in zip(wire.leaves(last), wire.leaves(kept), strict=True))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("stop", [2, 3])
def test_the_best_round_survives_a_death(algorithm: str, stop: int, tmp_path: Path, best_is_second: None) -> None:
    """Broken off at the best round or after it and resumed, the model has the same bits; also from the checkpoint before."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == stop:
            raise Broken

    config = small(algorithm, rounds=4, checkpoint_every=1, select_by="loss", evaluate_every=1)
    runner.run(config, out=tmp_path / "whole")
    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    if stop == 3:
        (tmp_path / "broken/checkpoint.safetensors").write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="checkpoint before it"):
            runner.resume(tmp_path / "broken")
    else:
        runner.resume(tmp_path / "broken")
    whole, resumed = ModelFiles.read(tmp_path / "whole"), ModelFiles.read(tmp_path / "broken")
    assert_equal(whole.state, resumed.state)
    assert_equal(whole.memory, resumed.memory)
    assert whole.description == resumed.description


def test_parties_apart_have_the_same_model(tmp_path: Path, best_is_second: None) -> None:
    """Memory stands in party order, wherever the parties are."""
    together = runner.rounds(runner.prepare(small("fedspray", rounds=3)))
    apart = runner.rounds(runner.prepare(small("fedspray", rounds=3, placement="apart")))
    assert together.trained is not None
    assert apart.trained is not None
    left, right = dict(wire.leaves(together.trained.memory)), dict(wire.leaves(apart.trained.memory))
    assert left.keys() == right.keys() != set()
    for name, value in left.items():
        torch.testing.assert_close(value, right[name], atol=1e-5, rtol=1e-5)


def test_an_earlier_checkpoint_without_the_best_round_resumes_without_a_model(tmp_path: Path, best_is_second: None) -> None:
    """A run of an earlier version goes on; there is no model unless a better round comes."""

    folder = tmp_path / "run"
    runner.run(small("fedavg", rounds=3), out=folder)
    document = storage.read_document(folder / "checkpoint.safetensors")
    del document["best"]
    storage.write_document(folder / "checkpoint.safetensors", document)
    shutil.rmtree(folder / "model")
    assert runner.resume(folder).trained is None
    with pytest.raises(AtollError, match=r"holds no trained model"):
        ModelFiles.read(folder)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    runner.run(small("fedavg", rounds=2), out=folder)
    return folder


def rewrite(path: Path, **changes: Any) -> None:
    """Change model.json, with a checksum that fits."""
    document = json.loads(path.read_text()) | changes
    document["sha256"] = checksum(document)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda m: (m / "model.json").unlink(), "holds no trained model: there is no model.json"),
        (lambda m: (m / "model.json").write_text("{"), "model.json is damaged"),
        (lambda m: (m / "model.json").write_text("[" * 100_000), "model.json is damaged"),
        (lambda m: (m / "model.json").write_text("[]"), "model.json is damaged"),
        (lambda m: (m / "model.json").write_text((m / "model.json").read_text().replace('"gcn"', '"gat"')), "checksum does not"),
        (lambda m: rewrite(m / "model.json", format=2), "has format 2, which a later atoll wrote"),
        (lambda m: rewrite(m / "model.json", scenario=3), "it lacks scenario"),
        (lambda m: (m / "model.safetensors").unlink(), "model.safetensors is damaged: it is not the file"),
        (lambda m: (m / "model.safetensors").write_bytes(b""), "model.safetensors is damaged: it is not the file"),
    ],
)
def test_damage_is_one_sentence_and_resume_mends_it(damage: Any, sentence: str, trained: Path, tmp_path: Path) -> None:
    """Every kind of damage is refused with what to do, and `resume` writes the same model again."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    damage(folder / "model")
    with pytest.raises(AtollError) as refused:
        ModelFiles.read(folder)
    assert sentence in str(refused.value)
    assert str(refused.value).count("\n") == 0
    runner.resume(folder)
    assert_equal(ModelFiles.read(folder).state, ModelFiles.read(trained).state)
    assert model_files.is_whole(folder, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("party_numbers", value) for value in ("x", 5, [-1], ["0"], [0, 0], [], [99])),
        *(("features", value) for value in (-1, 10**18, 2**70, True)),
        *(("num_classes", value) for value in (-1, 0, 10**18, 10**9)),
        *(("parties", value) for value in (0, -1, 2**70)),
        ("nodes", -1),
        ("nodes", "many"),
        ("names", [3]),
        ("columns", "abc"),
        ("classes", [None]),
        ("classes", ["one"]),
    ],
)
def test_impossible_values_are_refused(name: str, value: Any, trained: Path, tmp_path: Path) -> None:
    """Though the checksum fits, no such model can be: one sentence before anything is allocated."""
    shutil.copytree(trained / "model", tmp_path / "model")
    rewrite(tmp_path / "model/model.json", **{name: value})
    with pytest.raises(AtollError, match=r"model\.json is damaged \("):
        ModelFiles.read(tmp_path)


@pytest.mark.parametrize("memory", [{"optimizer": "x", "model": 5}, {"model": torch.tensor(1.0)}, {"model": {"weight": [1, 2]}}])
def test_memory_that_is_no_memory(memory: dict[str, Any], trained: Path, tmp_path: Path) -> None:
    """With checksums that fit."""
    shutil.copytree(trained / "model", tmp_path / "model")
    path = tmp_path / "model/model.safetensors"
    storage.write_document(path, storage.read_document(path) | {"memory": memory}, compact=True)
    files = json.loads((tmp_path / "model/model.json").read_text())["files"]
    rewrite(tmp_path / "model/model.json", files=files | {path.name: model_files._file(path)})
    with pytest.raises(AtollError, match="it does not hold a model"):
        ModelFiles.read(tmp_path)


def test_any_flipped_bit_of_the_tensors_is_noticed(trained: Path, tmp_path: Path) -> None:
    """The checksum in model.json covers every byte."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    path = folder / "model" / "model.safetensors"
    data = bytearray(path.read_bytes())
    for place in range(0, len(data), max(1, len(data) // 40)):
        data[place] ^= 1
        path.write_bytes(data)
        with pytest.raises(AtollError, match="is damaged"):
            ModelFiles.read(folder)
        data[place] ^= 1


def test_a_finished_run_is_not_written_again(trained: Path, tmp_path: Path) -> None:
    """Resuming it leaves every file of the model as it was."""
    folder = tmp_path / "run"
    shutil.copytree(trained, folder)
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "model").iterdir()}
    runner.resume(folder)
    assert {path.name: path.stat().st_mtime_ns for path in (folder / "model").iterdir()} == before


def test_the_card_shows_names_as_text(tmp_path: Path) -> None:
    """A class or party with markup in its name cannot change the card."""
    from atoll.runs.model_card import card

    about = runner.rounds(runner.prepare(small("fedavg", rounds=1))).trained
    assert about is not None
    text = card({**about.description, "names": ["a|b", "<img>\n# x", "c"], "classes": ["`rm`"]})
    assert not {"<img>", "\n# x"} & {part for part in ("<img>", "\n# x") if part in text}
    assert all(part in text for part in ("a\\|b", "\\`rm\\`"))


def test_a_folder_that_is_not_a_run(tmp_path: Path) -> None:
    """Nothing can be resumed there."""
    with pytest.raises(AtollError, match=r"holds no trained model: it is not a run; give the folder that --out named\.$"):
        ModelFiles.read(tmp_path)
