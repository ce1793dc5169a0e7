"""Runs that begin with a trained model: where it was, on the same data exactly, and resumed with the same bits."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import atoll
from atoll import algorithms, wire
from atoll.errors import AtollError, AtollWarning
from atoll.runs import config as configuration
from atoll.runs import loop, runner, warm_start
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.model_files import ModelFiles
from small import ALGORITHMS, small

pytestmark = pytest.mark.filterwarnings("ignore:The data is not the model")


def started(config: Config, folder: Path, **changes: Any) -> Config:
    """The configuration, beginning with a trained model."""
    return warm_start.with_digest(replace(config, start_from=str(folder), **changes))


def begun(config: Config) -> tuple[runner.Experiment, dict[str, Any]]:
    """A run before its first round."""
    experiment = runner.prepare(config)
    experiment.federation.begin(0)
    first = experiment.algorithm.start(experiment.federation, config.settings)
    return experiment, warm_start.begin(experiment, first)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run of each algorithm, made when it is asked for."""
    folder = tmp_path_factory.mktemp("trained")

    def make(algorithm: str) -> Path:
        if not (folder / algorithm).exists():
            runner.run(small(algorithm, rounds=3, evaluate_every=1), out=folder / algorithm)
        return folder / algorithm

    return make


SHARED_STAGE_AGAIN = {"adafgl"}  # its personal stage comes by rounds: it begins with the shared model, as its page says


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in SHARED_STAGE_AGAIN])
@pytest.mark.parametrize("placement", ["together", "apart"])
def test_it_begins_where_the_best_round_was(algorithm: str, placement: str, trained: Any) -> None:
    """On the same data, before the first round, every metric is that of the trained model, wherever the parties are."""
    folder = trained(algorithm)
    experiment, state = begun(started(small(algorithm, rounds=3, evaluate_every=1, placement=placement), folder))
    metrics = loop._evaluate(experiment, state)
    before = json.loads((folder / "result.json").read_text())["metrics"]
    if placement == "apart":  # other products, other roundings
        assert metrics["val_loss"] == pytest.approx(before["val_loss"], abs=1e-5)
    else:
        assert json.loads(json.dumps(metrics)) == before
    assert experiment.start["round"] == json.loads((folder / "result.json").read_text())["best_round"]


def numbers(result: Any) -> list[dict[str, Any]]:
    """The history without the clock."""
    return [{name: value for name, value in row.items() if "seconds" not in name} for row in result.rows]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_resume_is_exact_without_the_first_folder(algorithm: str, trained: Any, tmp_path: Path) -> None:
    """Broken off in its first round and resumed, a run ends with the same bits, although the old folder is gone."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 1:
            shutil.rmtree(tmp_path / "old")
            raise Broken

    config = small(algorithm, rounds=3, checkpoint_every=2)
    shutil.copytree(trained(algorithm), tmp_path / "old")
    config = started(config, tmp_path / "old")
    whole = runner.run(config, out=tmp_path / "whole")
    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    assert numbers(whole) == numbers(resumed)
    for part in ("state", "memory"):
        left, right = dict(wire.leaves(getattr(whole, part))), dict(wire.leaves(getattr(resumed, part)))
        assert left.keys() == right.keys()
        assert all(torch.equal(value, right[name]) for name, value in left.items())
    assert resumed.start == whole.start
    assert numbers(whole) != numbers(runner.rounds(runner.prepare(replace(config, start_from=None, start_digest=None))))


def test_a_killed_process(tmp_path: Path) -> None:
    """SIGKILL in a round; the model that it began with is changed meanwhile, which does not matter any more."""
    program = """
import os, signal, sys, atoll
def die(row, rounds):
    if row["round"] == 2:
        os.kill(os.getpid(), signal.SIGKILL)
atoll.run("apfl", dataset="csbm", nodes=80, parties=2, rounds=4, start_from="old", out="new", loggers=[die])
"""
    first = {"dataset": "csbm", "nodes": 80, "parties": 2}
    atoll.run("apfl", **first, rounds=2, out=tmp_path / "old")
    whole = atoll.run("apfl", **first, rounds=4, start_from=tmp_path / "old")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=False)
    assert done.returncode == -signal.SIGKILL
    shutil.rmtree(tmp_path / "old")
    resumed = atoll.resume(tmp_path / "new")
    assert numbers(resumed) == numbers(whole)
    assert resumed.start["path"] == "old"


def test_without_a_checkpoint_the_model_is_needed(trained: Any, tmp_path: Path) -> None:
    """Killed before even that was written, or both checkpoints lost: the same model, or a sentence."""
    shutil.copytree(trained("fedavg"), tmp_path / "old")
    whole = runner.run(started(small("fedavg", rounds=2), tmp_path / "old"), out=tmp_path / "run")
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    (tmp_path / "run/result.json").unlink()
    assert numbers(runner.resume(tmp_path / "run")) == numbers(whole)
    for path in (tmp_path / "run").glob("checkpoint*"):
        path.unlink()
    shutil.rmtree(tmp_path / "old/model")
    with pytest.raises(AtollError, match=r"begins with the model in .*old, which cannot be used: .* holds no trained model"):
        runner.resume(tmp_path / "run")
    runner.run(small("fedavg", rounds=1, seed=9), out=tmp_path / "other")
    shutil.copytree(tmp_path / "other/model", tmp_path / "old/model")
    with pytest.raises(AtollError, match=r"holds another model than the one that the run is to begin with"):
        runner.resume(tmp_path / "run")


def test_optimizers_begin_again(trained: Any) -> None:
    """Moments and steps are those of a first round, at the parties and at the server."""
    for algorithm in ("apfl", "fedspray", "nfedgnn", "cnfgnn"):
        experiment, state = begun(started(small(algorithm), trained(algorithm)))
        memory = experiment.engine.state()["0"]
        held = {name: memory[name] for name in memory if "optimizer" in name or name in ("steps", "rest_first", "rest_second")}
        held["server"] = state.get("optimizer", {})
        assert held
        assert all(not bool(value.any()) for _, value in wire.leaves(held))


@pytest.mark.parametrize("algorithm", [name for name in ALGORITHMS if name not in ("nfedgnn", "cnfgnn", "fedstar")])
def test_other_data(algorithm: str, trained: Any) -> None:
    """As many parties with other nodes: what is the same for all data and what is kept per party, rows and all; it trains on."""
    folder = trained(algorithm)
    config = started(small(algorithm, seed=5), folder)
    files = ModelFiles.read(folder)
    kind = algorithms.find(algorithm).Cohort
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtollWarning)
        experiment, state = begun(config)
        assert experiment.extent["digest"] != files.description["data"]["digest"]
    axes = getattr(experiment.algorithm, "STATE_AXES", {})
    for name, value in wire.leaves(files.state):
        axis = axes.get(name.partition("/")[0])
        if axis in (None, "shared", "party"):
            assert torch.equal(dict(wire.leaves(state))[name], value), name
    now = experiment.engine.state()["0"]
    for name in files.memory:
        if kind.memory[name] == "party" and name not in kind.graph_memory:
            assert all(
                torch.equal(value, dict(wire.leaves(now))[leaf]) for leaf, value in wire.leaves({name: files.memory[name]})
            )
    loop._evaluate(experiment, state)
    experiment.federation.begin(1)
    experiment.algorithm.step(experiment.federation, state, config.settings)


def test_users_with_weights_by_feature_begin_again_on_other_data(trained: Any) -> None:
    """Their weights belong to the features they had; the server's part is carried over."""
    for algorithm in ("nfedgnn", "cnfgnn"):
        files = ModelFiles.read(trained(algorithm))
        with pytest.warns(AtollWarning, match=r"begins with the server's .*model.*; from first values: .*the parties' weights"):
            experiment, state = begun(started(small(algorithm, seed=5), trained(algorithm)))
        assert all(torch.equal(value, state["model"][name]) for name, value in files.state["model"].items())
        fresh = runner.prepare(small(algorithm, seed=5)).engine.state()["0"]
        now = experiment.engine.state()["0"]
        assert all(torch.equal(value, dict(wire.leaves(now))[name]) for name, value in wire.leaves(fresh))


def test_parties_by_name() -> None:
    """By name where both have names, by number where there are as many, else none."""
    about = {"names": ["a", "b", "c"], "parties": 3}
    assert warm_start.matching_parties(about, ["c", "x", "a", "b"], 4).tolist() == [2, -1, 0, 1]
    assert warm_start.matching_parties(about, [], 3).tolist() == [0, 1, 2]
    assert warm_start.matching_parties({"names": [], "parties": 3}, ["c", "x", "a", "b"], 4).tolist() == [-1] * 4


def write_party(folder: Path, seed: int, nodes: int = 30, columns: str = "age,bmi", classes: str = "ill,well") -> None:
    """A graph of a party of its own: numbers and a class."""
    draws = torch.Generator().manual_seed(seed)
    folder.mkdir(parents=True)
    y, width = torch.arange(nodes) % 2, columns.count(",") + 1
    x = (torch.randn(nodes, width, generator=draws) + y[:, None]).tolist()
    rows = [",".join([f"{folder.name}{i}", *(f"{value:.3f}" for value in x[i]), classes.split(",")[i % 2]]) for i in range(nodes)]
    (folder / "nodes.csv").write_text("\n".join([f"id,{columns},label", *rows]) + "\n")
    (folder / "edges.csv").write_text(
        "source,target\n" + "".join(f"{folder.name}{i},{folder.name}{i + 2}\n" for i in range(nodes - 2))
    )


def hospitals(algorithm: str, folder: Path, **values: Any) -> Config:
    """A run over folders of parties."""
    return configuration.resolve(algorithm, dataset=str(folder), partition="files", values={"rounds": 2, "hidden": 8, **values})


@pytest.fixture
def grown(tmp_path: Path) -> Path:
    """Three hospitals, and later four with more patients each, in another order of names."""
    for seed, name in enumerate("bcd"):
        write_party(tmp_path / "data" / name, seed)
    for seed, name in enumerate("abcd"):
        write_party(tmp_path / "grown" / name, seed, nodes=40)
    return tmp_path


@pytest.mark.parametrize("algorithm", ["apfl", "fedper", "local", "gcfl", "fedspray", "fedavg"])
def test_a_new_party_among_known_ones(algorithm: str, grown: Path) -> None:
    """Each known party has its own model again, by its name; the new one the shared model or first values of its own."""
    runner.run(hospitals(algorithm, grown / "data"), out=grown / "run")
    files = ModelFiles.read(grown / "run")
    config = started(hospitals(algorithm, grown / "grown"), grown / "run")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtollWarning)
        experiment, state = begun(config)
        assert ("new: party a" in experiment.start["carried"]) == (algorithm != "fedavg")  # which has nothing per party
        result = runner.run(config, out=grown / "next")
    fresh = dict(wire.leaves(runner.prepare(hospitals(algorithm, grown / "grown")).engine.state()["0"]))
    now, kind = dict(wire.leaves(experiment.engine.state()["0"])), experiment.algorithm.Cohort
    for name, value in wire.leaves(files.memory):
        if kind.memory[name.partition("/")[0]] == "party":
            assert torch.equal(now[name][1:], value)
            assert torch.equal(now[name][0], fresh[name][0])
    if algorithm == "gcfl":
        assert state["cluster"].tolist() == [0, *files.state["cluster"].tolist()]
        assert torch.equal(state["update"][1:], files.state["update"])
    assert result.rounds == 2
    assert atoll.read(grown / "next").start == result.start
    assert "began with the model of" in (grown / "next/model/README.md").read_text()


def test_what_does_not_fit_is_named(grown: Path) -> None:
    """Algorithm, architecture, columns, classes, whatever changes a shape: one sentence each, and nothing is written."""
    runner.run(hospitals("fedper", grown / "data"), out=grown / "run")
    others = {"renamed": ("age,height", "ill,well"), "turned": ("bmi,age", "ill,well"), "wider": ("age,bmi,size", "ill,well")}
    for folder, (columns, classes) in (others | {"healed": ("age,bmi", "ill,healed")}).items():
        for seed, name in enumerate("bcd"):
            write_party(grown / folder / name, seed, columns=columns, classes=classes)
    for config, sentence in (
        (hospitals("fedavg", grown / "data"), "algorithm is fedavg and was fedper"),
        (hospitals("fedper", grown / "data", hidden=9), "hidden is 9 and was 8"),
        (hospitals("fedper", grown / "data", model="sage"), "model is sage and was gcn"),
        (hospitals("fedper", grown / "data", layers=3), "layers is 3 and was 2"),
        (hospitals("fedper", grown / "data", personal_layers=2), r"the server's base had .* \(personal_layers is 2 and was 1\)"),
        (hospitals("fedper", grown / "renamed"), "column 2 is 'height' and was 'bmi'"),
        (hospitals("fedper", grown / "turned"), "column 1 is 'bmi' and was 'age'"),
        (hospitals("fedper", grown / "healed"), "class 1 is 'healed' and was 'ill'"),
        (hospitals("fedper", grown / "wider"), "the number of columns is 3 and was 2"),
    ):
        with pytest.raises(AtollError, match=f"^The model in .*run does not fit this run: {sentence}.*; change that, or leave"):
            runner.run(started(config, grown / "run"), out=grown / "new")
        assert not (grown / "new").exists()
    runner.run(started(hospitals("fedper", grown / "data", dropout=0.4, lr=0.5, epochs=3), grown / "run"), out=grown / "new")


def test_nothing_to_begin_with(trained: Any) -> None:
    """Personal models of other parties are not anybody's here."""
    config = replace(small("local"), parties=4)
    with pytest.raises(AtollError, match="has nothing that this run could begin with: what it holds belongs to its 3 parties"):
        begun(started(config, trained("local")))


def test_what_cannot_be(trained: Any, tmp_path: Path) -> None:
    """Other engines, no such folder, a site's model, a digest of another model."""
    with pytest.raises(AtollError, match="A run of the engine nvflare cannot begin with a trained model"):
        runner.run(replace(small("fedavg"), start_from=str(trained("fedavg")), engine="nvflare"))
    with pytest.raises(AtollError, match="nowhere holds no trained model"):
        runner.run(replace(small("fedavg"), start_from=str(tmp_path / "nowhere")))
    with pytest.raises(AtollError, match="holds another model than the one"):
        runner.run(replace(small("fedavg"), start_from=str(trained("fedavg")), start_digest="0" * 64))
    shutil.copytree(trained("fedavg"), tmp_path / "site")
    files = ModelFiles.read(tmp_path / "site")
    ModelFiles({**files.description, "party_numbers": [1]}, arguments=files.state).write(tmp_path / "site", "")
    with pytest.raises(AtollError, match="is the model of a site, which has only its own part"):
        runner.run(replace(small("fedavg"), start_from=str(tmp_path / "site")))
    with pytest.raises(AtollError, match="start_from is '' but must be a name or a path"):
        configuration.resolve("fedavg", start_from="")


def test_the_configuration_says_it(trained: Any, tmp_path: Path) -> None:
    """config.toml has the folder and the digest, so that it gives the same run again; a changed digest is refused on resume."""
    config = replace(small("fedavg", rounds=2), start_from=str(trained("fedavg")))
    result = runner.run(config, out=tmp_path / "run")
    again = Folder.open(tmp_path / "run")[1]
    assert again.start_from == str(trained("fedavg"))
    assert again.start_digest == result.start["digest"] == ModelFiles.read(trained("fedavg")).digest
    assert numbers(runner.run(again)) == numbers(result)
    source = tmp_path / "run/config.toml"
    source.write_text(source.read_text().replace(again.start_digest, "f" * 64))
    with pytest.raises(AtollError, match=r"start_digest is f+ and was"):
        runner.resume(tmp_path / "run", ending={"rounds": 3})


def test_the_encoding_is_the_trained_models(tmp_path: Path) -> None:
    """Columns mean what they meant: new rows are encoded as the first were, also on resume without the first folder."""
    for name, shift in (("old", 0), ("new", 40)):
        (tmp_path / name).mkdir()
        rows = [f"n{i},{50 + (i * 7) % 30 + shift},{'icu' if i % 3 else 'er'},{i % 2}" for i in range(60)]
        (tmp_path / name / "nodes.csv").write_text("\n".join(["id,age,ward,label", *rows]) + "\n")
        (tmp_path / name / "edges.csv").write_text("source,target\n" + "".join(f"n{i},n{i + 2}\n" for i in range(58)))
    config = configuration.resolve(
        "fedavg", dataset=str(tmp_path / "old"), partition="random", parties=2, values={"rounds": 2, "hidden": 8}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AtollWarning)
        runner.run(config, out=tmp_path / "run")
        encoding = runner.prepare(config).party_data.encoding
        assert encoding is not None
        files = ModelFiles.read(tmp_path / "run")
        ModelFiles({**files.description, "preprocessing": encoding.to_dict()}, files.state).write(tmp_path / "run", "")
        next_config = started(replace(config, dataset=str(tmp_path / "new")), tmp_path / "run")
        experiment = runner.prepare(next_config)
        assert experiment.party_data.encoding == encoding
        assert experiment.party_data.parts.x[:, 0].min() > 0  # older than those before
        whole = runner.run(next_config, out=tmp_path / "next")
        shutil.rmtree(tmp_path / "run")
        assert numbers(runner.resume(tmp_path / "next", ending={"rounds": 3}))[:2] == numbers(whole)


def test_noise_covers_its_own_run_only(tmp_path: Path, trained: Any) -> None:
    """Beginning with a model that was trained without noise, or with noise of its own, is said where ε is."""
    noised = {"dp.verb": "fit", "dp.fields": "model", "dp.clip": 1.0, "dp.noise": 2.0}
    config = started(small("fedavg", rounds=1, **noised), trained("fedavg"))
    with pytest.warns(AtollWarning, match="was trained without noise: the ε of this run does not cover"):
        result = runner.run(config, out=tmp_path / "run")
    assert "trained without noise" in result.start["privacy"]
    with pytest.warns(AtollWarning, match=r"had spent ε = .*, which is not in the ε of this run"):
        runner.run(started(small("fedavg", rounds=1), tmp_path / "run"))


def test_on_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """`--from`, also over a configuration that names another model."""
    from atoll.cli import main

    def call(*arguments: str) -> int:
        monkeypatch.setattr(sys, "argv", ["atoll", *arguments])
        try:
            main.main()
        except SystemExit as stop:
            return int(stop.code or 0)
        return 0

    monkeypatch.chdir(tmp_path)
    tiny = ["--dataset", "csbm", "--set", "nodes=80", "--partition", "random", "--parties", "2", "--rounds", "1", "-q"]
    assert call("run", "fedavg", *tiny, "--out", "a") == 0
    assert call("run", "fedavg", *tiny, "--from", "a", "--out", "b") == 0
    assert "began with" in capsys.readouterr().out
    assert call("run", "b/config.toml", "--from", "b", "-q", "--out", "c") == 0
    assert json.loads((tmp_path / "c/result.json").read_text())["start_from"]["path"] == "b"
    assert call("run", "fedavg", *tiny, "--set", "start_from=a") == 2
    assert "say --from in place of --set start_from" in capsys.readouterr().err


@pytest.mark.filterwarnings("default:The data is not the model")
def test_another_split_is_said(tmp_path: Path) -> None:
    """On the same data the split is the same; on other data it may not be, and test metrics may be too high."""
    arguments: dict[str, Any] = {"dataset": "csbm", "partition": "random", "parties": 2, "rounds": 1}
    atoll.run("fedavg", nodes=80, out=tmp_path / "a", **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        atoll.run("fedavg", nodes=80, start_from=tmp_path / "a", **arguments)
    with pytest.warns(AtollWarning, match="nodes that the model was trained on may be test nodes now"):
        atoll.run("fedavg", nodes=90, start_from=tmp_path / "a", **arguments)
