"""SCAFFOLD against FedAvg and against a naive loop over parties."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small

SGD = {"optimizer": "sgd", "lr": 0.2, "weighting": "parties"}


@pytest.mark.parametrize("control", [1, 2])
def test_with_frozen_controls_it_is_fedavg(control: int) -> None:
    """c = c_k = 0: FedAvg's model and metrics, bit for bit, with dropout too."""
    frozen = runner.run(small("scaffold", dropout=0.3, freeze_controls=True, control=control, **SGD))
    avg = runner.run(small("fedavg", dropout=0.3, **SGD))
    plain.same(frozen.state["model"], avg.state["model"])
    assert plain.metrics(frozen) == plain.metrics(avg)


def test_the_first_round_is_fedavgs() -> None:
    """All controls begin at zero."""
    first = runner.run(small("scaffold", dropout=0.3, rounds=1, **SGD))
    plain.same(first.state["model"], runner.run(small("fedavg", dropout=0.3, rounds=1, **SGD)).state["model"])


@pytest.mark.parametrize("control", [1, 2])
def test_three_rounds_equal_a_loop_over_parties(control: int) -> None:
    """Steps down g − c_k + c, both options of the new c_k, a server that goes half of the way, two of three parties."""
    values = {"control": control, "server_lr": 0.5, "epochs": 3, "participation": 0.7, **SGD}
    config = small("scaffold", rounds=3, **values)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    common = {name: torch.zeros_like(value) for name, value in server.items()}
    own = [dict(common) for _ in parties]
    for round in range(1, 4):
        experiment.federation.begin(round)
        asked = list(experiment.federation.participants())
        assert len(asked) == 2
        models, changes = [], []
        for p in asked:
            weights = plain.leaves(server)
            new = gradients(weights, parties[p])
            for _ in range(3):
                corrected = {name: g - own[p][name] + common[name] for name, g in gradients(weights, parties[p]).items()}
                weights = {
                    name: (value - 0.2 * corrected[name]).requires_grad_() for name, value in plain.leaves(weights).items()
                }
            if control == 2:
                steps = {name: (server[name] - value) / (3 * 0.2) for name, value in weights.items()}
                new = {name: own[p][name] - common[name] + value for name, value in steps.items()}
            changes.append({name: new[name] - own[p][name] for name in new})
            own[p] = {name: value.detach() for name, value in new.items()}
            models.append(weights)
        mean = plain.average(models, [1, 1])
        server = {name: (value + mean[name]) / 2 for name, value in server.items()}
        common = {name: value + sum(change[name].detach() for change in changes) / 3 for name, value in common.items()}
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server)
    plain.close(result.state["control"], common)


def gradients(weights: plain.Weights, party: plain.Party) -> plain.Weights:
    """∇F_k."""
    weights = plain.leaves(weights)
    computed = torch.autograd.grad(party.loss(plain.forward("gcn", weights, party)), list(weights.values()))
    return dict(zip(weights, computed, strict=True))


def test_the_servers_control_is_the_mean_of_the_parties() -> None:
    """With everybody in every round."""
    result = runner.run(small("scaffold", **SGD))
    mean = {name: value.mean(0) for name, value in result.memory["0"]["control"].items()}
    plain.close(result.state["control"], mean, 1e-6)
    assert any(bool(value.any()) for value in mean.values())


@pytest.mark.parametrize(
    ("values", "given"), [({"optimizer": "adam"}, "optimizer=adam"), ({"optimizer": "sgd", "momentum": 0.9}, "momentum=0.9")]
)
def test_steps_are_not_taken_for_gradients_of_another_optimizer(values: dict[str, object], given: str) -> None:
    """One sentence; option I takes any optimizer."""
    with pytest.raises(AtollError, match=f"control=2 .* needs plain SGD, not {given}; set control=1"):
        small("scaffold", **values)
    runner.run(small("scaffold", rounds=1, control=1, **values))


def test_bytes() -> None:
    """8·w down; 8·w + 8 up."""
    result = runner.run(small("scaffold", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 8 * parameters
    assert result.bytes["up"] == 2 * 3 * (8 * parameters + 8)
