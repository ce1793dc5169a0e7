"""Centralized: one model on the union of the parties' graphs, cut edges restored. A yardstick, not a federation.

It stands for what nobody may do: whoever trains it holds all data. No bytes are sent; the server sees everything.
"""

from atoll.algorithms.local import Cohort, Settings, evaluate, start, step

SCENARIOS = ("whole",)
LEVELS = ("node", "graph", "link")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("global",)

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]
