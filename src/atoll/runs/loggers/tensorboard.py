"""Rounds for TensorBoard, as they happen: `atoll run … --log tensorboard`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from atoll.errors import AtollError
from atoll.runs.loggers.logger import numbers


class TensorBoard:
    """Writes the numbers of every round as TensorBoard scalars into a folder."""

    def __init__(self, label: str, folder: Path | None) -> None:
        if folder is None:
            raise AtollError("The logger tensorboard writes into the run's folder; give --out as well.")
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise AtollError(
                'The logger tensorboard needs tensorboard, which is not installed; run `pip install "atoll[tensorboard]"`.'
            ) from error
        self.folder, self.make = folder / "tensorboard", SummaryWriter
        self.writer: Any = None

    def __enter__(self) -> TensorBoard:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.writer is not None:
            self.writer.close()

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Write a round; the first one makes the folder."""
        if self.writer is None:
            self.writer = self.make(str(self.folder))
        for name, value in numbers(row).items():
            if name != "round":
                self.writer.add_scalar(name, value, row["round"])
