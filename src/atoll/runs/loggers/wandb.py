"""Rounds for Weights & Biases, as they happen: `atoll run … --log wandb`.

Its own environment variables apply: WANDB_PROJECT (`atoll` by default), WANDB_ENTITY, WANDB_NAME, WANDB_MODE=offline, WANDB_DIR.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from atoll import storage
from atoll.errors import AtollError
from atoll.runs.loggers.logger import numbers, read_id, run_name, summary

ID_FILE = "wandb-run-id.txt"


class WandbLogger:
    """Logs configuration, rounds and summary as one run; a resumed atoll run continues it.

    Where the program has started a run of its own (`wandb.init`), rounds go there, and it stays open.
    """

    def __init__(self, label: str, folder: Path | None) -> None:
        try:
            import wandb
        except ModuleNotFoundError as error:
            raise AtollError('The logger wandb needs wandb, which is not installed; run `pip install "atoll[wandb]"`.') from error
        self.wandb: Any = wandb
        self.label, self.folder = label, folder
        self.config: Mapping[str, Any] = {}
        self.run: Any = None
        self.owned = True  # whether it was started here

    def __enter__(self) -> WandbLogger:
        """Where it will need an account, ask for it before the first round."""
        mode = os.environ.get("WANDB_MODE") or self.wandb.setup().settings.mode
        if mode == "online" and self.wandb.run is None:
            try:
                self.wandb.login()
            except self.wandb.errors.Error as error:
                raise AtollError(
                    f"The logger wandb cannot log in ({str(error).rstrip('.')}); run `wandb login`, or set WANDB_MODE=offline."
                ) from error
        return self

    def configure(self, config: Mapping[str, Any]) -> None:
        """Keep the settings for the start of the run."""
        self.config = config

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Log a round; the first one starts the run."""
        if self.run is None:
            self.run = self._start()
        self.run.log(numbers(row), step=row["round"] if self.owned else None, commit=True)  # another run has steps of its own

    def finish(self, result: Mapping[str, Any]) -> None:
        """Write the best round's metrics to the run's summary."""
        if self.run is not None:
            self.run.summary.update(summary(result))

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.run is not None and self.owned:
            self.run.finish(exit_code=0 if kind is None else 1)

    def _start(self) -> Any:
        if self.wandb.run is not None:
            self.owned = False
            self.wandb.run.config.update(dict(self.config), allow_val_change=True)
            return self.wandb.run
        try:
            return self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", "atoll"),
                name=os.environ.get("WANDB_NAME") or run_name(self.config, self.label),
                id=self._run_id(),
                resume="allow",
                dir=os.environ.get("WANDB_DIR") or self.folder,
                config=dict(self.config),
                settings=self.wandb.Settings(console="off"),
            )
        except self.wandb.errors.Error as error:
            raise AtollError(f"The logger wandb cannot start a run ({error}); WANDB_MODE=offline needs no network.") from error

    def _run_id(self) -> str:
        """The id in the run's folder, so that a resumed run continues; a new one is written there."""
        path = None if self.folder is None else self.folder / ID_FILE
        if known := read_id(path):
            return known
        made = os.environ.get("WANDB_RUN_ID") or uuid.uuid4().hex[:8]
        if path is not None:
            storage.write_whole(path, made.encode())
        return made
