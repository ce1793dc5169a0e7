"""A new end for a run that has already begun: more rounds, other patience, another target (`atoll resume RUN --rounds 500`).

The rounds of a run do not depend on how many there will be, with one exception: the last one is always evaluated. Where that
evaluation would not belong to the longer run, the run continues from the checkpoint before it, so that it ends with the same
bits as a run that had this number of rounds from the start.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

from atoll import storage
from atoll.errors import AtollError
from atoll.runs.config import Config
from atoll.runs.described_config import Described
from atoll.runs.folder import Folder
from atoll.runs.progress import Progress
from atoll.runs.resumed_config import ENDINGS
from atoll.runs.run_settings import RunSettings
from atoll.settings import build, known

NAMES = tuple(sorted(name.removeprefix("run.") for name in ENDINGS))


def with_ending(config: Config, ending: Mapping[str, Any]) -> Config:
    """The configuration with other values of `rounds`, `patience` or `target_accuracy`; None leaves one as it is."""
    given = {name.removeprefix("run."): value for name, value in ending.items() if value is not None}
    if unknown := [name for name in given if name not in NAMES]:
        raise AtollError(f"{unknown[0]!r} cannot be changed when a run is resumed, only {', '.join(NAMES)}.")
    if not given:
        return config
    values = dataclasses.asdict(config.run) | given
    return dataclasses.replace(config, run=build(RunSettings, values, f"{config.algorithm} run"))


def check(folder: Folder, config: Config, saved: Mapping[str, Any] | None) -> None:
    """Refuse an end that the run has passed already, or that it would not get beyond."""
    if not isinstance(config.settings, Described) and "rounds" in known(type(config.settings)):
        raise AtollError(
            f"{config.algorithm} has a setting `rounds` of its own, so its rounds may depend on their number; start a new run."
        )
    if saved is None:
        return
    run, progress = config.run, _progress(saved)
    if run.rounds < progress.round:
        raise AtollError(
            f"{folder.path} has done {progress.round} rounds, more than {run.rounds}; give --rounds {progress.round} or more, "
            "or start a new run."
        )
    if run.rounds == progress.round:
        return
    if progress.finished(run.rounds, run.patience):
        raise AtollError(
            f"{folder.path} stopped after round {progress.round} because {run.patience} rounds had brought no better validation "
            "score; to continue, also give --set patience=N with a larger N, or 0 never to stop early."
        )
    if progress.finished(run.rounds, run.patience, run.target_accuracy):
        raise AtollError(
            f"{folder.path} stopped after round {progress.round} because the validation accuracy had reached "
            f"{run.target_accuracy:g}; to continue, also give --set target_accuracy=X with a larger X, or 0 never to stop early."
        )


def evaluated_otherwise(saved: Mapping[str, Any], run: RunSettings) -> bool:
    """Whether the checkpoint's last round was evaluated where this run would not evaluate it, or the other way round."""
    progress = _progress(saved)
    return progress.round > 0 and (progress.evaluated == progress.round) != is_evaluated(progress.round, run)


def _progress(saved: Mapping[str, Any]) -> Progress:
    """How far a checkpoint is; none where that cannot be read, which is refused when the run is restored."""
    try:
        progress = Progress(**saved["progress"])
        progress.finished(progress.round + progress.evaluated, 1, 1.0)
    except (TypeError, AttributeError):
        return Progress()
    return progress


def drop_checkpoint(folder: Folder) -> None:
    """Drop the last checkpoint for the one before it or, where there is none, for the beginning of the run."""
    if not folder.step_back():
        with storage.writing(folder.checkpoint):
            folder.checkpoint.unlink()
            storage.sync_folder(folder.path)


def is_evaluated(round: int, run: RunSettings) -> bool:
    """Whether a run evaluates this round."""
    return round % run.evaluate_every == 0 or round == run.rounds


def record(folder: Folder, config: Config, *, finished: bool) -> bool:
    """Write the run's end to config.toml, so that a later resume knows it; True where it was another one.

    A result.json of fewer rounds is removed once there are more to do: its checksums do not fit the growing history.
    """
    source = folder.path / "config.toml"
    before = Folder.open(folder.path)[1].run
    now = {name: getattr(config.run, name) for name in NAMES}
    changed = now != {name: getattr(before, name) for name in NAMES}
    if changed:
        document = tomllib.loads(source.read_text(encoding="utf-8"))
        table = {name: value for name, value in document.get("run", {}).items() if name != "target"}  # before 0.2
        storage.write_whole(source, tomli_w.dumps(document | {"run": table | now}).encode())
    if not finished and folder.result.exists():
        with storage.writing(folder.result):
            folder.result.unlink()
            storage.sync_folder(folder.path)
    return changed
