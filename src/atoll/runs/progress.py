"""Progress of a run: its round, its best round so far, and whether it is finished."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll.runs.run_settings import RunSettings
from atoll.tasks import LAST, TASKS, selecting_metric

NOT_METRICS = frozenset(  # what a line of a history says beside the metrics
    ("round", "up", "down", "missing", "missing_names", "partial", "dominant", "simulated_seconds", "seconds")
)


@dataclass(frozen=True)
class Selection:
    """The validation metric that names the best round, and its direction."""

    metric: str = "loss"  # without val_
    higher_is_better: bool = False
    last: bool = False  # whether every round is better than those before, whatever its score

    @classmethod
    def of(cls, run: RunSettings) -> Selection:
        """What a run selects by."""
        name, metric = selecting_metric(TASKS.find(run.task), run.select_by)
        return cls(name, metric.higher_is_better, run.select_by == LAST)

    def score(self, metrics: Mapping[str, Any]) -> float:
        """The metric as a score, lower is better; infinite where it is not known.

        Of loss and accuracy, which are known of every round or of none, the score is −∞ then: the last round is the best.
        """
        value = metrics.get(f"val_{self.metric}")
        if self.last:
            return -math.inf
        if value is None:
            return -math.inf if self.metric in ("loss", "accuracy") else math.inf
        return -float(value) if self.higher_is_better else float(value)

    def reached(self, metrics: Mapping[str, Any], target: float) -> bool:
        """Whether the metric is as good as the target; where the loss selects, the target is for the accuracy."""
        if self.metric == "loss":
            return bool(metrics.get("val_accuracy", 0.0) >= target)
        value = metrics.get(f"val_{self.metric}")
        return value is not None and bool(value >= target if self.higher_is_better else value <= target)


@dataclass
class Progress:
    """How far a run is. With the state, the memory and the ledger it is all that a run consists of."""

    round: int = 0
    best_round: int = 0
    best_score: float = math.inf
    best: dict[str, Any] = field(default_factory=dict)
    last: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    partial: bool = False  # whether a party was missing in the best round
    last_partial: bool = False  # and in the last evaluated one
    comparable: bool = True  # whether the last evaluated round can be compared with others
    evaluated: int = 0  # the last evaluated round
    skipped: int = 0  # rounds since the best that do not count for `patience`

    @classmethod
    def of(cls, rows: Iterable[Mapping[str, Any]], run: RunSettings) -> Progress:
        """The progress that a history tells."""
        progress, selection = cls(), Selection.of(run)
        for row in rows:
            progress.round, progress.seconds = row["round"], row.get("seconds", 0.0)
            metrics = {name: value for name, value in row.items() if value is not None and name not in NOT_METRICS}
            if metrics:
                progress.update(metrics, selection, partial=bool(row.get("missing")), count_missing=run.allow_partial_best)
        return progress

    def update(
        self, metrics: dict[str, Any], selection: Selection, *, partial: bool = False, count_missing: bool = False
    ) -> None:
        """Keep the metrics of the round with the best validation score; without validation nodes, of the last.

        A `partial` round (a party was missing) is the best only while there is no complete one, unless `count_missing`.
        """
        self.last, self.last_partial = metrics, partial
        self.comparable = not partial or count_missing
        passed, self.evaluated = self.round - self.evaluated, self.round
        score = selection.score(metrics)
        better = score < self.best_score or score == -math.inf or score == self.best_score == math.inf
        if self.comparable != (not self.partial or count_missing):
            better = self.comparable
        if better or not self.best:
            self.best_round, self.best_score, self.best = self.round, score, metrics
            self.partial, self.skipped = partial, 0
        elif not self.comparable and not self.partial:
            self.skipped += passed

    def unselected(self, selection: Selection, select_by: str) -> list[str]:
        """A sentence where validation items are counted, but never gave the metric that was to select the best round."""
        judged = any(name.startswith("val_") for name in self.best)
        if selection.last or not judged or f"val_{selection.metric}" in self.best:
            return []
        return [
            f"select_by is {select_by}, but no round has a validation value of {selection.metric}: the last round counts as the "
            "best; select by another metric."
        ]

    def finished(self, rounds: int, patience: int, target: float = 0.0, selection: Selection | None = None) -> bool:
        """Whether the last round is done. A round that cannot be compared neither reaches the target nor uses up patience."""
        reached = target > 0 and self.comparable and bool(self.last) and (selection or Selection()).reached(self.last, target)
        waited = self.round - self.best_round - self.skipped
        return self.round >= rounds or reached or bool(patience and self.best and waited >= patience)
