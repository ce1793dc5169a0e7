"""Whether a resumed run still has the configuration that its checkpoint was written with."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from atoll import algorithms
from atoll.data.partition import present_kind
from atoll.models import user
from atoll.runs.config import Config
from atoll.settings import renamed

HARMLESS = frozenset(  # these change no numbers; the data and the model to begin with have digests
    {"dataset", "device", "start_from"}
    | {f"run.{name}" for name in ("checkpoint_every", "timeout", "sites", "placement", "amnesia")}
    | {f"run.{name}" for name in ("address", "answer_timeout", "cpus_per_site", "gpus_per_site")}
)
ENDINGS = frozenset(("run.rounds", "run.patience", "run.target_accuracy"))  # when a run ends, not what its rounds compute


def record(config: Config) -> list[dict[str, Any]]:
    """Every setting by its full name, for a checkpoint; in a list, so that the file format keeps it as one value."""
    tables = dataclasses.replace(config, tuned=None).to_dict()
    tables |= {name: dataclasses.asdict(getattr(config, name)) for name in ("dp", "noise")}
    if config.model is not None:
        tables["model"] = dataclasses.asdict(config.model)
    flat = _flat(tables)
    for name in ("algorithm", "partition", "settings.model"):  # a file may lie elsewhere by now; its content has a digest
        if str(flat.get(name, "")).partition(":")[0].endswith((".py", ".npz")):
            del flat[name]
    return [json.loads(json.dumps({name: value for name, value in flat.items() if name not in HARMLESS}))]


def changes(recorded: Any, config: Config) -> list[str]:
    """Warnings for changed settings that only move the end of the run; any other change is a ValueError that names it.

    Settings that only one of the two versions of atoll has are ignored, and so are checkpoints without a record.
    """
    before = recorded[0] if isinstance(recorded, list) and recorded and isinstance(recorded[0], dict) else {}
    before = _with_present_names(before, config)
    now = record(config)[0]
    changed = {name: (before[name], now[name]) for name in before if name in now and before[name] != now[name]}
    if breaking := {name: values for name, values in changed.items() if name not in ENDINGS}:
        raise ValueError(describe(breaking))
    return [f"{name} in config.toml is {new}; the run began with {old}." for name, (old, new) in changed.items()]


def file_digests(config: Config) -> dict[str, str]:
    """SHA-256 of the algorithm and of the model where they are files, as they were imported."""
    digests = {
        "algorithm_sha256": algorithms.digest(config.algorithm),
        "model_sha256": user.digest(str(getattr(config.settings, "model", ""))),
    }
    return {name: digest for name, digest in digests.items() if digest is not None}


def differing(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The settings that differ between two config.toml, by full name: before and now, None where there is no such setting."""
    old, new = _flat(before), _flat(now)
    return {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


def describe(differences: dict[str, tuple[Any, Any]]) -> str:
    """Some settings that differ, in words."""
    words = [f"{name} is {_shown(new)} and was {_shown(old)}" for name, (old, new) in list(differences.items())[:3]]
    return ", ".join(words) + (f", and {len(differences) - 3} more" if len(differences) > 3 else "")


def _with_present_names(flat: dict[str, Any], config: Config) -> dict[str, Any]:
    """A record by the names that its settings have now."""
    groups = config.groups | {"dp": config.dp}
    new = {f"{group}.{old}": f"{group}.{now}" for group, held in groups.items() for old, now in renamed(type(held)).items()}
    present = {new.get(name, name): value for name, value in flat.items()}
    return present | ({"partition": present_kind(str(flat["partition"]), warn=False)} if "partition" in flat else {})


def _flat(tables: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in tables.items():
        flat |= {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
    return flat


def _shown(value: Any) -> str:
    return "not set" if value in (None, "") else value if isinstance(value, str) else json.dumps(value)
