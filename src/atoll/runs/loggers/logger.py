"""What a logger is: something that is open while a run goes on, and called with each of its rounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol


class Logger(Protocol):
    """Called with each round's history row and the number of rounds; closed when the run ends."""

    def __enter__(self) -> Logger: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None: ...

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Record one round."""
        ...


class MakeLogger(Protocol):
    """Makes a logger for a run: its label, and its folder where it has one."""

    def __call__(self, label: str, folder: Path | None) -> Logger:
        """A logger of that run."""
        ...


@contextmanager
def opened(loggers: Sequence[Logger]) -> Iterator[Logger]:
    """Several loggers as one: open together, each called with every round."""
    with ExitStack() as stack:
        entered = [stack.enter_context(logger) for logger in loggers]

        def call(row: Mapping[str, Any], rounds: int) -> None:
            for logger in entered:
                logger(row, rounds)

        yield call  # type: ignore[misc]
