"""A run can be asked what it predicts, without hooks and without a trace in its bytes."""

from __future__ import annotations

import pytest
import torch

from atoll.errors import AtollError
from atoll.runs import runner
from atoll.runs.predictions import embed, observe, predict
from small import small


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
