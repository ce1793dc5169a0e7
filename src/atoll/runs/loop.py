"""The rounds of a run: step, evaluate, record, checkpoint, until the last round or early stopping."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from typing import Any

from atoll import algorithms
from atoll.errors import AtollWarning
from atoll.federation import agreements
from atoll.federation.federation import Federation
from atoll.federation.metrics import averages_of
from atoll.privacy.releases import RELEASES_FILE, epsilon_of, require_accountant
from atoll.runs import absence, checkpoint, detail, extension, model_files, resumed_config, warm_start
from atoll.runs.best import BestRound
from atoll.runs.experiment import Experiment
from atoll.runs.folder import Folder
from atoll.runs.model_card import card, describe_run, model_scale
from atoll.runs.model_files import ModelFiles
from atoll.runs.progress import Progress, Selection
from atoll.runs.result import Result
from atoll.runs.run_settings import RunSettings

Watch = Callable[[dict[str, Any], int], bool | None]  # called with each round's row and the number of rounds; False stops
MIN_SECONDS_BETWEEN_CHECKPOINTS = 5.0
MIN_GAP_IN_WRITES = 20.0  # minimum gap between checkpoints, in multiples of the last write's duration


def rounds(
    experiment: Experiment, folder: Folder | None = None, watch: Watch | None = None, saved: dict[str, Any] | None = None
) -> Result:
    """Run an experiment from its first round, or from the checkpoint `saved`, to its last; with `folder`, write it there.

    It ends early where `watch` returns False; a later resume continues from that round.
    """
    algorithm, federation, config = experiment.algorithm, experiment.federation, experiment.config
    run, selection = config.run, Selection.of(config.run)
    rows = folder.rows() if folder else []
    changes: list[str] = []
    earlier_warnings = list((saved or {}).get("warnings", []))
    _account(experiment, folder)
    if saved is None:
        progress, best = Progress(), BestRound()
        federation.begin(0)
        agreements.agree(federation)
        state = warm_start.begin(experiment, algorithm.start(federation, config.settings))
        if folder and experiment.start:  # the model that it began with is not needed any more
            folder.save(checkpoint.capture(experiment, progress, state, best))
    else:
        (progress, best), state = checkpoint.restore(experiment, saved), saved.get("state", {})
        changes = resumed_config.changes(saved.get("config"), config)
        experiment.restore_spent(saved.get("spent", 0.0))
        agreements.restore(federation, saved)
        earlier_warnings += changes
    ended = progress.finished(run.rounds, run.patience, run.target_accuracy, selection)
    if not (folder and extension.record(folder, config, finished=ended)):  # otherwise it was just asked for
        _warn(changes)
    started, first = time.perf_counter() - progress.seconds, progress.round
    schedule = _Schedule(run)
    while not progress.finished(run.rounds, run.patience, run.target_accuracy, selection):
        progress.round += 1
        lost = agreements.lost(federation)
        federation.begin(progress.round)
        agreements.tell(federation, lost)
        state = algorithm.step(federation, state, config.settings)
        metrics = {}
        if extension.is_evaluated(progress.round, run):
            metrics = _evaluate(experiment, state)
            state = algorithms.after_evaluation(algorithm, state, metrics)
            progress.update(metrics, selection, partial=bool(federation.missing), count_missing=run.allow_partial_best)
            if progress.best_round == progress.round:
                best.keep(experiment, state, progress.round)
        progress.seconds = time.perf_counter() - started
        row = _row(progress, federation, metrics)
        rows.append(row)
        if folder:
            folder.append(row)
            last = progress.finished(run.rounds, run.patience, run.target_accuracy, selection)
            if last or schedule.due(progress.round):
                schedule.save(folder, experiment, progress, state, best, earlier_warnings)
        stopped, waited = _call(watch, row, run.rounds)
        started += waited
        if stopped:
            if folder and schedule.saved != progress.round:
                schedule.save(folder, experiment, progress, state, best, earlier_warnings)
            break
    return _finish(experiment, folder, progress, best, rows, state, earlier_warnings, began=first)


def _finish(
    experiment: Experiment,
    folder: Folder | None,
    progress: Progress,
    best: BestRound,
    rows: list[dict[str, Any]],
    state: dict[str, Any],
    earlier_warnings: list[str],
    *,
    began: int,
) -> Result:
    """The result, with the best round's detail and model; written where it is not yet. `began`: the round of the checkpoint."""
    result = _result(experiment, progress, rows, state)
    result.folder = folder.path if folder else None
    result.averages = averages_of(experiment.federation, best.counts)
    threshold = detail.threshold_of(experiment, best)
    result.detail = detail.of_best(experiment, best, next((row for row in rows if row["round"] == best.round), {}), threshold)
    run = experiment.config.run
    unchosen = [*detail.missing_threshold(experiment, threshold), *progress.unselected(Selection.of(run), run.select_by)]
    _warn(unchosen)
    result.warnings = _warnings([*earlier_warnings, *unchosen], folder, experiment)
    result.trained = _trained(experiment, progress, best, folder, threshold, result.detail)
    if folder and result.trained and not (progress.round == began and model_files.is_whole(folder.path, best.round)):
        result.trained.write(folder.path, card(result.trained.description))
    if folder and (progress.round > began or not folder.finished()):
        folder.finish(result.to_dict())
    return result


def _trained(
    experiment: Experiment,
    progress: Progress,
    best: BestRound,
    folder: Folder | None,
    threshold: dict[str, Any] | None,
    judged: dict[str, Any],
) -> ModelFiles | None:
    """The best round's model; None where a checkpoint of an earlier version did not keep it."""
    if not best.round:
        return None
    about = describe_run(experiment, progress, digest=folder is not None)
    about |= {"threshold": threshold, "detail": judged} | model_scale(experiment.federation.task)
    return ModelFiles(about, best.state, best.memory)


def _call(watch: Watch | None, row: dict[str, Any], rounds: int) -> tuple[bool, float]:
    """Whether `watch` wants the run to stop, and the seconds it took, which are not the run's."""
    before = time.perf_counter()
    stopped = watch is not None and watch(row, rounds) is False
    return stopped, time.perf_counter() - before


def _account(experiment: Experiment, folder: Folder | None) -> None:
    """With noise, count what is released; with `folder`, in a file."""
    if experiment.config.dp.active:
        require_accountant()
        if folder:
            experiment.releases.keep(folder.path / RELEASES_FILE)


class _Schedule:
    """When checkpoints are due: every `checkpoint_every` rounds or, with 0, by the clock, so that writing them costs little.

    One is also due before a last round that would not be evaluated in a longer run: it is what can be extended.
    """

    def __init__(self, run: RunSettings) -> None:
        self.every = run.checkpoint_every
        self.before_last = run.rounds - 1 if run.rounds % run.evaluate_every else 0
        self.next = time.perf_counter() + MIN_SECONDS_BETWEEN_CHECKPOINTS
        self.saved = 0  # the round of the last checkpoint

    def due(self, number: int) -> bool:
        """Whether a checkpoint is due after this round."""
        by_clock = time.perf_counter() > self.next
        return number == self.before_last or (number % self.every == 0 if self.every else by_clock)

    def save(
        self,
        folder: Folder,
        experiment: Experiment,
        progress: Progress,
        state: dict[str, Any],
        best: BestRound,
        earlier_warnings: list[str],
    ) -> None:
        """Write a checkpoint and schedule the next."""
        start = time.perf_counter()
        held = checkpoint.capture(experiment, progress, state, best)
        folder.save(held | {"warnings": _warnings(earlier_warnings, folder, experiment)})
        end = time.perf_counter()
        self.saved, self.next = progress.round, end + max(MIN_SECONDS_BETWEEN_CHECKPOINTS, MIN_GAP_IN_WRITES * (end - start))


def _evaluate(experiment: Experiment, state: dict[str, Any]) -> dict[str, Any]:
    """The round's metrics and, with noise, the privacy budget spent so far."""
    with experiment.federation.evaluating():
        metrics = experiment.algorithm.evaluate(experiment.federation, state, experiment.config.settings)
    if experiment.config.dp.active:
        metrics["epsilon"] = epsilon_of(experiment.spent, experiment.config.dp.delta)
    return metrics


def _warn(changes: list[str]) -> None:
    """Warn of settings that were changed in config.toml since the checkpoint, and of what could not be done."""
    for text in changes:
        warnings.warn(text, AtollWarning, stacklevel=3)


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
        start=experiment.start,
    )
