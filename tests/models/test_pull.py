"""Pulls against autograd through the penalties that they are the gradients of."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor

from atoll.models import optim, pull
from atoll.models.pull import Pull

SHAPES = {"weight": (3, 5, 4), "bias": (3, 4), "head": (3, 2)}
NAMES = ("weight", "bias")  # `head` has no anchor: it stays with its party


def draws(offset: int, *, parties: bool) -> dict[str, Tensor]:
    """Tensors of the shapes, with a party axis or without."""
    source = torch.Generator().manual_seed(offset)
    return {name: torch.randn(shape if parties else shape[1:], generator=source) for name, shape in SHAPES.items()}


def penalty(
    params: Mapping[str, Tensor], strength: Tensor, anchor: Mapping[str, Tensor], direction: Mapping[str, Tensor]
) -> Tensor:
    """Σ_k μ_k/2·‖w_k − a_k‖² + ⟨w_k, d_k⟩, party by party."""
    total = torch.zeros(())
    for name in anchor:
        for party, mu in enumerate(strength):
            a, d = (part[name] if part[name].ndim < params[name].ndim else part[name][party] for part in (anchor, direction))
            total = total + mu / 2 * (params[name][party] - a).square().sum() + (params[name][party] * d).sum()
    return total


@pytest.mark.parametrize("of_parties", [True, False])
@pytest.mark.parametrize("at_once", [True, False])
def test_a_pull_is_the_gradient_of_its_penalty(of_parties, at_once, monkeypatch):
    """With one strength or one per party, anchors of all or of each, party by party or all at once."""
    monkeypatch.setattr(pull, "MAX_PIECES", 0 if at_once else 64)
    params = {name: value.requires_grad_() for name, value in draws(0, parties=True).items()}
    anchor, direction = ({name: draws(seed, parties=of_parties)[name] for name in NAMES} for seed in (1, 2))
    gradients = list(draws(3, parties=True).values())
    strengths = torch.tensor([0.5, 2.0, 0.0]) if of_parties else torch.full((3,), 0.25)
    expected = torch.autograd.grad(penalty(params, strengths, anchor, direction), list(params.values()), materialize_grads=True)
    made = Pull(strengths if of_parties else 0.25, anchor, direction).added(params, gradients)
    for one, gradient, wanted in zip(made, gradients, expected, strict=True):
        torch.testing.assert_close(one, gradient + wanted)
    assert made[2] is gradients[2]


def test_at_its_anchor_a_parameter_is_not_pulled():
    """Exactly: the first step of a round is that of the loss alone."""
    params = {name: value.requires_grad_() for name, value in draws(0, parties=True).items()}
    gradients = list(draws(3, parties=True).values())
    still = Pull(0.3, {name: value.detach() for name, value in params.items()}).added(params, gradients)
    assert all(torch.equal(one, other) for one, other in zip(still, gradients, strict=True))


def test_only_the_first_optimizer_is_pulled():
    """Ditto's shared model is not: the pull is the personal model's."""
    first, second = (torch.ones(2, 3, requires_grad=True) for _ in range(2))
    both = [optim.SGD({"weight": first}, 1.0), optim.SGD({"weight": second}, 1.0)]
    gradients = optim.descend(both, first.sum() + second.sum(), pulls=[Pull(0.5, {"weight": torch.zeros(3)})])
    assert gradients[0].tolist() == [[1.5] * 3] * 2
    assert gradients[1].tolist() == [[1.0] * 3] * 2
    assert first.tolist() == [[-0.5] * 3] * 2
    assert second.tolist() == [[0.0] * 3] * 2


def test_shrinkage_is_the_gradient_of_the_absolute_values():
    """Of every parameter, beside its anchor; 0 at 0."""
    params = draws(0, parties=True)
    params["head"][0] = 0
    params = {name: value.requires_grad_() for name, value in params.items()}
    gradients, anchor = list(draws(3, parties=True).values()), {"bias": torch.ones(4)}
    loss = sum(value.abs().sum() for value in params.values()) * 0.1 + 0.25 * (params["bias"] - 1).square().sum()
    expected = torch.autograd.grad(loss, list(params.values()))
    made = Pull(0.5, anchor, shrinkage=0.1).added(params, gradients)
    for one, gradient, wanted in zip(made, gradients, expected, strict=True):
        torch.testing.assert_close(one, gradient + wanted)
