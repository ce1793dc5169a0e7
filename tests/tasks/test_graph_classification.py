"""Graph classification: one round beside a plain loop over parties and graphs, and the traps of uneven parties."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from atoll import algorithms, wire
from atoll.errors import AtollError
from atoll.federation.fields import concatenate
from atoll.models import optim
from atoll.runs import runner
from atoll.runs.config import Config, resolve
from atoll.runs.runner import Result
from plain_graphs import Weights, prepare
from small import small
from small_graphs import SHAPES, graph_data, small_graphs
from test_promises import partial

__all__ = ["graph_data"]
pytestmark = pytest.mark.usefixtures("graph_data")


def memory_of(result: Result) -> dict[str, Any]:
    """The memory of all parties, in party order."""
    return concatenate(list(result.memory.values()))


def naive(config: Config, rounds: int) -> tuple[Weights, list[Weights], list[float]]:
    """FedAvg with `share=layers`, one party and one graph at a time: layers, parties' models, test accuracies."""
    experiment, parties, models = prepare(config)
    s = config.settings
    server = experiment.algorithm.start(experiment.federation, s)["model"]
    models = [{name: value.requires_grad_() for name, value in w.items()} for w in models]
    optimizers = [torch.optim.Adam(list(w.values()), s.lr, weight_decay=s.weight_decay) for w in models]
    for round in range(1, rounds + 1):
        for party, w, optimizer in zip(parties, models, optimizers, strict=True):
            with torch.no_grad():
                for name, value in server.items():
                    w[name].copy_(value)
            for batch in party.batches(round):
                optimizer.zero_grad()
                party.loss(w, batch).backward()
                optimizer.step()
        total = sum(party.n for party in parties)
        server = {
            name: sum(party.n * w[name].detach() for party, w in zip(parties, models, strict=True)) / total  # type: ignore[misc]
            for name in server
        }
    return server, models, [party.accuracy({**w, **server}) for party, w in zip(parties, models, strict=True)]


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


FOR_GRAPHS = [name for name in algorithms.names() if "graph" in getattr(algorithms.find(name), "LEVELS", ())]
CUTS = {"mean_update_threshold": 1e9, "longest_update_threshold": 0.0}
DATASETS = {"fedproto": "nci1", "centralized": "nci1"}  # of methods whose parties must be alike
EXTRA: dict[str, dict[str, Any]] = {"gcfl": {"variant": "authors", "rounds_before_split": 0, "sequence_length": 1, **CUTS}}


@pytest.mark.parametrize("algorithm", FOR_GRAPHS)
@pytest.mark.parametrize("how", ["placement", "amnesia"])
def test_promises_hold_for_graphs(algorithm: str, how: str) -> None:
    """Placement and amnesia, with dropout, personal parts and uneven parties."""
    other = {"placement": "apart"} if how == "placement" else {"amnesia": "true"}
    for participation in (1.0, 0.5) if partial(algorithm) else (1.0,):
        values = {**EXTRA.get(algorithm, {}), "participation": participation}
        config, changed = (small_graphs(algorithm, DATASETS.get(algorithm, "chem"), **values, **more) for more in ({}, other))
        one, two = results(config), results(changed)
        for (name, value), (_, same) in zip(wire.leaves(memory_of(one)), wire.leaves(memory_of(two)), strict=True):
            torch.testing.assert_close(value, same, atol=1e-5, rtol=1e-5, msg=name)
        assert [row["accuracy"] for row in one.rows] == pytest.approx([row["accuracy"] for row in two.rows])
        assert one.bytes == two.bytes


@pytest.mark.parametrize("algorithm", FOR_GRAPHS)
def test_resume_is_exact(algorithm: str, tmp_path: Any) -> None:
    """Broken off and resumed, a run has the same bits, personal parts included."""

    class Broken(Exception):
        """Stands for a process that dies."""

    def watch(row: dict[str, Any], rounds: int) -> None:
        if row["round"] == 2:
            raise Broken

    values = {**EXTRA.get(algorithm, {}), "rounds": 4, "checkpoint_every": 1}
    config = small_graphs(algorithm, DATASETS.get(algorithm, "chem"), **values)
    whole = runner.run(config, out=tmp_path / "whole")
    with pytest.raises(Broken):
        runner.run(config, out=tmp_path / "broken", watch=watch)
    resumed = runner.resume(tmp_path / "broken")
    for (name, value), (_, same) in zip(wire.leaves(whole.memory), wire.leaves(resumed.memory), strict=True):
        assert torch.equal(value, same), name
    assert whole.metrics == resumed.metrics
    assert whole.last == resumed.last


def test_secure_totals_have_the_same_metrics() -> None:
    """Evaluation sends sums only, which are pooled: the server sees no party's accuracy, and so no mean of them."""
    plainly, securely = (results(small_graphs("fedavg", rounds=2, average="pooled", **more)) for more in ({}, {"secure": "true"}))
    for name in ("accuracy", "loss", "macro_f1", "val_loss"):
        assert plainly.metrics[name] == pytest.approx(securely.metrics[name], abs=1e-4), name
    assert "party_accuracy" in plainly.rows[-1]
    assert "party_accuracy" not in securely.rows[-1]


def test_a_party_without_judged_graphs_does_not_count() -> None:
    """Its few graphs all train; the mean is over those that have test graphs, and it is not 0 or ½ at the others."""
    values = {"partition_seed": 0, "split_seed": 0, "size_exponent": 1.8, "rounds": 2, "dropout": 0}
    experiment = runner.prepare(resolve("fedavg", dataset="nci1", partition="random", parties=6, values=values))
    graph = experiment.party_data.parts
    tested = torch.zeros(6, dtype=torch.int64).index_add_(0, graph.owner, graph.test.long()).tolist()
    assert 0 in tested
    last = runner.rounds(experiment).rows[-1]
    assert [value is None for value in last["party_accuracy"]] == [count == 0 for count in tested]
    known = [value for value in last["party_accuracy"] if value is not None]
    assert last["accuracy"] == pytest.approx(sum(known) / len(known))


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
