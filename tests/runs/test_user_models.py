"""Runs with models that are not atoll's: a user's torch.nn.Module, a registered backbone, another package's."""

from __future__ import annotations

import shutil
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll import wire
from atoll.cli import main
from atoll.errors import AtollError
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.models.backbone import Chain
from atoll.models.registry import MODELS
from atoll.random import Draws
from atoll.runs import config, runner
from atoll.runs.result import Result
from atoll.settings import setting
from plugins import install, rescan
from small import small

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv, GraphSAGE

BACKBONES = ["apfl", "centralized", "fedavg", "fedgl", "fedlit_deep", "fedper", "fedprox", "fedspray", "gcfl", "local"]
NEEDED = {"fedgl": {"pseudo_graph_weight": 0}}  # a plain module does not use edge weights
SMALL = {"dataset": "csbm", "partition": "random", "parties": 2, "rounds": 2, "nodes": 40, "split": "random"}


class TwoConvolutions(nn.Module):
    """The network of PyG's introduction."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.dropout = nn.Dropout(dropout)
        self.conv2 = GCNConv(hidden_channels, out_channels)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The hidden representation."""
        return self.conv1(x, edge_index).relu()

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.conv2(self.dropout(self.embed(x, edge_index)), edge_index)


def linear(in_channels: int, out_channels: int) -> nn.Module:
    """A function that makes a module, without `embed`."""

    class Linear(nn.Linear):
        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return super().forward(x)

    return Linear(in_channels, out_channels)


def run(algorithm: str, **values: Any) -> Result:
    """A small run with the module above, with dropout."""
    return runner.run(small(algorithm, model=TwoConvolutions, dropout=0.5, **NEEDED.get(algorithm, {}), **values))


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """Metrics without the lists by party."""
    return {name: value for name, value in metrics.items() if isinstance(value, float)}


def same_bits(one: Result, other: Result) -> None:
    """State, memory and metrics are equal, bit for bit."""
    for kept, again in ((one.state, other.state), (one.memory, other.memory)):
        values, others = dict(wire.leaves(kept)), dict(wire.leaves(again))
        assert values.keys() == others.keys()
        for name, value in values.items():
            assert torch.equal(value, others[name]), name
    assert one.last == other.last
    assert one.bytes == other.bytes


@pytest.mark.parametrize("algorithm", BACKBONES)
def test_placement_and_amnesia_do_not_matter(algorithm: str) -> None:
    """In one cohort, each party at a site of its own, and rebuilt from memory before every message: the same bits."""
    together = run(algorithm)
    apart, forgetful = run(algorithm, placement="apart"), run(algorithm, amnesia="true")
    assert dict(wire.leaves(together.state)).keys() == dict(wire.leaves(apart.state)).keys()
    for (name, value), (_, other) in zip(wire.leaves(together.state), wire.leaves(apart.state), strict=True):
        torch.testing.assert_close(value, other, atol=1e-6, rtol=1e-6, msg=lambda m, n=name: f"{n}: {m}")
    assert numbers(together.last) == pytest.approx(numbers(apart.last), rel=1e-6)
    same_bits(together, forgetful)
    assert any("conv1" in name for name, _ in [*wire.leaves(together.state), *wire.leaves(together.memory)])


@pytest.mark.parametrize("algorithm", ["fedavg", "fedper", "local"])
def test_resume_is_exact(algorithm: str, tmp_path: Path) -> None:
    """Broken off and resumed with the same class, a run ends with the same bits; without it, it says what is missing."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise Broken

    chosen = small(algorithm, model=TwoConvolutions, dropout=0.5, rounds=4, checkpoint_every=1)
    whole = runner.run(chosen)
    with pytest.raises(Broken):
        runner.run(chosen, out=tmp_path / "run", watch=watch)
    with pytest.raises(AtollError, match=r"was given as an object; give it again: atoll\.resume\(.*, model=TwoConvolutions\)"):
        atoll.resume(tmp_path / "run")
    with pytest.raises(AtollError, match=r"is a run of the model .*:TwoConvolutions, not of .*:linear"):
        atoll.resume(tmp_path / "run", model=linear)
    same_bits(whole, atoll.resume(tmp_path / "run", model=TwoConvolutions))


def test_fedavg_equals_our_gcn() -> None:
    """Started from the same parameters, FedAvg with PyG's GCNConv and with atoll's gcn stay together."""
    ours, theirs = (runner.prepare(small("fedavg", rounds=5, model=model)) for model in ("gcn", TwoConvolutions))

    def as_theirs(state: dict[str, Any]) -> dict[str, Tensor]:
        layers = [(f"layers.{i}", f"conv{i + 1}") for i in range(2)]
        weights = {f"{name}.lin.weight": state["model"][f"{layer}.weight"].t() for layer, name in layers}
        return weights | {f"{name}.bias": state["model"][f"{layer}.bias"] for layer, name in layers}

    state = ours.algorithm.start(ours.federation, ours.config.settings)
    other = {"model": as_theirs(state)}
    for index in range(1, 6):
        for experiment in (ours, theirs):
            experiment.federation.begin(index)
        state = ours.algorithm.step(ours.federation, state, ours.config.settings)
        other = theirs.algorithm.step(theirs.federation, other, theirs.config.settings)
    for name, value in as_theirs(state).items():
        torch.testing.assert_close(other["model"][name], value, atol=1e-5, rtol=1e-5)
    with ours.federation.evaluating(), theirs.federation.evaluating():
        expected = ours.algorithm.evaluate(ours.federation, state, ours.config.settings)
        metrics = theirs.algorithm.evaluate(theirs.federation, other, theirs.config.settings)
    assert numbers(metrics) == pytest.approx(numbers(expected), abs=1e-5)
    sent, expected_bytes = theirs.federation.ledger.total(), ours.federation.ledger.total()
    assert (sent["up"], sent["down"]) == (expected_bytes["up"], expected_bytes["down"])


def test_fedper_keeps_the_last_layer() -> None:
    """The last of the module's layers, in the order of its constructor, stays with the party."""
    result = run("fedper")
    assert set(result.state["base"]) == {"conv1.bias", "conv1.lin.weight"}


@pytest.mark.parametrize("model", [linear, GraphSAGE], ids=["function", "PyG"])
def test_functions_and_models_of_pyg_run(model: Any) -> None:
    """What makes a module is a model, and so is every class of PyG with the usual arguments; other arguments are settings."""
    values = {"model.act": "elu"} if model is GraphSAGE else {}
    result = atoll.run("fedavg", model=model, **SMALL, **values)
    assert result.config.settings.model == f"{model.__module__}:{model.__qualname__}"
    assert 0 <= result.metrics["accuracy"] <= 1


@pytest.mark.parametrize(
    ("algorithm", "values", "sentence"),
    [
        ("fedstar", {}, "fedstar joins structure to the features in every layer, which linear has no place for; choose gcn"),
        ("fedlit_deep", {}, r"linear has no method embed\(x, edge_index\), which this needs"),
        ("fedgl", {"pseudo_graph_weight": 0.5}, "A pseudo graph has weights that linear does not use"),
        ("glasu", {}, "glasu settings: model is .* but must be one of gcnii, gcn, gat, residual, mlp"),
        ("nfedgnn", {}, "nfedgnn settings: model is .* but must be one of gcn, gat"),
    ],
)
def test_what_needs_more_than_a_plain_module_says_so(algorithm: str, values: dict[str, Any], sentence: str) -> None:
    """One sentence, before anything is trained."""
    with pytest.raises(AtollError, match=sentence):
        runner.run(small(algorithm, model=linear, **values))


FILE = """
import torch

class Net(torch.nn.Module):
    def __init__(self, in_channels, out_channels, scale: float = 1.0):
        super().__init__()
        self.linear, self.scale = torch.nn.Linear(in_channels, out_channels), scale

    def forward(self, x, edge_index):
        return self.scale * self.linear(x)
"""


def test_a_model_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """From the command line; resumed where the file is named again and unchanged, wherever it lies."""
    path, folder = tmp_path / "net.py", tmp_path / "run"
    path.write_text(FILE)

    def command(*words: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["atoll", *words])
        with pytest.raises(SystemExit) as stop:
            main.main()
        captured = capsys.readouterr()
        return int(stop.value.code or 0), captured.err + captured.out

    words = ["--set", "nodes=40", "--partition", "random", "--parties", "2", "--rounds", "2", "-q", "--out", str(folder)]
    code, said = command("run", "fedavg", "--model", str(path), "--set", "model.scale=2", *words)
    assert code == 0, said
    assert "[model]\nscale = 2.0" in (folder / "config.toml").read_text()
    code, said = command("resume", str(folder), "-q")
    assert code == 2
    assert f"is not run because a folder names it; if you trust it, say so: atoll resume {folder} --model {path}" in " ".join(
        said.split()
    )
    elsewhere = tmp_path / "elsewhere.py"
    shutil.move(path, elsewhere)
    assert runner.read(folder).config.settings.model == str(path)  # reading imports nothing
    code, said = command("resume", str(folder), "-q", "--model", str(elsewhere))
    assert code == 0, said
    elsewhere.write_text(FILE + "\n")
    code, said = command("resume", str(folder), "-q", "--model", str(elsewhere))
    assert code == 2
    assert "is not the file that" in said


def test_a_comparison_of_models(tmp_path: Path) -> None:
    """Rows and folders have short names, whatever the model is."""
    path = tmp_path / "net.py"
    path.write_text(FILE)
    values = {name: value for name, value in SMALL.items() if name != "dataset"}
    comparison = atoll.compare(
        "local", dataset="csbm", models=["gat", TwoConvolutions, str(path)], seeds=1, out=tmp_path / "out", **values
    )
    assert list(comparison.results) == ["local gat", "local TwoConvolutions", "local net"]
    assert (tmp_path / "out" / "local-net-0" / "result.json").exists()


def test_a_comparison_has_a_row_for_every_model(tmp_path: Path) -> None:
    """Two classes of one name, or two files of one name, are refused instead of sharing a row; the same one twice is one row."""

    def make(width: int) -> type[nn.Module]:
        class Net(nn.Module):
            def __init__(self, in_channels: int, out_channels: int) -> None:
                super().__init__()
                self.layers = nn.Sequential(nn.Linear(in_channels, width), nn.Linear(width, out_channels))

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                return self.layers(x)

        return Net

    values = {name: value for name, value in SMALL.items() if name != "dataset"}
    with pytest.raises(
        AtollError, match=r"models holds two different objects called test_.*Net; give one of them another __qualname__"
    ):
        atoll.compare("local", dataset="csbm", models=[make(2), make(64)], seeds=1, **values)
    net = make(2)
    assert len(atoll.compare("local", dataset="csbm", models=[net, net], seeds=1, **values).results) == 1
    files = [tmp_path / folder / "net.py" for folder in "ab"]
    for file in files:
        file.parent.mkdir()
        file.write_text(FILE)
    with pytest.raises(
        AtollError, match=rf"The models {files[0]} and {files[1]} would both be the row 'net'; rename one of them"
    ):
        atoll.compare("local", dataset="csbm", models=files, seeds=1, out=tmp_path / "out", **values)
    assert not (tmp_path / "out").exists()


def test_settings_of_a_model() -> None:
    """They are set as model.NAME, kept in a table of their own only where they differ, and checked."""
    usual, other = (small("fedavg", model="gat", **values) for values in ({}, {"model.heads": "4"}))
    assert "model" not in usual.to_dict()
    assert other.to_dict()["model"] == {"heads": 4}
    assert "architecture" not in other.to_dict()["settings"]
    assert config.from_dict(other.to_dict(), "here") == other
    assert small("fedavg", model="gat", **{"model.heads": 8}) == usual
    heads = {name: value.shape for name, value in runner.run(other).state["model"].items()}["layers.0.source"]
    assert heads == (4, 16)
    with pytest.raises(AtollError, match=r"The model has no setting 'heads'; it has none\."):
        small("fedavg", **{"model.heads": 4})
    with pytest.raises(AtollError, match=r"The model has no setting 'head'; did you mean 'heads'\?"):
        small("fedavg", model="gat", **{"model.head": 4})
    with pytest.raises(AtollError, match=r"fedavg has no setting 'heads'; did you mean 'model\.heads'\?"):
        small("fedavg", model="gat", heads=4)
    with pytest.raises(AtollError, match=r"There is no model 'gatt'; did you mean 'gat'\?"):
        small("fedavg", model="gatt")
    with pytest.raises(AtollError, match="None of local has a setting 'heads'"):
        atoll.compare("local", models="gat", seeds=1, heads=4)


def test_a_changed_model_setting_is_not_resumed(tmp_path: Path) -> None:
    """Even where the table [model] was added by hand."""
    runner.run(small("fedavg", model="gat", rounds=1), out=tmp_path / "run")
    file = tmp_path / "run" / "config.toml"
    file.write_text(file.read_text().replace("rounds = 1\n", "rounds = 2\n") + "\n[model]\nheads = 4\n")
    with pytest.raises(AtollError, match=r"model\.heads is 4 and was 8"):
        atoll.resume(tmp_path / "run")


@dataclass(frozen=True)
class ScaledSettings:
    """Settings of the toy backbone."""

    factor: float = setting(1.0, "What the logits are multiplied by.", low=0)


class Scaled(Chain):
    """A toy: logits = factor · X·W."""

    settings_type = ScaledSettings

    def layer(self, index: int, x: Features | Tensor, graph: Graph, draws: Draws | None) -> Tensor:
        """factor · (H·W + b)."""
        out: Tensor = self.settings.factor * self.layers[index](x, graph.blocks)
        return out


@pytest.fixture
def scaled() -> Iterator[None]:
    """The toy backbone, registered for one test."""
    MODELS.register("scaled", Scaled)
    yield
    MODELS.unregister("scaled")


@pytest.mark.usefixtures("scaled")
def test_a_registered_backbone_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One class with its settings is enough; it is listed, and its settings are checked."""
    once, twice = (atoll.run("fedavg", model="scaled", **SMALL, **{"model.factor": factor}) for factor in (1, 2))
    assert once.metrics["loss"] != twice.metrics["loss"]
    with pytest.raises(AtollError, match="fedavg model: factor is -1 but must be at least 0"):
        atoll.run("fedavg", model="scaled", **SMALL, **{"model.factor": -1})
    monkeypatch.setattr(sys, "argv", ["atoll", "models"])
    with pytest.raises(SystemExit):
        main.main()
    listed = capsys.readouterr().out
    assert "scaled" in listed
    assert "model.factor" in listed
    assert "A toy: logits" in listed
    monkeypatch.setattr(sys, "argv", ["atoll", "models", "scaled"])
    with pytest.raises(SystemExit):
        main.main()
    assert "What the logits are multiplied by." in " ".join(capsys.readouterr().out.split())


PACKAGE = """
from atoll.models.mlp import MLP

class Twice(MLP):
    def forward(self, graph, draws=None):
        return 2 * super().forward(graph, draws)
"""


def test_another_packages_backbone_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Through a real entry point in the group atoll.models."""
    install(tmp_path, monkeypatch, "twice", "atoll.models", {"twice_mlp": "twice:Twice", "absent": "twice:Absent"}, PACKAGE)
    rescan(MODELS, monkeypatch)
    result = atoll.run("fedavg", model="twice_mlp", **SMALL)
    assert result.config.settings.model == "twice_mlp"
    assert result.metrics["loss"] != atoll.run("fedavg", model="mlp", **SMALL).metrics["loss"]
    with pytest.raises(AtollError, match="The model 'absent' of the package twice cannot be imported"):
        atoll.run("fedavg", model="absent", **SMALL)
