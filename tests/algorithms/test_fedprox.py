"""FedProx against FedAvg and against a naive loop over parties."""

from __future__ import annotations

import pytest

import plain
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small

MODELS = ["gcn", "sgc", "sage"]


@pytest.mark.parametrize("model", MODELS)
def test_without_the_proximal_term_it_is_fedavg(model: str) -> None:
    """μ = 0 gives FedAvg's model and metrics, bit for bit, with dropout too."""
    prox = runner.run(small("fedprox", model=model, dropout=0.3, proximal=0.0))
    avg = runner.run(small("fedavg", model=model, dropout=0.3))
    plain.same(prox.state["model"], avg.state["model"])
    assert plain.metrics(prox) == plain.metrics(avg)


@pytest.mark.parametrize("model", MODELS)
def test_two_rounds_equal_a_loop_over_parties(model: str) -> None:
    """Each party descends F_k + μ/2·‖w_k − w‖²; the server takes the weighted mean."""
    config = small("fedprox", model=model, rounds=2, optimizer="sgd", lr=0.2, epochs=3, proximal=0.7)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        models = []
        for party in parties:
            own = plain.leaves(server)
            for _ in range(3):
                distance = sum((own[name] - server[name]).square().sum() for name in own)
                plain.descend(own, party.loss(plain.forward(model, own, party)) + 0.35 * distance, 0.2)
            models.append(own)
        server = plain.average(models, [party.n for party in parties])
    plain.close(runner.rounds(experiment).state["model"], server)


def test_a_strong_term_holds_the_parties_back() -> None:
    """The larger μ, the less the server's model moves from where it began."""
    moved = []
    for mu in (0.0, 1.0, 100.0):
        config = small("fedprox", rounds=1, proximal=mu, optimizer="sgd", lr=0.009, epochs=20)
        first = first_model(config.settings, runner.prepare(config).federation.schema, config.seed)
        last = runner.run(config).state["model"]
        moved.append(sum(float((last[name] - first[name]).square().sum()) for name in first))
    assert moved[0] > moved[1] > 2 * moved[2]


def test_bytes() -> None:
    """4·w down; 4·w + 8 up."""
    result = runner.run(small("fedprox", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
