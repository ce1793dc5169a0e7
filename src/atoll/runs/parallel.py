"""Trials in several processes with one thread each; results are read from their folders.

Two such processes are faster than one with two threads on small graphs, and the numbers are those of one thread. They are forked
from a process that has imported everything, and stay for all trials. This module is light: a command opens the pool first, and
its own imports go on at the same time as those of that process.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import queue
import shutil
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from atoll.child import Child, Pipes
from atoll.errors import AtollError, AtollWarning

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison
    from atoll.runs.result import Result
    from atoll.runs.trial import Trial

Watch = Callable[["Trial", dict[str, Any], int], None]
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
MAX_JOBS = 256


def check_jobs(jobs: int) -> None:
    """Refuse a senseless number of processes."""
    if not 1 <= jobs <= MAX_JOBS:
        raise AtollError(f"--jobs is {jobs} but must be at least 1 and at most {MAX_JOBS}.")


def run(comparison: Comparison, out: Path | None, pool: Pool, watch: Watch | None = None) -> None:
    """Run the trials of a comparison; the rows and seeds of the results are in its order."""
    from atoll.runs.reader import read

    folders = {trial.label: (trial, folder or pool.folder()) for trial, folder in comparison.folders(out)}
    results = {trial.label: read(folders[trial.label][1]) for trial in pool.all_of(list(folders.values()), watch)}
    for label, (trial, _) in folders.items():
        comparison.add(trial, results[label])


class Pool:
    """Worker processes, inside a `with` block; they begin with their imports when it is entered."""

    def __init__(self, jobs: int) -> None:
        check_jobs(jobs)
        self.jobs = jobs
        self.reports: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.numbers = itertools.count()

    def __enter__(self) -> Pool:
        self.scratch = Path(tempfile.mkdtemp(prefix="atoll-workers-"))
        self.log = self.scratch / "output"
        ours, theirs = zip(*(socket.socketpair() for _ in range(self.jobs)), strict=True)
        command = [sys.executable, "-P", "-u", "-m", "atoll.runs.worker", *(str(each.fileno()) for each in theirs)]
        self.parent = Child(command, self.log, self._ended, ENVIRONMENT, [each.fileno() for each in theirs])
        self.workers = []
        for number, (here, there) in enumerate(zip(ours, theirs, strict=True)):
            there.close()
            with here:  # its two files keep it open
                files = here.makefile("w"), here.makefile("r", errors="replace")
            self.workers.append(Pipes(*files, self.log, self._reporter(number)))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """End all processes; a run that is interrupted is continued from its checkpoint next time."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.parent.process.pid, signal.SIGKILL)  # the workers are of its group
        self.parent.stop(0.0)
        for worker in self.workers:
            worker.reader.join()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def folder(self) -> Path:
        """A folder for a run that is not kept."""
        return self.scratch / str(next(self.numbers))

    def execute(self, todo: Sequence[tuple[Trial, Path | None]]) -> Iterator[tuple[Trial, Result | AtollError]]:
        """Run trials and read their results without histories and states, as they end; a run that fails is its error."""
        from atoll.runs.reader import read

        folders = {trial.label: folder or self.folder() for trial, folder in todo}
        for trial, error in self.run([(trial, folders[trial.label]) for trial, _ in todo]):
            folder = folders[trial.label]
            yield trial, read(folder, history=False, state=False) if error is None else AtollError(error)
            if folder.parent == self.scratch:
                shutil.rmtree(folder, ignore_errors=True)

    def all_of(self, todo: Sequence[tuple[Trial, Path]], watch: Watch | None = None) -> Iterator[Trial]:
        """Run trials of which none may fail; yields each as it ends."""
        for trial, error in self.run(todo, watch):
            if error is not None:
                raise AtollError(f"{trial.label}: {error}")
            yield trial

    def run(self, todo: Sequence[tuple[Trial, Path]], watch: Watch | None = None) -> Iterator[tuple[Trial, str | None]]:
        """Hand out the trials, one at a time to each worker; yields each as it ends, with the sentence if it failed."""
        waiting, seconds = list(todo), dict[str, float]()  # by row, of runs that have ended; inf once one has begun
        doing: dict[int, tuple[Trial, float]] = {}
        for number in range(min(self.jobs, len(todo))):
            doing[number] = self._next(number, waiting, seconds)
        while doing:
            number, report = self.reports.get()
            if number not in doing:
                continue
            trial, began = doing[number]
            if "row" in report and watch is not None:
                watch(trial, report["row"], report["rounds"])
            elif "done" in report or "error" in report:
                seconds[trial.row] = time.perf_counter() - began
                for text in report.get("warnings", []):
                    warnings.warn(text, AtollWarning, stacklevel=2)
                del doing[number]
                if waiting:
                    doing[number] = self._next(number, waiting, seconds)
                yield trial, report.get("error")
            elif "crash" in report or "exit" in report:
                raise RuntimeError(report.get("crash") or f"{trial.label}: its process ended ({report['exit']}); {self._said()}")

    def _ended(self, report: dict[str, Any]) -> None:
        """One of the workers has ended, or the process that they were forked from, and so all of them."""
        for number in [report["worker"]] if "worker" in report else range(self.jobs):
            self.reports.put((number, report))

    def _reporter(self, number: int) -> Callable[[dict[str, Any]], None]:
        return lambda report: self.reports.put((number, report))

    def _next(self, number: int, waiting: list[tuple[Trial, Path]], seconds: dict[str, float]) -> tuple[Trial, float]:
        """Send a worker the trial that `longest_first` chooses."""
        trial, folder = waiting.pop(longest_first([trial.row for trial, _ in waiting], seconds))
        seconds.setdefault(trial.row, math.inf)
        self.workers[number].send({"row": trial.row, "config": trial.config.to_dict(), "folder": str(folder.resolve())})
        return trial, time.perf_counter()

    def _said(self) -> str:
        text = self.log.read_text(errors="replace").strip()
        return text[-2000:] or "it said nothing"


def longest_first(rows: Sequence[str], seconds: dict[str, float]) -> int:
    """The index of the trial to run next: of a row that was never run, else of the one whose runs take longest.

    Runs of one row take about the same time, so that no process ends with a long run while the others wait.

    >>> longest_first(["a", "b", "c"], {"a": 3.0, "b": 5.0})
    2
    >>> longest_first(["a", "b"], {"a": 3.0, "b": 5.0})
    1
    """
    return max(range(len(rows)), key=lambda index: (rows[index] not in seconds, seconds.get(rows[index], 0.0), -index))


@contextlib.contextmanager
def open_pool(jobs: int) -> Iterator[Pool | None]:
    """A pool for several processes; None for one, which is this process."""
    check_jobs(jobs)
    if jobs == 1:
        yield None
    else:
        with Pool(jobs) as pool:
            yield pool
