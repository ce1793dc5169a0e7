"""Where uneven parties, padding, unknown targets and held-out edges could go wrong: every algorithm that accepts the task."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from test_link_prediction import edge_set, random_edges, write_data
from torch import Tensor, nn

from atoll import algorithms, wire
from atoll.algorithms import glasu
from atoll.errors import AtollError
from atoll.federation.cohort import Cohort
from atoll.federation.fields import concatenate
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, resolve
from atoll.graphs.pairs import EDGE
from atoll.models.optim import SGD, Adam
from atoll.runs import config as configurations
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.data_task import tasks_of
from atoll.runs.runner import Result
from atoll.settings import BatchedTraining
from atoll.tasks import GRAPH_TASK, LINK_TASK, TASKS
from atoll.tasks.regression import Values
from atoll.tasks.targets import Targets
from small import small
from small_graphs import SHAPES, small_graphs, write
from small_links import small_links
from small_targets import small_targets

pytestmark = [pytest.mark.usefixtures("graph_data"), pytest.mark.filterwarnings("ignore::atoll.errors.AtollWarning")]

COUNTS = (26, 11, 7)  # graphs of the parties in `graph_folders`
ACCEPTED = [(name, task) for name in algorithms.names() for task in tasks_of(name)]


def trains_in_batches(algorithm: str, task: str) -> bool:
    """Whether several parties train at once, in steps that some of them may have no items for."""
    module = algorithms.find(algorithm)
    if "horizontal" not in module.SCENARIOS:
        return False
    return TASKS.find(task).level != "node" or (issubclass(module.Settings, BatchedTraining) and not module.Cohort.whole_graph)


@pytest.fixture(scope="module")
def graph_data(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """ATOLL_DATA with small datasets of graphs, for the whole file."""
    root = tmp_path_factory.mktemp("data")
    write(root)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_DATA", str(root))
        yield


@pytest.fixture(scope="module")
def graph_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three parties' tables of small graphs with labels and values, a third of which nobody knows."""
    root, rng = tmp_path_factory.mktemp("own"), np.random.default_rng(5)
    for party, count in enumerate(COUNTS):
        folder = root / f"party{party}"
        folder.mkdir()
        sizes = rng.integers(1, 5, count)
        member = np.repeat(np.arange(count), sizes)
        labels, values = rng.integers(0, 2, (count, 2)).astype(object), rng.normal(size=(count, 2)).round(3).astype(object)
        for targets in (labels, values):
            targets[rng.random(targets.shape) < 1 / 3] = None
            targets[0] = 1
        columns = {f"label:l{i}": labels[:, i] for i in range(2)} | {f"value:v{i}": values[:, i] for i in range(2)}
        pd.DataFrame({"id": np.arange(count), **columns}).to_csv(folder / "graphs.csv", index=False)
        x = rng.normal(size=(len(member), 3)).round(3)
        nodes = {"id": [f"n{i}" for i in range(len(member))], "graph": member}
        pd.DataFrame({**nodes, **{f"x{i}": x[:, i] for i in range(3)}}).to_csv(folder / "nodes.csv", index=False)
        path = np.flatnonzero(member[:-1] == member[1:])
        edges = {"source": [f"n{i}" for i in path], "target": [f"n{i + 1}" for i in path]}
        pd.DataFrame(edges).to_csv(folder / "edges.csv", index=False)
    return root


def config_of(algorithm: str, task: str, folders: Path, **values: Any) -> Config:
    """A small run of the algorithm on the task: parties with few and with many items, in small batches."""
    level, target = TASKS.find(task).level, TASKS.find(task).target
    whole = "whole" in algorithms.find(algorithm).SCENARIOS
    batched = {"batch_size": 4} if trains_in_batches(algorithm, task) else {}
    scale = {"value_scale": "none"} if target == "values" else {}
    values = {"hidden": 8, "layers": 2, "rounds": 1, "patience": 0, **batched, **scale, **values}
    if level == "graph" and target != "class":
        values["target"] = target
        return configurations.resolve(algorithm, dataset=str(folders), partition="files", seed=3, values=values)
    if level == "graph":
        if not whole and not needs_alike(algorithm):
            return small_graphs(algorithm, "chem", **values)
        values["size_exponent"] = 1.0
        return configurations.resolve(algorithm, dataset="nci1", partition="random", parties=3, seed=3, values=values)
    if level == "link":
        return small_links(algorithm, algorithms.find(algorithm).SCENARIOS[0], **values)
    if target != "class":
        return small_targets(algorithm, target, size_exponent=1.0, **values)
    return small(algorithm, scenario="horizontal", **{**values, "size_exponent": 0.7})


@functools.cache
def needs_alike(algorithm: str) -> bool:
    """Whether an algorithm refuses parties with different columns and classes."""
    try:
        runner.prepare(small_graphs(algorithm, "chem"))
    except AtollError as error:
        return "different columns" in str(error) or "classes are not the same" in str(error)
    return False


# (a) a party without items in a batch takes no step


def live(cohort: Cohort) -> dict[str, Tensor]:
    """What training changes in place, (P, …): parameters and buffers of networks, moments and step counts of optimizers."""
    optimizers = {name: value for name, value in vars(cohort).items() if isinstance(value, (Adam, SGD))}
    found = {f"{name}.{key}": tensor for name, one in optimizers.items() for key, tensor in one.state().items()}
    trained = {tensor.data_ptr() for one in optimizers.values() for tensor in one.params.values()}
    for name, value in vars(cohort).items():
        if isinstance(value, nn.Module) and any(tensor.data_ptr() in trained for tensor in value.parameters()):
            found |= {f"{name}.{key}": tensor for key, tensor in [*value.named_parameters(), *value.named_buffers()]}
    return {name: tensor for name, tensor in found.items() if tensor.shape[:1] == (cohort.graph.parties,)}


class Watch:
    """Compares, from one batch to the next, what the parties without items in it hold."""

    def __init__(self, cohort: Cohort) -> None:
        self.cohort = cohort
        self.absences = 0
        self.stepped = torch.zeros(cohort.graph.parties, dtype=torch.bool)

    def over(self, batches: Callable[..., Iterator[Graph]]) -> Callable[..., Iterator[Graph]]:
        """The same batches, watched."""

        def watched(*args: Any, **arguments: Any) -> Iterator[Graph]:
            for batch in batches(*args, **arguments):
                before = {name: value.detach().clone() for name, value in live(self.cohort).items()}
                yield batch
                self.compare(batch.item_ptr.diff() == 0, before)

        return watched

    def compare(self, absent: Tensor, before: dict[str, Tensor]) -> None:
        """The absent parties' rows have every bit that they had."""
        for name, value in live(self.cohort).items():
            changed = (value != before[name]).view(len(absent), -1).any(1)
            assert not bool((changed & absent).any()), f"{name} of a party without items changed"
            self.stepped |= changed
        self.absences += int(absent.sum())


VARIANTS: dict[str, dict[str, Any]] = {  # steps that a run takes by another way
    "ditto": {"choose_proximal": "true", "batch_size": 0},
}
IN_BATCHES = [(name, task, {}) for name, task in ACCEPTED if trains_in_batches(name, task)]
IN_BATCHES += [(name, LINK_TASK, values) for name, values in VARIANTS.items()]


@pytest.mark.parametrize(("algorithm", "task", "values"), IN_BATCHES)
def test_a_party_without_items_in_a_batch_takes_no_step(
    algorithm: str, task: str, values: dict[str, Any], graph_folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its parameters, moments and step count keep every bit, whatever the others do."""
    if task == LINK_TASK:  # one of the parties has no edge at all
        values = {"size_exponent": 3.0, **values}
    experiment = runner.prepare(config_of(algorithm, task, graph_folders, **values))
    watch = Watch(experiment.engine.cohorts[0])  # type: ignore[attr-defined]
    kind = type(experiment.federation.task)
    monkeypatch.setattr(kind, "batches", watch.over(kind.batches))
    monkeypatch.setattr(minibatch, "epoch", watch.over(minibatch.epoch))
    runner.rounds(experiment)
    assert watch.absences > 0
    assert bool(watch.stepped[experiment.party_data.parts.num_train > 0].all())


# (b) padding has gradient zero and stays zero

PADDED = [name for name, task in ACCEPTED if task == GRAPH_TASK and "whole" not in algorithms.find(name).SCENARIOS]


@pytest.mark.parametrize("algorithm", PADDED)
def test_padding_stays_zero(algorithm: str, graph_folders: Path) -> None:
    """In every network, and in every moment: so its gradient was zero in every step. A party's own part is not zero."""
    if needs_alike(algorithm):
        pytest.skip(f"{algorithm} refuses parties that differ")
    experiment = runner.prepare(config_of(algorithm, GRAPH_TASK, graph_folders, rounds=2))
    runner.rounds(experiment)
    seen = set()
    for name, value in live(experiment.engine.cohorts[0]).items():  # type: ignore[attr-defined]
        layer = ".".join(name.split(".")[-2:])
        if layer in ("input.weight", "output.weight", "output.bias"):
            seen.add(layer)
            for party, (_, columns, classes) in enumerate(SHAPES.values()):
                rows, width = (value[party], columns) if layer == "input.weight" else (value[party].t(), classes)
                assert bool(rows[:width].any()), f"{name} of party {party}"
                assert not bool(rows[width:].any()), f"{name} of party {party}"
    assert len(seen) == 3


# (c) what is unknown is masked before anything is multiplied, and the number of known entries is the divisor


def plain_loss(task: Targets, out: Tensor, graph: Graph, mask: Mask = "train") -> Tensor:
    """The mean of each party's known entries, and nothing else, is looked at."""
    losses = []
    for party in range(graph.parties):
        rows = resolve(graph, mask) & (graph.owner == party)
        assert graph.y_columns is not None
        scores, targets = out[rows], graph.y_columns[rows]
        known = ~targets.isnan()
        if bool(known.any()):
            measure = F.mse_loss if isinstance(task, Values) else F.binary_cross_entropy_with_logits
            losses.append(measure(scores[known], targets[known]))
    return torch.stack(losses).sum() if losses else 0.0 * out.sum()


NOT_KNOWN = ("state/cached", "state/accuracy")  # GCFL's test accuracies, which there are of classes alone


def tensors(result: Result) -> dict[str, Tensor]:
    """The server's state and the parties' memory."""
    held = {"state": result.state, "memory": concatenate(list(result.memory.values()))}
    return {name: value for name, value in wire.leaves(held) if isinstance(value, Tensor)}


@pytest.mark.parametrize(("algorithm", "task"), [pair for pair in ACCEPTED if TASKS.find(pair[1]).target != "class"])
def test_unknown_targets_have_no_part(algorithm: str, task: str, graph_folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No NaN in losses, state or memory, which are those of a loss that selects the known entries first.

    By SGD: Adam's steps hardly depend on what a gradient is divided by.
    """
    config = config_of(algorithm, task, graph_folders, optimizer="sgd", lr=0.05, rounds=2)
    experiment = runner.prepare(config)
    graph = experiment.party_data.parts
    assert graph.y_columns is not None
    assert bool((graph.y_columns.isnan().any(1) & graph.train).any())
    usual = runner.rounds(experiment)
    for name, value in tensors(usual).items():
        assert name in NOT_KNOWN or bool(value.isfinite().all()), name
    assert all(math.isfinite(row["val_loss"]) for row in usual.rows)
    monkeypatch.setattr(Targets, "loss", plain_loss)
    plain = tensors(runner.rounds(runner.prepare(config)))
    for name, value in tensors(usual).items():
        torch.testing.assert_close(value, plain[name], atol=1e-5, rtol=1e-4, equal_nan=True, msg=name)


# (d) no validation or test edge passes a message

SPREAD: dict[str, dict[str, Any]] = {
    "horizontal": {"partition": "random", "parties": 2},
    "overlapping": {"partition": "overlap", "proportions": "0.7,0.8"},
    "whole": {"partition": "random", "parties": 3},
    "vertical": {"partition": "vertical", "parties": 2, "edge_fraction": 1},
}
ON_LINKS = [(name, scenario) for name, task in ACCEPTED if task == LINK_TASK for scenario in algorithms.find(name).SCENARIOS]


@pytest.fixture(scope="module")
def link_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A graph whose edges have roles; and the same with other validation and test edges, and more of them."""
    root, edges = tmp_path_factory.mktemp("links"), random_edges(40, 160)
    roles = [("test", "val", "train", "train", "train")[number % 5] for number in range(160)]
    free = [pair for pair in random_edges(40, 780) if pair not in set(edges)]
    planted = [pair if role == "train" else free.pop() for pair, role in zip(edges, roles, strict=True)]
    more = [free.pop() for _ in range(30)]
    before = write_data(root / "before", edges, roles)
    return [before, write_data(root / "after", [*planted, *more], [*roles, *["val", "test"] * 15])]


@pytest.mark.parametrize(("algorithm", "scenario"), ON_LINKS)
def test_planted_edges_change_nothing_that_trains(algorithm: str, scenario: str, link_folders: list[Path]) -> None:
    """With other and more held-out edges, the server's state and the parties' memory keep every bit."""
    vertical = issubclass(algorithms.find(algorithm).Cohort, glasu.Cohort)
    values = {"task": LINK_TASK, "rounds": 2, "patience": 0, "hidden": 8, **SPREAD["vertical" if vertical else scenario]}
    where = {"partition": values.pop("partition"), "parties": values.pop("parties", None), "seed": 2}
    held_out, trained = [], []
    for folder in link_folders:
        config = configurations.resolve(algorithm, dataset=str(folder), values=values, **where)
        experiment = runner.prepare(config)
        result = runner.rounds(experiment)
        parts = experiment.party_data.parts
        assert parts.pairs is not None
        held_out.append(pairs_of(parts, parts.pairs[:, (parts.val | parts.test) & (parts.y == EDGE)]))
        for graph in [one for one in vars(experiment.engine.cohorts[0]).values() if isinstance(one, Graph)]:  # type: ignore[attr-defined]
            assert not held_out[-1] & pairs_of(graph, graph.edge_index)
        trained.append(tensors(result))
    assert held_out[0]
    assert held_out[1] - held_out[0]
    assert trained[0].keys() == trained[1].keys()
    for name, value in trained[0].items():
        assert torch.equal(value, trained[1][name]), name


def pairs_of(graph: Graph, pairs: Tensor) -> set[tuple[int, int]]:
    """Undirected pairs of nodes, by their numbers in the whole graph."""
    return edge_set(graph.ids[pairs])
