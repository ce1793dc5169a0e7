"""Settings of local training that are valid by themselves but do not fit together, or not this algorithm."""

from __future__ import annotations

from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.models import batching, optim, user
from atoll.models.registry import MODELS, check_norm, check_propagation
from atoll.settings import Training


def check(algorithm: str, settings: Any) -> None:
    """Refuse them in one sentence."""
    optim.check(settings)
    batching.check(settings)
    if getattr(settings, "propagate_first", False):
        if reason := getattr(algorithms.find(algorithm), "NO_PROPAGATE_FIRST", ""):
            raise AtollError(f"{algorithm} cannot make Â·X once: {reason}; leave propagate_first out.")
        if settings.model in MODELS or user.is_user_model(settings.model):
            check_propagation(settings.model, settings)
    if not isinstance(settings, Training) or getattr(settings, "norm", "none") == "none":
        return
    if reason := getattr(algorithms.find(algorithm), "NO_NORM", ""):
        raise AtollError(f"{algorithm} cannot train models with batch norm: {reason}; leave norm out.")
    if getattr(settings, "evaluation_dropout", False):
        raise AtollError(
            "evaluation_dropout evaluates as in training, where batch norm has no running statistics; leave one out."
        )
    if settings.model in MODELS or user.is_user_model(settings.model):
        check_norm(settings.model, settings)
