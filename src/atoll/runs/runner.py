"""Run a configuration, or resume the run in a folder: here, or by an engine that runs the federation elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll import algorithms
from atoll.engines import ENGINES
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.models import user
from atoll.runs import checkpoint, extension
from atoll.runs import config as configuration
from atoll.runs.config import GIVEN, Config
from atoll.runs.experiment import Experiment, build_cohort, build_experiment, limits_of, noise, prepare, schema_of
from atoll.runs.folder import Folder
from atoll.runs.loop import Watch, rounds
from atoll.runs.progress import Progress
from atoll.runs.reader import read
from atoll.runs.result import Result


def run(config: Config, graph: Graph | None = None, *, out: str | Path | None = None, watch: Watch | None = None) -> Result:
    """Run a configuration from its first round to its last."""
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        result: Result = launch(config, graph, out=out, watch=watch)
        return result
    experiment = prepare(config, graph)
    if out is None:
        return rounds(experiment, None, watch)
    with Folder.begin(out, config) as folder:
        return rounds(experiment, folder, watch)


def resume(
    path: str | Path,
    graph: Graph | None = None,
    *,
    algorithm: str | Path | None = None,
    model: Any = None,
    watch: Watch | None = None,
    ending: Mapping[str, Any] | None = None,
) -> Result:
    """Continue a run from its last checkpoint; a finished run returns its result again.

    A folder alone never makes atoll import a file: an algorithm that is a file must be given again as `algorithm`,
    a model that is a file or an object as `model`. `ending`: other `rounds`, `patience` or `target_accuracy`.
    """
    folder, config = Folder.open(path)
    extending = any(value is not None for value in (ending or {}).values())
    config = extension.with_ending(config, ending or {})
    if config.dataset == GIVEN and config.engine == "nvflare":
        raise AtollError(f"{path} is the run of a federation; start `atoll serve` again with the same --config and --out.")
    if config.dataset == GIVEN and graph is None:
        raise AtollError(f"The dataset of {path} was given as an object; give it again: atoll.resume({str(path)!r}, dataset=…).")
    _check_algorithm(folder, config, algorithm)
    _check_model(folder, config, model)
    if algorithm is not None or model is not None:
        document = config.to_dict() | ({} if algorithm is None else {"algorithm": str(algorithm)})
        values = {} if model is None else {"settings.model": model}
        config = configuration.from_dict(document, f"{folder.path / 'config.toml'}", values)
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        if extending:
            raise AtollError(f"{path} is a run of the engine {config.engine}, which cannot be extended; start a new run.")
        result: Result = launch(config, graph, out=path, watch=watch, resume=True)
        return result
    with folder.in_use():
        saved = folder.load()
        if extending:
            extension.check(folder, config, saved)
        experiment = prepare(config, graph)
        while saved is not None and extension.evaluated_otherwise(saved, config.run):
            checkpoint.restore(experiment, saved)  # a checkpoint that does not fit is not dropped
            extension.drop_checkpoint(folder)
            saved, experiment = folder.load(), prepare(config, graph)
        return rounds(experiment, folder, watch, saved)


def _check_algorithm(folder: Folder, config: Config, algorithm: str | Path | None) -> None:
    """An algorithm that is a file must be named by the caller and be the file that the run began with."""
    is_file = config.algorithm.endswith(".py")
    if algorithm is None and is_file:
        raise AtollError(
            f"The algorithm of {folder.path} is the file {config.algorithm}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll resume {folder.path} --algorithm {config.algorithm}"
        )
    if algorithm is None:
        return
    if not is_file and str(algorithm) != config.algorithm:
        raise AtollError(f"{folder.path} is a run of {config.algorithm}, not of {algorithm}; leave --algorithm out.")
    known = (folder.look() or {}).get("algorithm_sha256")
    if known is not None and known != algorithms.digest(str(algorithm), read=True):
        raise AtollError(
            f"{algorithm} is not the file that {folder.path} was begun with (its SHA-256 was {known}); "
            "restore it, or start a new run."
        )


def _check_model(folder: Folder, config: Config, model: Any) -> None:
    """A model that is a file or an object must be given by the caller and be the one that the run began with."""
    name = str(getattr(config.settings, "model", ""))
    if model is None and user.is_user_model(name):
        if user.file_of(name) is None:
            again = f"atoll.resume({str(folder.path)!r}, model={name.rpartition(':')[2]})"
            raise AtollError(f"The model of {folder.path}, {name}, was given as an object; give it again: {again}.")
        raise AtollError(
            f"The model of {folder.path} is the file {name}, which is not run because a folder names it; "
            f"if you trust it, say so: atoll resume {folder.path} --model {name}"
        )
    if model is None:
        return
    given = str(model) if isinstance(model, str | Path) else user.load(model)
    known = (folder.look() or {}).get("model_sha256")
    if known is not None and known != user.digest(given, read=True):
        raise AtollError(
            f"{given} is not the file that {folder.path} was begun with (its SHA-256 was {known}); "
            "restore it, or start a new run."
        )
    if given != name and (user.file_of(given) is None or user.file_of(name) is None):
        raise AtollError(f"{folder.path} is a run of the model {name}, not of {given}; leave it out.")


__all__ = [
    "Experiment",
    "Progress",
    "Result",
    "Watch",
    "build_cohort",
    "build_experiment",
    "limits_of",
    "noise",
    "prepare",
    "read",
    "resume",
    "rounds",
    "run",
    "schema_of",
]
