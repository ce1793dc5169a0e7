"""The parameters of models as dicts of tensors: read, written, scaled and weighted."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.models.party_tensors import is_same

Parameters = dict[str, Tensor]


def get_parameters(model: nn.Module, *, copy: bool = False) -> Parameters:
    """The parameters by name, each (P, …), detached; live views unless `copy`.

    Parameters:
        model: A backbone, or any module.
        copy: Whether to copy them, so that training does not change them.

    Examples:
        >>> import atoll, torch
        >>> parameters = atoll.get_parameters(torch.nn.Linear(2, 3))
        >>> {name: tuple(value.shape) for name, value in parameters.items()}
        {'weight': (3, 2), 'bias': (3,)}
    """
    return {name: p.detach().clone() if copy else p.detach() for name, p in model.named_parameters()}


@torch.no_grad()
def set_parameters(model: nn.Module, params: Mapping[str, Tensor]) -> None:
    """Copy parameters into a model: (P, …) as they are, (…) to every party.

    Parameters:
        model: A backbone of P parties.
        params: Parameters by name, with or without a party axis.

    Examples:
        >>> import atoll, torch
        >>> linear, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
        >>> atoll.set_parameters(linear, atoll.get_parameters(other))
        >>> torch.equal(linear.weight, other.weight)
        True
    """
    live = dict(model.named_parameters())
    if live.keys() != params.keys():
        odd = sorted(live.keys() ^ params.keys())
        raise AtollError(f"these parameters belong to another model: {', '.join(odd)} should be in both or neither")
    for name, p in live.items():
        if params[name].shape not in (p.shape, p.shape[1:]):
            shapes = f"{tuple(params[name].shape)}; the model has {tuple(p.shape)}, party first"
            raise AtollError(f"parameter {name!r} has shape {shapes}")
    for name, p in live.items():
        if not is_same(p, params[name]):
            p.copy_(params[name])


def scale(parameters: Mapping[str, Tensor], factor: float | Tensor) -> Parameters:
    """Every tensor times a number."""
    return {name: value * factor for name, value in parameters.items()}


def weighted(model: nn.Module | Mapping[str, Tensor], weights: Tensor) -> Parameters:
    """Party p's parameters (P, …) times its weight; a copy, so that the model can go on training."""
    return {name: value * weights.view(-1, *[1] * (value.ndim - 1)) for name, value in _mapping(model).items()}


def choose(parties: Tensor, chosen: Mapping[str, Tensor], others: Mapping[str, Tensor]) -> Parameters:
    """(P, …) `chosen` where `parties` (P,) is true, `others` elsewhere."""
    return {name: torch.where(parties.view(-1, *[1] * (t.ndim - 1)), t, others[name]) for name, t in chosen.items()}


def interpolate(start: Mapping[str, Tensor], end: Mapping[str, Tensor], share: float | Tensor) -> Parameters:
    """The parameters that fraction of the way from `start` to `end`; exactly `start` at 0 and `end` at 1."""
    weight = torch.as_tensor(share, dtype=torch.float32)
    return {name: torch.lerp(value, end[name], weight.to(value.device)) for name, value in start.items()}


def zeros_of(model: nn.Module | Mapping[str, Tensor]) -> Parameters:
    """Zeros in the shapes of the parameters."""
    return {name: torch.zeros_like(value) for name, value in _mapping(model).items()}


def difference(one: nn.Module | Mapping[str, Tensor], other: Mapping[str, Tensor]) -> Parameters:
    """w_k − w, parameter by parameter; the second may lack the party axis."""
    return {name: value - other[name] for name, value in _mapping(one).items()}


def _mapping(model: nn.Module | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    return get_parameters(model) if isinstance(model, nn.Module) else model
