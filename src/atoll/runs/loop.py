"""The rounds of a run: step, evaluate, record, checkpoint, until the last round or early stopping."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from atoll.errors import AtollWarning
from atoll.federation.federation import Federation
from atoll.privacy.releases import RELEASES_FILE, epsilon_of, require_accountant
from atoll.runs import absence, checkpoint, unchanged
from atoll.runs.experiment import Experiment
from atoll.runs.folder import Folder
from atoll.runs.progress import Progress
from atoll.runs.result import Result

Watch = Callable[[dict[str, Any], int], None]  # called with each round's history row and the number of rounds
MIN_SECONDS_BETWEEN_CHECKPOINTS = 5.0
MIN_GAP_IN_WRITES = 20.0  # minimum gap between checkpoints, in multiples of the last write's duration


def rounds(
    experiment: Experiment, folder: Folder | None = None, watch: Watch | None = None, saved: dict[str, Any] | None = None
) -> Result:
    """Run an experiment from its first round, or from the checkpoint `saved`, to its last; with `folder`, write it there."""
    algorithm, federation, config = experiment.algorithm, experiment.federation, experiment.config
    run = config.run
    rows = folder.rows() if folder else []
    earlier_warnings = list((saved or {}).get("warnings", []))
    if config.dp.active:
        require_accountant()
        if folder:
            experiment.releases.keep(folder.path / RELEASES_FILE)
    if saved is None:
        progress = Progress()
        federation.begin(0)
        state = algorithm.start(federation, config.settings)
    else:
        progress, state = checkpoint.restore(experiment, saved), saved.get("state", {})
        earlier_warnings += _changes(experiment, saved)
        experiment.recall_spent(saved.get("spent", 0.0))
    started, first = time.perf_counter() - progress.seconds, progress.round
    schedule = _Schedule(run.checkpoint_every)
    while not progress.finished(run.rounds, run.patience, run.target_accuracy):
        progress.round += 1
        federation.begin(progress.round)
        state = algorithm.step(federation, state, config.settings)
        metrics = {}
        if progress.round % run.evaluate_every == 0 or progress.round == run.rounds:
            metrics = _evaluate(experiment, state)
            progress.update(metrics, run.select_by, partial=bool(federation.missing), count_missing=run.allow_partial_best)
        progress.seconds = time.perf_counter() - started
        row = _row(progress, federation, metrics)
        rows.append(row)
        if folder:
            folder.append(row)
            now = time.perf_counter()
            if schedule.due(progress.round, now) or progress.finished(run.rounds, run.patience, run.target_accuracy):
                held = checkpoint.capture(experiment, progress, state)
                folder.save(held | {"warnings": _warnings(earlier_warnings, folder, experiment)})
                schedule.written(now, time.perf_counter())
        if watch:
            watch(row, run.rounds)
    result = _result(experiment, progress, rows, state)
    result.warnings = _warnings(earlier_warnings, folder, experiment)
    if folder and (progress.round > first or not folder.finished()):
        folder.finish(result.to_dict())
    return result


class _Schedule:
    """When checkpoints are due: every `every` rounds or, with 0, by the clock, so that writing them costs little."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.next = time.perf_counter() + MIN_SECONDS_BETWEEN_CHECKPOINTS

    def due(self, number: int, now: float) -> bool:
        """Whether a checkpoint is due after this round."""
        return number % self.every == 0 if self.every else now > self.next

    def written(self, start: float, end: float) -> None:
        """Set the next date after a checkpoint was written."""
        self.next = end + max(MIN_SECONDS_BETWEEN_CHECKPOINTS, MIN_GAP_IN_WRITES * (end - start))


def _evaluate(experiment: Experiment, state: dict[str, Any]) -> dict[str, Any]:
    """The round's metrics and, with noise, the privacy budget spent so far."""
    with experiment.federation.evaluating():
        metrics = experiment.algorithm.evaluate(experiment.federation, state, experiment.config.settings)
    if experiment.config.dp.active:
        metrics["epsilon"] = epsilon_of(experiment.spent, experiment.config.dp.delta)
    return metrics


def _changes(experiment: Experiment, saved: dict[str, Any]) -> list[str]:
    """Warn of settings that were changed since the checkpoint and only move the end of the run."""
    texts = unchanged.changes(saved.get("config"), experiment.config)
    for text in texts:
        warnings.warn(text, AtollWarning, stacklevel=3)
    return texts


def _warnings(earlier: list[str], folder: Folder | None, experiment: Experiment) -> list[str]:
    """What went wrong and was repaired, in this process and in those before its checkpoint."""
    now = [*(folder.warnings if folder else []), *getattr(experiment.engine, "warnings", [])]
    return list(dict.fromkeys([*earlier, *now]))


def _row(progress: Progress, federation: Federation, metrics: dict[str, Any]) -> dict[str, Any]:
    """The round's line of the history."""
    traffic = federation.ledger.total(round=progress.round)
    row = {"round": progress.round, **metrics, "up": traffic["up"], "down": traffic["down"]}
    if federation.missing:
        row["missing"] = {str(party): reason for party, reason in federation.missing.items()}
        if federation.names:
            row["missing_names"] = {str(party): federation.name_of(party) for party in federation.missing}
        if metrics:
            row["partial"] = True  # the metrics leave those parties out
    if federation.dominant:
        row["dominant"] = {str(party): share for party, share in federation.dominant.items()}
    if federation.network is not None:
        row["simulated_seconds"] = federation.ledger.seconds.get(progress.round, 0.0)
    return row | {"seconds": round(progress.seconds, 6)}


def _seconds(progress: Progress, federation: Federation) -> dict[str, float]:
    """Wall-clock seconds and, with a network model, those that the messages of training would take."""
    seconds = {"total": progress.seconds, "per_round": progress.seconds / max(progress.round, 1)}
    return seconds if federation.network is None else seconds | {"simulated": sum(federation.ledger.seconds.values())}


def _result(experiment: Experiment, progress: Progress, rows: list[dict[str, Any]], state: dict[str, Any]) -> Result:
    return Result(
        config=experiment.config,
        scenario=experiment.federation.scenario,
        parties=experiment.federation.schema.parties,
        rounds=progress.round,
        best_round=progress.best_round,
        metrics=progress.best,
        last=progress.last,
        bytes=experiment.federation.ledger.summary(),
        seconds=_seconds(progress, experiment.federation),
        rows=rows,
        state=state,
        memory=experiment.engine.state(),
        names=experiment.federation.names,
        missing=absence.rounds_missed(rows),
        partial=progress.partial,
        last_partial=progress.last_partial,
    )
