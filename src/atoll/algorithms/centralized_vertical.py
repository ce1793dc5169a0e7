"""Centralized, for vertical federations: one party with all columns and all edges; GLASU with M = 1 and K = L. A yardstick.

Payload bytes: none, as there is only one party. The server sees everything: it is that party.
In a comparison with GLASU this is what `centralized` means.
"""

from __future__ import annotations

from atoll.algorithms.glasu import LEVELS, TASKS, Cohort, evaluate, start, step
from atoll.algorithms.standalone import Settings  # a single party has no other to share with either

SCENARIOS = ("whole",)

__all__ = ["LEVELS", "SCENARIOS", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]
