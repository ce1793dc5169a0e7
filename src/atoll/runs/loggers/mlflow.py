"""Rounds for MLflow, as they happen: `atoll run … --log mlflow`.

Environment variables say where: MLFLOW_TRACKING_URI (MLflow's own default: `sqlite:///mlflow.db`), MLFLOW_EXPERIMENT_NAME
(`atoll` by default) or MLFLOW_EXPERIMENT_ID, MLFLOW_RUN_NAME.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from atoll import storage
from atoll.errors import AtollError, AtollWarning
from atoll.runs.loggers.logger import flat, numbers, read_id, run_name, summary
from atoll.version import __version__

ID_FILE = "mlflow-run-id.txt"
MAX_METRICS, MAX_PARAMS, MAX_TEXT = 1000, 100, 500  # of one request; the letters of a parameter


class MlflowLogger:
    """Logs configuration, rounds and summary as one run; a resumed atoll run continues it, and no round is logged twice.

    Where the program has started a run of its own (`mlflow.start_run`), rounds go there, and it stays open. If the service cannot
    be reached in between, the rounds are kept and sent at the end: it never stops a run.
    """

    def __init__(self, label: str, folder: Path | None) -> None:
        try:
            import mlflow
        except ModuleNotFoundError as error:
            raise AtollError(
                'The logger mlflow needs mlflow, which is not installed; run `pip install "atoll[mlflow]"`.'
            ) from error
        self.mlflow: Any = mlflow
        self.label, self.folder = label, folder
        self.config: Mapping[str, Any] = {}
        self.client: Any = None
        self.run_id = ""
        self.logged = 0  # the last round that the service has
        self.pending: list[Any] = []
        self.reachable = True
        self.owned = True  # whether the run was started here

    def __enter__(self) -> MlflowLogger:
        return self

    def configure(self, config: Mapping[str, Any]) -> None:
        """Keep the settings for the start of the run."""
        self.config = config

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Log a round; the first one starts the run."""
        if self.client is None:
            self._start()
        if row["round"] > self.logged:
            self._send(numbers({name: value for name, value in row.items() if name != "round"}), row["round"])

    def finish(self, result: Mapping[str, Any]) -> None:
        """Log the best round's metrics, and whatever is still waiting."""
        if self.client is not None:
            self.reachable = True
            self._send(summary(result), result["rounds"])

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.client is None or not self.owned:
            return
        status = "FINISHED" if kind is None else "KILLED" if issubclass(kind, KeyboardInterrupt) else "FAILED"
        try:
            self.client.set_terminated(self.run_id, status)
        except Exception as problem:  # whatever its store raises
            _warn(problem)

    def _start(self) -> None:
        """Use the active run, continue the one of the folder, or create one."""
        try:
            self.client = self.mlflow.MlflowClient()
            active = self.mlflow.active_run()
            if active is not None:
                self.run_id, self.owned = active.info.run_id, False
            elif not self._continue():
                self._create()
            params = [self.mlflow.entities.Param(name, str(value)[:MAX_TEXT]) for name, value in flat(self.config).items()]
            for first in range(0, len(params), MAX_PARAMS) if not self.logged else ():
                self.client.log_batch(self.run_id, params=params[first : first + MAX_PARAMS])
        except (self.mlflow.exceptions.MlflowException, ImportError, OSError) as error:
            raise AtollError(
                f"The logger mlflow cannot start a run at {self.mlflow.get_tracking_uri()} ({str(error).splitlines()[0]}); "
                "set MLFLOW_TRACKING_URI to a store that it can reach."
            ) from error

    def _continue(self) -> bool:
        """Continue the run that the folder names, if this store has it."""
        self.run_id = read_id(None if self.folder is None else self.folder / ID_FILE)
        if not self.run_id:
            return False
        try:
            self.client.update_run(self.run_id, status="RUNNING")
            history = self.client.get_metric_history(self.run_id, "bytes_up")
        except self.mlflow.exceptions.MlflowException:  # deleted, or in another store
            return False
        self.logged = max((metric.step for metric in history), default=0)
        return True

    def _create(self) -> None:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_ID")
        if experiment is None:
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "atoll")
            known = self.client.get_experiment_by_name(name)
            experiment = self.client.create_experiment(name) if known is None else known.experiment_id
        name = os.environ.get("MLFLOW_RUN_NAME") or run_name(self.config, self.label)
        self.run_id = self.client.create_run(experiment, run_name=name, tags={"atoll": __version__}).info.run_id
        if self.folder is not None:
            storage.write_whole(self.folder / ID_FILE, self.run_id.encode())

    def _send(self, values: Mapping[str, float], step: int) -> None:
        """Log some numbers and those that are waiting; after a failure, nothing more before the end."""
        now = int(1000 * time.time())
        self.pending += [self.mlflow.entities.Metric(name, float(value), now, step) for name, value in values.items()]
        try:
            while self.pending and self.reachable:
                self.client.log_batch(self.run_id, metrics=self.pending[:MAX_METRICS])
                del self.pending[:MAX_METRICS]
        except Exception as problem:  # whatever its store raises
            self.reachable = False
            _warn(problem)


def _warn(problem: Exception) -> None:
    text = f"MLflow cannot be reached ({str(problem).splitlines()[0]}); the run goes on, and its history has every round."
    warnings.warn(text, AtollWarning, stacklevel=2)
