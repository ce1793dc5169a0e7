"""From the texts of a column to values: numbers, booleans, dates and categories, with NaN where a value is missing."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from atoll.data.table_files import TableFile
from atoll.errors import AtollError
from atoll.graphs.table import Floats

MISSING = {"", "na", "n/a", "nan", "null", "<na>", "nat"}  # in any case of letters
MISSING_VALUES = MISSING | {"none", "?", "-", "--", "."}  # which may be the name of a category
TRUE, FALSE = {"true", "yes", "t", "y", "1", "1.0"}, {"false", "no", "f", "n", "0", "0.0"}
MAX_NUMBER = 2.0**1020
ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?)?")
DOTTED_DATE = re.compile(r"\d{1,2}\.\d{1,2}\.\d{4}")
SLASHED_DATE = re.compile(r"\d{1,4}/\d{1,2}/\d{1,4}")
DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+([eE][+-]?\d+)?")
DAY = pd.Timedelta(days=1)
EPOCH = pd.Timestamp("1970-01-01", tz="UTC")
Texts = NDArray[np.object_]


def present(texts: Texts, kind: str, missing: tuple[str, ...] = ()) -> NDArray[np.bool_]:
    """Which texts are values; `missing` are further texts that mean that there is none."""
    none = MISSING if kind == "category" else MISSING_VALUES
    distinct, inverse = np.unique(texts.astype(str), return_inverse=True)
    return np.array([text.lower() not in none and text not in missing for text in distinct], bool)[inverse]


def numbers(table: TableFile, name: str, missing: tuple[str, ...] = ()) -> tuple[Floats, NDArray[np.bool_]]:
    """The column as numbers, and where there is a text that is not a number; infinity is not."""
    column = table.frame[name]
    if pd.api.types.is_datetime64_any_dtype(column.dtype) or pd.api.types.is_timedelta64_dtype(column.dtype):
        return np.full(len(column), np.nan), column.notna().to_numpy()
    if pd.api.types.is_numeric_dtype(column.dtype):
        values = column.astype("float64").to_numpy(np.float64, na_value=np.nan, copy=True)
        values[_are_codes(values, missing)] = np.nan
        return values, ~(np.isnan(values) | (np.abs(values) < MAX_NUMBER))
    texts = table.texts(name)
    known = present(texts, "number", missing)
    if table.separator == ";":
        texts = np.array([text.replace(",", ".") if DECIMAL_COMMA.fullmatch(text) else text for text in texts], object)
    values = pd.to_numeric(
        pd.Series([text if known[row] else None for row, text in enumerate(texts)], dtype=object), errors="coerce"
    ).to_numpy(np.float64, copy=True)
    codes = _are_codes(values, missing)
    values[codes] = np.nan
    return values, known & ~codes & ~(np.abs(values) < MAX_NUMBER)


def _are_codes(values: Floats, missing: tuple[str, ...]) -> NDArray[np.bool_]:
    """Where a number is one of the missing values, however it is written: 9999 is 9999.0."""
    codes = pd.to_numeric(pd.Series(missing, dtype=object), errors="coerce").dropna().to_numpy(np.float64)
    return np.isin(values, codes)


def booleans(table: TableFile, name: str, missing: tuple[str, ...] = ()) -> tuple[Floats, NDArray[np.bool_]]:
    """The column as 0 and 1, and where there is another text."""
    texts = table.texts(name)
    known = present(texts, "boolean", missing)
    lower = np.array([text.lower() for text in texts], object)
    values = np.where(np.isin(lower, list(TRUE)), 1.0, np.where(np.isin(lower, list(FALSE)), 0.0, np.nan))
    values[~known] = np.nan
    return values, known & np.isnan(values)


def dates(table: TableFile, name: str, missing: tuple[str, ...] = (), form: str = "") -> tuple[Floats, NDArray[np.bool_]]:
    """The column as days since 1970 (UTC), and where there is a text that is not a date in this form."""
    column = table.frame[name]
    if pd.api.types.is_datetime64_any_dtype(column.dtype):
        stamps: Any = pd.to_datetime(column, utc=True)
        return ((stamps - EPOCH) / DAY).to_numpy(np.float64), np.zeros(len(column), bool)
    texts = table.texts(name)
    known = present(texts, "date", missing)
    days = np.full(len(texts), np.nan)
    days[known] = days_of(texts[known], form)
    return days, known & np.isnan(days)


def days_of(texts: Texts, form: str = "") -> Floats:
    """Days since 1970 of each date, NaN where it is not one; without a form, ISO dates and 31.12.2026."""
    distinct, inverse = np.unique(texts.astype(str), return_inverse=True)
    if form:
        forms = {form: np.ones(len(distinct), bool)}
    else:
        iso = np.array([bool(ISO_DATE.fullmatch(text)) for text in distinct], bool)
        dotted = np.array([bool(DOTTED_DATE.fullmatch(text)) for text in distinct], bool)
        forms = {"ISO8601": iso, "%d.%m.%Y": dotted}
    days = np.full(len(distinct), np.nan)
    for written, rows in forms.items():
        if rows.any():
            stamps = pd.to_datetime(pd.Series(distinct[rows]), format=written, utc=True, errors="coerce")
            days[rows] = ((stamps - EPOCH) / DAY).to_numpy(np.float64)
    return days[inverse]


def categories(table: TableFile, name: str, missing: tuple[str, ...] = ()) -> tuple[Floats, tuple[str, ...]]:
    """The column as indices of its sorted names, and the names."""
    texts = table.texts(name)
    known = present(texts, "category", missing)
    names, codes = np.unique(texts[known].astype(str), return_inverse=True)
    values = np.full(len(texts), np.nan)
    values[known] = codes
    return values, tuple(names.tolist())


def refuse_first(table: TableFile, name: str, wrong: NDArray[np.bool_], what: str, advice: str) -> None:
    """Name the first value that is not what its column should hold."""
    rows = np.flatnonzero(wrong)
    if len(rows):
        value = str(table.frame[name].iloc[rows[0]])[:40]
        raise AtollError(f"Column `{name}` in {table.location(int(rows[0]))} is '{value}', which is not {what}; {advice}.")
