"""A run can be asked what it predicts, without hooks and without a trace in its bytes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.predictions import embed, observe, predict
from small import ALGORITHMS, small


@pytest.mark.parametrize("algorithm", ["fedavg", "local", "fedper", "apfl"])
@pytest.mark.parametrize("placement", ["together", "apart"])
def test_predictions_reproduce_the_metrics(algorithm: str, placement: str) -> None:
    """The share of test nodes predicted right is the reported accuracy of the last round; nothing is added to the bill."""
    experiment = runner.prepare(small(algorithm, rounds=2, placement=placement))
    result = runner.rounds(experiment)
    engine, graph, before = experiment.engine, experiment.party_data.parts, experiment.federation.ledger.total()
    output = predict(experiment, result.state)
    tested = graph.test & (graph.y >= 0)
    assert float((output.argmax(1) == graph.y)[tested].double().mean()) == pytest.approx(result.last["accuracy"], abs=1e-12)
    assert embed(experiment, result.state).shape == (graph.num_nodes, experiment.config.settings.hidden)
    assert experiment.federation.ledger.total() == before
    assert experiment.engine is engine


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_training_loss_is_that_of_the_predictions(algorithm: str) -> None:
    """For every algorithm: the mean over labeled training nodes, by torch's own loss; for split networks, the server's loss."""
    experiment = runner.prepare(small(algorithm, rounds=2, evaluate_every=2))
    result = runner.rounds(experiment)
    assert "train_loss" not in result.rows[0]
    if algorithm in ("nfedgnn", "cnfgnn"):
        assert result.last["train_loss"] == float(result.state["loss"])
        return
    losses = torch.cat(
        [
            F.cross_entropy(one.output[rows], one.graph.y[rows], reduction="none")
            for one in observe(experiment, result.state)
            for rows in [one.graph.train & (one.graph.y >= 0)]
        ]
    )
    assert result.last["train_loss"] == pytest.approx(float(losses.double().mean()), rel=1e-6)


@pytest.mark.parametrize("noise", [{"dp.verb": "fit", "dp.noise": 1.0}, {"dp.evaluation_noise": 1.0}])
def test_noise_keeps_the_training_loss_at_the_parties(noise: dict[str, object]) -> None:
    """Training nodes are what noise protects: nothing about them leaves beside it."""
    experiment = runner.prepare(small("fedavg", rounds=1, **noise))
    assert "training" not in experiment.federation.task.fields
    assert "train_loss" not in runner.rounds(experiment).last


def test_the_union_of_overlapping_parties_has_no_training_loss_of_its_own() -> None:
    """One `train_loss`, the parties': not `local_train_loss` beside it."""
    last = runner.run(small("fedgl", rounds=1)).last
    assert {name for name in last if "train" in name} == {"train_loss"}


def test_asking_twice_gives_the_same() -> None:
    """Predicting changes neither the parties nor the state."""
    experiment = runner.prepare(small("fedavg", rounds=1))
    result = runner.rounds(experiment)
    assert torch.equal(predict(experiment, result.state), predict(experiment, result.state))
    assert observe(experiment, result.state)[0].parties == list(range(3))


def test_a_model_split_between_parties_and_server_has_no_embeddings() -> None:
    """One sentence names the algorithm."""
    experiment = runner.prepare(small("glasu", rounds=1))
    result = runner.rounds(experiment)
    with pytest.raises(AtollError, match="The parties of glasu have no hidden representations of their own for every node"):
        embed(experiment, result.state)
