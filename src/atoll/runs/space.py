"""Search spaces: which settings are tuned and what they may be; read from a file or from the tables beside the algorithms.

A file is TOML with one line per setting: `hidden = [16, 64]` are values to choose from, a range is written
`lr = {low = 0.001, high = 0.1, log = true}`.
`fedprox.proximal = [0.01, 0.1]` is for one algorithm alone, `model.heads = [4, 8]` for a setting of the model.
"""

from __future__ import annotations

import itertools
import math
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from atoll.errors import AtollError, suggest
from atoll.runs import defaults
from atoll.runs.config import Config, groups_of
from atoll.runs.setting_names import home_of
from atoll.runs.terms import shared_names
from atoll.settings import known, renamed, value_of

DEFAULTS = "defaults"
RANGE_KEYS = {"low", "high", "log"}
MAX_GRID = 100_000
EXAMPLE = "hidden = [16, 64] or lr = {low = 0.001, high = 0.1, log = true}"
TUNED_GROUPS = ("settings", "model")  # the groups of a run that are not the same for all contestants


@dataclass(frozen=True)
class Choices:
    """Values to choose from."""

    values: tuple[Any, ...]

    def __contains__(self, value: Any) -> bool:
        return any(value == each and isinstance(value, bool) == isinstance(each, bool) for each in self.values)

    def plain(self) -> Any:
        """As in a file."""
        return list(self.values)


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included; whole ones where both are."""

    low: float
    high: float
    log: bool = False

    def __contains__(self, value: Any) -> bool:
        return isinstance(value, (int, float)) and not isinstance(value, bool) and self.low <= value <= self.high

    def plain(self) -> Any:
        """As in a file."""
        return {"low": self.low, "high": self.high, "log": self.log}


Dimension: TypeAlias = Choices | Range
Space: TypeAlias = dict[str, Dimension]


def asked_space(space: str | Path | Mapping[str, Any]) -> Mapping[str, Any] | None:
    """A space from a dict or a file; None for the defaults."""
    if isinstance(space, Mapping):
        if not space:
            raise AtollError(f"The search space names no setting to tune; give for instance {EXAMPLE}.")
        return {str(name): list(value) if isinstance(value, tuple) else value for name, value in space.items()}
    return None if str(space) == DEFAULTS else read_space(space)


def read_space(path: str | Path) -> dict[str, Any]:
    """What a file says of each setting; it is checked by `space_for`, when the algorithms are known."""
    try:
        document = tomllib.loads(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        if isinstance(error, (tomllib.TOMLDecodeError, UnicodeDecodeError)):
            raise AtollError(f"{path} is not valid TOML: {error}.") from error
        reason = getattr(error, "strerror", None) or error
        raise AtollError(f"--space {path} cannot be read ({reason}); give the path of a TOML file, or {DEFAULTS}.") from error
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict) and not value.keys() & RANGE_KEYS:
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        else:
            flat[name] = value
    if not flat:
        raise AtollError(f"{path} names no setting to tune; write for instance {EXAMPLE}.")
    return flat


def space_for(
    config: Config, asked: Mapping[str, Any] | None, fixed: Collection[str] = (), contestants: Collection[str] = ()
) -> Space:
    """The space of an algorithm: what was asked for, as far as it has the settings, else the defaults without the `fixed` ones.

    Names that belong to other `contestants` are passed over; a setting that is both fixed and asked for is an error.
    """
    groups = _groups(config)
    if asked is None:
        listed = {name: value for name, value in defaults.spaces(config.algorithm).items() if home_of(name, groups)}
        asked = {name: value for name, value in listed.items() if name not in fixed}
    space: Space = {}
    for full, value in asked.items():
        name = _name_here(full, config, contestants)
        if name is None or (home := home_of(name, groups)) is None:
            continue
        if name in fixed:
            raise AtollError(f"{name} is set and in the search space; leave it out of one of them.")
        if name in space:
            raise AtollError(f"The search space names {name} twice; name it once.")
        space[name] = dimension(groups[home[0]], home[1], value)
    return space


def _name_here(full: str, config: Config, contestants: Collection[str]) -> str | None:
    """The setting's name without its algorithm's; None where it is another contestant's."""
    owner, _, rest = full.rpartition(".")
    if owner in (config.algorithm, "settings"):
        return rest
    return None if owner in contestants else full


def check_names(asked: Mapping[str, Any], configs: Collection[Config]) -> None:
    """Refuse names that no contestant has, and those of data and budget, which tuning must not change."""
    names = {config.algorithm for config in configs}
    for full in asked:
        owner, _, rest = full.rpartition(".")
        if any((name := _name_here(full, config, names)) and home_of(name, _groups(config)) for config in configs):
            continue
        if any(rest in shared_names(config) for config in configs) or rest in ("dataset", "partition", "parties", "seed"):
            raise AtollError(f"{full} in the search space is of data or budget, which are the same for all trials; leave it out.")
        options = {key for config in configs for key in known(_groups(config)["settings"])}
        old = next((new for config in configs if (new := renamed(_groups(config)["settings"]).get(rest))), None)
        near = f"; it is called {old} now." if old else suggest(rest if owner in names else full, options)
        raise AtollError(f"The search space names {full!r}, which {_either(names)} does not have{near}")


def _either(names: Collection[str]) -> str:
    return " or ".join(sorted(names))


def _groups(config: Config) -> dict[str, type]:
    groups = groups_of(config.algorithm, config.dataset, getattr(config.settings, "model", ""))
    return {name: group for name, group in groups.items() if name in TUNED_GROUPS}


def dimension(group: type, name: str, value: Any) -> Dimension:
    """One line of a space, each value checked as the setting's own."""
    where = f"The search space of {name}"
    if isinstance(value, list):
        if not value:
            raise AtollError(f"{where} is empty; write for instance {EXAMPLE}.")
        values = tuple(value_of(group, name, each, where) for each in value)
        if repeated := [each for index, each in enumerate(values) if each in values[:index]]:
            raise AtollError(f"{where} has {repeated[0]} twice; list each value once.")
        return Choices(values)
    if not isinstance(value, dict):
        raise AtollError(f"{where} is {value!r} but must be a list or a range; write for instance {EXAMPLE}.")
    if unknown := sorted(value.keys() - RANGE_KEYS):
        raise AtollError(f"{where} has {unknown[0]!r}{suggest(unknown[0], RANGE_KEYS)}")
    if missing := sorted({"low", "high"} - value.keys()):
        raise AtollError(f"{where} has no {missing[0]}; write for instance {EXAMPLE}.")
    low, high = (value_of(group, name, value[key], f"{where}: {key}") for key in ("low", "high"))
    log = value.get("log", False)
    if not isinstance(log, bool):
        raise AtollError(f"{where}: log is {log!r} but must be true or false.")
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in (low, high)):
        raise AtollError(f"{where} is a range, but {name} is not a number; list its values.")
    if not low < high:
        raise AtollError(f"{where} is from {low} to {high}, but low must be below high.")
    if log and low <= 0:
        raise AtollError(f"{where} is logarithmic from {low}, but low must be above 0; raise it, or list the values.")
    return Range(low, high, log)


def grid(space: Mapping[str, Dimension]) -> list[dict[str, Any]]:
    """Every combination of the values; a range has no such."""
    for name, one in space.items():
        if isinstance(one, Range):
            raise AtollError(f"A grid needs values, but {name} is a range from {one.low} to {one.high}; list its values.")
    sizes = [len(one.values) for one in space.values() if isinstance(one, Choices)]
    if math.prod(sizes) > MAX_GRID:
        raise AtollError(f"The grid has {math.prod(sizes)} combinations but may have at most {MAX_GRID}; leave settings out.")
    points = itertools.product(*(one.values for one in space.values() if isinstance(one, Choices)))
    return [dict(zip(space, point, strict=True)) for point in points]


def plain_space(space: Mapping[str, Dimension]) -> dict[str, Any]:
    """The space as a file would have it."""
    return {name: one.plain() for name, one in space.items()}


def inside(space: Mapping[str, Dimension], values: Mapping[str, Any]) -> bool:
    """Whether values for all settings of a space lie in it."""
    return all(name in values and values[name] in one for name, one in space.items())
