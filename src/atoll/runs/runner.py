"""Run a configuration, or resume the run in a folder: here, or by an engine that runs the federation elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll import device as devices
from atoll.data.script_data import ScriptData
from atoll.engines import ENGINES, check_address, is_hosted
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.runs import checkpoint, extension, warm_start
from atoll.runs.config import GIVEN, Config
from atoll.runs.experiment import Experiment, build_cohort, build_experiment, limits_of, noise, prepare, schema_of
from atoll.runs.folder import Folder
from atoll.runs.loop import Watch, rounds
from atoll.runs.own_files import with_own_files
from atoll.runs.progress import Progress
from atoll.runs.reader import read
from atoll.runs.result import Result


def run(
    config: Config, given: Graph | ScriptData | None = None, *, out: str | Path | None = None, watch: Watch | None = None
) -> Result:
    """Run a configuration from its first round to its last; `given` is what a script gave as an object instead of a name."""
    config = warm_start.with_digest(placed(config))
    check_address(config.engine, config.run.address)
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        result: Result = launch(config, given, out=out, watch=watch)
        return result
    with prepare(config, given) as experiment:
        if out is None:
            return replace(rounds(experiment, None, watch), given=given)
        with Folder.begin(out, config, experiment.party_data.node_lists) as folder:
            return replace(rounds(experiment, folder, watch), given=given)


def resume(
    path: str | Path,
    given: Graph | ScriptData | None = None,
    *,
    algorithm: str | Path | None = None,
    model: Any = None,
    watch: Watch | None = None,
    ending: Mapping[str, Any] | None = None,
    address: str | None = None,
    device: str | None = None,
) -> Result:
    """Continue a run from its last checkpoint; a finished run returns its result again.

    A folder alone never makes atoll import a file: an algorithm that is a file must be given again as `algorithm`,
    a model that is a file or an object as `model`. `ending`: other `rounds`, `patience` or `target_accuracy`; `address`: another
    cluster of the engine ray; `device`: where the parties compute from now on, by default where they did.
    """
    folder, config = Folder.open(path)
    config = placed(config if device is None else replace(config, device=devices.check(device)))
    extending = any(value is not None for value in (ending or {}).values())
    config = extension.with_ending(config, ending or {})
    if address is not None:
        check_address(config.engine, address)
        config = replace(config, run=replace(config.run, address=address))
    if config.dataset == GIVEN and config.engine == "nvflare":
        raise AtollError(f"{path} is the run of a federation; start `atoll serve` again with the same --config and --out.")
    if config.dataset == GIVEN and given is None:
        raise AtollError(f"The dataset of {path} was given as an object; give it again: atoll.resume({str(path)!r}, dataset=…).")
    files: dict[str, Any] = {"algorithm": algorithm, "model": model}
    config = with_own_files(config, path, lambda: folder.look() or {}, **files, command="resume", function="resume")
    if launch := getattr(ENGINES.find(config.engine), "launch", None):
        if extending:
            raise AtollError(f"{path} is a run of the engine {config.engine}, which cannot be extended; start a new run.")
        result: Result = launch(config, given, out=path, watch=watch, resume=True)
        return result
    with folder.in_use():
        saved = folder.load()
        if extending:
            extension.check(folder, config, saved)
        while True:
            with prepare(config, given, encoding=checkpoint.encoding_of(saved)) as experiment:
                if saved is None or not extension.evaluated_otherwise(saved, config.run):
                    return replace(rounds(experiment, folder, watch, saved), given=given)
                checkpoint.restore(experiment, saved)  # a checkpoint that does not fit is not dropped
                extension.drop_checkpoint(folder)
                saved = folder.load()


def placed(config: Config) -> Config:
    """The configuration with the name of a device that is here: `auto` is the best there is.

    Where the parties are in other processes, each looks for itself, and the server's machine may have none.
    """
    return config if is_hosted(config.engine) else replace(config, device=devices.name(devices.find(config.device)))


__all__ = [
    "Experiment",
    "Progress",
    "Result",
    "Watch",
    "build_cohort",
    "build_experiment",
    "limits_of",
    "noise",
    "placed",
    "prepare",
    "read",
    "resume",
    "rounds",
    "run",
    "schema_of",
]
