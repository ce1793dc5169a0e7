"""The constants of Theorem 4.1 against their definitions, written out with autograd for a small graph."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import atoll
from algorithms.test_gfl_appnp import FEATURES, HIDDEN, dense_propagation, prepared
from atoll.algorithms import gfl_appnp
from atoll.algorithms.gfl_appnp import convergence
from atoll.cli import main
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import theory
from atoll.runs.experiment import Experiment


def measured(experiment: Experiment, rounds: int = 7) -> dict[str, float]:
    """Symbol → value at the first model."""
    settings, data = experiment.config.settings, experiment.party_data
    state = gfl_appnp.start(experiment.federation, settings)
    return {one.symbol: one.value for one in gfl_appnp.theory(data.parts, data.public, state, settings, rounds)}


def loss(graph: Graph, matrix: Tensor, party: int, own: Tensor, other: Tensor, rows: Tensor) -> Tensor:
    """The mean loss of some training vectors of a party; its own outputs by `own`, the others' ĥ by `other`."""
    assert isinstance(graph.x, Tensor)
    x = graph.x.double()

    def outputs(weights: Tensor) -> Tensor:
        first, second = weights[: FEATURES * HIDDEN].view(FEATURES, HIDDEN), weights[FEATURES * HIDDEN :].view(HIDDEN, -1)
        return (x @ first).relu() @ second

    means = torch.stack([outputs(other)[graph.ptr[j] : graph.ptr[j + 1]].mean(0) for j in range(graph.parties)])
    others = torch.ones(graph.parties, dtype=torch.float64).index_fill_(0, torch.tensor([party]), 0)
    context = (matrix[party] * others) @ means
    return torch.nn.functional.cross_entropy(matrix[party, party] * outputs(own)[rows] + context, graph.y[rows])


@pytest.mark.parametrize("task", ["dnc", "sc"])
def test_gradients_and_heterogeneity_are_those_of_the_definition(task: str) -> None:
    """∇F, κ², σ_G² and Δ by autograd of every party's own loss, edge by edge."""
    experiment = prepared(task)
    graph = experiment.party_data.parts
    matrix = dense_propagation(experiment.party_data.whole)
    model = gfl_appnp.start(experiment.federation, experiment.config.settings)["model"]
    weights = torch.cat([value.flatten().double() for value in model.values()])
    training = [k for k in range(graph.parties) if graph.train[graph.ptr[k] : graph.ptr[k + 1]].any()]

    def gradient(k: int, rows: Tensor) -> Tensor:
        return torch.autograd.functional.jacobian(lambda w: loss(graph, matrix, k, w, w, rows), weights)

    rows = {k: int(graph.ptr[k]) + graph.train[graph.ptr[k] : graph.ptr[k + 1]].nonzero()[:, 0] for k in training}
    full = {k: gradient(k, rows[k]) for k in training}
    each = {k: torch.stack([gradient(k, row[None]) for row in rows[k]]) for k in training}
    ours = measured(experiment)
    assert ours["N"] == len(training)
    assert ours["‖∇F(W̄)‖²"] == pytest.approx(float(torch.stack(list(full.values())).mean(0).square().sum()), rel=1e-5)
    edges = {tuple(sorted(pair)) for pair in experiment.party_data.public["edge_index"].t().tolist()}
    kappa = sum(float((full[i] - full[j]).square().sum()) for i, j in edges if i in full and j in full)
    assert kappa > 0
    assert ours["κ²"] == pytest.approx(kappa, rel=1e-5)
    variance = sum(float((each[k] - full[k]).square().sum(1).mean()) for k in training)
    assert ours["σ_G²"] == pytest.approx(variance, rel=1e-5, abs=1e-12)
    assert (ours["σ_G²"] == 0) == (task == "dnc")
    assert ours["Δ"] == pytest.approx(sum(float(each[k].square().sum(1).max()) for k in training), rel=1e-5)


def test_the_lipschitz_constant_is_the_largest_singular_value() -> None:
    """ρ_h over all vectors, by the Jacobian itself."""
    experiment = prepared("dnc")
    graph, model = experiment.party_data.parts, gfl_appnp.start(experiment.federation, experiment.config.settings)["model"]
    assert isinstance(graph.x, Tensor)
    largest = 0.0
    for x in graph.x.double():
        first, second = (value.double() for value in model.values())
        pieces = torch.autograd.functional.jacobian(lambda a, b, x=x: (x @ a).relu() @ b, (first, second))
        largest = max(largest, float(torch.linalg.matrix_norm(torch.cat([piece.flatten(1) for piece in pieces], 1), 2)))
    assert measured(experiment)["ρ_h"] == pytest.approx(largest, rel=1e-6)


def test_one_step_has_no_error_and_more_steps_have_a_bounded_one() -> None:
    """I = 1 uses exact representations (Remark 2); later the error is below Lemma A.1's bound and grows with I."""
    one, three, six = (measured(prepared("dnc", local_steps=steps)) for steps in (1, 3, 6))
    assert one["σ_H²"] == 0
    assert 0 < three["σ_H²"] < six["σ_H²"]
    assert three["σ_H²"] <= three["2η²ρ_h²I²Δ"]
    assert three["ρ_φ"] > 0
    assert three["1/√(NT)"] == pytest.approx(1 / math.sqrt(three["N"] * 7 * 3))
    assert three["I²η²σ_H²"] == pytest.approx(9 * 0.3**2 * three["σ_H²"])


def test_large_runs_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence with the numbers, before anything is computed."""
    monkeypatch.setattr(convergence, "MAX_WORK", 10)
    with pytest.raises(AtollError, match="12 parties, 4 of them training, would take too long"):
        measured(prepared("dnc"))


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """A table or JSON for a run of GFL-APPNP; one sentence and exit code 2 for another method's."""
    small = {"nodes": 30, "connected_train_share": 0.2, "hidden": 4, "features": 5, "rounds": 2, "local_steps": 2}
    atoll.run("gfl_appnp", dataset="csbm", out=tmp_path / "a", **small)
    atoll.run("fedavg", dataset="csbm", out=tmp_path / "b", nodes=60, rounds=1, parties=2)

    def call(*words: str) -> int:
        monkeypatch.setattr(sys, "argv", ["atoll", "theory", *words])
        try:
            main.main()
        except SystemExit as ended:
            return int(ended.code or 0)
        return 0

    assert call(str(tmp_path / "a"), "--json") == 0
    values = json.loads(capsys.readouterr().out)
    assert values["N"] == 6
    assert values["κ²"] > 0
    assert call(str(tmp_path / "a")) == 0
    assert "Assumption 3" in capsys.readouterr().out
    assert call(str(tmp_path / "b")) == 2
    assert "a run of fedavg, whose theory atoll does not know; it knows that of gfl_appnp" in capsys.readouterr().err
    assert call(str(tmp_path / "c")) == 2


def test_a_method_that_measures_during_the_run_is_not_asked_after_it(tmp_path: Path) -> None:
    """GLASU has a submodule `theory`, which is not the function that the command looks for."""
    atoll.run("glasu", dataset="csbm", out=tmp_path, nodes=60, rounds=1, parties=2, hidden=4, layers=2, shared_layers=1)
    with pytest.raises(AtollError, match="a run of glasu, whose theory atoll does not know; it knows that of gfl_appnp"):
        theory.measure(tmp_path)
