"""Algorithms and models that are files: a folder that names one never makes atoll import it; its user names it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.errors import AtollError
from atoll.models import user
from atoll.runs import config as configuration
from atoll.runs.config import Config


def with_own_files(
    config: Config,
    where: str | Path,
    digests: Callable[[], Mapping[str, Any]],
    *,
    algorithm: str | Path | None,
    model: Any,
    command: str,
    function: str,
) -> Config:
    """The configuration in a folder with the algorithm's file and the model's file or object that the caller gave again.

    Parameters:
        config: As it was read, nothing imported.
        where: The folder, for errors.
        digests: Gives `algorithm_sha256` and `model_sha256` of the files that the folder's run was begun with, where known.
        algorithm: The algorithm, where it is a file.
        model: The model, where it is a file or an object.
        command, function: What the user calls, for errors: `resume` on the command line, `resume` in Python.
    """
    _check_algorithm(config, where, digests, algorithm, command)
    _check_model(config, where, digests, model, command, function)
    if algorithm is None and model is None:
        return config
    document = config.to_dict() | ({} if algorithm is None else {"algorithm": str(algorithm)})
    return configuration.from_dict(document, f"The configuration of {where}", {} if model is None else {"settings.model": model})


def _check_algorithm(
    config: Config, where: str | Path, digests: Callable[[], Mapping[str, Any]], algorithm: str | Path | None, command: str
) -> None:
    """An algorithm that is a file must be named by the caller and be the file that the run began with."""
    is_file = config.algorithm.endswith(".py")
    if algorithm is None and is_file:
        raise AtollError(
            f"The algorithm of {where} is the file {config.algorithm}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll {command} {where} --algorithm {config.algorithm}"
        )
    if algorithm is None:
        return
    if not is_file and str(algorithm) != config.algorithm:
        raise AtollError(f"{where} is a run of {config.algorithm}, not of {algorithm}; leave --algorithm out.")
    known = digests().get("algorithm_sha256")
    if known is not None and known != algorithms.digest(str(algorithm), read=True):
        raise AtollError(
            f"{algorithm} is not the file that {where} was begun with (its SHA-256 was {known}); restore it, or start a new run."
        )


def _check_model(
    config: Config, where: str | Path, digests: Callable[[], Mapping[str, Any]], model: Any, command: str, function: str
) -> None:
    """A model that is a file or an object must be given by the caller and be the one that the run began with."""
    name = str(getattr(config.settings, "model", ""))
    if model is None and user.is_user_model(name):
        if user.file_of(name) is None:
            again = f"atoll.{function}({str(where)!r}, model={name.rpartition(':')[2]})"
            raise AtollError(f"The model of {where}, {name}, was given as an object; give it again: {again}.")
        raise AtollError(
            f"The model of {where} is the file {name}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll {command} {where} --model {name}"
        )
    if model is None:
        return
    given = str(model) if isinstance(model, str | Path) else user.load(model)
    known = digests().get("model_sha256")
    if known is not None and known != user.digest(given, read=True):
        raise AtollError(
            f"{given} is not the file that {where} was begun with (its SHA-256 was {known}); restore it, or start a new run."
        )
    if given != name and (user.file_of(given) is None or user.file_of(name) is None):
        raise AtollError(f"{where} is a run of the model {name}, not of {given}; leave it out.")
