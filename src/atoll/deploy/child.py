"""Child processes that never outlive us: their standard input is a lifeline, and marked lines of their output are reports.

When the parent ends, however it ends, the lifeline breaks and the child leaves at once.
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
from typing import Any

REPORT_PREFIX = "\x1eatoll "


class Child:
    """A process of ours; `heard` is called, in a thread of its own, with each report, and with {"exit": code} at the end."""

    def __init__(
        self, command: Sequence[str], log: Path, on_report: Callable[[dict[str, Any]], None], env: Mapping[str, str] | None = None
    ) -> None:
        """What the child prints beside its reports goes to the file `log`."""
        self.log = log
        self.on_report = on_report
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(env or {})},
            start_new_session=True,  # Ctrl-C is for us; we end our children ourselves
            text=True,
            errors="replace",
        )
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def send(self, command: Mapping[str, Any]) -> None:
        """Send an command; a child that is gone does not hear it."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()

    def close_stdin(self) -> None:
        """Cut the lifeline: the child leaves as soon as it notices."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):
            self.process.stdin.close()

    def stop(self, patience: float = 3.0) -> None:
        """Let go of the lifeline, wait a little, then end the process."""
        self.close_stdin()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(patience)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.reader.join()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.log.open("ab", buffering=0) as file, self.process.stdout as lines:
            for line in lines:
                if line.startswith(REPORT_PREFIX):
                    self.on_report(json.loads(line.removeprefix(REPORT_PREFIX)))
                else:
                    with contextlib.suppress(OSError):  # a full disk must not keep the child from talking
                        file.write(line.encode())
        code = self.process.wait()
        self.close_stdin()
        self.on_report({"exit": code})


def report(**fields: Any) -> None:
    """Tell the parent something (in the child)."""
    with _printing:
        sys.stdout.write(REPORT_PREFIX + json.dumps(fields) + "\n")
        sys.stdout.flush()


def commands() -> Iterator[dict[str, Any]]:
    """What the parent tells us, until it lets go: then this process ends (in the child)."""
    for line in sys.stdin:
        yield json.loads(line)
    exit_now(0)


def exit_now(code: int) -> None:
    """End this process at once, whatever its other threads do; files are written whole, so nothing is lost (in the child)."""
    sys.stdout.flush()
    os._exit(code)


_printing = threading.Lock()
