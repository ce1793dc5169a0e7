"""Configurations: what a person asked for, filled up with the paper's defaults and checked, before anything runs."""

from __future__ import annotations

import dataclasses
import importlib.resources
import operator
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from keyword import iskeyword
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.data.catalog import DataSettings
from atoll.data.datasets import settings_of
from atoll.data.partition import PartitionSettings
from atoll.data.splits import SplitSettings
from atoll.engines import ENGINES
from atoll.errors import AtollError, closest, suggest
from atoll.federation.robust import RULES, check_algorithm
from atoll.privacy.masking import SECURE_STEPS
from atoll.privacy.noise import NoiseSettings
from atoll.settings import build, known, setting


@dataclass(frozen=True)
class RunSettings:
    """How a run goes, whatever the algorithm."""

    rounds: int = setting(100, "Rounds at the most.", low=1, high=10**9)
    evaluate_every: int = setting(1, "Evaluate after every so many rounds.", low=1, high=10**9)
    patience: int = setting(
        0, "Stop after so many rounds without a better validation score; 0 never stops early.", low=0, high=10**9
    )
    target: float = setting(0.0, "Stop once the validation accuracy is this high; 0 never does.", low=0, high=1)
    select: str = setting("loss", "The validation score that names the best round.", choices=("loss", "accuracy"))
    checkpoint_every: int = setting(0, "Checkpoint after every so many rounds; 0 means every few seconds.", low=0, high=10**9)
    participation: float = setting(1.0, "Share of the parties that take part in a round, chosen by seed.", low=0, high=1)
    missing: str = setting("continue", "What a party that does not answer does to the round.", choices=("continue", "stop"))
    count_missing: bool = setting(False, "Whether a round in which a party was missing may be the best round.")
    secure: bool = setting(False, "Secure aggregation: the server sees sums only, and may ask private verbs for nothing else.")
    secure_min: int = setting(0, "Fewest parties of a secure total; 0 means 3, or all where there are fewer.", low=0, high=10**7)
    robust: str = setting("none", "How models are averaged where some parties may lie; none is the plain mean.", choices=RULES)
    byzantine: int = setting(1, "Robust averages: how many parties may lie, f.", low=0, high=10**7)
    robust_norm: float = setting(0.0, "robust=clipped: the longest update; 0 takes the median of their lengths.", low=0)
    latency: tuple[float, ...] = setting((), "Link model: seconds a message takes one way, one number or one a party.")
    bandwidth: tuple[float, ...] = setting((), "Link model: megabytes a second, one number or one a party; 0 has no limit.")
    evaluate_at_server: bool = setting(
        True,
        "Whether the server gets each party's evaluation counts; without, only their sums, and sites keep their own metrics.",
    )
    placement: str = setting("together", "Parties in one cohort, or each at a site of its own.", choices=("together", "apart"))
    amnesia: bool = setting(False, "Rebuild every party from its declared memory before each message (a check for authors).")
    timeout: float = setting(600.0, "Engine nvflare: seconds to wait for a site's answer.", low=1)
    max_weight: int = setting(10**8, "The largest weight (training nodes) a party may claim.", low=1, high=10**12)
    max_share: float = setting(1.0, "The largest share of all weights of a party; who has more is cut to it.", low=0, high=1)
    max_nodes: int = setting(10**6, "The most nodes a party, or where parties overlap all of them, may have.", low=1, high=10**9)
    sites: int = setting(0, "Engine nvflare: processes on this machine; 0 means one a party, at most 8.", low=0, high=10**5)


ARGUMENTS = ("dataset", "partition", "parties", "seed", "engine")  # of a run, beside its algorithm and settings
GIVEN = "given"  # the name of a dataset that was given as an object
GROUPS = ("settings", "run", "partition", "split", "data", "dp")
PREFIXED = ("dp",)  # groups whose settings must be named with the group


@dataclass(frozen=True)
class Config:
    """One run, completely: the same configuration gives the same numbers."""

    algorithm: str
    dataset: str
    partition: str
    parties: int | None
    seed: int
    settings: Any
    engine: str = "inprocess"
    run: RunSettings = field(default_factory=RunSettings)
    partition_settings: PartitionSettings = field(default_factory=PartitionSettings)
    split: SplitSettings = field(default_factory=SplitSettings)
    data: Any = field(default_factory=DataSettings)
    dp: NoiseSettings = field(default_factory=NoiseSettings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as they stand in config.toml."""
        plain = {name: getattr(self, name) for name in ("algorithm", "dataset", "partition", "parties", "seed", "engine")}
        groups = {
            "settings": self.settings,
            "run": self.run,
            "partition_settings": self.partition_settings,
            "split": self.split,
            "data": self.data,
        }
        if self.dp.active:
            groups["dp"] = self.dp
        tables = {name: _plain(dataclasses.asdict(group)) for name, group in groups.items()}
        return _plain(plain) | {name: table for name, table in tables.items() if table}


def resolve(
    algorithm: str,
    *,
    dataset: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    seed: int = 0,
    engine: str = "inprocess",
    values: Mapping[str, Any] | None = None,
    optional: bool = False,
) -> Config:
    """The configuration of a run: dataclass defaults, then the paper's for the algorithm and dataset, then `values`.

    `values` are keyed by a setting's name, alone or as `group.name` or `algorithm.name`.
    With `optional`, a value that this algorithm does not know is passed over (it is meant for another one of a comparison).
    """
    algorithm, seed = _text("algorithm", algorithm), _whole("seed", seed)
    ENGINES.check(engine)
    dataset = _defaults(algorithm, None).get("dataset", "csbm") if dataset is None else _text("dataset", dataset)
    partition = None if partition is None else _text("partition", partition)
    chosen, asked = _defaults(algorithm, dataset, partition), _bare(values or {}, algorithm)
    selectors = _choose(chosen, asked)
    if partition is not None:
        if partition != chosen.get("partition"):
            chosen.pop("parties", None)  # the paper's number belongs to the paper's partition
        chosen["partition"] = partition
    if parties is not None:
        chosen["parties"] = parties
    partition, parties = str(chosen.pop("partition", "louvain")), chosen.pop("parties", None)
    groups = groups_of(algorithm, dataset)
    by_group = _sorted(algorithm, groups, chosen, values or {}, selectors, optional=optional)
    if parties is not None:
        parties = _whole("parties", parties, 1)
    built = {name: build(group, by_group[name], f"{algorithm} {name}") for name, group in groups.items()}
    _check(algorithm, built)
    built["partition_settings"] = built.pop("partition")
    return Config(algorithm=algorithm, dataset=dataset, partition=partition, parties=parties, seed=seed, engine=engine, **built)


def _sorted(
    algorithm: str,
    groups: Mapping[str, type],
    chosen: Mapping[str, Any],
    values: Mapping[str, Any],
    selectors: Collection[str],
    *,
    optional: bool,
) -> dict[str, dict[str, Any]]:
    """The values of every group: `chosen` by the paper as far as there are such settings, then those asked for."""
    result: dict[str, dict[str, Any]] = {name: {} for name in groups}
    for name, value in chosen.items():
        if place := _place(name, groups):
            result[place[0]][place[1]] = value
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
        if place := _place(name, groups):
            result[place[0]][place[1]] = value
        elif not optional and name not in selectors:
            raise AtollError(_unknown(algorithm, name, groups))
    return result


def _check(algorithm: str, built: Mapping[str, Any]) -> None:
    """Refuse values that are fine by themselves but mean nothing to a run."""
    verb, verbs = built["dp"].verb, algorithms.find(algorithm).Cohort.verbs()
    if verb and verb not in verbs:
        raise AtollError(f"dp.verb is {verb!r}, which {algorithm} does not have{suggest(verb, verbs)}")
    if verb in SECURE_STEPS:
        raise AtollError(f"dp.verb is {verb!r}, a step of secure totals, which replies nothing that noise can be put on.")
    run = built["run"]
    check_algorithm(run.robust, algorithm, algorithms.find(algorithm).Cohort.averaged(), secure=run.secure)
    if run.participation <= 0:
        raise AtollError("participation is 0 but must be above 0: at least one party takes part in a round.")
    if built["run"].secure_min == 1:
        raise AtollError("secure_min is 1 but must be at least 2: the sum of one party is its reply.")


def groups_of(algorithm: str, dataset: str) -> dict[str, type]:
    """The settings dataclasses of a run by group, an algorithm's own first."""
    return {
        "settings": algorithms.find(algorithm).Settings,
        "run": RunSettings,
        "partition": PartitionSettings,
        "split": SplitSettings,
        "data": settings_of(dataset),
        "dp": NoiseSettings,
    }


def from_dict(document: Mapping[str, Any], where: str, over: Mapping[str, Any] | None = None) -> Config:
    """The configuration that `to_dict` wrote, or that a person did in the same form; the values `over` come last."""
    document = dict(document)
    if "algorithm" not in document:
        raise AtollError(f'{where} names no algorithm; add a line such as algorithm = "fedavg".')
    tables = {name: value for name, value in document.items() if isinstance(value, dict)}
    plain = {name: value for name, value in document.items() if not isinstance(value, dict)}
    for name in plain:
        if name not in ("algorithm", *ARGUMENTS):
            raise AtollError(f"{where} has an unknown key {name!r}{suggest(name, ('algorithm', *ARGUMENTS))}")
    values: dict[str, Any] = {}
    for table, entries in tables.items():
        group = table.removesuffix("_settings") if table.endswith("_settings") else table
        if group not in GROUPS:
            raise AtollError(
                f"{where} has an unknown table [{table}]{suggest(table, [*GROUPS[:2], 'partition_settings', *GROUPS[3:]])}"
            )
        values |= {f"{group}.{name}": value for name, value in entries.items()}
    for name in ("algorithm", "dataset", "partition"):
        if name in plain:
            _text(f"{where}: {name}", plain[name])
    return resolve(
        plain["algorithm"],
        dataset=plain.get("dataset"),
        partition=plain.get("partition"),
        parties=plain.get("parties"),
        seed=_whole(f"{where}: seed", plain.get("seed", 0)),
        engine=plain.get("engine", "inprocess"),
        values=values | dict(over or {}),
    )


class Described:
    """Settings of an algorithm that is a file and was not imported: values to show, not to run."""


def described(document: Mapping[str, Any], where: str) -> Config:
    """The configuration in a run's folder, for reading: an algorithm that is a file is taken as its name, never imported."""
    algorithm = document.get("algorithm")
    if not isinstance(algorithm, str) or not algorithm.endswith(".py"):
        return from_dict(document, where)
    values = document.get("settings", {})
    if not isinstance(values, dict) or not all(
        name.isidentifier() and not iskeyword(name) and not name.startswith("_") for name in values
    ):
        raise AtollError(f"{where} has a table [settings] with a name that no setting has; restore it.")
    rest = {name: value for name, value in document.items() if name not in ("settings", "dp")}
    kind = dataclasses.make_dataclass("Settings", list(values), bases=(Described,), frozen=True)
    chosen = from_dict(rest | {"algorithm": "local"}, where)
    noise = build(NoiseSettings, document.get("dp", {}), f"{where} dp")
    return dataclasses.replace(chosen, algorithm=algorithm, settings=kind(**values), dp=noise)


def _place(name: str, groups: Mapping[str, type]) -> tuple[str, str] | None:
    """The group and name of a setting; an algorithm's own come first."""
    group, _, rest = name.partition(".")
    if rest:
        return (group, rest) if group in groups and rest in known(groups[group]) else None
    return next(((group, name) for group in groups if group not in PREFIXED and name in known(groups[group])), None)


def _unknown(algorithm: str, name: str, groups: Mapping[str, type]) -> str:
    """What to say of a setting that is none."""
    if name in ARGUMENTS:
        return f"{name} is no setting but an argument of its own; say --{name} in place of --set {name}=…"
    options = [f"{group}.{key}" if group in PREFIXED else key for group in groups for key in known(groups[group])]
    near = closest(name, options) or f"; `atoll algorithms {algorithm}` lists its settings."
    return f"{algorithm} has no setting {name!r}{near}"


def _text(what: str, value: Any) -> str:
    """A name or a path, as text."""
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise AtollError(f"{what} is {value!r} but must be a name or a path.")
    return str(value)


def _whole(what: str, value: Any, low: int | None = None) -> int:
    """A whole number of any make, numpy's too."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (low is not None and number < low):
        raise AtollError(f"{what} is {value!r} but must be a whole number{'' if low is None else f' of at least {low}'}.")
    return number


@cache
def _table() -> dict[str, Any]:
    return tomllib.loads(importlib.resources.files(algorithms).joinpath("defaults.toml").read_text())


def _defaults(algorithm: str, dataset: str | None, partition: str | None = None) -> dict[str, Any]:
    """What the paper used for this algorithm, with this partition and on this dataset; an entry may be `like` another.

    Under `by` are the tables for `_choose`.
    """
    entry = dict(_table().get("fedavg" if algorithm.endswith(".py") else algorithm, {}))  # an own one is run as FedAvg is
    on, by_partition = entry.pop("on", {}), entry.pop("with", {})
    entry |= by_partition.get(partition, {})
    on = {**on, **entry.pop("on", {})}
    chosen = _defaults(entry.pop("like"), dataset, partition) if "like" in entry else {}
    for table in (entry, on.get((dataset or "").lower(), {})):
        chosen |= {**table, "by": [*chosen.get("by", []), table.get("by", {})]}
    return chosen


def _choose(chosen: dict[str, Any], asked: Mapping[str, Any]) -> set[str]:
    """Add what the paper used `by` the value that a setting has, asked for or by default; the names of these settings.

    A baseline that is run as another paper's method takes such a value too, to say which of that paper's experiments it means.
    """
    selectors: set[str] = set()
    for table in chosen.pop("by", []):
        for name, options in table.items():
            selectors.add(name)
            found = options.get(str(asked.get(name, chosen.get(name, ""))).lower(), {})
            chosen |= {**found, "by": [found.get("by", {})]}
            selectors |= _choose(chosen, asked)
    return selectors


def _bare(values: Mapping[str, Any], algorithm: str) -> dict[str, Any]:
    """Values by the setting's name alone."""
    owners = (algorithm, *GROUPS)
    return {name.partition(".")[2] if name.partition(".")[0] in owners else name: value for name, value in values.items()}


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values TOML can say: no None, lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None}
