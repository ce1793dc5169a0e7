"""Graph classification: one round beside a plain loop over parties and graphs, and the traps of uneven parties."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError
from atoll.federation.fields import concatenate
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.random import Draws
from atoll.runs import runner
from atoll.runs.config import Config
from atoll.runs.runner import Result
from small import small
from small_graphs import SHAPES, graph_data, small_graphs

__all__ = ["graph_data"]
pytestmark = pytest.mark.usefixtures("graph_data")
Weights = dict[str, Tensor]


def graphs_of(graph: Graph) -> list[tuple[Tensor, Tensor, int, str]]:
    """Features, dense adjacency, label and role of every graph of one party."""
    assert graph.graph_ptr is not None
    x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())
    adjacency = torch.zeros(graph.num_nodes, graph.num_nodes)
    adjacency[graph.edge_index[1], graph.edge_index[0]] = 1
    found = []
    for g in range(len(graph.y)):
        rows = slice(*graph.graph_ptr[g : g + 2].tolist())
        role = "train" if graph.train[g] else "val" if graph.val[g] else "test"
        found.append((x[rows], adjacency[rows, rows], int(graph.y[g]), role))
    return found


def logits_of(w: Weights, x: Tensor, adjacency: Tensor, readout: str, model: str) -> Tensor:
    """The network of one party on one graph, written out."""
    h = x @ w["input.weight"] + w["input.bias"]
    near = adjacency + torch.eye(len(x))
    for layer in range(2):
        name = f"layers.{layer}.layers.0"
        if model == "gin":
            h = (near @ h @ w[f"{name}.first.weight"] + w[f"{name}.first.bias"]).relu()
            h = (h @ w[f"{name}.second.weight"] + w[f"{name}.second.bias"]).relu()
        elif model == "gcn":
            scale = near.sum(1) ** -0.5
            h = ((scale[:, None] * near * scale) @ h @ w[f"{name}.weight"] + w[f"{name}.bias"]).relu()
        else:
            mean = adjacency / adjacency.sum(1, keepdim=True).clamp(min=1)
            h = (mean @ h @ w[f"{name}.near.weight"] + w[f"{name}.near.bias"] + h @ w[f"{name}.own.weight"]).relu()
    z = {"sum": h.sum(0), "mean": h.mean(0), "max": h.amax(0)}[readout]
    return (z @ w["post.weight"] + w["post.bias"]).relu() @ w["output.weight"] + w["output.bias"]


def memory_of(result: Result) -> dict[str, Any]:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


def naive(config: Config, rounds: int) -> tuple[Weights, list[Weights], list[float]]:
    """FedAvg with `share=layers`, one party and one graph at a time: layers, parties' models, test accuracies."""
    experiment = runner.prepare(config)
    parts, s = experiment.party_data.parts, config.settings
    server = experiment.algorithm.start(experiment.federation, s)["model"]
    first = experiment.engine.state()["0"]["model"]
    models = [{name: value[p].clone().requires_grad_() for name, value in first.items()} for p in range(parts.parties)]
    optimizers = [torch.optim.Adam(list(w.values()), s.lr, weight_decay=s.weight_decay) for w in models]
    graphs = [graphs_of(parts.select([p])) for p in range(parts.parties)]
    classes = parts.classes or (parts.num_classes,) * parts.parties
    for round in range(1, rounds + 1):
        for p, w in enumerate(models):
            with torch.no_grad():
                for name, value in server.items():
                    w[name].copy_(value)
            training = [g for g in graphs[p] if g[3] == "train"]
            order = Draws(config.seed, [p], "fit", round, 1).orders([len(training)])[0].tolist()
            for start in range(0, len(training), s.batch_size):
                batch = [training[i] for i in sorted(order[start : start + s.batch_size])]
                out = torch.stack([logits_of(w, g[0], g[1], s.readout, s.model) for g in batch])[:, : classes[p]]
                optimizers[p].zero_grad()
                F.cross_entropy(out, torch.tensor([g[2] for g in batch])).backward()
                optimizers[p].step()
        n = [len([g for g in own if g[3] == "train"]) for own in graphs]
        server = {
            name: sum(k * w[name].detach() for k, w in zip(n, models, strict=True)) / sum(n)  # type: ignore[misc]
            for name in server
        }
    accuracies = []
    for p, w in enumerate(models):
        mixed = {**w, **server}
        test = [g for g in graphs[p] if g[3] == "test"]
        right = [int(logits_of(mixed, g[0], g[1], s.readout, s.model)[: classes[p]].argmax()) == g[2] for g in test]
        accuracies.append(sum(right) / len(right))
    return server, models, accuracies


@pytest.mark.parametrize(("model", "readout"), [("gin", "sum"), ("gcn", "mean"), ("sage", "max")])
def test_fedavg_is_a_loop_over_parties_and_graphs(model: str, readout: str) -> None:
    """Seven parties with other columns, classes and numbers of graphs: the same layers, personal parts and accuracies."""
    config = small_graphs("fedavg", model=model, readout=readout, dropout=0, rounds=2)
    server, models, accuracies = naive(config, 2)
    result = runner.rounds(runner.prepare(config))
    for name, value in server.items():
        torch.testing.assert_close(result.state["model"][name], value, atol=1e-5, rtol=1e-4)
    for p, w in enumerate(models):
        for name in ("input.weight", "post.bias", "output.weight"):
            torch.testing.assert_close(memory_of(result)["model"][name][p], w[name].detach(), atol=1e-5, rtol=1e-4)
    assert result.rows[-1]["party_accuracy"] == pytest.approx(accuracies)
    assert result.rows[-1]["accuracy"] == pytest.approx(sum(accuracies) / len(accuracies))


def test_absent_parties_take_no_step_and_padding_stays_zero() -> None:
    """After many rounds of Adam with decay: steps as each party has batches, and zeros beyond a party's columns and classes."""
    config = small_graphs("fedavg", rounds=25, batch_size=8)
    result = runner.rounds(runner.prepare(config))
    sizes = runner.prepare(config).party_data.parts.num_train
    assert memory_of(result)["optimizer"]["steps"].tolist() == [25 * -(-n // 8) for n in sizes.tolist()]
    for p, (_, columns, classes) in enumerate(SHAPES.values()):
        model = memory_of(result)["model"]
        assert not bool(model["input.weight"][p, columns:].any())
        assert not bool(model["output.weight"][p, :, classes:].any())
        assert not bool(model["output.bias"][p, classes:].any())
        assert bool((model["input.weight"][p, :columns] != 0).all())


@pytest.mark.parametrize("name", ["adam", "adamw", "sgd"])
def test_a_step_of_some_parties_is_that_of_the_others_left_out(name: str) -> None:
    """Active parties step as they would alone; the others, moments and counts included, stay as they are."""
    first = {"w": torch.randn(3, 5, 4), "b": torch.randn(3, 4)}
    gradients = [[torch.randn(3, 5, 4), torch.randn(3, 4)] for _ in range(3)]
    masks = [torch.tensor([True, False, True]), None, torch.tensor([False, True, False])]
    together = {key: value.clone() for key, value in first.items()}
    optimizer = optim.make(name, together, 0.1, 0.01, momentum=0.9 if name == "sgd" else 0.0)
    for gradient, mask in zip(gradients, masks, strict=True):
        optim._step(optimizer, gradient, mask)
    for p in range(3):
        alone = {key: value[p : p + 1].clone() for key, value in first.items()}
        own = optim.make(name, alone, 0.1, 0.01, momentum=0.9 if name == "sgd" else 0.0)
        for gradient, mask in zip(gradients, masks, strict=True):
            if mask is None or mask[p]:
                own.step([value[p : p + 1] for value in gradient])
        for key, value in alone.items():
            assert torch.equal(together[key][p : p + 1], value), key


def results(config: Config, **change: Any) -> Result:
    """A run without files."""
    return runner.rounds(runner.prepare(config), **change)


@pytest.mark.parametrize("algorithm", ["fedavg", "fedprox", "local"])
@pytest.mark.parametrize("how", ["placement", "amnesia"])
def test_promises_hold_for_graphs(algorithm: str, how: str) -> None:
    """Placement and amnesia, with dropout, personal parts and uneven parties."""
    other = {"placement": "apart"} if how == "placement" else {"amnesia": "true"}
    for more in ({}, {"participation": 0.5}):
        one, two = results(small_graphs(algorithm, **more)), results(small_graphs(algorithm, **more, **other))
        for (name, value), (_, same) in zip(wire.leaves(memory_of(one)), wire.leaves(memory_of(two)), strict=True):
            torch.testing.assert_close(value, same, atol=1e-5, rtol=1e-5, msg=name)
        assert [row["accuracy"] for row in one.rows] == pytest.approx([row["accuracy"] for row in two.rows])
        assert one.bytes == two.bytes


def test_resume_is_exact(tmp_path: Any) -> None:
    """Broken off and resumed, a run has the same bits, personal parts included."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise Broken

    config = small_graphs("fedavg", rounds=4, checkpoint_every=1)
    whole = runner.run(config, out=tmp_path / "whole")
    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    for (name, value), (_, same) in zip(wire.leaves(whole.memory), wire.leaves(resumed.memory), strict=True):
        assert torch.equal(value, same), name
    assert whole.metrics == resumed.metrics


def test_the_bytes_are_those_of_the_shared_layers() -> None:
    """Per round and party: 4 bytes for each parameter that travels, and 8 for the number of training graphs."""
    hidden, parties, rounds = 8, 7, 2
    of_layers = 2 * 2 * (hidden * hidden + hidden)
    for share, count in (("layers", of_layers), ("layers+post", of_layers + hidden * hidden + hidden)):
        result = results(small_graphs("fedavg", rounds=rounds, share=share))
        fit = result.bytes["by_verb"]["fit"]
        assert fit["down"] == parties * rounds * 4 * count
        assert fit["up"] == parties * rounds * (4 * count + 8)


def test_sharing_everything_needs_parties_that_are_alike() -> None:
    """One sentence where they are not; one dataset dealt over parties can share all."""
    with pytest.raises(AtollError, match="share=layers"):
        results(small_graphs("fedavg", share="all"))
    assert results(small_graphs("fedavg", "nci1", share="all")).rows[-1]["accuracy"] >= 0
    with pytest.raises(AtollError, match="for graph tasks"):
        runner.prepare(small("fedavg", share="layers"))
