"""Child processes that never outlive their parent: commands go in by standard input, marked lines of the output are reports.

When the parent ends, for whatever reason, the child's standard input closes and the child exits at once.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

REPORT_PREFIX = "\x1eatoll "


class Pipes:
    """Commands to a process, and its reports: marked lines of its output; its other lines go to the file `log`."""

    def __init__(
        self,
        stdin: IO[str],
        stdout: IO[str],
        log: Path,
        on_report: Callable[[dict[str, Any]], None],
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        """`on_report` is called in a separate thread, as is `at_end`, when the process has closed its output."""
        self.stdin, self.stdout, self.log = stdin, stdout, log
        self.on_report, self.at_end = on_report, at_end
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command; nothing happens if the process has ended."""
        with contextlib.suppress(OSError, ValueError):
            self.stdin.write(json.dumps(command) + "\n")
            self.stdin.flush()

    def close_stdin(self) -> None:
        """Close the process's standard input: it then exits."""
        with contextlib.suppress(OSError, ValueError):
            self.stdin.close()

    def _read(self) -> None:
        with self.log.open("ab", buffering=0) as file, self.stdout as lines, contextlib.suppress(ConnectionError):
            for line in lines:
                if line.startswith(REPORT_PREFIX):
                    self.on_report(json.loads(line.removeprefix(REPORT_PREFIX)))
                else:
                    with contextlib.suppress(OSError):  # a full disk must not block the reports
                        file.write(line.encode())
        self.at_end()
        self.close_stdin()


class Child:
    """A child process; `on_report` is called, in a separate thread, with each report, and finally with {"exit": code}."""

    def __init__(
        self,
        command: Sequence[str],
        log: Path,
        on_report: Callable[[dict[str, Any]], None],
        env: Mapping[str, str] | None = None,
        pass_fds: Sequence[int] = (),
    ) -> None:
        """Everything that the child prints besides its reports goes to the file `log`; it inherits the files `pass_fds`."""
        self.log, self.on_report = log, on_report
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C goes to the parent only, which stops its children itself
            pass_fds=pass_fds,
            text=True,
            errors="replace",
        )
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.pipes = Pipes(self.process.stdin, self.process.stdout, log, on_report, self._ended)

    def send(self, command: Mapping[str, Any]) -> None:
        """Send a command; nothing happens if the child has ended."""
        self.pipes.send(command)

    def close_stdin(self) -> None:
        """Close the child's standard input: the child then exits."""
        self.pipes.close_stdin()

    def stop(self, patience: float = 3.0) -> None:
        """Close standard input, wait `patience` seconds, then kill the process."""
        self.close_stdin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.pipes.reader.join()

    def _ended(self) -> None:
        self.on_report({"exit": self.process.wait()})


def report(**fields: Any) -> None:
    """Send a report to the parent (called in the child)."""
    with _printing:
        sys.stdout.write(REPORT_PREFIX + json.dumps(fields) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[dict[str, Any]]:
    """The parent's commands, until it closes standard input: then this process exits (called in the child)."""
    for line in sys.stdin:
        yield json.loads(line)
    exit_now(0)


def exit_now(code: int) -> None:
    """End this process at once, whatever its threads do; files are written whole, so nothing is lost (called in the child)."""
    sys.stdout.flush()
    os._exit(code)


_printing = threading.Lock()
