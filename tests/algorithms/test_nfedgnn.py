"""nFedGNN: equal to one object a user with all of its weights; the bill; the limits λ = 0 and nobody alike."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from users import Plain, some_users

from atoll.algorithms import nfedgnn
from atoll.errors import AtollError
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph
from atoll.graphs.user_rows import Entries
from atoll.models.losses import smoothness
from atoll.models.parameters import get_parameters
from atoll.runs import config, runner
from atoll.tasks import tallies

GCN = {"hidden": 8, "regularization": 10.0}
GAT = {"model": "gat", "hidden": 4, "heads": 3, "dropout": 0.0, "lr": 0.01, "regularization": 10.0}
KINDS = {
    "gcn": GCN,
    "own first weights": GCN | {"initial_weights": "own"},
    "no dropout, λ = 0": GCN | {"dropout": 0.0, "regularization": 0.0},
    "gat": GAT,
    "gat, mean of the heads": GAT | {"regularized": "mean"},
    "adamw": GCN | {"optimizer": "adamw", "weight_decay": 0.05},
    "adamw, moments per user": GCN | {"optimizer": "adamw", "weight_decay": 0.05, "moments": "user"},
    "sage without decay, moments per user": GCN | {"model": "sage", "lr": 0.02, "weight_decay": 0.0, "moments": "user"},
    "sum": GCN | {"loss": "sum"},
    "four layers": GCN | {"layers": 4, "lr": 0.02},
    "sage": GCN | {"model": "sage", "lr": 0.02},
    "three layers of gin": GCN | {"model": "gin", "layers": 3, "lr": 0.005},
}


def prepared(graph: Graph, algorithm: str = "nfedgnn", **values: Any) -> runner.Experiment:
    """The algorithm on a graph given as an object."""
    return runner.prepare(config.resolve(algorithm, dataset="given", partition="node", seed=5, values=values), graph)


def go(experiment: runner.Experiment, rounds: int) -> tuple[Federation, dict[str, Any]]:
    """A number of rounds, without evaluation."""
    federation, settings = experiment.federation, experiment.config.settings
    federation.begin(0)
    state = experiment.algorithm.start(federation, settings)
    for number in range(1, rounds + 1):
        federation.begin(number)
        state = experiment.algorithm.step(federation, state, settings)
    return federation, state


@pytest.mark.parametrize(("kind", "directed"), [*((kind, False) for kind in KINDS), ("gcn", True), ("gat", True), ("sage", True)])
def test_twenty_rounds_equal_one_object_a_user(kind: str, directed: bool) -> None:
    """Without rows of zero features: latent vectors, server weights and kept rows as with whole matrices, decay included."""
    graph, values = some_users(directed=directed), KINDS[kind]
    experiment = prepared(graph, **values)
    plain = Plain(graph, experiment.config.settings, 5)
    for number in range(1, 21):
        plain.round(number)
    federation, state = go(experiment, 20)
    torch.testing.assert_close(state["latent"], plain.latent, atol=1e-5, rtol=1e-5)
    for name, value in state["model"].items():
        torch.testing.assert_close(value, plain.parameters[name].detach(), atol=1e-5, rtol=1e-5)
    cohort = federation.engine.cohorts[0]
    whole = torch.stack([user.weight.detach() for user in plain.users])
    kept = whole[cohort.features.user, cohort.features.feature]
    torch.testing.assert_close(cohort.weights.rows.detach(), kept, atol=1e-5, rtol=1e-5)
    moved = (whole - Plain(graph, experiment.config.settings, 5).users[0].weight.detach()).abs()
    idle = torch.from_numpy(graph.nonzero_features.toarray() == 0)
    decays = values.get("weight_decay", 1.0) > 0 and values.get("initial_weights") != "own"
    assert not decays or float(moved[idle].max()) > 0  # they do decay, and it does not matter


@pytest.mark.parametrize("values", [GCN, GCN | {"optimizer": "adamw", "moments": "user"}])
def test_partial_participation_equals_one_object_a_user(values: dict[str, Any]) -> None:
    """Who stays away is represented by its last latent vector and takes no step; Adam counts each user's own steps."""
    graph = some_users(nodes=90)
    experiment = prepared(graph, participation=0.4, **values)
    plain = Plain(graph, experiment.config.settings, 5)
    federation = experiment.federation
    for number in range(1, 21):
        federation.begin(number)
        plain.round(number, list(federation.participants()))
    _, state = go(experiment, 20)
    torch.testing.assert_close(state["latent"], plain.latent, atol=1e-5, rtol=1e-5)
    assert len(federation.engine.cohorts[0].optimizer.steps.unique()) > 5


def test_moments_per_user_are_two_vectors_each_and_refuse_an_l2_penalty() -> None:
    """2·h numbers and a count of each user, whatever its features; with Adam's weight decay, one sentence."""
    graph = some_users()
    federation, _ = go(prepared(graph, **GCN, moments="user", optimizer="adamw"), 2)
    memory = federation.engine.cohorts[0].state()["optimizer"]
    assert {name: tuple(value.shape) for name, value in memory.items()} == {
        "steps": (24,),
        "first.user": (24, 8),
        "second.user": (24, 8),
    }
    assert set(federation.engine.cohorts[0].trained()) == {"weights"}
    with pytest.raises(AtollError, match="moments=user needs decoupled weight decay"):
        prepared(graph, **GCN, moments="user")


@pytest.mark.parametrize("values", [{"placement": "apart"}, {"amnesia": True}])
def test_moments_per_user_are_the_same_at_any_site(values: dict[str, Any]) -> None:
    """Each user alone, and rebuilt before every message: the same latent vectors."""
    graph, chosen = some_users(), GCN | {"moments": "user", "optimizer": "adamw", "hidden": 16}
    together, other = (go(prepared(graph, **chosen, **more), 4)[1]["latent"] for more in ({}, values))
    torch.testing.assert_close(other, together, atol=1e-6, rtol=1e-6)


def test_users_are_embedded_once_between_two_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation and the round after it use the same weights: one product for both, which is billed twice."""
    made = []
    product = Entries.product
    monkeypatch.setattr(Entries, "product", lambda entries, rows: made.append(1) or product(entries, rows))
    experiment = prepared(some_users(), **GCN)
    federation, settings, state = experiment.federation, experiment.config.settings, None
    federation.begin(0)
    state = nfedgnn.start(federation, settings)
    for number in range(1, 4):
        federation.begin(number)
        state = nfedgnn.step(federation, state, settings)
        with federation.evaluating():
            nfedgnn.evaluate(federation, state, settings)
    assert len(made) == 4
    assert federation.ledger.total(verb="embed")["messages"] == 3 * 24
    assert federation.ledger.total(verb="embed", training=False)["messages"] == 3 * 24


def test_a_million_confusion_matrices_are_not_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of many users are listed by their items; the metrics are those of counts that are written out."""
    graph = some_users()

    def metrics(most: int) -> tuple[dict[str, Any], Any]:
        monkeypatch.setattr(tallies, "MAX_DENSE", most)
        experiment = prepared(graph, late=0.2, **GCN)
        federation, state = go(experiment, 3)
        with federation.evaluating():
            found = nfedgnn.evaluate(federation, state, experiment.config.settings)
        return found, federation.engine.cohorts[0].evaluate(torch.randn(24, 3))["confusion"]

    (listed, deferred), (written, table) = metrics(10), metrics(10**6)
    assert isinstance(deferred, tallies.Tally)
    assert table.shape == (24, 3, 3)
    assert listed == written
    assert "late_accuracy" in listed


def test_the_bill_is_one_latent_vector_each_way() -> None:
    """4·h bytes up and down, a round and user; gat's vector has a part for every head, sage's two parts."""
    graph = some_users()
    for values, width in ((GCN, 8), (GAT, 12), (GCN | {"model": "sage"}, 16), (GCN | {"model": "gin"}, 8)):
        federation, _ = go(prepared(graph, **values), 3)
        total = federation.ledger.total()
        assert total["up"] == total["down"] == 3 * graph.num_nodes * width * 4
        assert total["messages"] == 2 * 3 * graph.num_nodes


def test_nothing_is_kept_for_zero_features() -> None:
    """The memory has a row for every non-zero feature and none else; a user without features keeps nothing and sends zeros."""
    graph = some_users()
    experiment = prepared(graph, **GCN)
    federation, state = go(experiment, 2)
    memory = federation.engine.cohorts[0].state()
    assert memory["weights"]["rows"].shape == (graph.nonzero_features.nnz, 8)
    assert torch.equal(state["latent"][5], torch.zeros(8))
    alone = prepared(graph, placement="apart", **GCN)
    go(alone, 2)
    assert alone.federation.engine.cohorts[5].state()["weights"]["rows"].shape == (0, 8)


def test_smoothness_is_equation_6() -> None:
    """Against the double sum, with its gradient; also where edges have one direction only."""
    for directed in (False, True):
        graph = some_users(directed=directed)
        rows = torch.randn(graph.num_nodes, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
        plain = sum(((rows[i] - rows[j]) ** 2).sum() for j, i in graph.edge_index.t().tolist())
        plain = plain / (graph.edge_index.shape[1] + graph.num_nodes)
        fast = smoothness(rows, graph)
        torch.testing.assert_close(fast, plain)
        torch.testing.assert_close(*(torch.autograd.grad(value, rows)[0] for value in (fast, plain)))


def test_the_server_knows_training_labels_and_edges_alone() -> None:
    """What the setting makes public holds no feature and no label of a validation or test node."""
    graph = some_users()
    federation = prepared(graph, **GCN).federation
    assert set(federation.public) == {"edge_index", "y_train"}
    assert torch.equal(federation.public["y_train"] >= 0, graph.train)
    assert federation.topology.x.shape == (graph.num_nodes, 0)


def test_labels_the_server_does_not_have_change_nothing() -> None:
    """Other labels at validation and test nodes: the same training."""
    graph = some_users()
    other = replace(graph, y=torch.where(graph.train, graph.y, (graph.y + 1) % 3))
    for (name, one), (_, two) in zip(*(read_state(go(prepared(g, **GCN), 3)[1]) for g in (graph, other)), strict=True):
        assert torch.equal(one, two), name


def read_state(state: dict[str, Any]) -> list[tuple[str, torch.Tensor]]:
    """The tensors that training has made."""
    return [*state["model"].items(), ("latent", state["latent"])]


def test_strong_regularization_brings_neighbors_together() -> None:
    """With λ the latent vectors of neighbors are closer than without."""
    graph = some_users()
    apart = [
        float(smoothness(go(prepared(graph, hidden=8, regularization=value), 30)[1]["latent"], graph)) for value in (0.0, 100.0)
    ]
    assert apart[1] < apart[0] / 4


def test_several_vectors_a_user_are_refused() -> None:
    """One sentence says what is wrong."""
    graph = some_users()
    doubled = replace(graph, ids=graph.ids // 2, edge_index=graph.edge_index[:, :0])
    with pytest.raises(AtollError, match="2 feature vectors"):
        prepared(doubled, **GCN)


def test_the_server_model_is_equation_5() -> None:
    """The only server weights of gcn are W⁽¹⁾, those of gat both layers' attention and the second W."""
    settings = nfedgnn.Settings(hidden=4)
    assert {name: tuple(value.shape) for name, value in get_parameters(nfedgnn.Server(settings, 3, None)).items()} == {
        "second.weight": (1, 4, 3)
    }
    settings = nfedgnn.Settings(model="gat", hidden=4, heads=2)
    assert set(get_parameters(nfedgnn.Server(settings, 3, None))) == {
        *(f"first.{name}" for name in ("source", "target", "bias")),
        *(f"second.{name}" for name in ("weight", "source", "target", "bias")),
    }


@pytest.mark.skipif("ATOLL_DATA" not in os.environ, reason="needs Cora: set ATOLL_DATA")
def test_coras_table_1_comes_out_of_the_ledger() -> None:
    """Two of 200 rounds of Cora: a hundredth of the paper's 33.06 MiB (GCN) and 264.45 MiB (GAT)."""
    for model, mib in (("gcn", 33.06), ("gat", 264.45)):
        chosen = config.resolve("nfedgnn", dataset="cora", values={"model": model})
        federation, _ = go(runner.prepare(chosen), 2)
        assert round(federation.ledger.total()["up"] * 100 / 2**20, 2) == mib
