"""Â·X made once: the same network as Â·(X·W) in every step, to rounding; refused where it would have no effect."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from atoll import algorithms
from atoll.data.csbm import CsbmSettings, generate
from atoll.errors import AtollError
from atoll.models.registry import build
from atoll.random import Draws
from atoll.runs import config, runner
from atoll.runs.config import Config
from atoll.settings import known

VALUES = {"rounds": 3, "patience": 0, "nodes": 200, "features": 6, "hidden": 8, "epochs": 2}
ABLE = [
    name
    for name in algorithms.names()
    if "propagate_first" in known(algorithms.find(name).Settings) and not hasattr(algorithms.find(name), "NO_PROPAGATE_FIRST")
]


def small(algorithm: str, **values: Any) -> Config:
    """A run on generated dense features."""
    return config.resolve(algorithm, dataset="csbm", partition="random", parties=3, values={**VALUES, **values})


@pytest.mark.parametrize("norm", ["none", "batch"])
@pytest.mark.parametrize("layers", [1, 3])
def test_outputs_and_gradients_are_those_of_the_usual_order(layers: int, norm: str) -> None:
    """With dropout of hidden units; the product is made once."""
    if layers == 1 and norm == "batch":
        pytest.skip("there is no hidden layer")
    data = runner.prepare(small("fedavg")).party_data.parts
    assert isinstance(data.x, torch.Tensor)
    results = []
    for first in (False, True):
        sizes = {"parties": data.parties, "features": data.num_features, "classes": data.num_classes, "hidden": 4}
        draws = Draws(1, range(data.parties), "model")
        model = build("gcn", **sizes, layers=layers, dropout=0.4, norm=norm, propagate_first=first, draws=draws)
        out = model(data, Draws(2, range(data.parties), "dropout"))
        results.append([out, *torch.autograd.grad(out.square().sum(), [w for w in model.parameters() if w.requires_grad])])
    for usual, other in zip(*results, strict=True):
        torch.testing.assert_close(other, usual, atol=1e-5, rtol=1e-4)  # batch norm divides by small numbers
    assert data.propagated_features is data.propagated_features


@pytest.mark.parametrize("algorithm", ABLE)
def test_runs_end_where_the_usual_ones_do(algorithm: str) -> None:
    """Every algorithm that has the setting."""
    usual, other = (runner.run(small(algorithm, propagate_first=first)) for first in (False, True))
    assert other.bytes == usual.bytes
    assert other.metrics["val_loss"] == pytest.approx(usual.metrics["val_loss"], abs=1e-4)


def test_nodes_to_predict_may_have_sparse_features() -> None:
    """Their first layer is the usual one."""
    dense = generate(CsbmSettings(nodes=60, features=6, communities=0))
    sizes = {"parties": 1, "features": 6, "classes": 2, "hidden": 4, "draws": Draws(1, [0], "model")}
    model = build("gcn", **sizes, propagate_first=True)
    torch.testing.assert_close(model(replace(dense, x=sp.csr_array(dense.x.numpy()))), model(dense), atol=1e-5, rtol=1e-5)


def test_some_parties_per_round() -> None:
    """Their graph is cut out of that of all."""
    usual, other = (runner.run(small("fedavg", propagate_first=first, participation=0.5)) for first in (False, True))
    assert other.metrics["val_loss"] == pytest.approx(usual.metrics["val_loss"], abs=1e-4)


@pytest.mark.parametrize(
    ("algorithm", "values", "sentence"),
    [
        ("fedavg", {"model": "sage"}, "propagate_first is for gcn, not for sage"),
        ("fedavg", {"input_dropout": 0.5}, "with input_dropout X is another one in every step"),
        ("local", {"batch_size": 4}, "with batch_size X is another one in every step"),
        ("fedgcn", {}, "fedgcn cannot make Â·X once"),
    ],
)
def test_what_is_refused(algorithm: str, values: dict[str, Any], sentence: str) -> None:
    """In one sentence, before anything is loaded."""
    with pytest.raises(AtollError, match=sentence):
        small(algorithm, propagate_first=True, **values)


def test_sparse_features_are_refused() -> None:
    """Â·X would be denser than X."""
    dense = generate(CsbmSettings(nodes=60, features=6, communities=0))
    sparse = replace(dense, x=sp.csr_array(np.eye(60, dtype=np.float32)))
    chosen = config.resolve("fedavg", dataset="given", partition="random", parties=2, values={"propagate_first": True})
    with pytest.raises(AtollError, match="is for dense features"):
        runner.run(chosen, sparse)
