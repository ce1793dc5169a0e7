"""What each column of `nodes` is: given in `features.toml` beside it, or inferred from its values.

    [age]
    kind = "number"          # number, category, boolean, date, text, id, label, split or ignore
    clip = [0.01, 0.99]

    [ward]
    kind = "category"
    values = ["icu", "surgery"]

Columns that the file does not name are inferred.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from atoll.data.column_values import (
    FALSE,
    SLASHED_DATE,
    TRUE,
    booleans,
    categories,
    dates,
    days_of,
    numbers,
    present,
    refuse_first,
)
from atoll.data.lint import LABEL_NAMES
from atoll.data.table_files import RESERVED, TableFile
from atoll.errors import AtollError, suggest
from atoll.graphs.table import Column, Floats, Table

FEATURES_FILE = "features.toml"
ENCODED = ("number", "category", "boolean", "date")
ROLES = ("id", "label", "split")  # kinds that stand for the reserved column of the same name
KINDS = (*ENCODED, "text", *ROLES, "ignore")
NUMERIC_OPTIONS = ("clip", "standardize", "low", "high", "mean", "std")
OPTIONS = {
    "number": (*NUMERIC_OPTIONS, "missing"),
    "date": (*NUMERIC_OPTIONS, "missing", "format", "reference"),
    "category": ("values", "min_count", "max_categories", "missing"),
    "boolean": ("missing",),
}
ROLE_NAMES = {"split", "train", "test", "val", "validation", "train_mask", "test_mask", "val_mask", "fold"}
MIN_NUMERIC = 0.5  # share of numbers from which other texts in a column are taken for mistakes
MAX_DISTINCT = 1000  # more distinct texts are text, not categories
MAX_DISTINCT_SHARE = 0.5  # of the rows
FEW = 20  # up to this many distinct texts may always be categories, unless every row has its own


@dataclass(frozen=True)
class ColumnChoice:
    """What one column of the file is, why, and its options."""

    name: str
    kind: str  # one of KINDS, or "empty"
    why: str = ""  # for people: why it is ignored, or that it was inferred
    column: Column | None = None  # where it is encoded
    missing: tuple[str, ...] = ()
    format: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    inferred: bool = False


def read_features(folder: Path) -> dict[str, ColumnChoice] | None:
    """The choices in a folder's features.toml; None where it has none."""
    path = folder / FEATURES_FILE
    if not path.is_file():
        return None
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise AtollError(f"{path} cannot be read ({str(error).splitlines()[0]}); correct it.") from error
    return {name: choice(name, options, f"{path}, [{name}]") for name, options in document.items()}


def choice(name: str, options: Any, where: str) -> ColumnChoice:
    """A checked table of features.toml."""
    if not isinstance(options, dict) or not isinstance(options.get("kind"), str):
        raise AtollError(f"{where} must be a table with a kind: {', '.join(KINDS)}.")
    kind = options["kind"]
    if kind not in KINDS:
        raise AtollError(f"{where} has an unknown kind {kind!r}{suggest(kind, KINDS)}")
    allowed = OPTIONS.get(kind, ())
    for option in options:
        if option not in ("kind", *allowed):
            raise AtollError(f"{where}: a {kind} has no option {option!r}{suggest(option, allowed) if allowed else '.'}")
    form = _checked(options, "format", str, "", where)
    missing = _texts(options, "missing", where)
    column = None
    if kind in ENCODED:
        column = Column(name, kind, **_column_options(options, form, where), missing_texts=missing, date_format=form)
    why = {"text": "it is text, which is not encoded", "ignore": f"{FEATURES_FILE} says so"}.get(kind, "")
    given = {key: value for key, value in options.items() if key != "kind"}
    return ColumnChoice(name, kind, why, column, missing, form, given)


def _column_options(options: Mapping[str, Any], form: str, where: str) -> dict[str, Any]:
    result: dict[str, Any] = {}
    if "clip" in options:
        clip = options["clip"]
        fits = isinstance(clip, list) and len(clip) == 2 and all(type(one) in (int, float) for one in clip)
        if clip is not False and not (fits and 0 <= clip[0] < clip[1] <= 1):
            raise AtollError(f"{where}: clip is {clip!r}; give two quantiles such as [0.01, 0.99], or false.")
        result["clip"] = (float(clip[0]), float(clip[1])) if clip and tuple(clip) != (0, 1) else None
    if "standardize" in options:
        result["standardize"] = _checked(options, "standardize", bool, True, where)
    for name in ("low", "high", "reference"):
        if name in options:
            result[name] = _number_or_day(options[name], form, f"{where}: {name}", options["kind"] == "date")
    for name in ("mean", "std"):
        if name in options:
            result[name] = _number_or_day(options[name], form, f"{where}: {name}", name == "mean" and options["kind"] == "date")
    for low, high in (("low", "high"), ("mean", "std")):
        if (low in result) != (high in result):
            raise AtollError(f"{where}: give both {low} and {high}, or neither.")
    if result.get("std", 1.0) <= 0 or result.get("low", 0.0) >= result.get("high", math.inf):
        raise AtollError(f"{where}: std must be above 0, and low below high.")
    if "mean" in result and "low" not in result:
        raise AtollError(f"{where}: with mean and std, give low and high as well: new values are clipped to them.")
    if "values" in options:
        result["values"] = _texts(options, "values", where)
        if not result["values"]:
            raise AtollError(f"{where}: values is empty; list the categories, or leave it out.")
    for name, least in (("min_count", 1), ("max_categories", 1)):
        if name in options:
            result[name] = _checked(options, name, int, 0, where)
            if (not least <= result[name] <= 4096 and name == "max_categories") or result[name] < least:
                raise AtollError(f"{where}: {name} is {result[name]}; give a number from {least}.")
    return result


def _checked(options: Mapping[str, Any], name: str, kind: type, default: Any, where: str) -> Any:
    value = options.get(name, default)
    if type(value) is not kind:
        raise AtollError(f"{where}: {name} is {value!r}, not a {kind.__name__}.")
    return value


def _number_or_day(value: Any, form: str, where: str, date: bool) -> float:
    if date:
        day = float(days_of(np.array([str(value)], object), form if isinstance(value, str) else "")[0])
        if math.isnan(day):
            raise AtollError(f"{where} is {str(value)!r}; give a date such as 2026-01-31.")
        return day
    if type(value) not in (int, float) or not math.isfinite(value):
        raise AtollError(f"{where} is {value!r}; give a finite number.")
    return float(value)


def _texts(options: Mapping[str, Any], name: str, where: str) -> tuple[str, ...]:
    listed = options.get(name, [])
    if not isinstance(listed, list) or len({str(one) for one in listed}) < len(listed):
        raise AtollError(f"{where}: {name} must be a list of texts, each once.")
    return tuple(str(one) for one in listed)


def choose(table: TableFile, said: Mapping[str, ColumnChoice] | None) -> list[ColumnChoice]:
    """What every column of a table of nodes is: as said, else by its name, else by its values."""
    names = [str(column) for column in table.frame.columns]
    for name in said or {}:
        if name not in names and (said or {})[name].kind not in ROLES:
            raise AtollError(
                f"{table.path.parent / FEATURES_FILE} names the column {name!r}, which {table.path.name} does not have"
                f"{suggest(name, names)}"
            )
    return [_chosen(table, name, (said or {}).get(name)) for name in names]


def _chosen(table: TableFile, name: str, said: ColumnChoice | None) -> ColumnChoice:
    if name in RESERVED:
        return ColumnChoice(name, name if name in ROLES else "ignore")
    if said is not None:
        return said
    plain = name.strip().lower().replace(" ", "_")
    if plain in LABEL_NAMES:
        return ColumnChoice(name, "ignore", "it is named like a label", inferred=True)
    if plain in ROLE_NAMES:
        return ColumnChoice(name, "ignore", "it is named like a split", inferred=True)
    return infer(table, name)


def infer(table: TableFile, name: str) -> ColumnChoice:
    """What a column is, from its values."""
    texts = table.texts(name)
    known = present(texts, "number")
    count, distinct = int(known.sum()), np.unique(texts[known].astype(str))
    if count == 0:
        return ColumnChoice(name, "empty", "it has no values", Column(name, "empty"), inferred=True)
    if pd.api.types.is_bool_dtype(table.frame[name].dtype):
        return _inferred(name, "boolean")
    values, wrong = numbers(table, name)
    if not (known & wrong).any():
        if _is_identifier(name, values[known], len(distinct)):
            return ColumnChoice(name, "ignore", "it numbers the rows by its name and values, like an id", inferred=True)
        return _inferred(name, "number")
    if all(text.lower() in TRUE | FALSE for text in distinct):
        return _inferred(name, "boolean")
    if not dates(table, name)[1].any():
        return _inferred(name, "date")
    first = int(np.flatnonzero(wrong)[0])
    if np.isinf(values[first]) or (~wrong & known).sum() >= MIN_NUMERIC * count:
        refuse_first(
            table,
            name,
            wrong,
            f"a finite number as {int((~wrong & known).sum())} other values of it are",
            f'correct it, or say in {FEATURES_FILE} what the column is (kind = "category", or missing = […])',
        )
    if all(SLASHED_DATE.fullmatch(text) for text in distinct):
        raise AtollError(
            f"Column `{name}` of {table.path} has dates such as '{distinct[0]}', whose order of day and month is not clear; "
            f'say in {FEATURES_FILE}: [{name}] kind = "date", format = "%d/%m/%Y".'
        )
    if not dates(table, name)[1].all():
        rows = dates(table, name)[1]
        if (~rows & known).sum() >= MIN_NUMERIC * count:
            refuse_first(
                table, name, rows, "a date as most others are", f"correct it, or name it in {FEATURES_FILE}: missing = […]"
            )
    if len(distinct) > MAX_DISTINCT or (len(distinct) > MAX_DISTINCT_SHARE * count and len(distinct) > FEW):
        return ColumnChoice(name, "text", f"it is text: {len(distinct):,} distinct values in {count:,} rows", inferred=True)
    if len(distinct) == count >= FEW:
        return ColumnChoice(name, "text", "it is text: every row has its own", inferred=True)
    return _inferred(name, "category")


def _inferred(name: str, kind: str) -> ColumnChoice:
    return ColumnChoice(name, kind, "", Column(name, kind), inferred=True)


def _is_identifier(name: str, values: Floats, distinct: int) -> bool:
    plain = name.strip().lower()
    named = plain in ("id", "uid", "uuid", "key") or plain.endswith(("_id", "-id", " id")) or name.endswith("Id")
    return named and distinct == len(values) >= FEW and bool((values == np.round(values)).all())


def typed_table(table: TableFile, choices: list[ColumnChoice]) -> Table:
    """The columns that are encoded, as values; a value that its kind does not allow is refused by row and column."""
    columns, pieces, names, ignored = [], [], [], []
    for each in choices:
        if each.column is None:
            ignored += [each.name] if each.name not in RESERVED and each.kind not in ROLES else []
            continue
        values, labels = _values(table, each)
        columns.append(replace(each.column, kind="empty") if each.inferred and np.isnan(values).all() else each.column)
        pieces.append(values)
        names.append(labels)
    if not columns:
        raise AtollError(f"{table.path} has no column that can be a feature; add one (for a start, the degree).")
    return Table(tuple(columns), np.stack(pieces, 1), tuple(names), tuple(ignored))


def _values(table: TableFile, each: ColumnChoice) -> tuple[Floats, tuple[str, ...]]:
    advice = f"correct it, leave it empty, or add it to missing = […] in {FEATURES_FILE}"
    if each.kind == "category":
        return categories(table, each.name, each.missing)
    if each.kind == "empty":
        return np.full(len(table.frame), np.nan), ()
    if each.kind == "date":
        values, wrong = dates(table, each.name, each.missing, each.format)
        form = each.format or "2026-01-31"
        refuse_first(table, each.name, wrong, f"a date such as {form}", advice)
    elif each.kind == "boolean":
        values, wrong = booleans(table, each.name, each.missing)
        refuse_first(table, each.name, wrong, "true or false", advice)
    else:
        values, wrong = numbers(table, each.name, each.missing)
        refuse_first(table, each.name, wrong, "a finite number", advice)
    return values, ()
