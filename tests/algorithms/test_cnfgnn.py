"""CNFGNN: equal to one object a user with all of its weights, described and written out; the bill counts them whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from test_nfedgnn import go, prepared
from users import Plain, some_users

from atoll import wire
from atoll.algorithms.cnfgnn import average
from atoll.deferred import Deferred

GCN = {"hidden": 8}
GAT = {"model": "gat", "hidden": 4, "heads": 3, "dropout": 0.0, "lr": 0.01}


AFTER = GCN | {"averaging": "after"}


@pytest.mark.parametrize(
    "values",
    [GCN, GAT, AFTER, GCN | {"optimizer": "adamw", "weight_decay": 0.05}, AFTER | {"model": "sage", "layers": 3, "loss": "sum"}],
    ids=["gcn", "gat", "after", "adamw", "after, three layers of sage, sum"],
)
def test_twenty_rounds_equal_one_object_a_user(values: dict[str, Any]) -> None:
    """One state for all rows of zero features gives what whole matrices at every user give."""
    graph = some_users()
    experiment = prepared(graph, "cnfgnn", **values)
    plain = Plain(graph, experiment.config.settings, 5)
    for number in range(1, 21):
        plain.round(number)
    federation, state = go(experiment, 20)
    torch.testing.assert_close(state["latent"], plain.latent, atol=1e-5, rtol=1e-5)
    cohort = federation.engine.cohorts[0]
    uploaded = cohort.upload()["weight"]
    assert isinstance(uploaded, Deferred)
    whole = torch.stack([user.weight.detach() for user in plain.users])
    torch.testing.assert_close(uploaded.dense(), whole, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(average(uploaded), whole.mean(0), atol=1e-5, rtol=1e-5)
    assert wire.rows_are_shared(cohort.rest)  # kept once for all users


def test_after_the_mean_all_users_have_the_same_weights() -> None:
    """`averaging=after` sends x̄ of shared weights, as FedAvg would; `averaging=before` those of each user's own step."""
    graph = some_users()
    for values, same in ((AFTER, True), (GCN, False)):
        federation, _ = go(prepared(graph, "cnfgnn", **values), 3)
        weights = federation.engine.cohorts[0].upload()["weight"].dense()
        assert bool((weights == weights[:1]).all()) == same


@pytest.mark.parametrize("values", [GCN, AFTER], ids=["before", "after"])
def test_partial_participation_equals_one_object_a_user(values: dict[str, Any]) -> None:
    """Users who took other steps no longer share the rows of their zero features."""
    graph = some_users()
    experiment = prepared(graph, "cnfgnn", participation=0.5, **values)
    plain = Plain(graph, experiment.config.settings, 5)
    federation = experiment.federation
    for number in range(1, 21):
        federation.begin(number)
        plain.round(number, list(federation.participants()))
    _, state = go(experiment, 20)
    torch.testing.assert_close(state["latent"], plain.latent, atol=1e-5, rtol=1e-5)
    whole = torch.stack([user.weight.detach() for user in plain.users])
    torch.testing.assert_close(federation.engine.cohorts[0].upload()["weight"].dense(), whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("values", [GCN, AFTER], ids=["before", "after"])
def test_the_bill_counts_whole_weights(values: dict[str, Any]) -> None:
    """4·(h + d·h) bytes each way, a round and user, though nobody in this process makes them."""
    graph = some_users()
    federation, _ = go(prepared(graph, "cnfgnn", **values), 3)
    total = federation.ledger.total()
    assert total["up"] == total["down"] == 3 * graph.num_nodes * 4 * (8 + 40 * 8)


def test_weights_described_and_written_out_are_the_same() -> None:
    """Some users' weights, their sum, and their bytes."""
    graph = some_users()
    federation, _ = go(prepared(graph, "cnfgnn", **GCN), 4)
    described = federation.engine.cohorts[0].upload()["weight"]
    dense = described.dense()
    some = torch.tensor([9, 2, 5])
    assert torch.equal(described.take(some).dense(), dense[some])
    assert torch.equal(wire.decode(wire.encode({"weight": described}))["weight"], dense)
    assert torch.equal(average(described), average(dense))
    assert torch.equal(average(described.take(some)), average(dense[some]))
