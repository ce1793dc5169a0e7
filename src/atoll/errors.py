"""Errors and warnings for users, failures of parties, and text for messages: escaped, shortened, with suggestions."""

import difflib
from collections.abc import Iterable
from typing import Any


class AtollError(Exception):
    """Invalid input: one sentence that says what, where and what to do. The command line prints it and exits with code 2.

    Examples:
        >>> import atoll
        >>> try:
        ...     atoll.run("fedavgg")
        ... except atoll.AtollError as error:
        ...     print(error)
        There is no algorithm 'fedavgg'; did you mean 'fedavg'?
    """


class AtollWarning(UserWarning):
    """Valid input that may not mean what the user expects. The command line prints it as one line.

    Examples:
        >>> import warnings
        >>> import atoll
        >>> warnings.simplefilter("error", atoll.AtollWarning)  # a script that should stop rather than guess
        >>> warnings.simplefilter("default", atoll.AtollWarning)
    """


class PartyFailure(Exception):
    """A party did not answer a message; `reason` is a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def shown(text: Any, *, lines: bool = False) -> str:
    """Untrusted text for a terminal: control characters and those that reverse the reading direction are escaped.

    With `lines`, line breaks are kept.
    """
    plain = str(text)
    if plain.isprintable():
        return plain
    return "".join(char if char.isprintable() or (lines and char == "\n") else ascii(char)[1:-1] for char in plain)


def short(value: Any, length: int = 300) -> str:
    """Untrusted text for logs and reasons: as `shown`, on one line and cut to `length` characters."""
    text = shown(" ".join(str(value if value is not None else "")[: 4 * length].split()))
    return text if len(text) <= length else text[: length - 1] + "…"


def listed(items: Iterable[Any], most: int = 20) -> str:
    """The first few of many, with commas: `a, b and 3 more`."""
    words = [str(item) for item in items]
    return ", ".join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def suggest(name: str, options: Iterable[str]) -> str:
    """The end of an error: `; did you mean 'x'?`, or the list of options."""
    options = list(options)
    return closest(name, options) or f"; there is {', '.join(sorted(options))}."


def closest(name: str, options: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no option is similar."""
    close = difflib.get_close_matches(name, list(options), n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else ""
