"""Worker processes of `parallel`: each runs trials that the parent names, one after the other, with one thread.

A command holds a configuration and a folder; a report, some rounds' rows, then `done` or the sentence that says what is wrong.

`python -m atoll.runs.worker FD…` imports everything once and forks a worker for each socket; it reports which of them ended. Fork
keeps only the calling thread, so a process that has others, whose locks might be held, starts workers afresh.
"""

from __future__ import annotations

import gc
import importlib
import os
import subprocess
import sys
import time
import traceback
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from atoll.child import commands, report
from atoll.errors import AtollError

SECONDS_BETWEEN_REPORTS = 0.2
PRELOADED = ("atoll.runs.config", "atoll.runs.trial")


def run_command(command: dict[str, Any]) -> None:
    """Run, or continue, one trial."""
    from atoll.runs import config
    from atoll.runs.trial import Trial

    document = command["config"]  # of the parent process, which is its user's own
    trial = Trial(command["row"], config.from_dict(document, "The configuration", config.user_model(document)))
    rounds = Rounds()
    trial.run(Path(command["folder"]), None, rounds)
    rounds.finish()


class Rounds:
    """Reports the rounds of a run to the parent: the first, then at most a few per second, and the last."""

    def __init__(self) -> None:
        self.next = 0.0
        self.unsent: dict[str, Any] = {}

    def __call__(self, row: dict[str, Any], rounds: int) -> None:
        """Called with every round."""
        self.unsent = {"row": row, "rounds": rounds}
        if time.perf_counter() >= self.next:
            self.finish()
            self.next = time.perf_counter() + SECONDS_BETWEEN_REPORTS

    def finish(self) -> None:
        """Report the last round, if it is not reported yet."""
        if self.unsent:
            report(**self.unsent)
            self.unsent = {}


def serve() -> None:
    """Answer commands until the parent closes standard input."""
    for command in commands():
        try:
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                run_command(command)
            report(done=True, warnings=[str(one.message) for one in caught if issubclass(one.category, UserWarning)])
        except AtollError as error:
            report(error=str(error))
        except Exception:
            report(crash=traceback.format_exc())


def preload() -> None:
    """Import what runs need; no thread may be started by it."""
    import torch

    for name in PRELOADED:
        importlib.import_module(name)
    torch.set_num_threads(1)
    gc.freeze()  # the workers share these pages; looking for garbage there would copy them


def can_fork() -> bool:
    """Whether this process has no thread but this one, as far as can be told."""
    return sys.platform == "linux" and len(list(Path("/proc/self/task").iterdir())) == 1


def fork_worker(socket: int, others: Sequence[int]) -> int:
    """A worker with this socket as its input and output; its process id."""
    if pid := os.fork():
        return pid
    try:
        for standard in (0, 1, 2):
            os.dup2(socket, standard)
        for each in (socket, *others):
            os.close(each)
        serve()
    finally:
        os._exit(1)  # whatever happened, it must not go on as its parent does


def spawn_worker(socket: int) -> int:
    """The same with imports of its own."""
    command = [sys.executable, "-P", "-u", "-m", __spec__.name]
    return subprocess.Popen(command, stdin=socket, stdout=socket, stderr=socket).pid


def main(sockets: Sequence[int]) -> None:
    """Start a worker for each socket and report those that end; without sockets, be one."""
    preload()
    if not sockets:
        serve()
    forks, workers = can_fork(), {}
    for number, socket in enumerate(sockets):
        workers[fork_worker(socket, sockets[number + 1 :]) if forks else spawn_worker(socket)] = number
        os.close(socket)
    while workers:
        pid, status = os.wait()
        report(worker=workers.pop(pid), exit=os.waitstatus_to_exitcode(status))


if __name__ == "__main__":
    main([int(text) for text in sys.argv[1:]])
