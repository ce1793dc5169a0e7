"""Preparations that take long, reported to whoever listens: the command line shows them, a script may ask to be told.

Examples:
    >>> from atoll import stages
    >>> heard = []
    >>> with stages.listening(lambda what, done, total: heard.append((what, done, total))):
    ...     rows = [row for row in stages.tracked(range(2), "Reading rows", 2)]
    >>> heard
    [('Reading rows', 0, 2), ('Reading rows', 1, 2), ('Reading rows', 2, 2)]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

Item = TypeVar("Item")
Listener = Callable[[str, int, int], None]  # what is being done, how much of it is done, how much there is

_listener: ContextVar[Listener | None] = ContextVar("listener", default=None)


def report(what: str, done: int, total: int) -> None:
    """Say how far a preparation is."""
    listener = _listener.get()
    if listener is not None:
        listener(what, done, total)


def tracked(items: Iterable[Item], what: str, total: int) -> Iterator[Item]:
    """The items, with a report before each and one at the end."""
    for done, item in enumerate(items):
        report(what, done, total)
        yield item
    report(what, total, total)


@contextmanager
def listening(listener: Listener) -> Iterator[None]:
    """Inside the block, `listener` is called with every report."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)
