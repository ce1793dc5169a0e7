"""Datasets from outside the package: one file with a class and its settings is enough to run an algorithm on it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.cli import main
from atoll.data import DATASETS, known, load
from atoll.data.builder import build_graph
from atoll.data.federated import federate
from atoll.data.registry import lookup
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import config
from atoll.settings import setting
from plugins import install, rescan

RING = {"dataset": "ring", "partition": "random", "parties": 2, "rounds": 2, "split": "random"}


@dataclass(frozen=True)
class RingSettings:
    """Settings of the toy dataset; `seed` and `name` have the names of arguments elsewhere."""

    length: int = setting(40, "Nodes of the ring.", low=3, high=1000)
    seed: int = setting(0, "Seed of the features.")
    name: str = setting("plain", "The kind of ring.", choices=("plain", "thick"))


class Ring:
    """A ring whose nodes have alternating classes."""

    name, nodes, edges, features, classes, folder, available = "ring", 40, 40, 3, 2, "", True
    Settings: ClassVar[type] = RingSettings

    def load(self, settings: RingSettings, *, seed: int, fold: int) -> Graph:
        """Noisy features with the class in the first."""
        rng = np.random.default_rng([settings.seed, seed])
        nodes = np.arange(settings.length)
        x = rng.standard_normal((len(nodes), 3)).astype(np.float32)
        x[:, 0] += 4 * (nodes % 2)
        return build_graph(x, np.stack([nodes, np.roll(nodes, 1)]), nodes % 2, where="ring")


@pytest.fixture
def ring() -> Iterator[Ring]:
    """The toy dataset, registered for one test."""
    yield DATASETS.register("ring", Ring())  # type: ignore[misc]
    DATASETS.unregister("ring")


def test_an_algorithm_runs_on_a_registered_dataset(ring: Ring, tmp_path: Path) -> None:
    """With its default settings, with others, from its run folder, and it is listed."""
    result = atoll.run("fedavg", **RING, **{"data.length": 60, "data.seed": 1, "name": "thick"}, out=tmp_path / "run")
    assert federate(result.config, None, ("horizontal",)).source.num_nodes == 60
    assert result.config.data == RingSettings(60, 1, "thick")
    assert atoll.resume(tmp_path / "run").metrics == result.metrics
    assert lookup("Ring") is ring
    assert load("RING", length=5).num_nodes == 5
    assert "ring" in [dataset.name for dataset in known()]


def test_its_settings_are_checked(ring: Ring) -> None:
    """As those of atoll's own datasets are."""
    with pytest.raises(AtollError, match=r"fedavg data: length is 2 but must be at least 3\."):
        atoll.run("fedavg", **RING, length=2)
    with pytest.raises(AtollError, match=r"fedavg has no setting 'data.lenght'; did you mean 'length'\?"):
        atoll.run("fedavg", **RING, **{"data.lenght": 5})
    with pytest.raises(AtollError, match=r"'ring' has no option 'lenght'; did you mean 'length'\?"):
        load("ring", lenght=5)
    with pytest.raises(AtollError, match="'ring' has no directed edges"):
        load("ring", directed=True)


SOURCE = """
import numpy as np
from dataclasses import dataclass
from atoll.data.builder import build_graph
from atoll.settings import setting

@dataclass(frozen=True)
class Settings:
    length: int = setting(30, "Nodes of the path.", low=2)

class Path:
    name, nodes, edges, features, classes, folder, available = "path", 30, 29, 1, 2, "", True
    Settings = Settings

    def load(self, settings, *, seed, fold):
        nodes = np.arange(settings.length)
        return build_graph(np.ones((len(nodes), 1)), np.stack([nodes[:-1], nodes[1:]]), nodes % 2, where="path")

PATH = Path()
NOTHING = object()
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with a dataset that works and two that do not."""
    entries = {"path": "paths:PATH", "nothing": "paths:NOTHING", "absent": "paths:ABSENT"}
    install(tmp_path, monkeypatch, "paths", "atoll.datasets", entries, SOURCE)
    rescan(DATASETS, monkeypatch)


@pytest.mark.usefixtures("package")
def test_an_algorithm_runs_on_another_packages_dataset() -> None:
    """Through a real entry point, with a setting of its own."""
    result = atoll.run("fedavg", **{**RING, "dataset": "path"}, length=24)
    assert federate(result.config, None, ("horizontal",)).source.num_nodes == 24
    assert config.groups_of("fedavg", "path")["data"].__module__ == "paths"


@pytest.mark.usefixtures("package")
def test_broken_datasets_do_not_hide_the_others(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The list warns of them; asking for one is an error that names the package."""
    monkeypatch.setattr(sys, "argv", ["atoll", "datasets"])
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with pytest.raises(SystemExit) as stop:
            main.main()
    assert not stop.value.code
    listed, sentences = capsys.readouterr()
    assert "path" in listed
    assert "cora" in listed
    assert "'nothing' of the package paths is not a dataset: it has no name, nodes" in sentences
    assert "'absent' of the package paths cannot be imported" in sentences
    with pytest.raises(AtollError, match="'absent' of the package paths cannot be imported"):
        load("absent")
