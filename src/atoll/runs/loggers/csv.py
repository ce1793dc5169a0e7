"""Rounds as a table, `history.csv` in the run's folder: `atoll run … --log csv`."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from atoll import storage
from atoll.errors import AtollError

FILE = "history.csv"


class CsvLogger:
    """Writes one line per round, with every number of the round; a resumed run continues the table."""

    def __init__(self, label: str, folder: Path | None) -> None:
        if folder is None:
            raise AtollError("The logger csv writes into the run's folder; give --out as well.")
        self.path = folder / FILE
        self.columns: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def __enter__(self) -> CsvLogger:
        if self.path.exists():
            with self.path.open(newline="", encoding="utf-8") as file:
                reader = csv.DictReader(file)
                self.rows, self.columns = list(reader), list(reader.fieldnames or [])
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Nothing is left open between rounds."""

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Add a round; the whole table is written again where it gets a new column or goes back to an earlier round."""
        numbers = {name: value for name, value in row.items() if isinstance(value, (int, float))}
        columns = list(dict.fromkeys([*self.columns, *numbers]))
        again = bool(self.rows) and float(self.rows[-1]["round"]) >= row["round"]
        if again:
            self.rows = [each for each in self.rows if float(each["round"]) < row["round"]]
        rewrite = again or columns != self.columns
        self.columns = columns
        self.rows.append(numbers)
        if rewrite:
            storage.write_whole(self.path, "".join(self._lines([dict(zip(columns, columns, strict=True)), *self.rows])).encode())
        else:
            (line,) = self._lines([numbers])
            storage.append_line(self.path, line.rstrip("\n"), durable=False)

    def _lines(self, rows: Sequence[Mapping[str, Any]]) -> list[str]:
        file = io.StringIO()
        csv.DictWriter(file, self.columns, lineterminator="\n").writerows(rows)
        return file.getvalue().splitlines(keepends=True)
