"""A fitted encoding of a table: which numbers stand for each value, and the names of the columns that result.

age              numbers and dates: clipped to [low, high], then (value − mean) / std; missing is 0
age=missing      1 where the value is missing; only where a value was missing when the encoding was fitted
ward=icu         categories: 1 in the column of the value
ward=other       rare and unknown values; only where there were any
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.builder import compact, row_normalize
from atoll.errors import AtollError, listed
from atoll.graphs.graph import Graph
from atoll.graphs.table import KINDS, Column, Floats, Table

BUCKETS, PARTS = 4096, 256  # of category names: a name's bucket, the part of the bucket it is in, and the part of that part
PREFIXES = BUCKETS * PARTS
CODES = PREFIXES * PARTS
MAX_NAMED = 3  # unknown values that a sentence lists
DENSE_SHARE = 0.25  # an encoding whose rows have a smaller share of non-zeros is kept sparse


@dataclass(frozen=True)
class EncodedColumn:
    """One column and what was fitted for it."""

    column: Column
    missing: bool = False  # whether it has a column for missing values
    low: float = 0.0  # number, date
    high: float = 0.0
    mean: float = 0.0
    std: float = 1.0
    buckets: tuple[int, ...] = ()  # category: the code of each kept value (`codes_of`); empty where values are given
    labels: tuple[str, ...] = ()  # category: what the kept values are called here; "" where no name is known
    other: bool = False  # category: whether it has a column for other values

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resulting columns."""
        name = self.column.name
        missing = (f"{name}=missing",) if self.missing else ()
        if self.column.kind == "empty":
            return ()
        if self.column.kind != "category":
            return (name, *missing)
        kept = tuple(f"{name}={label or f'#{index}'}" for index, label in enumerate(self.labels))
        return (*kept, *((f"{name}=other",) if self.other else ()), *missing)

    def apply(self, values: Floats, names: tuple[str, ...]) -> NDArray[np.float32]:
        """(N, len(self.names)) the encoded values."""
        result = np.zeros((len(values), len(self.names)), np.float32)
        absent = np.isnan(values)
        if self.column.kind == "empty":
            return result
        if self.missing:
            result[absent, -1] = 1
        if self.column.kind == "category":
            kept_index = self._indices(names)[values[~absent].astype(np.int64)] if names else np.empty(0, np.int64)
            rows = np.flatnonzero(~absent)
            kept = kept_index >= 0
            result[rows[kept], kept_index[kept]] = 1
            if self.other:
                result[rows[~kept], len(self.labels)] = 1
        elif self.column.kind == "boolean":
            result[~absent, 0] = values[~absent]
        else:
            clipped = np.clip(values[~absent], self.low, self.high)
            result[~absent, 0] = (clipped - self.mean) / self.std
        return result

    def unknown(self, values: Floats, names: tuple[str, ...]) -> dict[str, int]:
        """The categories without a column of their own, and in how many rows each is."""
        if self.column.kind != "category" or not names:
            return {}
        counts = np.bincount(values[~np.isnan(values)].astype(np.int64), minlength=len(names))
        unknown = np.flatnonzero((self._indices(names) < 0) & (counts > 0))
        return {names[index]: int(counts[index]) for index in unknown}

    def _indices(self, names: tuple[str, ...]) -> NDArray[np.int64]:
        """The index among the kept values of each name; −1 for another one."""
        if self.column.values:
            known_values = {value: index for index, value in enumerate(self.column.values)}
            return np.array([known_values.get(name, -1) for name in names], np.int64)
        known = {bucket: index for index, bucket in enumerate(self.buckets)}
        return np.array([known.get(int(code), -1) for code in codes_of(self.column.name, names)], np.int64)


@dataclass(frozen=True)
class Encoding:
    """The fitted encoding of a table's columns.

    Examples:
        >>> import numpy as np
        >>> from atoll.graphs.table import Column, Table
        >>> age = EncodedColumn(Column("age", "number"), missing=True, low=0.0, high=90.0, mean=40.0, std=20.0)
        >>> table = Table((age.column,), np.array([[60.0], [np.nan], [500.0]]), ((),))
        >>> Encoding((age,)).names
        ('age', 'age=missing')
        >>> Encoding((age,)).apply(table).tolist()
        [[1.0, 0.0], [0.0, 1.0], [2.5, 0.0]]
    """

    columns: tuple[EncodedColumn, ...]
    ignored: tuple[str, ...] = ()  # columns of the files that were not encoded
    roles: tuple[tuple[str, str], ...] = ()  # columns of the files that stand for id, label or split

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resulting features, in their order."""
        return tuple(name for each in self.columns for name in each.names)

    @property
    def sparse(self) -> bool:
        """Whether features are kept as CSR: a property of the encoding, so the same at every party."""
        return len(self.columns) < DENSE_SHARE * len(self.names)

    def apply(self, table: Table) -> NDArray[np.float32]:
        """(N, d) the features of a table with the same columns, in any order."""
        indices = {name: index for index, name in enumerate(table.column_names)}
        pieces = []
        for each in self.columns:
            index = indices.get(each.column.name)
            if index is None:
                raise AtollError(f"The data has no column `{each.column.name}`, which the model was trained with; add it.")
            kind = table.columns[index].kind
            if kind not in (each.column.kind, "empty") and each.column.kind != "empty":
                raise AtollError(
                    f"Column `{each.column.name}` is a {kind} here, but the model was trained with a {each.column.kind}; "
                    "correct it, or say in features.toml what it is."
                )
            pieces.append(each.apply(table.values[:, index], table.names[index]))
        return np.concatenate(pieces, 1) if pieces else np.empty((len(table), 0), np.float32)

    def unknown_values(self, table: Table) -> list[str]:
        """A sentence for each column with categories that have no column of their own."""
        sentences, indices = [], {name: index for index, name in enumerate(table.column_names)}
        for each in self.columns:
            index = indices[each.column.name]
            if unknown := each.unknown(table.values[:, index], table.names[index]):
                rows, names = sum(unknown.values()), listed(unknown, MAX_NAMED)
                have = "row has a value" if rows == 1 else "rows have values"
                sentences.append(
                    f"column `{each.column.name}`: {rows} {have} unseen or rare in training ({names}); "
                    f"counted as {'other' if each.other else 'none of the known ones'}."
                )
        return sentences

    def encode(self, graph: Graph, *, normalize: bool = False) -> Graph:
        """The graph with features in place of its table."""
        if graph.table is None:
            return graph
        x = self.apply(graph.table)
        features = compact(_sparse(x)) if self.sparse else torch.from_numpy(x)
        if self.sparse and isinstance(features, torch.Tensor):
            features = _sparse(x)
        encoded = replace(graph, x=features, feature_names=self.names, table=None)
        return row_normalize(encoded) if normalize else encoded

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON; `from_dict` is the way back."""
        columns = [_plain(asdict(each)) for each in self.columns]
        return {"version": 1, "columns": columns, "ignored": list(self.ignored), "roles": _plain(self.roles)}

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Encoding:
        """The encoding of `to_dict`; whatever is wrong with it is one sentence."""
        try:
            if document["version"] != 1:
                raise ValueError(f"version {document['version']!r}")
            columns = tuple(_column(each) for each in document["columns"])
            if len({each.column.name for each in columns}) < len(columns):
                raise ValueError("it names a column twice")
            roles = tuple((str(name), str(role)) for name, role in document.get("roles", ()))
            return cls(columns, tuple(map(str, document.get("ignored", ()))), roles)
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
            raise AtollError(f"The stored encoding of the columns cannot be read ({error}); train the model again.") from error


def codes_of(column: str, names: tuple[str, ...], key: bytes = b"") -> NDArray[np.int64]:
    """(n,) a digest of each category name: bucket, part and part of that as one number. Without the key names cannot be tried."""
    person = hashlib.blake2b(column.encode(), digest_size=16).digest()
    digests = [hashlib.blake2b(name.encode(), digest_size=8, key=key, person=person).digest() for name in names]
    return np.array([int.from_bytes(each, "little") % CODES for each in digests], np.int64)


def _sparse(x: NDArray[np.float32]) -> Any:
    import scipy.sparse as sp

    return sp.csr_array(x)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, tuple | list) else value


def column_of(document: Mapping[str, Any]) -> Column:
    """The column of its plain values (`dataclasses.asdict`)."""
    column = dict(document)
    column |= {name: tuple(map(str, column.get(name, ()))) for name in ("values", "missing_texts")}
    column["clip"] = None if column["clip"] is None else tuple(map(float, column["clip"]))
    return Column(**column)


def _column(document: Mapping[str, Any]) -> EncodedColumn:
    rest = {name: value for name, value in document.items() if name != "column"}
    rest |= {"buckets": tuple(map(int, rest["buckets"])), "labels": tuple(map(str, rest["labels"]))}
    each = EncodedColumn(column=column_of(document["column"]), **rest)
    _check(each)
    return each


def _check(each: EncodedColumn) -> None:
    """Refuse values that would not encode anything, or fail only when they do."""
    name, kind = each.column.name, each.column.kind
    if not isinstance(name, str) or kind not in KINDS or not isinstance(each.column.date_format, str):
        raise ValueError(f"the column {name!r} is a {kind!r}")
    if not all(isinstance(mark, bool) for mark in (each.missing, each.other)):
        raise ValueError(f"column {name!r} does not say whether values may be missing")
    numbers = (each.low, each.high, each.mean, each.std)
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers) or each.std <= 0:
        raise ValueError(f"column {name!r} has impossible bounds or scales")
    kept = each.column.values or each.buckets
    if kind == "category" and (len(kept) != len(each.labels) or not all(0 <= one < CODES for one in each.buckets)):
        raise ValueError(f"column {name!r} has other categories than it names")
