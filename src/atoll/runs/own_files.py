"""Algorithms and models of the user's own: a folder names them, but only a caller who names them makes atoll import them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.models import user
from atoll.runs import config as configuration
from atoll.runs.config import Config


def with_own_files(
    config: Config,
    folder: Path,
    digests: Mapping[str, Any],
    *,
    algorithm: str | Path | None = None,
    model: Any = None,
    command: str = "resume",
) -> Config:
    """The configuration of a folder with the files that the caller names again; `digests` are those it began with.

    An algorithm that is a file must be given as `algorithm`, a model that is a file or an object as `model`.
    """
    _check_algorithm(config, folder, digests.get("algorithm_sha256"), algorithm, command)
    _check_model(config, folder, digests.get("model_sha256"), model, command)
    if algorithm is None and model is None:
        return config
    document = config.to_dict() | ({} if algorithm is None else {"algorithm": str(algorithm)})
    values = {} if model is None else {"settings.model": model}
    return configuration.from_dict(document, f"{folder / 'config.toml'}", values)


def _check_algorithm(config: Config, folder: Path, known: Any, algorithm: str | Path | None, command: str) -> None:
    """An algorithm that is a file must be named by the caller and be the file that the run began with."""
    is_file = config.algorithm.endswith(".py")
    if algorithm is None and is_file:
        raise AtollError(
            f"The algorithm of {folder} is the file {config.algorithm}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll {command} {folder} --algorithm {config.algorithm}"
        )
    if algorithm is None:
        return
    if not is_file and str(algorithm) != config.algorithm:
        raise AtollError(f"{folder} is a run of {config.algorithm}, not of {algorithm}; leave --algorithm out.")
    if known is not None and known != algorithms.digest(str(algorithm), read=True):
        raise AtollError(
            f"{algorithm} is not the file that {folder} was begun with (its SHA-256 was {known}); restore it, or start a new run."
        )


def _check_model(config: Config, folder: Path, known: Any, model: Any, command: str) -> None:
    """A model that is a file or an object must be given by the caller and be the one that the run began with."""
    name = str(getattr(config.settings, "model", ""))
    if model is None and user.is_user_model(name):
        if user.file_of(name) is None:
            function = "resume" if command == "resume" else "load_model"
            again = f"atoll.{function}({str(folder)!r}, model={name.rpartition(':')[2]})"
            raise AtollError(f"The model of {folder}, {name}, was given as an object; give it again: {again}.")
        raise AtollError(
            f"The model of {folder} is the file {name}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll {command} {folder} --model {name}"
        )
    if model is None:
        return
    given = str(model) if isinstance(model, str | Path) else user.load(model)
    if known is not None and known != user.digest(given, read=True):
        raise AtollError(
            f"{given} is not the file that {folder} was begun with (its SHA-256 was {known}); restore it, or start a new run."
        )
    if given != name and (user.file_of(given) is None or user.file_of(name) is None):
        raise AtollError(f"{folder} is a run of the model {name}, not of {given}; leave it out.")
