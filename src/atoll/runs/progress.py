"""Progress of a run: its round, its best round so far, and whether it is finished."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from atoll.runs.run_settings import RunSettings

NOT_METRICS = frozenset(  # what a line of a history says beside the metrics
    ("round", "up", "down", "missing", "missing_names", "partial", "dominant", "simulated_seconds", "seconds")
)


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
        progress = cls()
        for row in rows:
            progress.round, progress.seconds = row["round"], row.get("seconds", 0.0)
            metrics = {name: value for name, value in row.items() if value is not None and name not in NOT_METRICS}
            if metrics:
                progress.update(metrics, run.select_by, partial=bool(row.get("missing")), count_missing=run.allow_partial_best)
        return progress

    def update(self, metrics: dict[str, Any], select: str, *, partial: bool = False, count_missing: bool = False) -> None:
        """Keep the metrics of the round with the best validation score; without validation nodes, of the last.

        A `partial` round (a party was missing) is the best only while there is no complete one, unless `count_missing`.
        """
        self.last, self.last_partial = metrics, partial
        self.comparable = not partial or count_missing
        passed, self.evaluated = self.round - self.evaluated, self.round
        score = metrics.get("val_loss", -math.inf) if select == "loss" else -metrics.get("val_accuracy", math.inf)
        better = score < self.best_score or score == -math.inf
        if self.comparable != (not self.partial or count_missing):
            better = self.comparable
        if better or not self.best:
            self.best_round, self.best_score, self.best = self.round, score, metrics
            self.partial, self.skipped = partial, 0
        elif not self.comparable and not self.partial:
            self.skipped += passed

    def finished(self, rounds: int, patience: int, target: float = 0.0) -> bool:
        """Whether the last round is done. A round that cannot be compared neither reaches the target nor uses up patience."""
        reached = target > 0 and self.comparable and self.last.get("val_accuracy", 0.0) >= target
        waited = self.round - self.best_round - self.skipped
        return self.round >= rounds or reached or bool(patience and self.best and waited >= patience)
