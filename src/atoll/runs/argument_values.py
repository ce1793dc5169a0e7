"""The arguments of a run, whatever they come from: names, paths and whole numbers."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from atoll.errors import AtollError


def as_text(what: str, value: Any) -> str:
    """A name or a path, as text."""
    if not isinstance(value, (str, Path)) or not str(value).strip():
        raise AtollError(f"{what} is {value!r} but must be a name or a path.")
    return str(value)


def as_whole(what: str, value: Any, low: int | None = None) -> int:
    """An integer, including numpy's."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or (low is not None and number < low):
        raise AtollError(f"{what} is {value!r} but must be a whole number{'' if low is None else f' of at least {low}'}.")
    return number


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values that TOML can hold: no None, lists for tuples."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items() if value is not None}
