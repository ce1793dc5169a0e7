"""Columns of a table that are not numbers yet: what a graph carries until its encoding has been fitted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError

Floats = NDArray[np.float64]
KINDS = ("number", "category", "boolean", "date", "empty")  # empty: nothing but missing values, so it fits any kind


@dataclass(frozen=True)
class Column:
    """One column and how it is encoded; the options are those of features.toml."""

    name: str
    kind: str  # one of KINDS
    clip: tuple[float, float] | None = (0.01, 0.99)  # number, date: the quantiles to which values are clipped
    standardize: bool = True  # number, date: to mean 0 and deviation 1
    low: float | None = None  # number, date: what is given here need not be fitted; dates are days since 1970
    high: float | None = None
    mean: float | None = None
    std: float | None = None
    values: tuple[str, ...] = ()  # category: its values, where they are given; all others are "other"
    min_count: int = 10  # category: rarer values are "other"
    max_categories: int = 64  # category: of the others, the most frequent ones get a column each
    reference: float | None = None  # date: the day 0, by default the lower bound of the clipping
    missing_texts: tuple[str, ...] = field(default=(), compare=False)  # further texts in the file that mean a missing value
    date_format: str = field(default="", compare=False)  # date: how it is written in the file; parties may differ in both

    @property
    def numeric(self) -> bool:
        """Whether it is encoded as one number."""
        return self.kind in ("number", "date")


@dataclass(frozen=True, eq=False)
class Table:
    """Typed columns, one row per node; a missing value is NaN, whatever the kind.

    Attributes:
        columns: What each column is.
        values: (N, C) numbers as they are, booleans as 0 and 1, dates as days since 1970, categories as an index into `names`.
        names: Per column, the category names that occur; empty for other kinds.
        ignored: Columns that are not encoded.
        roles: Columns of the file that stand for `id`, `label` or `split`, each with its role.
    """

    columns: tuple[Column, ...]
    values: Floats
    names: tuple[tuple[str, ...], ...]
    ignored: tuple[str, ...] = ()
    roles: tuple[tuple[str, str], ...] = ()

    def __len__(self) -> int:
        return len(self.values)

    def rows(self, index: NDArray[np.int64]) -> Table:
        """Some rows, in the given order."""
        return replace(self, values=self.values[index])

    @property
    def column_names(self) -> tuple[str, ...]:
        """The columns' names."""
        return tuple(column.name for column in self.columns)


def stack_tables(tables: Sequence[Table], owners: Sequence[str] = ()) -> Table:
    """The rows of several tables, one after the other, in the first one's order of columns; `owners` name them in errors."""
    labels = list(owners) or [f"party {number}" for number in range(len(tables))]
    columns = common_columns([table.columns for table in tables], labels, [table.ignored for table in tables])
    pieces: list[list[Floats]] = []
    names: list[tuple[str, ...]] = []
    for column in columns:
        order = [table.column_names.index(column.name) for table in tables]
        merged: dict[str, int] = {}
        for table, index in zip(tables, order, strict=True):
            for name in table.names[index]:
                merged.setdefault(name, len(merged))
        piece = []
        for table, index in zip(tables, order, strict=True):
            values = table.values[:, index]
            if table.names[index]:
                codes = np.array([merged[name] for name in table.names[index]], np.float64)
                known = ~np.isnan(values)
                values = values.copy()
                values[known] = codes[values[known].astype(np.int64)]
            piece.append(values)
        pieces.append(piece)
        names.append(tuple(merged))
    total = sum(map(len, tables))
    stacked = np.stack([np.concatenate(piece) for piece in pieces], 1) if pieces else np.empty((total, 0))
    return Table(columns, stacked, tuple(names), tables[0].ignored, tables[0].roles)


class ColumnMismatch(AtollError):
    """Two owners' tables do not have the same columns; `owners` are the two, `column` the name of the one that differs."""

    def __init__(self, sentence: str, owners: tuple[str, str], column: str) -> None:
        super().__init__(f"{sentence[0].upper()}{sentence[1:]}")
        self.owners = owners
        self.column = column


def common_columns(
    columns: Sequence[Sequence[Column]],
    owners: Sequence[str],
    ignored: Sequence[Sequence[str]] = (),
    label: Callable[[str], str] = "column `{}`".format,
) -> tuple[Column, ...]:
    """The columns of several tables if they are the same; one that is empty somewhere is what it is elsewhere.

    `label`: what an error calls a column of this name.
    """
    reference = {column.name: column for column in columns[0]}
    left_out = [set(names) for names in ignored] or [set[str]() for _ in columns]
    holder = dict.fromkeys(reference, owners[0])
    for owner, others, unused in zip(owners[1:], columns[1:], left_out[1:], strict=True):
        for column in others:
            known, called = reference.get(column.name), label(column.name)
            if known is None:
                raise _differs(owners[0], owner, column, column.name in left_out[0], called)
            there = holder[column.name]
            if known.kind == "empty":
                reference[column.name], holder[column.name] = column, owner
            elif column.kind not in ("empty", known.kind):
                raise ColumnMismatch(
                    f"{called} is a {known.kind} at {there} and a {column.kind} at {owner}; {SAME_KINDS}",
                    (there, owner),
                    column.name,
                )
            elif column.kind != "empty" and column != known:
                raise ColumnMismatch(
                    f"{called} is encoded in another way at {owner} than at {there}; give all parties the same features.toml.",
                    (there, owner),
                    column.name,
                )
        present = {column.name for column in others}
        for name, known in reference.items():
            if name not in present:
                raise _differs(owner, owners[0], known, name in unused, label(name))
    return tuple(reference.values())


SAME_KINDS = "say in a features.toml, the same for all, what it is."


def _differs(lacking: str, having: str, column: Column, ignored: bool, called: str) -> ColumnMismatch:
    if ignored:
        sentence = f"{called} is a {column.kind} at {having} and ignored at {lacking}; {SAME_KINDS}"
    else:
        sentence = (
            f"{lacking} has no {called}, which {having} has; "
            'add it (it may be empty), or leave it out everywhere: kind = "ignore" in features.toml.'
        )
    return ColumnMismatch(sentence, (lacking, having), column.name)
