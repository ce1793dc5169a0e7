"""Arithmetic on models as dicts of tensors: what the parties reply and what the server does with it."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from atoll.models.backbones import get_parameters

Parameters = dict[str, Tensor]


def scale(parameters: Mapping[str, Tensor], factor: float | Tensor) -> Parameters:
    """Every tensor times a number."""
    return {name: value * factor for name, value in parameters.items()}


def weighted(model: nn.Module | Mapping[str, Tensor], weights: Tensor) -> Parameters:
    """Party p's parameters (P, …) times its weight; a copy, so that the model may train on."""
    parameters = get_parameters(model) if isinstance(model, nn.Module) else model
    return {name: value * weights.view(-1, *[1] * (value.ndim - 1)) for name, value in parameters.items()}
