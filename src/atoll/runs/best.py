"""The best round of a run, kept: a copy of the server's state and of what the parties' predictions need of their memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll.federation.fields import copied
from atoll.runs.experiment import Experiment


@dataclass
class BestRound:
    """What was trained, as it was after the best round so far. Later rounds change memory in place, so it is a copy."""

    round: int = 0  # 0 while there is none
    state: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)  # by name, the parties' rows in party order
    counts: dict[str, Any] = field(default_factory=dict)  # of its evaluation, as the server got them

    def keep(self, experiment: Experiment, state: dict[str, Any], round: int) -> None:
        """Copy this round, over the one before."""
        self.round = round
        self.state = copied(state, self.state)
        self.counts = experiment.federation.counted
        snapshot = getattr(experiment.engine, "snapshot", None)  # another package's engine may have none
        self.memory = snapshot(self.memory) if snapshot is not None else {}

    def document(self, round: int) -> dict[str, Any]:
        """For the checkpoint of a round: only its number where it is that very round, whose state and memory are there anyway."""
        return {"round": self.round, "counts": self.counts} if self.round == round else vars(self)

    @classmethod
    def restored(cls, experiment: Experiment, checkpoint: dict[str, Any]) -> BestRound:
        """From a checkpoint, after the parties' memory was restored; none where an earlier version wrote it without."""
        progress, kept = checkpoint["book"], checkpoint.get("best", {})
        best = cls()
        if progress["best_round"] == progress["round"] > 0:
            best.keep(experiment, checkpoint.get("state", {}), progress["round"])
            best.counts = kept.get("counts", {})
        elif kept.get("round") == progress["best_round"] > 0:
            best = cls(progress["best_round"], kept.get("state", {}), kept.get("memory", {}), kept.get("counts", {}))
        return best
