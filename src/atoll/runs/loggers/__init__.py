"""Loggers are called with every round of a run, as it happens; each is found by its name.

A logger is made by a callable `(label, folder)`, is a context manager for the time of the run, and is called with each round's
history row and the number of rounds.
"""

from __future__ import annotations

from atoll.registry import Registry
from atoll.runs.loggers.logger import MakeLogger

LOGGERS: Registry[MakeLogger] = Registry(
    "logger", {"progress": "atoll.cli.console:ProgressLine", "tensorboard": "atoll.runs.loggers.tensorboard:TensorBoard"}
)
