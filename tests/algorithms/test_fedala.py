"""FedALA against FedAvg, Local and a naive loop over parties."""

from __future__ import annotations

import pytest
import torch

import plain
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small


@pytest.mark.parametrize("values", [{"mixed_tensors": 0}, {"mixing_lr": 0.0}], ids=str)
def test_without_a_mixture_it_is_fedavg(values: dict[str, float]) -> None:
    """No tensor is mixed, or the shared model is taken as it is: FedAvg's model and metrics, bit for bit, with dropout too."""
    ala = runner.run(small("fedala", dropout=0.3, **values))
    avg = runner.run(small("fedavg", dropout=0.3))
    plain.same(ala.state["model"], avg.state["model"])
    assert plain.metrics(ala) == plain.metrics(avg)


def test_who_takes_nothing_of_the_shared_model_is_local() -> None:
    """All tensors mixed with W = 0: the models of Local that begin alike, bit for bit."""
    ala = runner.run(small("fedala", dropout=0.3, mixed_tensors=4, mixing_lr=0.0, initial_mixing=0.0))
    local = runner.run(small("local", dropout=0.3, start="shared"))
    plain.same(ala.memory["0"]["previous"], local.memory["0"]["model"])
    assert plain.metrics(ala) == plain.metrics(local)


def test_three_rounds_equal_a_loop_over_parties() -> None:
    """W of every party by its own steps: until its losses settle in the second round, once in the third; two layers' tensors."""
    values = {"mixing_share": 100, "mixing_threshold": 0.002, "mixing_lr": 3.0}
    config = small("fedala", optimizer="sgd", lr=0.4, epochs=3, **values)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    top = ["layers.1.weight", "layers.1.bias"]
    share = [{name: torch.ones_like(server[name]) for name in top} for _ in parties]
    last: list[plain.Weights] = []
    taken = []
    for round in range(1, 4):
        models = []
        for p, party in enumerate(parties):
            losses: list[float] = []
            while round > 1:
                mixed = plain.leaves(
                    server | {name: last[p][name] + share[p][name] * (server[name] - last[p][name]) for name in top}
                )
                loss = party.loss(plain.forward("gcn", mixed, party))
                losses.append(float(loss.detach()))
                for name, gradient in zip(top, torch.autograd.grad(loss, [mixed[name] for name in top]), strict=True):
                    share[p][name] = (share[p][name] - 3.0 * gradient * (server[name] - last[p][name])).clamp(0, 1)
                if round == 3 or (len(losses) > 10 and float(torch.tensor(losses[-10:]).std(correction=0)) < 0.002):
                    break
            taken.append(len(losses))
            own = server if round == 1 else {**server}
            if round > 1:
                own = server | {name: torch.lerp(last[p][name], server[name], share[p][name]) for name in top}
            own = plain.leaves(own)
            for _ in range(3):
                plain.descend(own, party.loss(plain.forward("gcn", own, party)), 0.4)
            models.append(own)
        last = [{name: value.detach() for name, value in own.items()} for own in models]
        server = plain.average(models, [party.n for party in parties])
    result = runner.rounds(experiment)
    assert min(taken[3:6]) > 10
    plain.close(result.state["model"], server)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.memory["0"]["mixing"].items()}, share[p])


def test_bytes() -> None:
    """4·w down; 4·w + 8 up: mixing weights stay at home."""
    result = runner.run(small("fedala", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)


def test_what_the_shared_model_is_mixed_with() -> None:
    """FedGB's: where everybody keeps their own tensors (W = 0), what they keep was never trained."""
    values = {"mixed_tensors": 4, "mixing_lr": 0.0, "initial_mixing": 0.0}
    never = runner.run(small("fedala", mixed_with="mixture", **values))
    first = first_model(never.config.settings, runner.prepare(never.config).federation.schema, 3)
    for name, value in never.memory["0"]["previous"].items():
        assert torch.equal(value, first[name].expand_as(value))
    ever = runner.run(small("fedala", **values))
    assert not torch.equal(ever.memory["0"]["previous"]["layers.0.weight"], never.memory["0"]["previous"]["layers.0.weight"])
