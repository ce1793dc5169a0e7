"""Standalone: every party of a vertical federation trains on its own columns and edges; GLASU without a shared layer (K = 0).

Payload bytes per round and party: 0 up, 0 down. The server sees nothing of training. Accuracy is the mean over the parties;
in link prediction `label_holder` alone trains and is judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.algorithms.glasu import LEVELS, SCENARIOS, TASKS, YARDSTICKS, Cohort, evaluate, start, step
from atoll.algorithms.glasu.settings import SplitTraining


@dataclass(frozen=True)
class Settings(SplitTraining):
    """GLASU's, with nothing shared."""

    shared_layers: ClassVar[int] = 0
    local_steps: ClassVar[int] = 1
    aggregation: ClassVar[str] = "mean"
    backward: ClassVar[str] = "local"
    lr_parties: ClassVar[int] = 0
    theory: ClassVar[int] = 0


EVALUATIONS = ("personal",)
__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TASKS", "YARDSTICKS", "Cohort", "Settings", "evaluate", "start", "step"]
