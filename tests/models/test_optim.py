"""The optimizers against torch's own, and their party axis against separate optimizers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.models import optim

SHAPES = {"weight": (3, 5, 4), "bias": (3, 4)}


def make_params() -> dict[str, Tensor]:
    """Parameters of three parties."""
    source = torch.Generator().manual_seed(0)
    return {name: torch.randn(shape, generator=source).requires_grad_() for name, shape in SHAPES.items()}


def make_gradients(step: int) -> list[Tensor]:
    """The gradients of a step."""
    source = torch.Generator().manual_seed(100 + step)
    return [torch.randn(shape, generator=source) for shape in SHAPES.values()]


def apart(params: Iterable[Tensor]) -> list[dict[str, Any]]:
    """Groups of torch's optimizers: the first parameter, and the others without decay."""
    first, *others = params
    return [{"params": [first]}, {"params": others, "weight_decay": 0.0}]


BETAS = (0.8, 0.99)
KINDS = {
    "adam": (lambda p: optim.Adam(p, 0.05), lambda p: torch.optim.Adam(p, 0.05)),
    "adam decay": (lambda p: optim.Adam(p, 0.05, 0.1, BETAS), lambda p: torch.optim.Adam(p, 0.05, BETAS, weight_decay=0.1)),
    "adamw": (lambda p: optim.AdamW(p, 0.05, 0.1), lambda p: torch.optim.AdamW(p, 0.05, weight_decay=0.1)),
    "adam decay of one": (
        lambda p: optim.Adam(p, 0.05, 0.1, decayed=["weight"]),
        lambda p: torch.optim.Adam(apart(p), 0.05, weight_decay=0.1),
    ),
    "adamw decay of one": (
        lambda p: optim.AdamW(p, 0.05, 0.1, decayed=["weight"]),
        lambda p: torch.optim.AdamW(apart(p), 0.05, weight_decay=0.1),
    ),
    "sgd decay of one": (
        lambda p: optim.SGD(p, 0.05, 0.1, 0.9, decayed=["weight"]),
        lambda p: torch.optim.SGD(apart(p), 0.05, 0.9, weight_decay=0.1),
    ),
    "sgd": (lambda p: optim.SGD(p, 0.05), lambda p: torch.optim.SGD(p, 0.05)),
    "sgd momentum": (lambda p: optim.SGD(p, 0.05, 0.1, 0.9), lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.1)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_equal_to_torch(kind: str) -> None:
    """Ten steps end where torch's optimizer ends."""
    ours, theirs = make_params(), make_params()
    optimizer, reference = KINDS[kind][0](ours), KINDS[kind][1](theirs.values())
    for step in range(10):
        optimizer.step(make_gradients(step))
        for parameter, gradient in zip(theirs.values(), make_gradients(step), strict=True):
            parameter.grad = gradient
        reference.step()
    for name, parameter in theirs.items():
        torch.testing.assert_close(ours[name], parameter, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("present", [[[0, 1, 2], [1], [0, 1], [2], [0, 1, 2]], [[0], [0, 1], [0, 1, 2], [0, 1, 2], [1, 2]]])
def test_parties_out_of_step_equal_separate_optimizers(kind: str, present: list[list[int]]) -> None:
    """Slicing some parties out, stepping and writing back equals one torch optimizer for each party."""
    whole = make_params()
    state = KINDS[kind][0](whole).state()
    separate = [[parameter[p].detach().clone().requires_grad_() for parameter in make_params().values()] for p in range(3)]
    references = [KINDS[kind][1](parameters) for parameters in separate]
    for step, parties in enumerate(present):
        gradients = make_gradients(step)
        part = {name: tensor.detach()[parties].clone() for name, tensor in whole.items()}
        optimizer = KINDS[kind][0](part)
        optimizer.restore({name: tensor[parties] for name, tensor in state.items()})
        optimizer.step([gradient[parties] for gradient in gradients])
        for name, tensor in part.items():
            whole[name].data[parties] = tensor
        for name, tensor in optimizer.state().items():
            state[name][parties] = tensor
        for p in parties:
            for parameter, gradient in zip(separate[p], gradients, strict=True):
                parameter.grad = gradient[p]
            references[p].step()
    for p in range(3):
        for ours, theirs in zip(whole.values(), separate[p], strict=True):
            torch.testing.assert_close(ours[p], theirs, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_state_has_a_party_axis_and_restores(kind: str) -> None:
    """Every tensor of the state begins with the party axis; a restored copy continues bit for bit; a reset one is new."""
    ours = make_params()
    optimizer = KINDS[kind][0](ours)
    optimizer.step(make_gradients(0))
    saved = {name: tensor.clone() for name, tensor in optimizer.state().items()}
    values = {name: tensor.detach().clone() for name, tensor in ours.items()}
    assert all(tensor.shape[0] == 3 for tensor in saved.values())
    optimizer.step(make_gradients(1))
    other = KINDS[kind][0](values)
    other.restore(saved)
    other.step(make_gradients(1))
    assert all(torch.equal(ours[name], values[name]) for name in SHAPES)
    other.reset()
    fresh = KINDS[kind][0](make_params()).state()
    assert all(torch.equal(tensor, fresh[name]) for name, tensor in other.state().items())


def test_restore_refuses_another_state() -> None:
    """A state with other names or shapes is refused, and nothing is written."""
    optimizer = optim.Adam(make_params(), 0.1)
    with pytest.raises(AtollError, match="other parameters"):
        optimizer.restore({"steps": torch.ones(3)})
    wrong = {name: torch.ones(2, *tensor.shape[1:]) for name, tensor in optimizer.state().items()}
    with pytest.raises(AtollError, match="shape"):
        optimizer.restore(wrong)
    assert optimizer.steps.tolist() == [0, 0, 0]


def test_descend_takes_the_gradient_of_its_own_parameters() -> None:
    """One step down a loss changes the optimizer's parameters as SGD says and leaves no gradient behind."""
    layer, other = nn.Linear(4, 2), torch.ones(2, requires_grad=True)
    before = layer.weight.detach().clone()
    optimizer = optim.SGD({"weight": layer.weight, "idle": torch.ones(2, 1, requires_grad=True)}, 0.5)
    x = torch.randn(3, 4)
    optim.descend(optimizer, (layer(x) * other).sum())
    torch.testing.assert_close(layer.weight.detach(), before - 0.5 * x.sum(0).expand(2, 4))
    assert other.grad is None
    assert layer.bias.grad is None
    assert torch.equal(optimizer.params["idle"], torch.ones(2, 1))


def test_descend_steps_several_optimizers_down_one_loss() -> None:
    """Two optimizers on one loss step as they would on their own."""
    a, b = torch.ones(2, 1, requires_grad=True), torch.ones(2, 1, requires_grad=True)
    optim.descend([optim.SGD([a], 0.1), optim.SGD([b], 0.2)], (a * b * 3).sum())
    torch.testing.assert_close(a, torch.full((2, 1), 0.7))
    torch.testing.assert_close(b, torch.full((2, 1), 0.4))


def test_make_by_name() -> None:
    """Optimizers are found by name; a mistyped one is an error with a suggestion."""
    made = optim.make("sgd", make_params(), 0.1, 0.2, momentum=0.3)
    assert isinstance(made, optim.SGD)
    assert (made.lr, made.weight_decay, made.momentum) == (0.1, 0.2, 0.3)
    assert type(optim.make("adam", make_params(), 0.1)) is optim.Adam
    assert type(optim.make("adamw", make_params(), 0.1)) is optim.AdamW
    with pytest.raises(AtollError, match="did you mean 'adam'"):
        optim.make("adm", make_params(), 0.1)


def test_mixed_party_counts_are_refused() -> None:
    """All parameters of one Adam belong to the same parties."""
    with pytest.raises(AtollError, match="same number of parties"):
        optim.Adam([torch.zeros(2, 1), torch.zeros(3, 1)], 0.1)


@pytest.mark.parametrize("clip", [0.5, 1e9])
@pytest.mark.parametrize("name", ["adam", "sgd"])
def test_each_partys_gradient_is_clipped_by_itself(name: str, clip: float) -> None:
    """A step with `clip` is a step of torch's optimizer, party by party, after torch's clip_grad_norm_; the same bits apart."""
    ours, alone = (
        make_params(),
        [{key: value[p : p + 1].detach().clone() for key, value in make_params().items()} for p in range(3)],
    )
    directions = make_gradients(0)

    def descend(params: dict[str, Tensor], rows: slice) -> None:
        for value in params.values():
            value.requires_grad_()
        loss = sum((value * one[rows]).sum() for value, one in zip(params.values(), directions, strict=True))
        optim.descend(optim.make(name, params, 0.05, clip=clip), loss)

    descend(ours, slice(None))
    for party in range(3):
        plain = [value[party].detach().clone().requires_grad_() for value in make_params().values()]
        for value, gradient in zip(plain, directions, strict=True):
            value.grad = gradient[party].clone()
        torch.nn.utils.clip_grad_norm_(plain, clip)
        (torch.optim.Adam(plain, 0.05) if name == "adam" else torch.optim.SGD(plain, 0.05)).step()
        descend(alone[party], slice(party, party + 1))
        for (key, value), expected in zip(ours.items(), plain, strict=True):
            torch.testing.assert_close(value[party], expected, atol=1e-6, rtol=1e-5)
            assert torch.equal(value[party], alone[party][key][0])
