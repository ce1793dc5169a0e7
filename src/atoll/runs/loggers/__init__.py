"""Loggers are called with every round of a run, as it happens; each is found by its name.

A logger is made by a callable `(label, folder)`, is a context manager for the duration of the run, and is called with each
round's history row and the number of rounds. Another package adds one through an entry point in the group `atoll.loggers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.registry import Registry
from atoll.runs.loggers.logger import Logger, MakeLogger, RoundCallback, open_all

LOGGERS: Registry[MakeLogger] = Registry(
    "logger",
    {
        "csv": "atoll.runs.loggers.csv:CsvLogger",
        "progress": "atoll.cli.console:ProgressLine",
        "tensorboard": "atoll.runs.loggers.tensorboard:TensorBoard",
    },
)


def open_loggers(
    loggers: Sequence[str | MakeLogger | Logger | RoundCallback], label: str, folder: str | Path | None = None
) -> AbstractContextManager[RoundCallback]:
    """Loggers of one run, as one callback inside a `with` block.

    Each is a registered name or a class, which is made with the run's label and folder, a logger, or a plain function of
    (row, rounds).
    """
    path = None if folder is None else Path(folder)
    made: list[Any] = []
    for logger in loggers:
        if isinstance(logger, str):
            made.append(LOGGERS.find(logger)(label, path))
        elif isinstance(logger, type):
            made.append(logger(label, path))
        elif callable(logger):
            made.append(logger)
        else:
            raise AtollError(f"loggers holds {logger!r}; give a name ({', '.join(LOGGERS.names())}), a logger or a function.")
    return open_all(made)


__all__ = ["LOGGERS", "Logger", "MakeLogger", "RoundCallback", "open_loggers"]
