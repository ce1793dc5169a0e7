"""Centralized: one model on the union of the parties' graphs, cut edges restored. A yardstick, not a federation."""

from atoll.algorithms.local import Cohort, Settings, evaluate, start, step

SPREADS = ("whole",)

__all__ = ["SPREADS", "Cohort", "Settings", "evaluate", "start", "step"]
