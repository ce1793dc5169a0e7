"""The history as a pandas table."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pandas as pd

from atoll.errors import AtollWarning
from atoll.runs.columns import Columns, column_of

if TYPE_CHECKING:
    from typing import Self


class HistoryTable(pd.DataFrame):  # type: ignore[misc]  # pandas has no types here
    """A pandas table with a row per round. A name of history.jsonl still finds its column, with a warning."""

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]]) -> Self:
        """The table of a history."""
        columns = Columns()
        rows = [columns(line) for line in lines]
        longest = sorted(rows, key=len, reverse=True)[:1]  # rounds that were not evaluated have fewer columns
        return cls(rows, columns=list(dict.fromkeys(name for row in [*longest, *rows] for name in row)))

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, str) and key not in self.columns and (column := column_of(key)) in self.columns:
            warnings.warn(f"The history's column {key!r} is called {column!r} now.", AtollWarning, stacklevel=2)
            key = column
        return super().__getitem__(key)
