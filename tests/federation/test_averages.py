"""How the parties' metrics become one, against plain arithmetic."""

from __future__ import annotations

import pytest
import torch

from atoll.errors import AtollError
from atoll.federation.averages import AVERAGES, averaged, every_average, party_sizes
from atoll.runs import runner
from atoll.tasks.node_classification import NodeClassification
from small import small

TASK = NodeClassification(training=True)
COUNTS = {  # three parties; the last has no test nodes
    "validation": torch.tensor([[4.0, 3, 2], [10, 5, 9], [2, 1, 1]], dtype=torch.float64),
    "test": torch.tensor([[5.0, 4, 1, 2, 1], [20, 10, 30, 8, 2], [0, 0, 0, 0, 0]], dtype=torch.float64),
    "training": torch.tensor([[1.0, 0.5], [10, 20], [3, 3]], dtype=torch.float64),
    "confusion": torch.tensor([[[4, 1], [0, 0]], [[5, 5], [5, 5]], [[0, 0], [0, 0]]]),
}


def test_every_average_by_hand() -> None:
    """Shares of parties, weighted alike or by their nodes; a party without test nodes does not count."""
    assert party_sizes(TASK, COUNTS) == [10, 40, 5]
    found = every_average(TASK, COUNTS)
    assert tuple(found) == AVERAGES
    assert found["pooled"]["accuracy"] == 14 / 25
    assert found["mean"]["accuracy"] == pytest.approx((4 / 5 + 10 / 20) / 2)
    assert found["nodes"]["accuracy"] == pytest.approx((10 * 4 / 5 + 40 * 10 / 20) / 50)
    assert found["worst"]["accuracy"] == 0.5
    assert found["mean"]["val_accuracy"] == pytest.approx((3 / 4 + 5 / 10 + 1 / 2) / 3)
    assert found["nodes"]["val_loss"] == pytest.approx((10 * 0.5 + 40 * 0.9 + 5 * 0.5) / 55)
    assert found["worst"]["val_loss"] == 0.9  # the largest
    assert found["mean"]["macro_f1"] == pytest.approx((8 / 9 / 2 + 0.5) / 2)
    assert all(averaged(TASK, COUNTS, how) == found[how] for how in AVERAGES)


def test_too_many_parties_are_an_error() -> None:
    """Their own metrics are computed one after the other."""
    many = {name: value[:1].expand(1001, *value.shape[1:]) for name, value in COUNTS.items()}
    with pytest.raises(AtollError, match="Metrics of 1001 parties are not computed one by one"):
        averaged(TASK, many, "mean")
    assert averaged(TASK, many, "pooled")["accuracy"] == 0.8


@pytest.mark.parametrize("how", AVERAGES)
def test_a_run_shows_and_selects_by_its_average(how: str) -> None:
    """`average` is what the metrics are and what selects; every average of the best round is in the result, whichever it is."""
    result = runner.run(small("fedavg", rounds=6, average=how, select_by="accuracy", lr=0.05))
    assert result.protocol["average"] == how
    for name, value in result.averages[how].items():
        assert result.metrics[name] == pytest.approx(value, abs=1e-12)
    assert result.averages["worst"]["accuracy"] == min(result.metrics["party_accuracy"])
    scores = [row["val_accuracy"] for row in result.rows]
    assert result.best_round == 1 + scores.index(max(scores))  # the first of equals
