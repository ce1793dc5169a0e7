"""The best round of a run, kept: a copy of the server's state and of what the parties' predictions need of their memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from atoll import spilled
from atoll.engines.inprocess import InProcessEngine
from atoll.federation.fields import copied
from atoll.runs.experiment import Experiment
from atoll.runs.run_settings import RunSettings
from atoll.tasks import LAST
from atoll.wire import leaves


@dataclass
class BestRound:
    """What was trained, as it was after the best round so far. Later rounds change memory in place, so it is a copy."""

    round: int = 0  # 0 while there is none
    state: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] = field(default_factory=dict)  # by name, the parties' rows in party order
    counts: dict[str, Any] = field(default_factory=dict)  # of its evaluation, as the server got them

    def keep(self, experiment: Experiment, state: dict[str, Any], round: int) -> None:
        """Copy this round, over the one before; hold it as it is where it is huge and the next round replaces it for certain."""
        self.round, self.counts, engine = round, experiment.federation.counted, experiment.engine
        live = engine.trained() if isinstance(engine, InProcessEngine) else {}
        if (large := _is_large(live)) and _replaced(experiment.config.run):
            self.state, self.memory = state, live
            return
        if large:  # its copy is on the disk, where there may be no room for two
            self.state, self.memory = {}, {}
        self.state = copied(state, self.state, large=spilled.LARGE // 16 if large else 0)
        if isinstance(engine, InProcessEngine):
            self.memory = copied(live, self.memory)
            return
        snapshot = getattr(engine, "snapshot", None)  # another package's engine may have none
        self.memory = snapshot(self.memory) if snapshot is not None else {}

    def document(self, round: int) -> dict[str, Any]:
        """For the checkpoint of a round: only its number where it is that very round, whose state and memory are there anyway."""
        return {"round": self.round, "counts": self.counts} if self.round == round else vars(self)

    @classmethod
    def restored(cls, experiment: Experiment, checkpoint: dict[str, Any]) -> BestRound:
        """From a checkpoint, after the parties' memory was restored; none where an earlier version wrote it without."""
        progress, kept = checkpoint["progress"], checkpoint.get("best", {})
        best = cls()
        if progress["best_round"] == progress["round"] > 0:
            best.keep(experiment, checkpoint.get("state", {}), progress["round"])
            best.counts = kept.get("counts", {})
        elif kept.get("round") == progress["best_round"] > 0:
            best = cls(progress["best_round"], kept.get("state", {}), kept.get("memory", {}), kept.get("counts", {}))
        return best


def _replaced(run: RunSettings) -> bool:
    """Whether every round is kept over the one before: the last is the best, all are evaluated, and none is partial."""
    always = run.allow_partial_best or run.on_missing == "stop"
    return run.select_by == LAST and run.evaluate_every == 1 and always


def _is_large(memory: dict[str, Any]) -> bool:
    return any(isinstance(value, Tensor) and value.nbytes >= spilled.LARGE for _, value in leaves(memory))
