"""One module an algorithm, found by its name: `Settings`, `Cohort`, `start`, `step`, `evaluate`."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any, Protocol

from atoll import cohort
from atoll.errors import AtollError
from atoll.federation import Federation
from atoll.settings import suggest

State = dict[str, Any]  # tensors, or dicts of tensors


class Algorithm(Protocol):
    """What an algorithm's module holds."""

    Settings: type
    Cohort: type[cohort.Cohort]
    SPREADS: tuple[str, ...]  # the ways of spreading a graph it is made for

    def start(self, federation: Federation, settings: Any) -> State:
        """The server's state before the first round."""
        ...

    def step(self, federation: Federation, state: State, settings: Any) -> State:
        """One round."""
        ...

    def evaluate(self, federation: Federation, state: State, settings: Any) -> dict[str, Any]:
        """Metrics of the state."""
        ...


def names() -> list[str]:
    """All algorithms there are."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Algorithm:
    """The algorithm of that name."""
    if name not in names():
        raise AtollError(f"There is no algorithm {name!r}{suggest(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")
