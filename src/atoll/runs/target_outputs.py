"""Predictions of labels and values for people: as a table, and judged overall, by label or value, and by party."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.federation.fields import sum_over_parties
from atoll.runs.evaluation import MAX_LISTED
from atoll.runs.evaluation_text import rows_text, together
from atoll.runs.metrics import in_order, metric_format
from atoll.runs.outputs import PROBABILITY, Outputs, item_columns
from atoll.tasks import TASKS
from atoll.tasks.levels import items_of
from atoll.tasks.regression import Values
from atoll.tasks.targets import Targets, targets_of

if TYPE_CHECKING:
    import pandas as pd

LABEL, VALUE, PREDICTED = "label[{}]", "value[{}]", "predicted[{}]"  # columns of a table


@dataclass(frozen=True, eq=False)
class TargetEvaluation:
    """Metrics of some items with labels or values.

    Attributes:
        task: The task's name.
        targets: The names of the labels or values.
        items: How many items have a known one.
        overall: Metric → value over all items, None where it cannot be said.
        by_target: Label or value → its own metrics.
        parties: Party → its metrics; empty where there are too many.
        tested: Whether these are test items; all with a known label or value where none is marked.
        averaged: How the metrics of the run are averaged over the parties, where they are not of all items together as here.
    """

    task: str
    targets: tuple[str, ...]
    items: int
    overall: dict[str, float | None]
    by_target: dict[str, dict[str, float | None]]
    parties: dict[str, dict[str, Any]] = field(default_factory=dict)
    tested: bool = True
    averaged: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Plain values."""
        return vars(self) | {"targets": list(self.targets)}

    def __str__(self) -> str:
        """Tables that fit a screen."""
        known = {name: value for name, value in self.overall.items() if value is not None}
        width = max((len(metric_format(name).words) for name in known), default=0)
        kind = items_of(TASKS.find(self.task)) if self.task in TASKS else "items"
        items = f"1 {kind.removesuffix('s')}" if self.items == 1 else f"{self.items} {kind}"
        lines = [f"{items}, {self.task}" + ("" if self.tested else f"; no test {kind}, so all that are known")]
        lines += together(kind, self.averaged)
        if "auc" in known and len(self.parties) > 1:
            lines.append("AUC and average precision are means over the parties, as in the run")
        for name in in_order(known):
            form = metric_format(name)
            value = f"{100 * known[name]:.1f} %" if form.percent else f"{known[name]:.4f}"
            lines.append(f"{form.words:<{width}}  {value:>8}")
        columns = [name for name in next(iter(self.by_target.values()), {}) if name != "items"]
        parts = ["\n".join(lines), rows_text("target", kind, self.by_target, columns)]
        if len(self.parties) > 1:
            shown = [name for name in in_order(known) if name in known]
            parts.append(rows_text("party", kind, self.parties, shown))
        return "\n\n".join(parts)


def table(outputs: Outputs, task: Targets, names: Sequence[str] | None) -> pd.DataFrame:
    """One row per item: `id`, `party`, `split`; of each label `label[NAME]` and its probability `p[NAME]`, of each value
    `value[NAME]` and `predicted[NAME]` in the units of the data. What is not known is missing."""
    import pandas as pd

    columns = item_columns(outputs)
    names = _names(names, outputs.logits.shape[1])
    known = _known(outputs)
    if isinstance(task, Values):
        _require_scale(task)
        predicted = task.predicted(outputs.logits.double())
        for index, name in enumerate(names):
            columns[VALUE.format(name)] = known[:, index].float().numpy()  # as many digits as the data's numbers have
            columns[PREDICTED.format(name)] = predicted[:, index].numpy()
        return pd.DataFrame(columns)
    shares = outputs.logits.double().sigmoid()
    for index, name in enumerate(names):
        values = known[:, index].numpy()
        columns[LABEL.format(name)] = pd.arrays.IntegerArray(np.nan_to_num(values).astype(np.int64), np.isnan(values))
        columns[PROBABILITY.format(name)] = shares[:, index].numpy()
    return pd.DataFrame(columns)


def judge(outputs: Outputs, task: Any, names: Sequence[str] | None) -> TargetEvaluation:
    """The metrics of the test items or, where none is marked, of all items with a known label or value."""
    _require_scale(task)
    graph = outputs.judged_graph
    counts = task.counts(outputs.logits, graph)
    sums = {name: sum_over_parties(value) for name, value in counts.items()}
    items = int(sums["test"][0])
    if not items:
        raise AtollError("No item has a known label or value, so there is nothing to judge.")
    listed: dict[str, dict[str, Any]] = {}
    if graph.parties <= MAX_LISTED:
        for party, name in enumerate(outputs.party_names):
            own = {field: value[party] for field, value in counts.items()}
            if int(own["test"][0]):
                listed[name] = {"items": int(own["test"][0])} | _of_test(task.metrics(own))
    rows = task.by_target(sums)
    whole = [{name: int(row[name] or 0) for name in ("items", "positive") if name in row} for row in rows]
    by_target = {name: row | counted for name, row, counted in zip(_names(names, len(rows)), rows, whole, strict=True)}
    tested = graph.test is outputs.graph.test  # not marked for want of test items
    return TargetEvaluation(task.name, tuple(by_target), items, _of_test(task.metrics(sums)), by_target, listed, tested)


def _of_test(metrics: dict[str, float]) -> dict[str, float | None]:
    return {name: value for name, value in metrics.items() if not name.startswith(("val_", "train_"))}


def _names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    return tuple(names) if names else tuple(map(str, range(count)))


def _known(outputs: Outputs) -> Tensor:
    """(I, T) what is known of the items; NaN otherwise."""
    if outputs.graph.y_columns is None:
        return torch.full(outputs.logits.shape, torch.nan, dtype=torch.float64)
    return targets_of(outputs.graph).double()


def _require_scale(task: Any) -> None:
    if isinstance(task, Values) and task.by_federation and not task.scale:
        raise AtollError("The model does not hold the scale of its values, so its predictions have no unit; train it again.")
