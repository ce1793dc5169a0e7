"""Columns of tables with several labels or values per item: `label:NAME` (1, 0 or empty), `value:NAME` (a number or empty).

They are never features. Which of them are read is the setting `target`.
"""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.builder import MAX_FEATURE, Ints
from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.tasks.targets import CLASS as CLASS
from atoll.tasks.targets import LABELS as LABELS
from atoll.tasks.targets import TARGETS as TARGETS
from atoll.tasks.targets import VALUES as VALUES

if TYPE_CHECKING:
    from atoll.data.table_files import TableFile

TARGET = "What is predicted of an item: its class, several labels (each there or not), or values (numbers)."
PREFIXES = {LABELS: "label:", VALUES: "value:"}
KNOWN_LABELS = {"1": 1.0, "0": 0.0, "true": 1.0, "false": 0.0, "yes": 1.0, "no": 0.0, "": np.nan}
MAX_TARGETS = 10_000
Floats = NDArray[np.float32]


def apart(table: TableFile) -> TableFile:
    """The table without its columns of labels and values, which are kept beside it."""
    named = [name for name in table.frame.columns if str(name).startswith(tuple(PREFIXES.values()))]
    if not named:
        return table
    return replace(table, frame=table.frame.drop(columns=named), targets=table.frame[named])


def read_targets(table: TableFile, target: str) -> tuple[Ints, tuple[str, ...], Tensor]:
    """y (0 where an item has a known target, else −1), the targets' names, and the targets (I, T), NaN where unknown."""
    prefix = PREFIXES[target]
    columns = [] if table.targets is None else [name for name in table.targets.columns if str(name).startswith(prefix)]
    if not columns:
        raise AtollError(
            f"{table.path} has no column `{prefix}NAME`, which target={target} needs; add one, or set another target."
        )
    names = tuple(str(name).removeprefix(prefix) for name in columns)
    if "" in names:
        raise AtollError(f"{table.path} has a column `{prefix}` without a name; write {prefix}NAME.")
    beside = replace(table, frame=table.targets)
    values = np.stack([_column(beside, column, target) for column in columns], 1)
    return known_rows(values), names, torch.from_numpy(values)


def _column(table: TableFile, column: str, target: str) -> Floats:
    from atoll.data.column_values import DECIMAL_COMMA, MISSING  # imports pandas

    written = table.texts(column)
    texts = ["" if text.lower() in MISSING else text.lower() for text in written]
    if target == LABELS:
        values = [KNOWN_LABELS.get(text) for text in texts]
        what = "a label is 1, 0 or empty"
    else:
        comma = table.separator == ";"
        values = [_number(text.replace(",", ".") if comma and DECIMAL_COMMA.fullmatch(text) else text) for text in texts]
        what = "a value is a finite number or empty"
    if None in values:
        row = values.index(None)
        raise AtollError(f"`{column}` in {table.location(row)} is '{written[row]}', but {what}.")
    return np.array(values, np.float32)


def _number(text: str) -> float | None:
    if not text:
        return np.nan
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) <= MAX_FEATURE else None  # not NaN, infinite or too large


def target_columns(graph: Graph) -> dict[str, NDArray[np.object_]]:
    """The columns of a graph's labels or values, as `read_targets` reads them."""
    assert graph.y_columns is not None
    values = graph.y_columns.numpy()
    prefix = PREFIXES[kind_of_targets(values)]
    names = graph.class_names or tuple(map(str, range(values.shape[1])))
    written = np.array([["" if np.isnan(value) else f"{value:.9g}" for value in row] for row in values], dtype=object)
    return {prefix + name: written[:, column] for column, name in enumerate(names)}


def known_rows(targets: Floats) -> Ints:
    """(I,) 0 where an item has a known target, −1 where it has none."""
    return np.where(np.isnan(targets).all(1), -1, 0).astype(np.int64)


def with_targets(graph: Graph, targets: Tensor, names: tuple[str, ...] | None = None) -> Graph:
    """The graph with these targets (I, T) in place of classes."""
    y = torch.where(targets.isnan().all(1), -1, 0)
    return replace(graph, y=y, y_columns=targets.float(), num_classes=targets.shape[1], class_names=names, majority=None)


def checked_targets(values: NDArray[np.float64], items: int, target: str, where: str) -> Tensor:
    """Targets of an array, as (I, T) float32; one sentence where they are none."""
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[0] != items or not 0 < values.shape[1] <= MAX_TARGETS:
        raise AtollError(f"{where}: the targets have shape {tuple(values.shape)} for {items} items; give one row per item.")
    known = values[~np.isnan(values)]
    if target == LABELS and not np.isin(known, (0, 1)).all():
        raise AtollError(f"{where}: a label is {known[~np.isin(known, (0, 1))][0]:g}; give 1, 0, or NaN where it is not known.")
    if not (np.abs(known) <= MAX_FEATURE).all():
        raise AtollError(f"{where}: a value is infinite or too large; give finite numbers, and NaN where one is not known.")
    return torch.from_numpy(values.astype(np.float32))


def kind_of_targets(values: NDArray[np.float64]) -> str:
    """Labels where everything known is 0 or 1, else values."""
    known = values[~np.isnan(values)]
    return LABELS if len(known) and np.isin(known, (0, 1)).all() else VALUES


def target_of_folder(dataset: str) -> str:
    """What a folder's tables are for: classes where they have a column `label` or nothing else, else labels, else values."""
    folder = Path(dataset).expanduser()
    if not folder.is_dir():
        return CLASS
    inner = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    for place in (folder, *inner[:1]):
        columns = _header(place)
        if columns:
            break
    else:
        return CLASS
    if "label" in columns:
        return CLASS
    return next((kind for kind, prefix in PREFIXES.items() if any(name.startswith(prefix) for name in columns)), CLASS)


def _header(folder: Path) -> list[str]:
    """The columns of the table of graphs or, without one, of nodes; empty where there is none that can be read."""
    for name in ("graphs", "nodes"):
        try:
            if (path := folder / f"{name}.parquet").is_file():
                import pyarrow.parquet as parquet  # pandas reads with it, too

                return [str(column) for column in parquet.read_schema(path).names]
            if (path := folder / f"{name}.csv").is_file():
                with path.open(encoding="utf-8-sig", newline="") as file:
                    line = file.readline()
                dialect = ";" if line.count(";") > line.count(",") else "\t" if "\t" in line else ","
                return [column.strip() for column in next(csv.reader([line], delimiter=dialect), [])]
        except (OSError, ValueError):  # the reader says what is wrong with it
            return []
    return []
