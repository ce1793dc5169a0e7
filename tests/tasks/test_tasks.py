"""The registry of tasks: one that is registered from outside the package is trained, evaluated and named in the result."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import atoll
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, party_shares, party_sums, resolve
from atoll.runs import runner
from atoll.tasks import CountField, Metric
from small import ALGORITHMS, small

SMALL: dict[str, Any] = {
    "dataset": "csbm",
    "nodes": 120,
    "features": 12,
    "classes": 3,
    "partition": "random",
    "parties": 3,
    "rounds": 2,
}


class FirstClass(atoll.Task):
    """Whether a node is of class 0: one logit per node, judged by the error rate."""

    name = "first-class"
    score = "precision"
    headings = {"error": Metric("error", percent=True, higher_is_better=False)}
    fields = {"judged": CountField((4,), ("items", "items", "sum", "items"))}

    def outputs(self, classes: int) -> int:
        """One logit."""
        return 1

    def losses(self, out: Tensor, graph: Graph) -> Tensor:
        """(N,) of each node."""
        return F.binary_cross_entropy_with_logits(out[:, 0], (graph.y == 0).float(), reduction="none")

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train") -> Tensor:
        """The sum over parties of each one's mean."""
        return self.losses(out, graph) @ party_shares(graph, resolve(graph, mask))

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Test nodes and wrong ones, summed validation loss, validation nodes."""
        wrong = (out[:, 0] > 0) != (graph.y == 0)
        columns = [graph.test, graph.test & wrong, self.losses(out, graph) * graph.val, graph.val]
        return {"judged": party_sums(torch.stack([column.double() for column in columns], 1), graph)}

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """The error rate, and the validation loss."""
        nodes, wrong, loss, validated = sums["judged"].tolist()
        return {"error": wrong / nodes, "val_loss": loss / validated}

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """The error rate of each party."""
        return {"party_error": (counts["judged"][:, 1] / counts["judged"][:, 0]).tolist()}


@pytest.fixture
def registered() -> Iterator[str]:
    """The toy task, for one test."""
    atoll.TASKS.register(FirstClass.name, FirstClass())
    yield FirstClass.name
    atoll.TASKS.unregister(FirstClass.name)


@pytest.mark.parametrize(
    "algorithm", ["fedavg", "fedprox", "local", "fedper", "apfl", "fedstar", "gcfl", "fedlit", "fedlit_deep"]
)
def test_a_task_from_outside_is_run(registered: str, algorithm: str, tmp_path: Path) -> None:
    """Its outputs have one column, its loss falls, its metric is in the result; together and apart alike."""
    chosen = {**SMALL, "rounds": 8, "task": registered}
    result = atoll.run(algorithm, out=tmp_path / "run", **chosen)
    assert result.rows[-1]["val_loss"] < result.rows[0]["val_loss"]
    assert 0 <= result.metrics["error"] < 0.5
    assert len(result.metrics["party_error"]) == result.parties
    assert "accuracy" not in result.metrics
    assert json.loads((tmp_path / "run" / "result.json").read_text())["task"] == registered
    assert atoll.run(algorithm, placement="apart", **chosen).metrics["error"] == result.metrics["error"]
    assert atoll.resume(tmp_path / "run").metrics == result.metrics


OF_CLASSES = (  # these have something for each class, or compute losses of their own
    "adafgl", "cnfgnn", "feddep", "fedgcn", "fedgl", "fedgta", "fedsage", "fedspray", "fedtad", "fggp", "fgssl", "gfl_appnp",
    "glasu", "nfedgnn", "simulated", "standalone", "centralized_vertical",
)  # fmt: skip


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_every_algorithm_runs_it_or_says_what_it_is_for(registered: str, algorithm: str) -> None:
    """None fails halfway for want of something that the task does not have."""
    if algorithm in OF_CLASSES:
        with pytest.raises(AtollError, match=f"{algorithm} is for the task node-classification.*, not for first-class"):
            small(algorithm, task=registered)
    else:
        result = runner.run(small(algorithm, rounds=1, task=registered))
        assert 0 <= result.metrics["error"] <= 1


def test_a_variant_that_needs_more_says_so(registered: str) -> None:
    """What counts the parties do not make, nothing can be chosen by."""
    with pytest.raises(AtollError, match="choose_proximal needs the loss of validation items, which first-class does not count"):
        runner.run(small("ditto", rounds=1, task=registered, choose_proximal=True))


def test_a_task_without_a_member_is_refused() -> None:
    """By name, where it is registered."""
    bare = type("Bare", (), {"name": "bare", "score": "error", "headings": {}, "fields": {}, "outputs": len})()
    with pytest.raises(AtollError, match=r"The task 'bare' has no loss, counts, metrics, level, .*; inherit from atoll.Task"):
        atoll.TASKS.register("bare", bare)


def test_a_metric_without_validation_values_is_said_to_choose_nothing(registered: str) -> None:
    """The toy task judges test nodes alone by its error; the last round counts as the best, in so many words."""
    with pytest.warns(AtollWarning, match="select_by is error, but no round has a validation value of error"):
        result = atoll.run("local", **SMALL, task=registered, select_by="error")
    assert result.best_round == 2
    assert any("select by another metric" in text for text in result.warnings)
    assert not atoll.run("local", **SMALL, task=registered).warnings


def test_an_unknown_task_is_named() -> None:
    """With the nearest there is."""
    with pytest.raises(AtollError, match="There is no task 'node-clasification'; did you mean 'node-classification'"):
        atoll.run("fedavg", **SMALL, task="node-clasification")


def test_the_usual_task_is_named_in_the_result(tmp_path: Path) -> None:
    """Also where nobody chose it."""
    atoll.run("local", out=tmp_path / "run", **SMALL)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["task"] == "node-classification"
