"""Configurations: what was asked for, completed with the paper's defaults and checked before anything runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll import device as devices
from atoll.data.catalog import DataSettings
from atoll.data.damage import DamageSettings
from atoll.data.datasets import settings_of
from atoll.data.named_partitions import named_partitions
from atoll.data.natural_parties import NATURAL
from atoll.data.partition import present_kind
from atoll.data.partition_settings import PartitionSettings
from atoll.data.presets import PRESETS
from atoll.data.registry import lookup
from atoll.data.splits import SplitSettings
from atoll.engines import ENGINES
from atoll.errors import AtollError, suggest
from atoll.models import user
from atoll.models.registry import find_model
from atoll.privacy.noise_settings import NoiseSettings
from atoll.runs import training_checks
from atoll.runs.argument_values import as_text, as_whole, plain
from atoll.runs.config_checks import check_noise, check_together
from atoll.runs.data_task import GIVEN as GIVEN
from atoll.runs.data_task import require_items, require_target, target_of, task_of_data
from atoll.runs.defaults import default_partition, defaults
from atoll.runs.run_settings import RunSettings
from atoll.runs.setting_names import ARGUMENTS, GROUPS, bare_names, by_group, present_algorithm, with_present_names
from atoll.runs.stored_shards import check_fixed, require_task, shards_of
from atoll.runs.tuned_by import TABLE, TunedBy, read_tuned_by
from atoll.settings import Training, build, known


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
    noise: DamageSettings = field(default_factory=DamageSettings)
    device: str = "cpu"  # where the parties compute; the numbers do not depend on it
    start_from: str | None = None  # the folder of the run whose model this one begins with
    start_digest: str | None = None  # SHA-256 of that model; None until the run begins
    tuned: TunedBy | None = None  # what `settings` were tuned by

    @property
    def arguments(self) -> dict[str, Any]:
        """What is not a group of settings."""
        return {name: getattr(self, name) for name in ("algorithm", *ARGUMENTS)}

    @property
    def groups(self) -> dict[str, Any]:
        """The groups of settings by the names of their tables in config.toml; dp, noise and model only where they are set."""
        set_only = [name for name in ("dp", "noise") if getattr(self, name).active]
        names = ("settings", "run", "partition_settings", "split", "data", *set_only)
        groups = {name: getattr(self, name) for name in names}
        architecture = getattr(self.settings, "architecture", None)
        return groups if architecture is None else groups | {"model": architecture}

    @property
    def model(self) -> Any:
        """The settings of the model itself, such as `heads`; None where the algorithm does not take a backbone."""
        if not isinstance(self.settings, Training):
            return None
        architecture = self.settings.architecture
        return find_model(self.settings.model).settings_type() if architecture is None else architecture

    @property
    def borders(self) -> bool:
        """Whether the algorithm wants the edges between parties, known to both ends' owners."""
        return algorithms.is_imported(self.algorithm) and algorithms.wants_borders(self.algorithm, self.settings)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as in config.toml."""
        tables = {name: plain(dataclasses.asdict(group)) for name, group in self.groups.items()}
        tables["settings"].pop("architecture", None)  # it is the table [model]
        tables[TABLE] = {} if self.tuned is None else self.tuned.to_dict()
        arguments = {name: value for name, value in self.arguments.items() if (name, value) != ("device", "cpu")}
        return plain(arguments) | {name: table for name, table in tables.items() if table}


def resolve(
    algorithm: str,
    *,
    dataset: str | None = None,
    partition: str | None = None,
    parties: int | None = None,
    seed: int = 0,
    engine: str = "inprocess",
    device: str = "cpu",
    start_from: str | Path | None = None,
    start_digest: str | None = None,
    values: Mapping[str, Any] | None = None,
    optional: bool = False,
    warn: bool = True,
    load: bool = True,
) -> Config:
    """The configuration of a run: dataclass defaults, then the paper's for the algorithm and dataset, then `values`.

    `values` are keyed by a setting's name, alone or as `group.name` or `algorithm.name`; a setting's earlier names are accepted
    and, with `warn`, the new name is given in a warning. With `optional`, a value that this algorithm does not have is ignored
    (in a comparison it is meant for another one). Without `load`, a model that is a file or an object is not imported: `values`
    are not the caller's own.
    """
    algorithm, seed = as_text("algorithm", algorithm), as_whole("seed", seed)
    ENGINES.check(engine)
    dataset = defaults(algorithm, {})[0].get("dataset", "csbm") if dataset is None else as_text("dataset", dataset)
    groups = groups_of(algorithm, dataset)
    values = _with_loaded_model(values or {}, algorithm) if load else values or {}
    values = with_present_names(values, algorithm, groups, warn=warn)
    asked = bare_names(values, algorithm) | {"dataset": dataset}
    asked.setdefault("task", task_of_data(dataset, asked))
    require_items(dataset, str(asked["task"]), algorithm)
    stored = shards_of(dataset, partition)
    require_task(stored, asked["task"])
    if stored is not None:
        asked, partition = asked | stored.asked, stored.partition
    elif partition is not None:
        asked["partition"] = partition = present_kind(as_text("partition", partition), warn=warn)
    if partition == "files":  # the defaults of the federation that is deployed with these folders
        del asked["partition"]
        asked |= {"partition": "overlap"} if asked.get("scenario") == "overlapping" else {}
    chosen, deciding = defaults(algorithm, asked)
    chosen["task"] = asked["task"]
    if "target" in known(groups["data"]):
        chosen["target"] = target_of(asked["task"])
    named = named_partitions().get(partition or "")
    if "split" not in asked and (lookup(dataset) is None or (named and named.split)):
        chosen["split"] = "auto"  # the split of a user's own data, or of the partition, is not replaced by the paper's
    if preset := PRESETS.get(partition or ""):
        chosen |= preset.defaults(dataset)
    chosen = chosen if stored is None else stored.without_data(chosen)
    usual = default_partition(algorithm, dataset, chosen.get("partition"))
    partition = partition or usual
    if partition == NATURAL or partition not in (usual, chosen.get("partition")):
        chosen.pop("parties", None)  # the paper's number belongs to the paper's partition
    parties = chosen.get("parties") if parties is None else parties
    groups = groups_of(algorithm, dataset, str(asked.get("model", chosen.get("model", ""))))
    grouped = by_group(algorithm, groups, chosen, values, deciding, optional=optional)
    built = {name: build(group, grouped[name], f"{algorithm} {name}") for name, group in groups.items()}
    check_together(algorithm, built)
    require_target(built["run"], built["data"], noised=built["dp"].active)
    check_fixed(stored, built)
    training_checks.check(algorithm, built["settings"])
    check_noise(built["dp"], grouped["dp"])
    architecture = built.pop("model", None)
    if architecture is not None and architecture != type(architecture)():
        built["settings"] = dataclasses.replace(built["settings"], architecture=architecture)
    built["partition_settings"] = built.pop("partition")
    return Config(
        algorithm=algorithm,
        dataset=dataset,
        partition=partition,
        parties=None if parties is None else as_whole("parties", parties, 1),
        seed=seed,
        engine=engine,
        device=devices.check(as_text("device", device)),
        start_from=None if start_from is None else as_text("start_from", str(start_from)),
        start_digest=None if start_digest is None else as_text("start_digest", start_digest),
        **built,
    )


def check(config: Config) -> Config:
    """The configuration, if its values fit together."""
    check_together(config.algorithm, {"dp": config.dp, "run": config.run, "noise": config.noise})
    return config


def groups_of(algorithm: str, dataset: str, model: str | None = None) -> dict[str, type]:
    """The settings dataclasses of a run by group, the algorithm's first; with `model` (empty: the default), the model's too."""
    settings = algorithms.find(algorithm).Settings
    groups = {
        "settings": settings,
        "run": RunSettings,
        "partition": PartitionSettings,
        "split": SplitSettings,
        "data": settings_of(dataset),
        "dp": NoiseSettings,
        "noise": DamageSettings,
    }
    if model is None or not issubclass(settings, Training):
        return groups
    field = known(settings)["model"]
    if field.metadata["choices"]:  # a name that is not among them is an error of the setting
        model = model if model in field.metadata["choices"] else str(field.default)
    return groups | {"model": find_model(model or str(field.default)).settings_type}


def _with_loaded_model(values: Mapping[str, Any], algorithm: str) -> Mapping[str, Any]:
    """The values with the model by its name: a model that is a file is imported, one that is an object remembered."""
    if not takes_backbone(algorithm):
        return values
    names = ("model", "settings.model", f"{algorithm}.model")
    return {name: user.load(value) if name in names else value for name, value in values.items()}


def from_dict(document: Mapping[str, Any], where: str, over: Mapping[str, Any] | None = None, *, warn: bool = True) -> Config:
    """The configuration that `to_dict` wrote, or that a person wrote in the same form; the values `over` come last.

    A model that is a file is imported only where `over` names it: the document may come from somebody else.
    Without `warn`, settings may have earlier names in silence: the file is ours.
    """
    if "algorithm" not in document:
        raise AtollError(f'{where} names no algorithm; add a line such as algorithm = "fedavg".')
    tables = {name: value for name, value in document.items() if isinstance(value, dict) and name != TABLE}
    arguments = {name: value for name, value in document.items() if not isinstance(value, dict)}
    arguments["algorithm"] = present_algorithm(document)
    for name in arguments:
        if name not in ("algorithm", *ARGUMENTS):
            raise AtollError(f"{where} has an unknown key {name!r}{suggest(name, ('algorithm', *ARGUMENTS))}")
    values: dict[str, Any] = {}
    for table, entries in tables.items():
        group = "partition" if table == "partition_settings" else table
        if group not in GROUPS:
            options = [*GROUPS[:2], "partition_settings", *GROUPS[3:]]
            raise AtollError(f"{where} has an unknown table [{table}]{suggest(table, options)}")
        values |= {f"{group}.{name}": value for name, value in entries.items()}
    for name in ("algorithm", "dataset", "partition", "device", "start_from", "start_digest"):
        if name in arguments:
            as_text(f"{where}: {name}", arguments[name])
    config = resolve(
        arguments["algorithm"],
        dataset=arguments.get("dataset"),
        partition=arguments.get("partition"),
        parties=arguments.get("parties"),
        seed=as_whole(f"{where}: seed", arguments.get("seed", 0)),
        engine=arguments.get("engine", "inprocess"),
        device=arguments.get("device", "cpu"),
        start_from=arguments.get("start_from"),
        start_digest=arguments.get("start_digest"),
        values=values | dict(_with_loaded_model(over or {}, arguments["algorithm"])),
        warn=warn,
        load=False,
    )
    return dataclasses.replace(config, tuned=read_tuned_by(document.get(TABLE), where))


def user_model(document: Mapping[str, Any]) -> dict[str, str]:
    """The model that is a file in a document which the user of this process wrote: as values `over` it is imported."""
    settings = document.get("settings", {})
    model = settings.get("model") if isinstance(settings, Mapping) else None
    return {"model": str(model)} if user.is_user_model(model) else {}


def takes_backbone(algorithm: Any) -> bool:
    """Whether an algorithm trains any backbone, and so a user's own."""
    if not isinstance(algorithm, str):
        return False
    settings = algorithms.find(algorithm).Settings
    return issubclass(settings, Training) and not known(settings)["model"].metadata["choices"]
