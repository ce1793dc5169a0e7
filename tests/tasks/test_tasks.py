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
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, party_shares, party_sums, resolve
from atoll.random import Draws
from atoll.tasks import CountField, Metric

SMALL: dict[str, Any] = {
    "dataset": "csbm",
    "nodes": 120,
    "features": 12,
    "classes": 3,
    "partition": "random",
    "parties": 3,
    "rounds": 2,
}


class FirstClass:
    """Whether a node is of class 0: one logit per node, judged by the error rate."""

    name = "first-class"
    score = "precision"
    headings = {"error": Metric("error", percent=True, higher_is_better=False)}
    fields = {"judged": CountField((4,), ("items", "items", "sum", "items"))}

    def outputs(self, classes: int) -> int:
        """One logit."""
        return 1

    def batches(self, graph: Graph, size: int, draws: Draws) -> Iterator[Graph]:
        """The whole graph."""
        yield graph

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


def test_an_algorithm_may_be_for_some_tasks_only(registered: str) -> None:
    """FedSpray has a proxy for each class: it says which task it is for."""
    with pytest.raises(AtollError, match="fedspray is for the task node-classification, not for first-class"):
        atoll.run("fedspray", **SMALL, task=registered)


def test_an_unknown_task_is_named() -> None:
    """With the nearest there is."""
    with pytest.raises(AtollError, match="There is no task 'node-clasification'; did you mean 'node-classification'"):
        atoll.run("fedavg", **SMALL, task="node-clasification")


def test_the_usual_task_is_named_in_the_result(tmp_path: Path) -> None:
    """Also where nobody chose it."""
    atoll.run("local", out=tmp_path / "run", **SMALL)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["task"] == "node-classification"
