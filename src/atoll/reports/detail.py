"""What a run's predictions of its test nodes look like in detail: confusion, metrics of each class and party, calibration.

result.json has it under `detail`. For a run of an earlier version it is computed again, where the parties' data is here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from atoll.reports.recompute import recomputed_detail
from atoll.reports.runs import Row, StoredRun
from atoll.runs.metrics import mean_std

Values = dict[str, list[float]]  # metric → its values over the seeds


@dataclass(frozen=True, eq=False)
class RowDetail:
    """The detail of a row, over the seeds that have it."""

    classes: list[str]
    confusion: NDArray[np.float64]  # (C, C) test nodes of all seeds: rows are true classes, columns predictions
    by_class: list[Values]
    items: list[float]  # test nodes of each class, mean over the seeds
    calibration: NDArray[np.float64] | None  # (bins, 3) nodes, correct ones, summed confidence
    parties: list[Values]  # in party order; empty where nothing is known of single parties
    seeds: list[int]
    thresholds: list[Any]  # of each seed, where decisions are made by one
    rounds: list[int]
    recomputed: bool  # not from result.json

    @property
    def where(self) -> str:
        """Which rounds and seeds it covers, in words."""
        rounds = f"round {self.rounds[0]}" if len(set(self.rounds)) == 1 else "the best round of each seed"
        text = "all seeds together" if len(self.seeds) > 1 else f"seed {self.seeds[0]}"
        return f"{rounds}, {text}"

    @property
    def calibration_error(self) -> float | None:
        """The expected calibration error: the mean gap between confidence and accuracy over the bins, weighted by nodes."""
        if self.calibration is None or not self.calibration[:, 0].sum():
            return None
        return float(np.abs(self.calibration[:, 1] - self.calibration[:, 2]).sum() / self.calibration[:, 0].sum())


def row_detail(row: Row) -> RowDetail | str:
    """The detail of all seeds that have it in result.json, else that of the first seed, computed again; or why there is none."""
    stored = [SeedDetail(run, run.detail, run.result.best_round) for run in row.runs if is_detail(run.detail)]
    if stored:
        names = stored[0].document["classes"]
        return _joined([one for one in stored if one.document["classes"] == names], recomputed=False)
    again = recomputed_detail(row.runs[0])
    if isinstance(again, str):
        return again
    return _joined([SeedDetail(row.runs[0], again.document, again.round)], recomputed=True)


class SeedDetail(NamedTuple):
    """`detail` of one run, and the round it is of."""

    run: StoredRun
    document: Mapping[str, Any]
    round: int


def is_detail(document: Any) -> bool:
    """Whether it is the detail of a classification, of the form that result.json has."""
    if not isinstance(document, Mapping) or not isinstance(document.get("classes"), list):
        return False
    names, matrix = document["classes"], document.get("confusion")
    if not names or not isinstance(document.get("by_class"), Mapping) or not isinstance(matrix, list):
        return False
    rows = [row for row in matrix if isinstance(row, list) and len(row) == len(names) and all(map(_is_number, row))]
    return len(rows) == len(matrix) == len(names)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _joined(seeds: Sequence[SeedDetail], *, recomputed: bool) -> RowDetail:
    documents = [one.document for one in seeds]
    names = [str(name) for name in documents[0]["classes"]]
    by_class = [[_metrics_of(document["by_class"].get(name)) for document in documents] for name in names]
    tables = [np.array(document["calibration"], dtype=float) for document in documents if _has_bins(document)]
    parties = [document["parties"] for document in documents if isinstance(document.get("parties"), Mapping)]
    order = list(parties[0]) if parties else []
    confusion = np.clip(sum(np.array(document["confusion"], dtype=float) for document in documents), 0, None)
    return RowDetail(
        classes=names,
        confusion=confusion,
        by_class=[_collected(values) for values in by_class],
        items=(confusion.sum(1) / len(documents)).tolist(),
        calibration=sum(tables[1:], tables[0]) if len({table.shape for table in tables}) == 1 else None,
        parties=[_collected([_metrics_of(document.get(name)) for document in parties]) for name in order],
        seeds=[one.run.config.seed for one in seeds],
        thresholds=[document.get("threshold") for document in documents],
        rounds=[one.round for one in seeds],
        recomputed=recomputed,
    )


def _has_bins(document: Mapping[str, Any]) -> bool:
    table = document.get("calibration")
    return isinstance(table, list) and all(isinstance(row, list) and len(row) == 3 and all(map(_is_number, row)) for row in table)


def _metrics_of(document: Any) -> dict[str, float]:
    """The numbers among the values; `items` is not a metric."""
    values = document.items() if isinstance(document, Mapping) else ()
    return {name: float(value) for name, value in values if _is_number(value) and name != "items"}


def _collected(seeds: Sequence[Mapping[str, float]]) -> Values:
    names = dict.fromkeys(name for values in seeds for name in values)
    return {name: [values[name] for values in seeds if name in values] for name in names}


def mean_of(values: Values, name: str) -> tuple[float, float | None] | None:
    """Mean and standard deviation of a metric over the seeds."""
    return mean_std(values.get(name, []))
