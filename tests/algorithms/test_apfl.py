"""APFL against FedAvg, Local and a naive loop over parties."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import plain
from atoll.errors import AtollError
from atoll.federation.cohort import first_model
from atoll.runs import runner
from small import small

MODELS = ["gcn", "sgc", "sage"]


@pytest.mark.parametrize("model", MODELS)
def test_a_mixture_fixed_at_zero_is_fedavg(model: str) -> None:
    """α = 0: the shared model and what is evaluated are FedAvg's, bit for bit."""
    apfl = runner.run(small("apfl", model=model, dropout=0.3, mixture=0.0, mixture_lr=0.0))
    avg = runner.run(small("fedavg", model=model, dropout=0.3))
    plain.same(apfl.state["model"], avg.state["model"])
    assert plain.metrics(apfl) == plain.metrics(avg)


@pytest.mark.parametrize("model", MODELS)
def test_a_mixture_fixed_at_one_is_local(model: str) -> None:
    """α = 1: the personal models and what is evaluated are Local's, bit for bit, whatever the shared model does."""
    apfl = runner.run(small("apfl", model=model, dropout=0.3, mixture=1.0, mixture_lr=0.0))
    local = runner.run(small("local", model=model, dropout=0.3))
    plain.same(apfl.memory["0"]["personal"], local.memory["0"]["model"])
    assert plain.metrics(apfl) == plain.metrics(local)


@pytest.mark.parametrize("model", MODELS)
def test_the_shared_model_is_fedavgs_whatever_the_mixture(model: str) -> None:
    """The personal models take from the shared one and give nothing back."""
    apfl = runner.run(small("apfl", model=model, mixture=0.6, mixture_lr=0.5))
    plain.same(apfl.state["model"], runner.run(small("fedavg", model=model)).state["model"])


@pytest.mark.parametrize("model", MODELS)
def test_two_rounds_equal_a_loop_over_parties(model: str) -> None:
    """w, v and α of every party by their own formulas, the gradient of v̄ written out."""
    config = small("apfl", model=model, rounds=2, optimizer="sgd", lr=0.2, epochs=3, mixture=0.4, mixture_lr=0.5)
    experiment, parties = plain.prepare(config)
    first = experiment.engine.state()["0"]["personal"]
    personal = [{name: value[p].clone() for name, value in first.items()} for p in range(3)]
    mixture = [0.4] * 3
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        models = []
        for p, party in enumerate(parties):
            own = plain.leaves(server)
            gradient = mixture_gradient(model, mixture[p], personal[p], own, party)
            slope = sum(float(((personal[p][name] - server[name]) * gradient[name]).sum()) for name in own)
            mixture[p] = min(max(mixture[p] - 0.5 * slope, 0.0), 1.0)
            for _ in range(3):
                gradient = mixture_gradient(model, mixture[p], personal[p], own, party)
                personal[p] = {name: value - 0.2 * mixture[p] * gradient[name] for name, value in personal[p].items()}
                plain.descend(own, party.loss(plain.forward(model, own, party)), 0.2)
            models.append(own)
        server = plain.average(models, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server)
    torch.testing.assert_close(result.memory["0"]["mixture"], torch.tensor(mixture), atol=1e-5, rtol=1e-5)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.memory["0"]["personal"].items()}, personal[p])


def mixture_gradient(
    model: str, share: float, personal: plain.Weights, shared: plain.Weights, party: plain.Party
) -> plain.Weights:
    """∇f(v̄) at v̄ = α·v + (1−α)·w."""
    mixed = plain.leaves({name: share * personal[name] + (1 - share) * shared[name] for name in personal})
    gradients = torch.autograd.grad(party.loss(plain.forward(model, mixed, party)), list(mixed.values()))
    return dict(zip(mixed, gradients, strict=True))


@pytest.mark.parametrize("model", MODELS)
def test_mixed_outputs_equal_a_loop_over_parties(model: str) -> None:
    """`mix=logits`: α·v(x) + (1−α)·w(x), the slope of α from these outputs, plus the decay times α."""
    values = {"mixture": 0.4, "mixture_lr": 0.5, "mixture_decay": 0.02, "mix": "logits"}
    config = small("apfl", model=model, rounds=2, optimizer="sgd", lr=0.2, epochs=3, **values)
    experiment, parties = plain.prepare(config)
    first = experiment.engine.state()["0"]["personal"]
    personal = [plain.leaves({name: value[p] for name, value in first.items()}) for p in range(3)]
    mixture = [0.4] * 3
    server = first_model(config.settings, experiment.federation.schema, config.seed)
    for _ in range(2):
        models = []
        for p, party in enumerate(parties):
            own, share = plain.leaves(server), torch.tensor(mixture[p], requires_grad=True)
            outputs = [plain.forward(model, weights, party).detach() for weights in (personal[p], own)]
            (slope,) = torch.autograd.grad(party.loss(share * outputs[0] + (1 - share) * outputs[1]), share)
            mixture[p] = min(max(mixture[p] - 0.5 * (float(slope) + 0.02 * mixture[p]), 0.0), 1.0)
            for _ in range(3):
                shared = plain.forward(model, own, party).detach()
                mixed = mixture[p] * plain.forward(model, personal[p], party) + (1 - mixture[p]) * shared
                plain.descend(personal[p], party.loss(mixed), 0.2)
                plain.descend(own, party.loss(plain.forward(model, own, party)), 0.2)
            models.append(own)
        server = plain.average(models, [party.n for party in parties])
    result = runner.rounds(experiment)
    plain.close(result.state["model"], server)
    torch.testing.assert_close(result.memory["0"]["mixture"], torch.tensor(mixture), atol=1e-5, rtol=1e-5)
    for p in range(3):
        plain.close({name: value[p] for name, value in result.memory["0"]["personal"].items()}, personal[p])


def test_mixed_outputs_are_not_one_model(tmp_path: Path) -> None:
    """There is nothing to export, in a sentence."""
    result = runner.run(small("apfl", mix="logits", rounds=1))
    with pytest.raises(AtollError, match="a party predicts with two models"):
        result.model().export("torchscript", tmp_path / "model", party=0)


def test_bytes() -> None:
    """4·w down; 4·w + 8 up: the personal model and α stay at home."""
    result = runner.run(small("apfl", rounds=2))
    parameters = plain.size(result.state["model"])
    assert result.bytes["down"] == 2 * 3 * 4 * parameters
    assert result.bytes["up"] == 2 * 3 * (4 * parameters + 8)
