"""The algorithms by name: one module each with `Settings`, `Cohort`, `SCENARIOS`, `start`, `step` and `evaluate`.

Other packages add one with an entry point in the group `atoll.algorithms`; a file of the user's own is found by its path.
"""

from __future__ import annotations

import dataclasses
import hashlib
import pkgutil
import sys
import traceback
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, cast

from atoll.errors import AtollError, AtollWarning
from atoll.federation import cohort
from atoll.federation.federation import Federation
from atoll.federation.memory import FRESH, NODE, PARTY, SHARED
from atoll.federation.metrics import EVALUATIONS
from atoll.registry import Registry

State = dict[str, Any]  # tensors, or dicts of tensors
SCENARIOS = ("horizontal", "overlapping", "vertical", "node", "whole")
STATE_KINDS = (PARTY, NODE, SHARED, FRESH)  # what a piece of the state may be in STATE_AXES
PARTS = ("Settings", "Cohort", "SCENARIOS", "start", "step", "evaluate")


class Algorithm(Protocol):
    """What an algorithm's module holds; one that is not for every task also has `TASKS`, a tuple of their names.

    One that can do with parties without training nodes has `UNLABELED_PARTIES = True`.
    One whose state is not the same for all data, a model for instance, also has `STATE_AXES`: the name of a piece of it → its
    first axis (`PARTY`, `NODE`), `SHARED` or `FRESH`. A run that begins from another's model needs it. One that does not judge
    the server's model, or can judge others, too, also has `EVALUATIONS`: what `evaluation` may be, its own first. One with the
    setting `norm` whose models cannot have batch norm all the same says in words why: `NO_NORM`, and likewise
    `NO_PROPAGATE_FIRST`. One whose
    theorem has constants that can be measured has `theory(parts, public, state, settings, rounds)`, for `atoll theory`.
    One that wants the edges between parties, known to both ends' owners (`Graph.borders`), has `wants_borders(settings)`.
    One whose next round needs what an evaluation found has `after_evaluation(state, metrics)`, which gives the state with it.
    """

    Settings: type
    Cohort: type[cohort.Cohort]
    SCENARIOS: tuple[str, ...]  # the ways of partitioning a graph that it is made for

    def start(self, federation: Federation, settings: Any) -> State:
        """The server's state before the first round."""
        ...

    def step(self, federation: Federation, state: State, settings: Any) -> State:
        """One round."""
        ...

    def evaluate(self, federation: Federation, state: State, settings: Any) -> dict[str, Any]:
        """Metrics of the state."""
        ...


def evaluations(algorithm: Algorithm) -> tuple[str, ...]:
    """Which models it can judge, its own first."""
    words: tuple[str, ...] = getattr(algorithm, "EVALUATIONS", EVALUATIONS[:1])
    return words


def after_evaluation(algorithm: Algorithm, state: State, metrics: Mapping[str, Any]) -> State:
    """The state with what the algorithm's next round needs of an evaluation; the state itself for most."""
    remember = getattr(algorithm, "after_evaluation", None)
    kept: State = state if remember is None else remember(state, metrics)
    return kept


def names() -> list[str]:
    """All algorithms that have a name, sorted."""
    return ALGORITHMS.names()


def find(name: str) -> Algorithm:
    """The algorithm of that name, or in that file (`path/to/own.py`)."""
    return _in_file(Path(name).resolve()) if name.endswith(".py") else ALGORITHMS.find(name)


def is_imported(name: str) -> bool:
    """Whether an algorithm can be looked at without running a file: it is known by name, or its file was imported before."""
    return Path(name).resolve() in _digests if name.endswith(".py") else name in ALGORITHMS


def takes_unlabeled(name: str) -> bool:
    """Whether an algorithm can do with parties that have no training nodes."""
    return bool(getattr(find(name), "UNLABELED_PARTIES", False))


def wants_borders(name: str, settings: Any) -> bool:
    """Whether an algorithm wants the edges between parties, with these settings."""
    wanted = getattr(find(name), "wants_borders", None)
    return wanted is not None and bool(wanted(settings))


_digests: dict[Path, str] = {}  # of the files that were imported
_provided: dict[Path, bytes] = {}  # files of another machine


def digest(name: str, *, read: bool = False) -> str | None:
    """SHA-256 of a user's algorithm file as it was imported; with `read`, of one that was not, as it is now. Otherwise None."""
    if not name.endswith(".py"):
        return None
    path = Path(name).resolve()
    return _digests.get(path) or (hashlib.sha256(_source(path)).hexdigest() if read else None)


def source(name: str) -> bytes:
    """The content of a user's algorithm file; empty for any other algorithm."""
    return _source(Path(name).resolve()) if name.endswith(".py") else b""


def provide(name: str, content: bytes) -> None:
    """Take this as the content of an algorithm file that is on another machine."""
    _provided[Path(name).resolve()] = content


def _source(path: Path) -> bytes:
    if path in _provided:
        return _provided[path]
    try:
        return path.read_bytes()
    except OSError as error:
        raise AtollError(
            f"There is no algorithm in {path}: {'no such file' if not path.exists() else error.strerror}."
        ) from error


def _in_file(path: Path) -> Algorithm:
    """The user's own algorithm, imported from its file once."""
    key = f"{__name__}:{path}"
    if key not in sys.modules:
        source = _source(path)
        sys.modules[key] = module = ModuleType(key)
        module.__file__ = str(path)
        _digests[path] = hashlib.sha256(source).hexdigest()
        try:  # exactly these bytes, not a cached .pyc
            exec(compile(source, str(path), "exec", dont_inherit=True), module.__dict__)
            _accept_old_names(module, path)
            _check(module, str(path))
        except (KeyboardInterrupt, AtollError):
            del sys.modules[key]
            raise
        except BaseException as error:  # whatever the file does
            del sys.modules[key]
            raise AtollError(f"{path} cannot be imported ({type(error).__name__}: {error}{_line(error, path)}).") from error
    return cast(Algorithm, sys.modules[key])


def _accept_old_names(module: ModuleType, path: Path) -> None:
    """Accept SPREADS, which is what SCENARIOS was called in 0.1."""
    if hasattr(module, "SPREADS") and not hasattr(module, "SCENARIOS"):
        warnings.warn(f"{path}: SPREADS is called SCENARIOS now; rename it.", AtollWarning, stacklevel=2)
        module.__dict__["SCENARIOS"] = module.SPREADS


def _line(error: BaseException, path: Path) -> str:
    """The line of the file that raised an error."""
    if isinstance(error, SyntaxError):
        return ""  # its message has the line
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f", line {lines[-1]}" if lines else ""


def _check(module: Any, where: str) -> None:
    """Refuse a module that is not an algorithm."""
    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing:
        raise AtollError(f"{where} is not an algorithm: it has no {', '.join(missing)}; an algorithm has {', '.join(PARTS)}.")
    axes = getattr(module, "STATE_AXES", {})
    fit = {
        "Settings must be a dataclass": isinstance(module.Settings, type) and dataclasses.is_dataclass(module.Settings),
        "Cohort must be a subclass of atoll.Cohort": isinstance(module.Cohort, type) and issubclass(module.Cohort, cohort.Cohort),
        f"SCENARIOS must be a tuple of {', '.join(SCENARIOS)}": isinstance(module.SCENARIOS, tuple)
        and len(module.SCENARIOS) > 0
        and set(module.SCENARIOS) <= set(SCENARIOS),
        f"STATE_AXES must be a dict of {', '.join(STATE_KINDS)}": isinstance(axes, dict)
        and set(axes.values()) <= set(STATE_KINDS),
        f"EVALUATIONS must be a tuple of {', '.join(EVALUATIONS)}": isinstance(words := evaluations(module), tuple)
        and len(words) > 0
        and set(words) <= set(EVALUATIONS),
        "start, step and evaluate must be functions": all(callable(getattr(module, part)) for part in PARTS[3:]),
    }
    for sentence, holds in fit.items():
        if not holds:
            raise AtollError(f"{where} is not an algorithm: {sentence}.")


ALGORITHMS: Registry[Algorithm] = Registry(
    "algorithm",
    {module.name: f"{__name__}.{module.name}" for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")},
    check=_check,
)
