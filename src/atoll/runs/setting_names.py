"""Names of settings: which group a name belongs to, earlier names, and what to say of an unknown one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError, closest, suggest
from atoll.settings import BatchedTraining, Training, known, renamed, warn_renamed

ARGUMENTS = ("dataset", "partition", "parties", "seed", "engine", "device", "start_from", "start_digest")  # beside settings
OPTIONS = {"start_from": "from", "start_digest": "from"}  # of the command line, where they have other names
GROUPS = ("settings", "run", "partition", "split", "data", "dp", "noise", "model")
EXPERIMENTS = ("dnc", "snc", "sc")  # before 0.2 `task` named these, of GFL-APPNP and of the baselines that run as it does
EARLIER_VALUES = {
    "evaluation": ("full", "sampled"),
    "average": ("before", "after"),
}  # of GLASU's and CNFGNN's settings of that name
EARLIER_ALGORITHMS = {"fedlit": ("types", "fedlit_deep")}  # before 0.2, by a setting that only that one had
PREFIXED = ("dp", "noise", "model")  # groups whose settings must be named with the group


def with_present_names(values: Mapping[str, Any], algorithm: str, groups: Mapping[str, type], *, warn: bool) -> dict[str, Any]:
    """The values by the present names of their settings; one warning lists the names that have changed."""
    result: dict[str, Any] = {}
    changed: dict[str, str] = {}
    for name, value in values.items():
        owner, dot, rest = name.rpartition(".")
        searched = [owner] if owner in groups else [group for group in groups if group not in PREFIXED]
        here = any(rest in known(groups[group]) for group in searched) and not _means_earlier(rest, value, groups, owner)
        if owner in ("", algorithm, *groups) and not here:
            new = next((renamed(groups[group])[rest] for group in searched if rest in renamed(groups[group])), rest)
            new = "experiment" if rest == "task" and str(value).lower() in EXPERIMENTS else new
            if new != rest:
                changed[name] = name = f"{owner}{dot}{new}"
        result[name] = value
    if warn:
        warn_renamed(changed)
    return result


def present_algorithm(document: Mapping[str, Any]) -> Any:
    """The present name of a configuration's algorithm."""
    name, settings = document["algorithm"], document.get("settings")
    mark, present = EARLIER_ALGORITHMS.get(name, ("", "")) if isinstance(name, str) else ("", "")
    return present if mark and isinstance(settings, Mapping) and mark in settings else name


def _means_earlier(name: str, value: Any, groups: Mapping[str, type], owner: str) -> bool:
    """Whether a name that a run's setting has now means the algorithm's setting that had it before 0.2, by its value."""
    if name == "task":
        return str(value).lower() in EXPERIMENTS
    if name == "target":  # before 0.2 the accuracy to stop at
        return _is_number(value)
    if name in EARLIER_VALUES:
        return owner != "run" and name in renamed(groups["settings"]) and str(value) in EARLIER_VALUES[name]
    if name != "threshold" or owner == "run" or name not in renamed(groups["settings"]):
        return False
    return _is_number(value)  # FedGL's; a way to choose one is the run's


def _is_number(value: Any) -> bool:
    """Whether it is a number of at least 0."""
    try:
        return float(value) >= 0
    except (TypeError, ValueError):
        return False


def bare_names(values: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Values by the setting's name alone."""
    owners = (algorithm, *GROUPS)
    return {
        name.partition(".")[2] if "." in name and name.partition(".")[0] in owners else name: value
        for name, value in values.items()
    }


def by_group(
    algorithm: str,
    groups: Mapping[str, type],
    chosen: Mapping[str, Any],
    values: Mapping[str, Any],
    deciding: Collection[str],
    *,
    optional: bool,
) -> dict[str, dict[str, Any]]:
    """The values of every group: the paper's as far as there are such settings, then those asked for."""
    result: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for name, value in chosen.items():
        if name not in ARGUMENTS and (home := home_of(name, groups)):
            result[home[0]][home[1]] = value
    for name, value in values.items():
        owner, _, rest = name.partition(".")
        if rest and owner in algorithms.names():
            if owner != algorithm and optional:
                continue
            if owner != algorithm:
                raise AtollError(
                    f"{name!r} is a setting of {owner}, but {algorithm} is run; leave it out or name {rest!r} alone."
                )
            name = rest
        if home := home_of(name, groups):
            result[home[0]][home[1]] = value
        elif not optional and (name not in deciding or name in ARGUMENTS):
            raise AtollError(unknown_setting(algorithm, name, groups))
    return result


def home_of(name: str, groups: Mapping[str, type]) -> tuple[str, str] | None:
    """The group and name of a setting; the algorithm's group is searched first."""
    group, _, rest = name.partition(".")
    if rest:
        return (group, rest) if group in groups and rest in known(groups[group]) else None
    return next(((group, name) for group in groups if group not in PREFIXED and name in known(groups[group])), None)


def unknown_setting(algorithm: str, name: str, groups: Mapping[str, type]) -> str:
    """The error for a name that is not a setting."""
    if name in ARGUMENTS:
        return f"{name} is not a setting but an argument; say --{OPTIONS.get(name, name)} in place of --set {name}=…"
    group, _, rest = name.partition(".")
    if group == "model" and rest and group in groups:
        near = suggest(rest, known(groups[group])) if known(groups[group]) else "; it has none."
        return f"The model has no setting {rest!r}{near}"
    if group in ("dp", "noise") and rest and group in groups:
        return f"{algorithm} has no setting {name!r}{suggest(rest, known(groups[group]))}"
    if name in known(BatchedTraining).keys() - known(Training).keys() and (why := algorithms.find(algorithm).Cohort.whole_graph):
        return f"{algorithm} cannot train in mini-batches: {why}; leave {name} out."
    options = [f"{group}.{key}" if group in PREFIXED else key for group in groups for key in known(groups[group])]
    near = closest(name, options) or f"; `atoll algorithms {algorithm}` lists its settings."
    return f"{algorithm} has no setting {name!r}{near}"
