"""Optimizers whose whole state has a leading party axis, so parties can be sliced out, stepped and written back exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import torch
from torch import Tensor

from atoll.errors import AtollError, suggest
from atoll.models.adam import Adam, AdamW
from atoll.models.backbone import Backbone
from atoll.models.party_tensors import (
    MAX_PIECES,
    Parameters,
    clipped,
    named_tensors,
)
from atoll.models.pull import Pull
from atoll.models.sgd import SGD
from atoll.settings import Training

__all__ = [
    "OPTIMIZERS",
    "SGD",
    "Adam",
    "AdamW",
    "Optimizer",
    "check",
    "descend",
    "first_layer",
    "gradients",
    "make",
    "of_settings",
]
Optimizer = Adam | SGD  # AdamW is an Adam
OPTIMIZERS = ("adam", "adamw", "sgd")


def make(
    name: str,
    params: Parameters,
    lr: float,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    *,
    clip: float = 0.0,
    decayed: Collection[str] | None = None,
) -> Optimizer:
    """The optimizer of that name: adam, adamw or sgd.

    With `clip`, `descend` scales a party's longer gradients to that norm; with `decayed`, only these parameters decay.
    """
    if name in ("adam", "adamw"):
        return (Adam if name == "adam" else AdamW)(params, lr, weight_decay, clip=clip, decayed=decayed)
    if name == "sgd":
        return SGD(params, lr, weight_decay, momentum, clip=clip, decayed=decayed)
    raise AtollError(f"There is no optimizer {name!r}{suggest(name.lower(), OPTIMIZERS)}")


def check(settings: Any) -> None:
    """Refuse momentum where it would have no effect."""
    if isinstance(settings, Training) and settings.momentum and settings.optimizer != "sgd":
        raise AtollError(f"momentum is {settings.momentum} but only optimizer=sgd has one; set optimizer=sgd, or leave it out.")


def of_settings(settings: Training, params: Parameters) -> Optimizer:
    """The optimizer that the settings of local training ask for, `decay_layers` among them where an algorithm has it.

    Parameters that no gradient is for, the running statistics of batch norm, are left out.
    """
    s = settings
    decayed = first_layer(params) if getattr(s, "decay_layers", "all") == "first" else None
    trained = {name: tensor for name, tensor in named_tensors(params).items() if tensor.requires_grad}
    return make(s.optimizer, trained, s.lr, s.weight_decay, s.momentum, clip=s.clip, decayed=decayed)


def first_layer(params: Parameters) -> set[str]:
    """The names of the parameters of a backbone's first layer."""
    assert isinstance(params, Backbone)
    names = [name for name, _ in params.named_parameters()]
    return {name for name in names if params.layer_of(name) == params.layer_of(names[0])}


def descend(
    optimizer: Optimizer | Sequence[Optimizer], loss: Tensor, active: Tensor | None = None, pulls: Sequence[Pull] = ()
) -> Sequence[Tensor]:
    """One step down the loss by one or several optimizers; a parameter that the loss does not depend on has gradient zero.

    `active`: (P,) which parties take the step; None for all. The others, and their state, stay as they are. Each of `pulls`
    is added to the gradients of one optimizer, the first to the first one's. Gives the gradients.
    """
    optimizers = [optimizer] if isinstance(optimizer, Optimizer) else optimizer
    computed = torch.autograd.grad(loss, [p for one in optimizers for p in one.params.values()], materialize_grads=True)
    parts, taken = iter(computed), []
    for number, one in enumerate(optimizers):
        own = [next(parts) for _ in one.params]
        taken += pulls[number].added(one.params, own) if number < len(pulls) else own
    steps = iter(gradient.contiguous() for gradient in taken)
    for one in optimizers:
        _step(one, clipped([next(steps) for _ in one.params], one.clip), active)
    return taken


def _step(optimizer: Optimizer, gradients: list[Tensor], active: Tensor | None) -> None:
    """A step for the active parties, which are stepped apart where they are not all."""
    if active is None:
        optimizer.step(gradients)
    else:
        _step_active(optimizer, gradients, active)


@torch.no_grad()
def _step_active(optimizer: Optimizer, gradients: list[Tensor], active: Tensor) -> None:
    rows = active.nonzero()[:, 0]
    if active.is_cpu and len(rows) <= MAX_PIECES:
        optimizer.step_some(gradients, rows.tolist())
        return
    part: Any = optimizer.select(rows)
    part.step([gradient[rows] for gradient in gradients])
    optimizer.put(rows, part)


def gradients(optimizer: Optimizer, loss: Tensor) -> list[Tensor]:
    """The gradients of the loss in the order of the optimizer's parameters; nothing is accumulated in the parameters."""
    computed = torch.autograd.grad(loss, list(optimizer.params.values()), materialize_grads=True)
    return [gradient.contiguous() for gradient in computed]
