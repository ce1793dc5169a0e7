"""Evaluation by some of the parties: their metrics alone, with every algorithm's messages as before."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.errors import AtollError

SMALL: dict[str, Any] = {"dataset": "csbm", "nodes": 300, "rounds": 3}


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedspray", "apfl"])
@pytest.mark.parametrize("evaluated", ["participants", "0.4"])
def test_metrics_are_those_of_the_parties_that_evaluate(algorithm: str, evaluated: str) -> None:
    """Training goes as it does when all evaluate; fewer bytes of evaluation; accuracies of the evaluating parties are theirs."""
    chosen = SMALL | {"parties": 10, "partition": "random", "participation": 0.4}
    everybody, some = (atoll.run(algorithm, **chosen, evaluated=which) for which in ("all", evaluated))
    assert some.bytes["up"] == everybody.bytes["up"]
    assert some.bytes["evaluation"]["messages"] * 5 == everybody.bytes["evaluation"]["messages"] * 2
    for row, whole in zip(some.rows, everybody.rows, strict=True):
        known = [value for value in row["party_accuracy"] if value is not None]
        assert 0 < len(known) <= 4
        assert set(known) <= set(whole["party_accuracy"])


def test_users_and_server_evaluate_on_a_sample() -> None:
    """nFedGNN's server predicts for all users from the vectors that it has, and asks some of them how good it is."""
    result = atoll.run("nfedgnn", **SMALL, evaluated="0.5")
    assert result.bytes["evaluation"]["messages"] == 3 * 2 * 150


@pytest.mark.parametrize("value", ["0", "2", "some", "nan"])
def test_other_values_are_refused(value: str) -> None:
    """One sentence."""
    with pytest.raises(AtollError, match="evaluated is"):
        atoll.run("fedavg", **SMALL, parties=3, partition="random", evaluated=value)


def test_parties_of_the_same_nodes_all_evaluate() -> None:
    """They are needed together."""
    with pytest.raises(AtollError, match="leave evaluated at all"):
        atoll.run("glasu", **SMALL, parties=2, partition="vertical", evaluated="0.5")
