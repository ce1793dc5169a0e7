"""Columns of tables and their encoding as messages between server and sites, checked on arrival.

Names of columns and categories are keyed digests (see `description`): the server fits an encoding whose names it does not know,
and each site puts its own names in their place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from atoll.data.encoding import BUCKETS, CODES, EncodedColumn, Encoding
from atoll.data.encoding_fit import MIN_DEVIATION, FittedEncoding, named, unscaled
from atoll.deploy.digests import digests
from atoll.errors import AtollError
from atoll.federation.cohort import Fields
from atoll.graphs.table import KINDS, Column, Table

MAX_COLUMNS = 10**5
MAX_NUMBER = 1e30  # of a range's bounds; features are 32-bit numbers
IMPLAUSIBLE = "the encoding of the tables is none that a fit of these columns gives."
UNREADABLE = "the columns of the tables could not be read."


def digested(columns: Sequence[Column], key: bytes) -> tuple[Column, ...]:
    """The columns with digests in place of names and categories."""
    names = digests([column.name for column in columns], "column", key).tolist()
    return tuple(
        replace(column, name=str(name), values=tuple(map(str, digests(column.values, "category", key).tolist())))
        for column, name in zip(columns, names, strict=True)
    )


def column_documents(columns: Sequence[Column]) -> list[Fields]:
    """The columns as plain values; `read_columns` is the way back."""
    return [{**asdict(column), "clip": _listed(column.clip), "values": list(column.values)} for column in columns]


def read_columns(documents: Any) -> tuple[Column, ...]:
    """The columns of `column_documents`, from another machine."""
    if not isinstance(documents, list) or not 0 < len(documents) <= MAX_COLUMNS:
        raise AtollError(UNREADABLE)
    columns = tuple(map(_column, documents))
    if len({column.name for column in columns}) < len(columns):
        raise AtollError(UNREADABLE)
    return columns


def encoding_document(fitted: FittedEncoding) -> Fields:
    """A fitted encoding as plain values; `read_encoding` is the way back."""
    return {
        "columns": column_documents([each.column for each in fitted.encoding.columns]),
        "numbers": [
            [each.missing, each.low, each.high, each.mean, each.std, each.other, list(each.buckets)]
            for each in fitted.encoding.columns
        ],
        "sealed": [list(values) for values in fitted.sealed],
        "tags": [list(values) for values in fitted.tags],
    }


def read_encoding(document: Any) -> FittedEncoding:
    """The encoding of `encoding_document`, from another machine."""
    if not isinstance(document, Mapping) or not document.keys() == {"columns", "numbers", "sealed", "tags"}:
        raise AtollError(UNREADABLE)
    columns = read_columns(document["columns"])
    numbers, sealed, tags = (document[name] for name in ("numbers", "sealed", "tags"))
    if any(not isinstance(listed, list) or len(listed) != len(columns) for listed in (numbers, sealed, tags)):
        raise AtollError(UNREADABLE)
    encoded = tuple(_encoded(column, values) for column, values in zip(columns, numbers, strict=True))
    fits = all(
        _integers(values, CODES * CODES) and _integers(marks, CODES) and len(values) == len(marks) == len(each.buckets)
        for each, values, marks in zip(encoded, sealed, tags, strict=True)
    )
    if not fits:
        raise AtollError(UNREADABLE)
    return FittedEncoding(Encoding(encoded), tuple(map(tuple, sealed)), tuple(map(tuple, tags)))


def width(fitted: FittedEncoding) -> int:
    """How many features the encoding has; its categories may be more than are kept."""
    surplus = (len(each.buckets) - each.column.max_categories for each in fitted.encoding.columns)
    return len(fitted.encoding.names) - sum(max(more, 0) for more in surplus)


def common_table(table: Table, columns: Sequence[Column], key: bytes) -> Table:
    """A site's table with the federation's columns, in their order; one that is empty here is what it is elsewhere."""
    positions = {column.name: index for index, column in enumerate(digested(table.columns, key))}
    if positions.keys() != {column.name for column in columns}:
        raise AtollError("its columns are not those of the federation; join again, or correct them.")
    order, agreed = [positions[column.name] for column in columns], []
    for number, (index, column) in enumerate(zip(order, columns, strict=True), 1):
        here = table.columns[index]
        if here.kind != "empty" and digested([here], key)[0] != column:
            raise AtollError(f"column {number} of the federation is not what it is here; give all sites the same features.toml.")
        if here.kind == "empty" and column.values:
            raise AtollError(
                f"column {number} of the federation has listed values and is empty here; give all sites the same features.toml."
            )
        agreed.append(replace(column, name=here.name) if here.kind == "empty" else here)
    return Table(tuple(agreed), table.values[:, order], tuple(table.names[index] for index in order), table.ignored)


def local_encoding(fitted: FittedEncoding, table: Table, key: bytes) -> Encoding:
    """The federation's encoding with the names of a site's table, which has the common columns."""
    columns = tuple(
        replace(each, column=column, labels=column.values or each.labels)
        for each, column in zip(fitted.encoding.columns, table.columns, strict=True)
    )
    return named(replace(fitted, encoding=Encoding(columns)), table, key)


def _column(document: Any) -> Column:
    names = {field.name for field in fields(Column)}
    if not isinstance(document, Mapping) or document.keys() != names:
        raise AtollError(UNREADABLE)
    clip, values = document["clip"], document["values"]
    optional = [document[name] for name in ("low", "high", "mean", "std", "reference")]
    fits = (
        all(isinstance(text, str) and len(text) <= 20 for text in (document["name"], document["kind"]))
        and document["kind"] in KINDS
        and (
            clip is None
            or (isinstance(clip, list) and len(clip) == 2 and all(map(_finite, clip)) and 0 <= clip[0] < clip[1] <= 1)
        )
        and isinstance(document["standardize"], bool)
        and all(value is None or _finite(value) for value in optional)
        and (document["std"] is None or document["std"] > 0)
        and (document["low"] is None) == (document["high"] is None)
        and (document["mean"] is None) == (document["std"] is None)
        and isinstance(values, list)
        and all(isinstance(value, str) and len(value) <= 20 for value in values)
        and type(document["min_count"]) is int
        and document["min_count"] >= 1
        and type(document["max_categories"]) is int
        and 1 <= document["max_categories"] <= BUCKETS
    )
    if not fits:
        raise AtollError(UNREADABLE)
    return Column(**{**document, "clip": None if clip is None else tuple(clip), "values": tuple(values)})


def _encoded(column: Column, values: Any) -> EncodedColumn:
    if not isinstance(values, list) or len(values) != 7:
        raise AtollError(UNREADABLE)
    missing, low, high, mean, std, other, buckets = values
    fits = (
        all(isinstance(flag, bool) for flag in (missing, other))
        and all(map(_finite, (low, high, mean, std)))
        and low <= high
        and std > 0
        and _integers(buckets, CODES)
        and len(set(buckets)) == len(buckets)
        and (not buckets or (column.kind == "category" and not column.values))
    )
    if not fits:
        raise AtollError(UNREADABLE)
    if column.numeric and not _plausible(column, low, high, mean, std):
        raise AtollError(IMPLAUSIBLE)
    labels = column.values or ("",) * len(buckets)
    return EncodedColumn(column, missing, low, high, mean, std, tuple(buckets), labels, other)


def _plausible(column: Column, low: float, high: float, mean: float, std: float) -> bool:
    """Whether a fit could give this, by the document alone: an answer that depended on the data would say something about it.

    Otherwise a tiny deviation would make features infinite just where a value exceeds `low`, and the failure would say so.
    """
    if max(abs(low), abs(high)) > MAX_NUMBER or (column.low is not None and (low, high) != (column.low, column.high)):
        return False
    if column.mean is not None:
        return (mean, std) == (column.mean, column.std)
    if not column.standardize:
        return (mean, std) == (unscaled(column, low), 1.0)
    span, slack = high - low, 1e-6 * (high - low)
    return low - slack <= mean <= high + slack and (std == 1.0 or MIN_DEVIATION * span < std <= span + slack)


def _finite(value: Any) -> bool:
    return type(value) is float and math.isfinite(value)


def _integers(values: Any, below: int) -> bool:
    return isinstance(values, list) and len(values) < CODES and all(type(one) is int and 0 <= one < below for one in values)


def _listed(clip: tuple[float, float] | None) -> list[float] | None:
    return None if clip is None else list(clip)
