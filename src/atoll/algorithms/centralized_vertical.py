"""Centralized, for vertical federations: one party with all columns and all edges; GLASU with M = 1 and K = L. A yardstick.

Payload bytes: none, as nobody has to be told anything. The server sees everything: it is the one party.
In a comparison with GLASU this is what `centralized` means.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.algorithms._glasu_settings import SplitTraining
from atoll.algorithms.glasu import Cohort, evaluate, start, step

SPREADS = ("whole",)


@dataclass(frozen=True)
class Settings(SplitTraining):
    """GLASU's; a single party has nobody to share with, and its aggregate is its own."""

    shared_layers: ClassVar[int] = 0
    local_steps: ClassVar[int] = 1
    aggregation: ClassVar[str] = "mean"
    backward: ClassVar[str] = "local"
    label_holder: ClassVar[int] = -1


__all__ = ["SPREADS", "Cohort", "Settings", "evaluate", "start", "step"]
