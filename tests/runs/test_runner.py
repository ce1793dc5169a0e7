"""Runs: folders, best round, early stopping, and death at any instant."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import atoll
from atoll import storage, wire
from atoll.data import save
from atoll.errors import AtollError
from atoll.runs import loop, runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.progress import Progress, Selection
from atoll.runs.run_settings import RunSettings
from small import small


def without_clock(path: Path) -> list[dict[str, Any]]:
    """The history of a folder, without seconds."""
    rows = [json.loads(line) for line in (path / "history.jsonl").read_text().splitlines()]
    return [{name: value for name, value in row.items() if name != "seconds"} for row in rows]


def test_a_folder_holds_everything(tmp_path: Path) -> None:
    """config.toml, a line a round, the checkpoint, and result.json with the keys of the contract."""
    result = runner.run(small("fedavg"), out=tmp_path / "run")
    assert {item.name for item in (tmp_path / "run").iterdir()} == {
        "config.toml",
        "history.jsonl",
        "checkpoint.safetensors",
        "model",
        "result.json",
    }
    written = json.loads((tmp_path / "run" / "result.json").read_text())
    contract = {
        "atoll",
        "algorithm",
        "dataset",
        "setting",
        "parties",
        "seed",
        "settings",
        "rounds",
        "best_round",
        "metrics",
        "last",
        "bytes",
        "seconds",
    }
    assert contract <= written.keys()
    assert {"accuracy", "minority_accuracy", "macro_f1"} <= written["metrics"].keys()
    assert written["bytes"]["by_verb"]["fit"]["up"] == written["bytes"]["up"] > 0
    assert pd.read_json(tmp_path / "run" / "history.jsonl", lines=True)["round"].tolist() == [1, 2, 3]
    assert written["metrics"] == result.metrics


def test_resuming_a_finished_run_changes_nothing(tmp_path: Path) -> None:
    """It gives the result again and writes nothing."""
    first = runner.run(small("fedavg"), out=tmp_path / "run")
    before = {item.name: item.read_bytes() for item in (tmp_path / "run").rglob("*") if item.is_file()}
    again = runner.resume(tmp_path / "run")
    assert again.metrics == first.metrics
    assert again.rows == first.rows
    assert {item.name: item.read_bytes() for item in (tmp_path / "run").rglob("*") if item.is_file()} == before


CLEAN = multiprocessing.get_context("forkserver")  # its processes are forked from one that has no threads and no tensors
CLEAN.set_forkserver_preload(["atoll.runs.runner"])


def go_on(config: Config, folder: Path) -> None:
    """Begin the run or go on with it."""
    torch.set_num_threads(1)
    runner.resume(folder) if (folder / "config.toml").exists() else runner.run(config, out=folder)


def live(config: Config, folder: Path) -> Any:
    """A child process that begins the run or goes on with it."""
    child = CLEAN.Process(target=go_on, args=(config, folder))
    child.start()
    return child


def ended(child: Any) -> bool:
    """Whether the child is through; it must not have failed."""
    assert child.exitcode in (None, 0), f"the run ended with code {child.exitcode}"
    return child.exitcode == 0


def kill_after(child: Any, folder: Path, rounds: int, moment: float) -> bool:
    """SIGKILL once so many more rounds are written and a moment has passed; False where the child was through before."""
    history = folder / "history.jsonl"
    goal = rounds + (history.read_bytes().count(b"\n") if history.exists() else 0)
    while rounds and (not history.exists() or history.read_bytes().count(b"\n") < goal):
        if ended(child):
            return False
        os.sched_yield()
    began = time.perf_counter()
    while time.perf_counter() - began < moment:
        os.sched_yield()
    if ended(child):
        return False
    child.kill()
    child.join()
    return True


def assert_same_folder(one: Path, other: Path) -> None:
    """The same bits in history, state, memory, bytes and result."""
    assert without_clock(one) == without_clock(other)
    checkpoints = [dict(wire.leaves(wire.decode((path / "checkpoint.safetensors").read_bytes()))) for path in (one, other)]
    assert checkpoints[0].keys() == checkpoints[1].keys()
    for name, value in checkpoints[0].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(value, checkpoints[1][name]), name
    results = [json.loads((path / "result.json").read_text()) for path in (one, other)]
    for result in results:
        del result["seconds"], result["sha256"], result["history_sha256"]  # the history has the clock's seconds, too
    assert results[0] == results[1]


def test_twenty_deaths_change_nothing(tmp_path: Path) -> None:
    """Killed with SIGKILL twenty times at random moments and resumed, history, state, memory and bytes are the same bits."""
    config = small("fedavg", rounds=150, checkpoint_every=1, participation=0.7)
    runner.run(config, out=tmp_path / "whole")
    chance, deaths, runs = random.Random(0), 0, 0
    while deaths < 20:  # a run that is through before its twentieth death is followed by another
        folder, runs = tmp_path / f"killed-{runs}", runs + 1
        while not (folder / "result.json").exists():
            child = live(config, folder)
            if deaths == 20:
                child.join()
                assert ended(child)
            elif kill_after(child, folder, chance.randrange(6), chance.uniform(0, 0.01)):
                deaths += 1
        assert_same_folder(folder, tmp_path / "whole")


@pytest.mark.parametrize(("cost", "saves"), [(0.0, 10), (0.25, 10), (1.0, 4), (30.0, 2)])
def test_saving_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: Any, cost: float, saves: int) -> None:
    """Rounds of a second: saved every six of them; every 21 where it takes a second; once and at the end where half a minute."""
    clock, counted, save = [0.0], [], Folder.save

    def slow(folder: Folder, document: dict[str, Any]) -> None:
        save(folder, document)
        counted.append(clock[0])
        clock[0] += cost

    def tick(row: dict[str, Any], rounds: int) -> None:
        clock[0] += 1

    monkeypatch.setattr(loop.time, "perf_counter", lambda: clock[0])
    monkeypatch.setattr(Folder, "save", slow)
    runner.run(small("fedavg", rounds=60), out=tmp_path / "run", watch=tick)
    assert len(counted) == saves


def test_a_half_written_checkpoint_is_never_read(tmp_path: Path) -> None:
    """What a dying process leaves beside the checkpoint is passed over; a damaged checkpoint is one clear sentence."""
    runner.run(small("fedavg"), out=tmp_path / "run")
    (tmp_path / "run" / ".checkpoint.safetensors.partial").write_bytes(b"half")
    runner.resume(tmp_path / "run")
    (tmp_path / "run" / "checkpoint.safetensors").write_bytes(b"broken")
    with pytest.raises(AtollError, match=r"is damaged: .* delete checkpoint\.safetensors to start"):
        runner.resume(tmp_path / "run")


def test_folders_are_not_overwritten_and_strangers_not_resumed(tmp_path: Path) -> None:
    """A folder with a run is refused for a new one; one without a run cannot be resumed."""
    runner.run(small("local", rounds=1), out=tmp_path / "run")
    with pytest.raises(AtollError, match="already holds a run"):
        runner.run(small("local", rounds=1), out=tmp_path / "run")
    with pytest.raises(AtollError, match="is not a run"):
        runner.resume(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(AtollError, match="cannot be written to"):
        runner.run(small("local", rounds=1), out=tmp_path / "file" / "run")
    (tmp_path / "left").mkdir()
    (tmp_path / "left" / "history.jsonl").write_text('{"round": 77}\n')
    with pytest.raises(AtollError, match=r"left/history\.jsonl is left from a run whose config\.toml is gone"):
        runner.run(small("local", rounds=1), out=tmp_path / "left")


def test_a_run_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    """What an algorithm refuses when it starts is refused before a folder is left behind; what was there stays."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    for place in ("new/deep", "mine/new", "mine"):
        with pytest.raises(AtollError, match="label_holder is 9"):
            runner.run(small("glasu", label_holder=9), out=tmp_path / place)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == ["mine", "mine/notes.txt"]


def edited(name: str, path: Path) -> None:
    """One kind of damage to a run's folder."""
    checkpoint, history, configuration = path / "checkpoint.safetensors", path / "history.jsonl", path / "config.toml"
    saved = wire.decode(checkpoint.read_bytes())
    if name == "foreign":
        storage.write_document(checkpoint, {"model": torch.zeros(3)})
    elif name == "progress":
        storage.write_document(checkpoint, saved | {"progress": {"rounds": 3}})
    elif name == "no state":
        storage.write_document(checkpoint, {field: value for field, value in saved.items() if field != "state"})
    elif name == "directory":
        checkpoint.unlink()
        checkpoint.mkdir()
    elif name == "cut history":
        history.write_text(history.read_text()[:40])
    elif name == "no history":
        history.unlink()
    elif name == "other history":
        history.write_text("x" * len(history.read_bytes()))
    elif name == "bytes":
        history.write_bytes(b"\xff" * len(history.read_bytes()))
    else:
        configuration.write_text(configuration.read_text().replace("hidden = 64", "hidden = 8"))


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        ("foreign", "is not a checkpoint of a run; restore it, or delete"),
        ("progress", "does not fit the run's config.toml or data"),
        ("no state", r"does not fit the run's config.toml or data \(its state has lost model\)"),
        ("directory", r"cannot be read \(Is a directory\); restore it, or delete"),
        ("cut history", "is shorter than when checkpoint.safetensors was written; restore it"),
        ("no history", "is shorter than when checkpoint.safetensors was written; restore it"),
        ("other history", "history.jsonl is damaged"),
        ("bytes", "history.jsonl is damaged"),
        ("another model", "does not fit the run's config.toml or data .* restore what was changed"),
    ],
)
def test_a_damaged_folder_is_one_sentence(damage: str, sentence: str, tmp_path: Path) -> None:
    """Whatever happened to a run's files, resuming says which and what to do, and touches nothing."""
    runner.run(small("fedavg", rounds=2), out=tmp_path / "run")
    edited(damage, tmp_path / "run")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(AtollError, match=sentence):
        runner.resume(tmp_path / "run")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_run_is_not_resumed_on_other_data(tmp_path: Path) -> None:
    """Who changes their graph in the middle of a run hears in what it differs."""
    for nodes in (60, 50):
        save(atoll.load("csbm", nodes=nodes), tmp_path / str(nodes))
    (tmp_path / "60").rename(tmp_path / "graph")
    dataset = {"dataset": str(tmp_path / "graph"), "partition": "random", "parties": 2}
    atoll.run("fedavg", **dataset, rounds=2, out=tmp_path / "run")
    shutil.rmtree(tmp_path / "graph")
    (tmp_path / "50").rename(tmp_path / "graph")
    with pytest.raises(AtollError, match=r"config\.toml or data \(the data has 50 nodes where there were 60, .* edges"):
        atoll.resume(tmp_path / "run")


@pytest.mark.parametrize("changed", ["x", "y"])
def test_a_run_is_not_resumed_on_other_values(changed: str, tmp_path: Path) -> None:
    """Data of the same size with one other feature or label is other data; the same data is not."""
    graph = atoll.load("csbm", nodes=60)
    dataset = {"partition": "random", "parties": 2}
    atoll.run("fedavg", dataset=graph, **dataset, rounds=2, out=tmp_path / "run")
    assert atoll.resume(tmp_path / "run", dataset=graph).rounds == 2
    other = getattr(graph, changed).clone()
    other[0] = other[0] + 1 if changed == "x" else 1 - other[0]
    with pytest.raises(AtollError, match="the data has as many nodes and edges as before, but other values"):
        atoll.resume(tmp_path / "run", dataset=replace(graph, **{changed: other}))


def test_resuming_mends_a_damaged_result(tmp_path: Path) -> None:
    """result.json is written again where it cannot be read, as the report's error advises."""
    runner.run(small("fedavg", rounds=2), out=tmp_path / "run")
    result = tmp_path / "run" / "result.json"
    before = json.loads(result.read_text())["metrics"]
    for broken in ("", "{", "[]", "3"):
        result.write_text(broken)
        runner.resume(tmp_path / "run")
        assert json.loads(result.read_text())["metrics"] == before


def judged(select: str, scores: list[dict[str, float]], patience: int = 0) -> Progress:
    """A book after rounds with these metrics."""
    book, selection = Progress(), Selection.of(RunSettings(select_by=select))
    for metrics in scores:
        if book.finished(len(scores), patience):
            break
        book.round += 1
        book.update(metrics, selection)
    return book


def test_the_best_round_is_by_validation() -> None:
    """The lowest validation loss or the highest validation accuracy; the first of equals; the last without validation."""
    losses = [{"val_loss": value, "val_accuracy": value} for value in (3.0, 1.0, 2.0, 1.0)]
    assert judged("loss", losses).best_round == 2
    assert judged("accuracy", losses).best_round == 1
    assert judged("loss", [{"accuracy": 1.0}, {"accuracy": 0.5}]).best_round == 2
    assert judged("loss", [{"accuracy": 1.0}, {"accuracy": 0.5}]).best == {"accuracy": 0.5}


def test_a_run_ends_once_its_target_is_reached() -> None:
    """At the first evaluation whose validation accuracy is high enough; a target of 0 never ends one."""
    first = runner.run(small("fedavg", rounds=3))
    reached = first.rows[1]["val_accuracy"]
    expected = next(row["round"] for row in first.rows if row["val_accuracy"] >= reached)
    assert runner.run(small("fedavg", rounds=3, target_accuracy=reached)).rounds == expected
    assert runner.run(small("fedavg", rounds=3, target_accuracy=1.0)).rounds == first.rounds == 3


def test_patience_ends_a_run_early() -> None:
    """After so many rounds without a better score the run is over; zero never ends it."""
    losses = [{"val_loss": value} for value in (3.0, 1.0, 2.0, 2.0, 2.0, 0.5)]
    assert judged("loss", losses, patience=2).round == 4
    assert judged("loss", losses).round == 6


def test_evaluation_every_few_rounds_includes_the_last() -> None:
    """Rounds between evaluations have a line without metrics; the last round is always evaluated."""
    rows = runner.run(small("fedavg", rounds=5, evaluate_every=2)).rows
    assert ["accuracy" in row for row in rows] == [False, True, False, True, True]


def test_the_same_from_python_without_files() -> None:
    """`atoll.run` takes a name, a graph object or a PyG Data object and returns metrics, a table and bytes."""
    from torch_geometric.data import Data

    settings: dict[str, Any] = {"partition": "random", "parties": 3, "rounds": 2, "split": "random"}
    named = atoll.run("fedavg", dataset="csbm", nodes=60, **settings)
    assert named.history["round"].tolist() == [1, 2]
    assert named.bytes["up"] > 0
    graph = atoll.load("csbm", nodes=60)
    given = atoll.run("fedavg", dataset=graph, **settings)
    assert given.metrics == named.metrics
    x = graph.x if isinstance(graph.x, torch.Tensor) else torch.from_numpy(graph.x.toarray())
    data = Data(x=x, edge_index=graph.edge_index, y=graph.y)
    assert atoll.run("fedavg", dataset=data, **settings).metrics == named.metrics


def test_a_given_graph_must_be_given_again(tmp_path: Path) -> None:
    """A run on a graph object can be resumed with that object, and says so without it."""
    graph = atoll.load("csbm", nodes=60)
    done = atoll.run("fedavg", dataset=graph, partition="random", parties=3, rounds=2, out=tmp_path / "run")
    with pytest.raises(AtollError, match="was given as an object; give it again"):
        atoll.resume(tmp_path / "run")
    assert atoll.resume(tmp_path / "run", dataset=graph).metrics == done.metrics


def test_a_comparison_is_told_by_row_and_seed(tmp_path: Path) -> None:
    """Every row has all seeds; settings go to those who know them; runs already there are not run again."""
    arguments: dict[str, Any] = {"dataset": "csbm", "seeds": 2, "nodes": 60, "parties": 2, "partition": "random", "rounds": 2}
    compared = atoll.compare("local,fedavg", keep_optimizer=False, out=tmp_path, **arguments)
    assert [(row["row"], row["seeds"]) for row in compared.summary()] == [("local", 2), ("fedavg", 2)]
    written = {path: path.read_bytes() for path in tmp_path.glob("*/result.json")}
    assert len(written) == 4
    atoll.compare("local,fedavg", keep_optimizer=False, out=tmp_path, **arguments)
    assert {path: path.read_bytes() for path in tmp_path.glob("*/result.json")} == written
    with pytest.raises(AtollError, match="None of local, fedavg has a setting 'keep_optimiser'; did you mean 'keep_optimizer'"):
        atoll.compare("local,fedavg", keep_optimiser=False, **arguments)
    with pytest.raises(AtollError, match="local-0 holds a run with other settings"):
        atoll.compare("local,fedavg", keep_optimizer=False, out=tmp_path, **(arguments | {"rounds": 3}))
    twice = atoll.compare("local, local", **(arguments | {"seeds": [0, 0]})).summary()
    assert [(row["row"], row["seeds"]) for row in twice] == [("local", 1)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"dataset": 3}, "dataset is a int; give a name"),
        ({"dataset": [1, 2]}, "Party 0 is a int; give a name"),
        ({"partition": ["random"]}, "partition has 1 party numbers for"),
        ({"parties": "2"}, "parties is '2' but must be a whole number of at least 1"),
        ({"seed": "1"}, "seed is '1' but must be a whole number"),
        ({"seed": None}, "seed is None but must be a whole number"),
        ({"seed": True}, "seed is True but must be a whole number"),
        ({"algorithm": None}, "algorithm is None but must be a name"),
        ({"algorithm": ["fedavg"]}, "algorithm is .* but must be a name"),
    ],
)
def test_odd_objects_from_python(arguments: dict[str, Any], sentence: str) -> None:
    """The same one sentence as on the command line."""
    with pytest.raises(AtollError, match=sentence):
        atoll.run(**({"algorithm": "fedavg", "dataset": "csbm", "partition": "random", "parties": 2} | arguments))


def test_numpys_numbers_are_numbers(tmp_path: Path) -> None:
    """A loop over np.arange gives seeds like any other."""
    arguments: dict[str, Any] = {"dataset": "csbm", "nodes": 60, "partition": "random", "rounds": 1}
    ours = atoll.run("fedavg", parties=np.int64(2), seed=np.int64(1), out=tmp_path / "run", **arguments)
    assert ours.metrics == atoll.run("fedavg", parties=2, seed=1, **arguments).metrics


def test_a_graph_put_together_by_hand_is_checked() -> None:
    """Features of another type, labels beyond the classes and masks of another length are named."""
    graph = atoll.load("csbm", nodes=60)
    x = torch.from_numpy(graph.x.toarray()) if not isinstance(graph.x, torch.Tensor) else graph.x
    for change, sentence in (
        ({"x": x.double()}, "features are float64; give float32"),
        ({"y": graph.y + 100}, "label 10. of node 0 is not a class"),
        ({"y": graph.y[:5]}, r"y has shape \(5,\) for 60 nodes"),
        ({"train": graph.train[:5]}, r"train has shape \(5,\) for 60 nodes"),
    ):
        with pytest.raises(AtollError, match=sentence):
            atoll.run("fedavg", dataset=replace(graph, **change), partition="random", parties=2, rounds=1)


def test_compared_algorithms_share_one_partition() -> None:
    """Rows are comparable: baselines take the partition of the method that needs its own; what cannot be shared is refused."""
    from atoll.runs.comparison import Comparison

    shared = Comparison(["centralized", "local", "fedavg", "fedgl"], dataset="csbm", seeds=[0]).trials()
    assert {trial.config.partition for trial in shared} == {"overlap"}
    assert len({(trial.config.parties, trial.config.split) for trial in shared}) == 1
    assert {trial.config.partition for trial in Comparison(["local", "fedavg"], dataset="csbm").trials()} == {"metis"}
    vertical = Comparison(["centralized", "standalone", "glasu"], dataset="csbm", seeds=[0]).trials()
    assert {trial.config.partition for trial in vertical} == {"vertical"}
    with pytest.raises(AtollError, match="spread differently by default"):
        Comparison(["glasu", "fedgl"], dataset="csbm").trials()


def test_a_damaged_history_line_is_cut_back(tmp_path: Path) -> None:
    """Half a line written by a dying process is cut off at the checkpoint's length."""
    runner.run(small("fedavg", rounds=2), out=tmp_path / "run")
    folder = Folder(tmp_path / "run")
    before = folder.rows()
    with folder.history.open("a") as file:
        file.write('{"round": 3, "acc')
    assert runner.resume(tmp_path / "run").rows == before
