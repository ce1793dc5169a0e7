"""The terms of a comparison: data, partition, split and budget that all contestants share, whatever their papers used."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from atoll.errors import AtollError, suggest
from atoll.runs.argument_values import plain
from atoll.runs.config import Config, check, groups_of
from atoll.runs.setting_names import PREFIXED
from atoll.settings import known, renamed

ARGUMENTS = ("dataset", "partition", "parties")
GROUPS = ("data", "partition_settings", "split", "noise", "run")
DATA = ("data", "partition_settings", "split", "noise")  # of these, what decides the graphs, features and splits of a party
WORDS = ("evaluation", "average", "select_by")  # settings of a run that say what its numbers mean


@dataclass(frozen=True)
class Terms:
    """What one contestant, the reference, uses and all others are run with."""

    reference: Config

    def apply(self, config: Config) -> Config:
        """The configuration on these terms; only the algorithm's own settings and its seed stay."""
        shared = {name: getattr(self.reference, name) for name in (*ARGUMENTS, *GROUPS)}
        return check(dataclasses.replace(config, **shared))

    def departures(self, config: Config) -> dict[str, tuple[Any, Any]]:
        """Where a configuration by its own defaults differs: name → (its own value, that of the comparison)."""
        chosen, common = flat(config), flat(self.reference)
        return {name: (chosen.get(name), value) for name, value in common.items() if chosen.get(name) != value}

    def note(self, config: Config) -> str | None:
        """One sentence for the output where a method's paper wants other data or another budget."""
        departures = self.departures(config)
        if not departures:
            return None
        listed = ", ".join(f"{name}={_text(chosen)} (here {_text(common)})" for name, (chosen, common) in departures.items())
        return f"{config.algorithm} by its own defaults would use {listed}."


def flat(config: Config) -> dict[str, Any]:
    """The shared part of a configuration as plain values by name."""
    values: dict[str, Any] = {name: getattr(config, name) for name in ARGUMENTS}
    for group in GROUPS:
        values |= plain(dataclasses.asdict(getattr(config, group)))
    return values


def shared_names(config: Config) -> set[str]:
    """The names of all settings that are the same for every contestant."""
    return {field.name for group in GROUPS for field in dataclasses.fields(getattr(config, group))}


def data_key(config: Config) -> dict[str, Any]:
    """What decides a run's data, but for the seed, and what its numbers mean; runs that differ in it do not fit in one table."""
    values: dict[str, Any] = {name: getattr(config, name) for name in ARGUMENTS}
    for group in DATA:
        values |= plain(dataclasses.asdict(getattr(config, group)))
    return values | {name: getattr(config.run, name) for name in WORDS}


def check_same_data(configs: Mapping[str, Config] | Iterable[tuple[str, Config]]) -> None:
    """Refuse configurations, by row, that do not have the same data or whose numbers do not mean the same."""
    pairs = list(configs.items() if isinstance(configs, Mapping) else configs)
    for row, config in pairs[1:]:
        first, other = data_key(pairs[0][1]), data_key(config)
        if different := [name for name in first | other if first.get(name) != other.get(name)]:
            name = different[0]
            what = "protocols" if name in WORDS else "data"
            raise AtollError(
                f"{pairs[0][0]} and {row} have different {what} ({name} is {_text(first.get(name))} and "
                f"{_text(other.get(name))}); they cannot stand in one table."
            )


def sweeps(name: str, algorithm: str, settings: type) -> bool:
    """Whether a name of a sweep is a setting of this algorithm or of its model."""
    owner, _, rest = name.rpartition(".")
    return (owner in ("", "settings", algorithm) and rest in {*known(settings), *renamed(settings)}) or owner == "model"


def check_shared(reference: Config, values: Mapping[str, Any], sweep: Mapping[str, Any], contestants: Mapping[str, type]) -> None:
    """Data and budget are the same for all: no contestant may have its own, and no sweep may change them."""
    shared = shared_names(reference)
    for name in values:
        owner, _, rest = name.rpartition(".")
        if owner in contestants and rest in shared and rest not in known(contestants[owner]):
            raise AtollError(f"{rest} is the same for all in a comparison, so {name} cannot be set; set {rest} alone.")
    for name in sweep:
        if not any(sweeps(name, algorithm, settings) for algorithm, settings in contestants.items()):
            rest = name.rpartition(".")[2]
            why = (
                f"{rest} is the same for all in a comparison; compare once for each value."
                if rest in shared or rest in ("dataset", "partition", "parties", "seed")
                else f"none of {', '.join(contestants)} has such a setting."
            )
            raise AtollError(f"--sweep {name}: {why}")
        if given := next((given for given in values if _overrides(name, given, contestants)), None):
            raise AtollError(f"{given} is given and {name} is swept; leave one of them out.")


def _overrides(swept: str, given: str, contestants: Mapping[str, type]) -> bool:
    """Whether a sweep would replace a value that was given; a sweep of one contestant's setting does not, where it is for all."""
    (owner, _, name), (other, _, rest) = swept.rpartition("."), given.rpartition(".")
    return name == rest and (owner == other or (owner in ("", "settings") and other in ("", "settings", *contestants)))


def check_values(values: Mapping[str, Any], configs: Iterable[Config], algorithms: Iterable[str]) -> None:
    """Every setting must belong to at least one of the algorithms."""
    options: set[str] = set()
    accepted: set[str] = set()
    for chosen in configs:
        for name, group in groups_of(chosen.algorithm, chosen.dataset, getattr(chosen.settings, "model", "")).items():
            options |= set(known(group))
            keys = {*known(group), *renamed(group)}
            accepted |= {f"{name}.{key}" for key in keys}
            if name not in PREFIXED:
                accepted |= {item for key in keys for item in (key, f"{chosen.algorithm}.{key}")}
    for name in values:
        if name not in accepted:
            raise AtollError(f"None of {', '.join(algorithms)} has a setting {name!r}{suggest(name, options)}")


def own_settings(values: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """What was asked for one algorithm alone, as `fedavg.epochs`, by the setting's name."""
    asked = [name.rpartition(".") for name in values]
    names = [name for owner, _, name in asked if owner == config.algorithm and hasattr(config.settings, name)]
    chosen: dict[str, Any] = plain({name: getattr(config.settings, name) for name in names})
    return chosen


def own_notes(values: Mapping[str, Any], configs: Iterable[Config]) -> list[str]:
    """Where a setting was asked for one contestant alone, in one sentence each, with the values of the others that have it."""
    chosen = {config.algorithm: config for config in configs}
    notes = []
    for algorithm, config in chosen.items() if len(chosen) > 1 else ():
        for name, value in own_settings(values, config).items():
            others = {one: getattr(other.settings, name) for one, other in chosen.items() if hasattr(other.settings, name)}
            listed = ", ".join(f"{one} {_text(other)}" for one, other in others.items() if one != algorithm)
            notes.append(f"{algorithm} was given {name}={_text(value)}{f' ({listed})' if listed else ''}.")
    return notes


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "the default" if value is None else str(value)
