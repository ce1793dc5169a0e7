"""What a table shows of a run beside its best round: the last one, and what choosing rounds by *test* accuracy would have given.

`last.accuracy` is a metric of the last round. `snapshots.8` is the mean over the parties of each party's highest test accuracy
of 8 rounds, R/8, 2R/8, …, R: how much a protocol gains that lets every party report the best of 8 snapshots. Nothing is ever
selected by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll.runs.metrics import metric_format

LAST, SNAPSHOTS = "last", "snapshots"


def beside(folder: Path, shown: Iterable[str]) -> dict[str, Any]:
    """The parts of a finished run that the metrics `shown` are about, as a record keeps them."""
    from atoll.runs.reader import read  # needs torch, which a list of tables does not wait for

    wanted = list(shown)
    names = sorted({name.partition(".")[2] for name in wanted if name.startswith(f"{LAST}.")})
    counts = sorted({int(name.partition(".")[2]) for name in wanted if name.startswith(f"{SNAPSHOTS}.")})
    if not names and not counts:
        return {}
    result = read(folder, state=False)
    values: dict[str, Any] = {LAST: {name: result.last[name] for name in names if name in result.last}}
    if counts:
        values[SNAPSHOTS] = {str(count): highest(result.rows, count) for count in counts}
    return {name: numbers for name, numbers in values.items() if numbers}


def highest(rows: Sequence[Mapping[str, Any]], count: int) -> float:
    """The mean over the parties of the highest test accuracy of each in `count` rounds, evenly spaced, the last among them."""
    taken = [rows[len(rows) * (index + 1) // count - 1]["party_accuracy"] for index in range(count)]
    known = [[value for value in values if value is not None] for values in zip(*taken, strict=True)]
    return fmean(max(values) for values in known if values)


def heading(metric: str) -> str:
    """The heading of a column."""
    first, _, rest = metric.partition(".")
    if first == LAST:
        return f"last round, {metric_format(rest).heading}"
    return f"each party's highest test accuracy of {rest} rounds" if first == SNAPSHOTS else metric_format(metric).heading
