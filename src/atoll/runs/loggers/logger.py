"""What a logger is: opened when a run begins, called with each of its rounds, closed when it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

RoundCallback = Callable[[Mapping[str, Any], int], None]  # called with a round's history row and the number of rounds


class Logger(Protocol):
    """Called with each round's history row and the number of rounds; closed when the run ends.

    Examples:
        >>> import atoll
        >>> accuracies = []
        >>> def keep(row, rounds):  # a plain function is enough
        ...     accuracies.append(row["accuracy"])
        >>> result = atoll.run("local", dataset="csbm", parties=2, rounds=2, nodes=200, loggers=[keep])
        >>> len(accuracies)
        2
    """

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
def open_all(callbacks: Sequence[Logger | RoundCallback]) -> Iterator[RoundCallback]:
    """Several loggers, or plain functions, as one: opened together, each called with every round, closed together."""
    with ExitStack() as stack:
        opened: list[RoundCallback] = [
            stack.enter_context(each) if isinstance(each, AbstractContextManager) else each for each in callbacks
        ]

        def call(row: Mapping[str, Any], rounds: int) -> None:
            for each in opened:
                each(row, rounds)

        yield call
