"""One module an algorithm, found by its name or in a file of one's own: `Settings`, `Cohort`, `start`, `step`, `evaluate`."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import sys
from functools import cache
from pathlib import Path
from typing import Any, Protocol, cast

from atoll import cohort
from atoll.errors import AtollError
from atoll.federation import Federation
from atoll.settings import suggest

State = dict[str, Any]  # tensors, or dicts of tensors
PARTS = ("Settings", "Cohort", "SPREADS", "start", "step", "evaluate")


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
    return list(_names())


@cache
def _names() -> list[str]:
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def find(name: str) -> Algorithm:
    """The algorithm of that name, or in that file (`path/to/own.py`)."""
    if name.endswith(".py"):
        return _in_file(Path(name).resolve())
    if name not in names():
        raise AtollError(f"There is no algorithm {name!r}{suggest(name, names())}")
    return cast(Algorithm, importlib.import_module(f"{__name__}.{name}"))


def _in_file(path: Path) -> Algorithm:
    """An algorithm of one's own, imported from its file, once."""
    key = f"{__name__}:{path}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, path)
        if not path.is_file() or spec is None or spec.loader is None:
            raise AtollError(f"There is no algorithm in {path}: no such file.")
        sys.modules[key] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
            missing = [part for part in PARTS if not hasattr(module, part)]
            if missing:
                raise AtollError(
                    f"{path} is not an algorithm: it has no {', '.join(missing)}; an algorithm has {', '.join(PARTS)}."
                )
        except BaseException:
            del sys.modules[key]
            raise
    return cast(Algorithm, sys.modules[key])
