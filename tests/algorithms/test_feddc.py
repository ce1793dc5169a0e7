"""FedDC against FedAvg, FedDyn and a naive loop over parties."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small

SGD = {"optimizer": "sgd", "lr": 0.2, "epochs": 3}


def test_with_everything_off_it_is_fedavg() -> None:
    """α = 0, no correction, no drift: FedAvg's model and metrics, bit for bit, with dropout too."""
    off = runner.run(small("feddc", dropout=0.3, alpha=0.0, correction="none", drift=False, optimizer="adam"))
    avg = runner.run(small("fedavg", dropout=0.3, optimizer="adam", lr=0.5))
    plain.same(off.state["model"], avg.state["model"])
    assert plain.metrics(off) == plain.metrics(avg)


def test_the_first_round_doubles_the_servers_step() -> None:
    """θ¹ = θ⁰ + 2·(mean θ_k − θ⁰): the drifts are the updates themselves."""
    config = small("feddc", rounds=1, alpha=0.0, **SGD)
    first = first_model(config.settings, runner.prepare(config).federation.schema, config.seed)
    mean = runner.run(small("fedavg", rounds=1, **SGD)).state["model"]
    plain.close(
        runner.run(config).state["model"], {name: value + 2 * (mean[name] - value) for name, value in first.items()}, 1e-6
    )


def test_without_the_correction_it_is_feddyn() -> None:
    """With everybody in every round, whoever adds up the drifts."""
    dyn = runner.run(small("feddyn", alpha=0.2, weighting="parties", **SGD)).state["model"]
    for mean in ("answered", "all"):
        other = runner.run(small("feddc", alpha=0.2, weighting="parties", correction="none", drift_mean=mean, **SGD))
        plain.close(other.state["model"], dyn, 1e-6)


@pytest.mark.parametrize("variant", ["paper", "authors"])
def test_three_rounds_equal_a_loop_over_parties(variant: str) -> None:
    """Both recipes as they are written, two of three parties in a round."""
    config = small("feddc", alpha=0.3, participation=0.7, variant=variant, **SGD)
    assert config.settings.correction == ("last_update" if variant == "paper" else "control")
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    zeros = {name: torch.zeros_like(value) for name, value in server.items()}
    drift, own = [dict(zeros) for _ in parties], [dict(zeros) for _ in parties]
    total, common, mean_size = dict(zeros), dict(zeros), sum(party.n for party in parties) / 3
    for round in range(1, 4):
        experiment.federation.begin(round)
        asked = list(experiment.federation.participants())
        models, changes = [], []
        for p in asked:
            weights, party = plain.leaves(server), parties[p]
            alpha = 0.3 if variant == "paper" else 0.3 * mean_size / party.n
            sign = 1 if variant == "paper" else -1
            received = {name: common[name] * (1 if variant == "paper" else mean_size / party.n) for name in zeros}
            q = {name: sign * (own[p][name] - received[name]) for name in zeros}
            for _ in range(3):
                penalty = sum((weights[name] - (server[name] - drift[p][name])).square().sum() for name in zeros)
                linear = sum((weights[name] * q[name]).sum() for name in zeros)
                plain.descend(weights, party.loss(plain.forward("gcn", weights, party)) + alpha / 2 * penalty + linear, 0.2)
            delta = {name: (weights[name] - server[name]).detach() for name in zeros}
            drift[p] = {name: drift[p][name] + delta[name] for name in zeros}
            new = {name: delta[name] / 0.6 for name in zeros}
            if variant == "authors":
                new = {name: own[p][name] - received[name] - new[name] for name in zeros}
            changes.append({name: new[name] - (own[p][name] if variant == "authors" else 0) for name in zeros})
            own[p] = new
            models.append({name: weights[name].detach() + (drift[p][name] if variant == "paper" else 0) for name in zeros})
        sizes = [parties[p].n for p in asked]
        mean, change = plain.average(models, sizes), plain.average(changes, sizes)
        if variant == "authors":
            moved = {name: 2 / 3 * (mean[name] - server[name]) for name in zeros}
            total = {name: total[name] + moved[name] for name in zeros}
            server = {name: mean[name] + total[name] for name in zeros}
            common = {name: common[name] + 2 / 3 * change[name] for name in zeros}
        else:
            server, common = mean, change
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server)
    plain.close(result.state["reference"], common)


def test_the_correction_needs_plain_sgd() -> None:
    """One sentence."""
    with pytest.raises(AtollError, match=r"needs optimizer=sgd without momentum .* or correction=none"):
        small("feddc", optimizer="adam")


def test_bytes() -> None:
    """8·w down, 8·w + 8 up; half of it without the correction."""
    for correction, size in (("last_update", 8), ("none", 4)):
        result = runner.run(small("feddc", rounds=2, correction=correction))
        parameters = plain.size(result.state["model"])
        assert result.bytes["down"] == 2 * 3 * size * parameters
        assert result.bytes["up"] == 2 * 3 * (size * parameters + 8)
