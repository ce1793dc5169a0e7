"""Loggers are called with every round of a run, as it happens; each is found by its name.

A logger is made by a callable `(label, folder)`, is a context manager for the duration of the run, and is called with each
round's row, as `result.history` has it, and the number of rounds. Another package adds one through an entry point in the group
`atoll.loggers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError
from atoll.registry import Registry
from atoll.runs.loggers.logger import Logger, MakeLogger, RoundCallback, RunLoggers

if TYPE_CHECKING:
    from atoll.runs.config import Config

LOGGERS: Registry[MakeLogger] = Registry(
    "logger",
    {
        "csv": "atoll.runs.loggers.csv:CsvLogger",
        "mlflow": "atoll.runs.loggers.mlflow:MlflowLogger",
        "progress": "atoll.cli.console:ProgressLine",
        "tensorboard": "atoll.runs.loggers.tensorboard:TensorBoard",
        "wandb": "atoll.runs.loggers.wandb:WandbLogger",
    },
)


def open_loggers(
    loggers: Sequence[str | MakeLogger | Logger | RoundCallback],
    label: str,
    folder: str | Path | None = None,
    config: Config | None = None,
) -> RunLoggers:
    """Loggers of one run, as one callback inside a `with` block; at the end call its `finish` with the result.

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
    return RunLoggers(made, path, config)


__all__ = ["LOGGERS", "Logger", "MakeLogger", "RoundCallback", "RunLoggers", "open_loggers"]
