"""Ditto against FedAvg, Local and a naive loop over parties."""

from __future__ import annotations

import pytest
import torch.nn.functional as F

import plain
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small


def test_the_shared_model_is_fedavgs_whatever_the_personal_ones_do() -> None:
    """Bit for bit, with dropout, for every λ."""
    avg = runner.run(small("fedavg", dropout=0.3)).state["model"]
    for proximal in (0.0, 1.0):
        plain.same(runner.run(small("ditto", dropout=0.3, proximal=proximal)).state["model"], avg)


def test_personal_models_that_nothing_holds_are_local() -> None:
    """λ = 0: Local's models and metrics, bit for bit, wherever both begin."""
    for start in ("own", "shared"):
        ditto = runner.run(small("ditto", dropout=0.3, proximal=0.0, start=start))
        local = runner.run(small("local", dropout=0.3, start=start))
        plain.same(ditto.memory["0"]["personal"], local.memory["0"]["model"])
        assert plain.metrics(ditto) == plain.metrics(local)


def test_two_rounds_equal_a_loop_over_parties() -> None:
    """v goes down ∇F(v) + λ(v − θ), θ as received; the server averages the others."""
    config = small("ditto", rounds=2, optimizer="sgd", lr=0.2, epochs=3, proximal=0.7)
    experiment, parties = plain.prepare(config)
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    personal = [plain.leaves(server) for _ in parties]
    for _ in range(2):
        models = []
        for own, party in zip(personal, parties, strict=True):
            shared = plain.leaves(server)
            for _ in range(3):
                distance = sum((own[name] - server[name]).square().sum() for name in own)
                plain.descend(own, party.loss(plain.forward("gcn", own, party)) + 0.35 * distance, 0.2)
                plain.descend(shared, party.loss(plain.forward("gcn", shared, party)), 0.2)
            models.append(shared)
        server = plain.average(models, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server)
    for p, own in enumerate(personal):
        plain.close({name: value[p] for name, value in result.memory["0"]["personal"].items()}, own)


def test_each_party_chooses_how_strongly_it_is_held() -> None:
    """In every step the λ of 0.1, 1 and 2 whose step has the lowest validation loss; the shared model stays FedAvg's."""
    values = {"rounds": 2, "optimizer": "sgd", "lr": 0.3, "epochs": 3, "choose_proximal": True}
    config = small("ditto", **values)
    experiment, parties = plain.prepare(config)
    validation = [experiment.party_data.parts.select([p]).val for p in range(3)]
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    personal = [plain.leaves(server) for _ in parties]
    taken = set()
    for round in range(2):
        for p, party in enumerate(parties):
            for _ in range(3):
                trials = []
                for proximal in (0.1, 1.0, 2.0):
                    trial = plain.leaves(personal[p])
                    distance = sum((trial[name] - server[name]).square().sum() for name in trial)
                    plain.descend(trial, party.loss(plain.forward("gcn", trial, party)) + proximal / 2 * distance, 0.3)
                    out = plain.forward("gcn", trial, party)[validation[p]]
                    trials.append((float(F.cross_entropy(out, party.y[validation[p]]).detach()), proximal, trial))
                _, proximal, personal[p] = min(trials, key=lambda each: each[0])
                taken.add(proximal if round else 0.0)
        server = runner.run(
            small("fedavg", **{**{k: v for k, v in values.items() if k != "choose_proximal"}, "rounds": round + 1})
        ).state["model"]
    result = runner.rounds(experiment)
    plain.same(result.state["model"], server)
    assert len(taken) > 2  # not always the same one
    for p, own in enumerate(personal):
        plain.close({name: value[p] for name, value in result.memory["0"]["personal"].items()}, own)


def test_choosing_in_mini_batches_is_refused() -> None:
    """In one sentence."""
    with pytest.raises(AtollError, match="choose_proximal evaluates on all nodes"):
        small("ditto", choose_proximal=True, batch_size=4)


def test_bytes() -> None:
    """4·w down; 4·w + 8 up: personal models stay at home."""
    result = runner.run(small("ditto", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
