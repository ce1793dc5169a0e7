"""Algorithms of other packages: found through an entry point, checked, and run like atoll's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import atoll
from atoll import algorithms
from atoll.errors import AtollError
from plugins import install, rescan

SETTINGS = {"dataset": "csbm", "partition": "random", "parties": 2, "rounds": 2, "data.nodes": 60, "epochs": 1}
SOURCE = """'''FedAvg under another name.'''
from atoll.algorithms.fedavg import SCENARIOS, Cohort, Settings, evaluate, start, step
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package with an algorithm, and with a module that is none."""
    install(tmp_path, monkeypatch, "mine", "atoll.algorithms", {"mean": "mine", "wrong": "json"}, SOURCE)
    rescan(algorithms.ALGORITHMS, monkeypatch)


@pytest.mark.usefixtures("package")
def test_another_packages_algorithm_runs() -> None:
    """The same numbers as FedAvg, whose code it is."""
    assert "mean" in algorithms.names()
    result, same = (atoll.run(name, **SETTINGS) for name in ("mean", "fedavg"))
    assert result.metrics == same.metrics
    for name, value in same.state["model"].items():
        assert torch.equal(result.state["model"][name], value)


@pytest.mark.usefixtures("package")
def test_a_module_that_is_not_an_algorithm() -> None:
    """One sentence says whose it is and what it lacks."""
    with pytest.raises(AtollError, match="'wrong' of the package mine is not an algorithm: it has no Settings, Cohort"):
        atoll.run("wrong", **SETTINGS)
