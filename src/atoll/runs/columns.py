"""The history for people: columns whose names say test, validation or training, and of the round or of all rounds so far.

The lines of history.jsonl (`result.rows`) keep their short names, which are a contract; `result.history`, loggers and `on_round`
have these. A name that ends in `_total` is a sum over all rounds so far; everything else is about the round alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from atoll.runs.metrics import metrics_table
from atoll.runs.progress import NOT_METRICS

if TYPE_CHECKING:
    from typing import Self

SUMMED = {"up": "bytes_up", "down": "bytes_down", "simulated_seconds": "simulated_seconds"}  # of one round in a line
FACTS = ("partial", "missing", "missing_names", "dominant")
OTHER_SPLITS = ("train_", "val_")


class Columns:
    """Makes a row of the table of each line of a history, in order: clear names, and totals so far."""

    def __init__(self) -> None:
        self.totals: dict[str, float] = {}
        self.seconds = 0.0
        self.names: dict[str, str] = {}

    @classmethod
    def after(cls, lines: Iterable[Mapping[str, Any]]) -> Self:
        """Continue after these lines."""
        columns = cls()
        for line in lines:
            columns(line)
        return columns

    def __call__(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """The row of the next line."""
        metrics = {self._name(name): value for name, value in line.items() if name not in NOT_METRICS}
        splits = (*OTHER_SPLITS, "test_")
        row: dict[str, Any] = {"round": line["round"]}
        for prefix in splits:
            row |= {name: value for name, value in metrics.items() if name.startswith(prefix)}
        row |= metrics
        row |= {column: line[name] for name, column in SUMMED.items() if name in line}
        for column in [column for name, column in SUMMED.items() if name in line]:
            self.totals[column] = row[f"{column}_total"] = self.totals.get(column, 0) + row[column]
        if "seconds" in line:  # since the beginning of the run
            row["round_seconds"], self.seconds = max(line["seconds"] - self.seconds, 0.0), line["seconds"]
            row["seconds_total"] = line["seconds"]
        return row | {name: line[name] for name in FACTS if name in line}

    def _name(self, name: str) -> str:
        if name not in self.names:
            self.names[name] = column_of(name)
        return self.names[name]


def column_of(name: str) -> str:
    """The column of a name in history.jsonl: a metric of test items says so.

    >>> column_of("accuracy"), column_of("val_loss"), column_of("local_macro_f1"), column_of("up"), column_of("epsilon")
    ('test_accuracy', 'val_loss', 'test_local_macro_f1', 'bytes_up', 'epsilon')
    """
    if name in SUMMED or name in NOT_METRICS:
        return SUMMED.get(name, "seconds_total" if name == "seconds" else name)
    plain = name.removeprefix("local_").removeprefix("party_")
    is_test = not name.startswith(OTHER_SPLITS) and (plain in metrics_table() or plain.endswith("accuracy"))
    return f"test_{name}" if is_test else name
