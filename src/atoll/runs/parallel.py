"""Trials of a comparison in several processes with one thread each; results are read from their folders.

Two such processes are faster than one with two threads on small graphs, and the numbers are those of one thread.
"""

from __future__ import annotations

import contextlib
import queue
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from atoll.child import Child
from atoll.errors import AtollError, AtollWarning
from atoll.runs.comparison import Comparison, Trial
from atoll.runs.reader import read

Watch = Callable[[Trial, dict[str, Any], int], None]
Done = Callable[[Trial], None]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
MAX_JOBS = 256


def run(comparison: Comparison, out: Path | None, jobs: int, watch: Watch | None = None) -> None:
    """Run the trials in `jobs` processes; the rows and seeds of the results are in the comparison's order."""
    if not 1 <= jobs <= MAX_JOBS:
        raise AtollError(f"--jobs is {jobs} but must be at least 1 and at most {MAX_JOBS}.")
    with contextlib.ExitStack() as stack:
        base = out if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="atoll-compare-")))
        todo = [(trial, folder) for trial, folder in comparison.folders(base) if folder is not None]
        workers = stack.enter_context(start_workers(min(jobs, len(todo))))
        workers.run(todo, watch)
        for trial, folder in todo:
            comparison.add(trial, read(folder))


class Workers:
    """Worker processes and what they report."""

    def __init__(self, count: int, log: Path) -> None:
        self.reports: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        command = [sys.executable, "-P", "-u", "-m", "atoll.runs.worker"]
        self.log = log
        self.children = [Child(command, log, self._reporter(number), ENVIRONMENT) for number in range(count)]

    def _reporter(self, number: int) -> Callable[[dict[str, Any]], None]:
        return lambda report: self.reports.put((number, report))

    def run(self, todo: Sequence[tuple[Trial, Path]], watch: Watch | None, done: Done | None = None) -> None:
        """Hand out the trials, one at a time to each worker, and call `done` as each ends; the first failure ends all."""
        waiting, doing = list(reversed(todo)), {}
        for number in range(len(self.children)):
            doing[number] = self._next(number, waiting)
        while doing:
            number, report = self.reports.get()
            if number not in doing:
                continue
            if "row" in report and watch is not None:
                watch(doing[number], report["row"], report["rounds"])
            elif "done" in report:
                for text in report.get("warnings", []):
                    warnings.warn(text, AtollWarning, stacklevel=2)
                if done is not None:
                    done(doing[number])
                if waiting:
                    doing[number] = self._next(number, waiting)
                else:
                    del doing[number]
            elif "error" in report:
                raise AtollError(f"{doing[number].label}: {report['error']}")
            elif "crash" in report or "exit" in report:
                raise RuntimeError(
                    report.get("crash") or f"{doing[number].label}: its process ended ({report['exit']}); {self._said()}"
                )

    def _next(self, number: int, waiting: list[tuple[Trial, Path]]) -> Trial:
        trial, folder = waiting.pop()
        self.children[number].send({"row": trial.row, "config": trial.config.to_dict(), "folder": str(folder.resolve())})
        return trial

    def _said(self) -> str:
        text = self.log.read_text(errors="replace").strip()
        return text[-2000:] or "it said nothing"

    def stop(self) -> None:
        """End all processes; a run that is interrupted is continued from its checkpoint next time."""
        for child in self.children:
            child.stop(0.0)


@contextlib.contextmanager
def start_workers(count: int) -> Iterator[Workers]:
    """Worker processes that end with the block."""
    with tempfile.TemporaryDirectory(prefix="atoll-workers-") as scratch:
        workers = Workers(count, Path(scratch) / "output")
        try:
            yield workers
        finally:
            workers.stop()
