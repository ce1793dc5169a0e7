"""Reading `nodes` and `edges` tables, .parquet or .csv, with one clear sentence for each mistake."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from atoll.errors import AtollError

RESERVED = ("id", "label", "split", "index")  # columns of `nodes` that are not features


@dataclass(frozen=True)
class TableFile:
    """A table and the file it was read from."""

    frame: pd.DataFrame
    path: Path
    separator: str = ","
    targets: pd.DataFrame | None = None  # its columns of labels and values (see `target_columns`), the same rows

    def location(self, row: int) -> str:
        """`line 7 of nodes.csv` as an editor counts, `row 5 of nodes.parquet` from 0."""
        number = int(self.frame.index[row])
        return f"line {number + 2} of {self.path}" if self.path.suffix == ".csv" else f"row {number} of {self.path}"

    def texts(self, column: str) -> NDArray[np.object_]:
        """The column as text, '' where it is empty; whole floats (integers beside missing values) lose their .0."""
        values = self.frame[column]
        if pd.api.types.is_float_dtype(values.dtype):
            numbers = values.dropna()
            if ((numbers == numbers.round()) & (numbers.abs() < 2**53)).all():  # beyond, floats are not exact
                values = values.astype("Int64")
        texts = values.astype("string").fillna("").str.strip()
        return np.asarray(texts, dtype=object)


def read_table(
    folder: Path,
    name: str,
    needed: tuple[str, ...],
    texts: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> TableFile:
    """The table of that name in a folder, if it has the needed columns after some are `renamed`.

    Of a CSV, the columns `texts` are read as text whatever they hold: 007 stays 007.
    """
    paths = [folder / f"{name}.{suffix}" for suffix in ("parquet", "csv")]
    existing = [path for path in paths if path.is_file()]
    if not existing:
        raise AtollError(f"{folder} has no {name}.parquet or {name}.csv; a graph needs the tables `nodes` and `edges`.")
    if len(existing) == 2:
        raise AtollError(f"{folder} has both {name}.parquet and {name}.csv; keep one of them.")
    path = existing[0]
    frame, separator = _read_csv(path, {*texts, *(renamed or {})}) if path.suffix == ".csv" else (_read_parquet(path), ",")
    frame = frame.rename(columns=dict(renamed or {}))
    for column in needed:
        if column not in frame.columns:
            listed = ", ".join(map(str, frame.columns[:8]))
            raise AtollError(f"{path} has no column `{column}` (it has {listed}); add or rename it.")
    return TableFile(frame, path, separator)


def _read_parquet(path: Path) -> pd.DataFrame:
    try:
        frame = pd.read_parquet(path)
    except Exception as error:  # pyarrow raises many kinds
        raise AtollError(f"{path} cannot be read as parquet ({str(error).splitlines()[0]}); write it again.") from error
    frame.columns = [str(column) for column in frame.columns]
    return frame.reset_index(drop=True)


def _separator(header: str) -> str:
    """A comma, or what spreadsheets write instead: a semicolon or a tab, where the header has no comma."""
    return next((mark for mark in (",", ";", "\t") if mark in header), ",")


def _read_csv(path: Path, texts: Collection[str] = ()) -> tuple[pd.DataFrame, str]:
    """The table with text ids, labels and splits, and what separates its fields; empty lines are skipped but counted."""
    separator = ","
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            separator = _separator(file.readline())
            file.seek(0)
            names = [name.strip() for name in next(csv.reader(file, delimiter=separator), [])]
        if not names:
            raise AtollError(f"{path} is empty; give a line of column names and one line per row.")
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise AtollError(f"{path} has two columns named `{twice}`; name each once.")
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                path,
                sep=separator,
                encoding="utf-8-sig",
                header=0,
                names=names,
                dtype={name: str for name in names if name in (*RESERVED, *texts, "source", "target")},
                index_col=False,
                skip_blank_lines=False,
                skipinitialspace=True,
                keep_default_na=False,
                na_values=[""],
                low_memory=False,
            )
    except (pd.errors.ParserError, pd.errors.ParserWarning):
        _refuse_ragged(path, separator)
        raise AtollError(f"{path} cannot be read as CSV; check its quotes and commas.") from None
    except (UnicodeDecodeError, OSError, ValueError, csv.Error) as error:
        raise AtollError(f"{path} cannot be read as CSV ({str(error).splitlines()[0]}); save it as UTF-8 text.") from error
    if frame[names[-1]].isna().any():
        _refuse_ragged(path, separator)  # a line that is too short looks like one with empty fields at its end
    return frame[~frame.isna().all(axis=1)], separator


def _refuse_ragged(path: Path, separator: str) -> None:
    """Name the first line that has more or fewer fields than the header."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, delimiter=separator)
        width = len(next(rows))
        for row in rows:
            if len(row) != width and any(field.strip() for field in row):
                raise AtollError(
                    f"Line {rows.line_num} of {path} has {len(row)} fields where the header has {width}; give it the same number."
                )
