"""FedDyn against FedAvg, FedProx and a naive loop over parties."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small

SGD = {"optimizer": "sgd", "lr": 0.2, "epochs": 3}


def test_without_the_regularizer_it_is_fedavg() -> None:
    """α = 0: FedAvg's model and metrics, bit for bit, with dropout too."""
    dyn = runner.run(small("feddyn", dropout=0.3, alpha=0.0))
    avg = runner.run(small("fedavg", dropout=0.3, weighting="parties"))
    plain.same(dyn.state["model"], avg.state["model"])
    assert plain.metrics(dyn) == plain.metrics(avg)


@pytest.mark.parametrize("scaled", [False, True])
def test_three_rounds_equal_a_loop_over_parties(scaled: bool) -> None:
    """Algorithm 1 as it is printed, with gradients ∇L_k and the server's h; two of three parties in a round."""
    config = small("feddyn", alpha=0.3, participation=0.7, scale_by_size=scaled, **SGD)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    mean_size = sum(party.n for party in parties) / 3
    alphas = [0.3 * mean_size / party.n if scaled else 0.3 for party in parties]
    gradient = [{name: torch.zeros_like(value) for name, value in server.items()} for _ in parties]  # ∇L_k(θ_k)
    h = {name: torch.zeros_like(value) for name, value in server.items()}
    for round in range(1, 4):
        experiment.federation.begin(round)
        models = []
        for p in experiment.federation.participants():
            own = plain.leaves(server)
            for _ in range(3):
                linear = sum((gradient[p][name] * own[name]).sum() for name in own)
                distance = sum((own[name] - server[name]).square().sum() for name in own)
                loss = parties[p].loss(plain.forward("gcn", own, parties[p]))
                plain.descend(own, loss - linear + alphas[p] / 2 * distance, 0.2)
            gradient[p] = {name: value - alphas[p] * (own[name] - server[name]).detach() for name, value in gradient[p].items()}
            models.append(own)
        mean = plain.average(models, [1, 1])
        h = {name: value - 0.3 * sum(own[name].detach() - server[name] for own in models) / 3 for name, value in h.items()}
        server = {name: mean[name] - h[name] / 0.3 for name in mean}
    plain.close(runner.rounds(experiment).state["model"], server)


def test_the_servers_h_is_the_mean_of_the_parties() -> None:
    """With everybody in every round: h = mean of the drifts, the paper's ∇L_k over −α."""
    result = runner.run(small("feddyn", **SGD))
    plain.close(result.state["drift"], {name: value.mean(0) for name, value in result.memory["0"]["drift"].items()}, 1e-6)


def test_bytes() -> None:
    """4·w down; 4·w + 8 up; with `variant=authors` 4 more down, and 8 up once before the first round."""
    for variant, down, once in (("paper", 0, 0), ("authors", 4, 8)):
        result = runner.run(small("feddyn", rounds=2, variant=variant))
        parameters = plain.size(result.state["model"])
        assert result.bytes["down"] == 2 * 3 * (4 * parameters + down)
        assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8) + 3 * once
