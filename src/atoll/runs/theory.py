"""The constants of an algorithm's theorem, measured at the trained model of a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.runs.trained import load_model


def measure(path: str | Path) -> list[Any]:
    """The quantities (`symbol`, `value`, `meaning`) that the algorithm's `theory` finds at the best round's model."""
    trained = load_model(path)
    name = trained.config.algorithm
    find = _theory(name)
    if find is None:
        able = ", ".join(one for one in algorithms.names() if _theory(one))
        raise AtollError(f"{path} is a run of {name}, whose theory atoll does not know; it knows that of {able}.")
    data = trained.training_data
    quantities: list[Any] = find(data.parts, data.public, trained.files.state, trained.config.settings, trained.config.run.rounds)
    return quantities


def _theory(name: str) -> Callable[..., list[Any]] | None:
    """The function `theory` of an algorithm's module; a submodule of that name measures during the run instead."""
    find = getattr(algorithms.find(name), "theory", None)
    return find if callable(find) else None
