"""Configurations that are read to be shown: an algorithm or a model that is a file is named there, but never imported."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from keyword import iskeyword
from typing import Any

from atoll.errors import AtollError
from atoll.models import user
from atoll.privacy.noise_settings import NoiseSettings
from atoll.runs.config import Config, from_dict, takes_backbone
from atoll.settings import build


class Described:
    """Settings of an algorithm or model that is a file and was not imported: values to show, not to run."""


def described(document: Mapping[str, Any], where: str) -> Config:
    """The configuration in a run's folder, for reading: an algorithm or a model that is a file is never imported."""
    algorithm, settings = document.get("algorithm"), document.get("settings", {})
    rest = {name: value for name, value in document.items() if name not in ("settings", "dp", "model")}
    architecture = _described(document["model"], "model", where) if "model" in document else None
    if isinstance(algorithm, str) and algorithm.endswith(".py"):
        chosen = from_dict(rest | {"algorithm": "local"}, where, warn=False)
        values = _described(settings, "settings", where, **({"architecture": architecture} if architecture else {}))
        noise = build(NoiseSettings, document.get("dp", {}), f"{where} dp")
        return dataclasses.replace(chosen, algorithm=algorithm, settings=values, dp=noise)
    if isinstance(settings, dict) and user.is_user_model(model := settings.get("model")) and takes_backbone(algorithm):
        others = {name: value for name, value in settings.items() if name != "model"}
        noise = {name: value for name, value in document.items() if name == "dp"}
        chosen = from_dict(rest | noise | {"settings": others}, where, warn=False)
        return dataclasses.replace(chosen, settings=dataclasses.replace(chosen.settings, model=model, architecture=architecture))
    return from_dict(document, where, warn=False)


def _described(values: Any, table: str, where: str, **others: Any) -> Any:
    if not isinstance(values, dict) or not all(
        name.isidentifier() and not iskeyword(name) and not name.startswith("_") for name in values
    ):
        raise AtollError(f"{where} has a table [{table}] with a name that no setting has; restore it.")
    kind = dataclasses.make_dataclass("Settings", list(values | others), bases=(Described,), frozen=True)
    return kind(**values, **others)
