"""Values of items, one or several: mean squared or Huber loss, RMSE, MAE and R², of nodes and of graphs.

All of them follow from sums over items: of squared and of absolute errors, of the values and of their squares.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.tasks.levels import GraphItems, NodeItems
from atoll.tasks.targets import (
    SPLITS,
    VALUES,
    Targets,
    item_counts,
    judged_entries,
    mean_of_known,
    per_target,
    targets_of,
    without_unknown,
)
from atoll.tasks.task import CountField, Metric, TaskOptions

SQUARED, HUBER = "squared", "huber"
FEDERATION, NONE = "federation", "none"  # values of `value_scale` beside given numbers
ALIKE = 1e-12  # a variance, relative to the mean square, below which all values are the same


@dataclass(frozen=True)
class Values(Targets):
    """Every item has T numbers; the model's output (I, T) are these, less their mean and divided by their deviation (`scale`)."""

    kind: str = SQUARED
    scale: tuple[tuple[float, float], ...] = ()  # mean and standard deviation of each value; empty: as they are
    by_federation: bool = False  # whether the scale follows from the parties' sums

    target: ClassVar[str] = VALUES
    score: ClassVar[str] = "r2"
    headings: ClassVar[Mapping[str, Metric]] = {
        "r2": Metric("R²"),
        "rmse": Metric("RMSE", higher_is_better=False),
        "mae": Metric("MAE", higher_is_better=False),
        "loss": Metric("loss", higher_is_better=False),
    }
    fields: ClassVar[Mapping[str, CountField]] = {
        "validation": CountField((1,), ("items",)),
        "test": CountField((1,), ("items",)),
        **{
            f"{prefix}values": CountField(("classes", 6), ("items", "sum", "sum", "sum", "real", "sum"))
            for prefix in SPLITS.values()
        },
    }

    def configured(self, options: TaskOptions) -> Values:
        """The task as a run wants it."""
        made = super().configured(options)
        federation = options.value_scale == FEDERATION
        scale = () if federation else given_scale(options.value_scale, options.classes)
        return replace(made, kind=options.value_loss, scale=scale, by_federation=federation)

    def scaled(self, scale: Sequence[Sequence[float]]) -> Values:
        """The task with this scale."""
        pairs = tuple((float(mean), float(deviation)) for mean, deviation in scale)
        return self if pairs == self.scale else replace(self, scale=pairs)

    def fitted(self, targets: Tensor) -> Tensor:
        """The values in the units that the model predicts in."""
        if not self.scale:
            return targets
        mean, deviation = torch.tensor(self.scale).to(targets.device).unbind(1)
        return (targets - mean) / deviation

    def predicted(self, out: Tensor) -> Tensor:
        """(I, T) the model's outputs in the units of the data."""
        if not self.scale:
            return out
        mean, deviation = torch.tensor(self.scale).to(out.device).unbind(1)
        return out * deviation + mean

    def errors(self, out: Tensor, targets: Tensor) -> Tensor:
        """(s − t)²; with Huber's loss ½(s − t)² up to an error of 1 and |s − t| − ½ beyond."""
        if self.kind == HUBER:
            return torch.nn.functional.huber_loss(out, targets, reduction="none")
        return (out - targets).square()

    def counts(self, out: Tensor, graph: Graph) -> dict[str, Tensor]:
        """Each party's sums over its validation and test items, in the units that the model predicts in.

        `validation` and `test` (P, 1): items with a known value. `values` (P, T, 6): known entries; loss, squared and absolute
        errors, values and squared values, summed.
        """
        targets = self.fitted(targets_of(graph)).nan_to_num()
        error = (out - targets).double()
        columns = [self.errors(out, targets), error.square(), error.abs(), targets, targets.double().square()]
        counted = {"validation": item_counts(graph, "val"), "test": item_counts(graph, "test")}
        sums = {f"{prefix}values": per_target(columns, judged_entries(graph, split), graph) for split, prefix in SPLITS.items()}
        return counted | sums

    def metrics(self, sums: Mapping[str, Any]) -> dict[str, float]:
        """RMSE, MAE and R², means over the values, in the units of the data; the loss is in the units of the model."""
        metrics: dict[str, float] = {}
        for prefix in SPLITS.values():
            metrics |= without_unknown(self._metrics(sums[f"{prefix}values"]), prefix)
        return metrics

    def by_party(self, counts: Mapping[str, Tensor]) -> dict[str, list[float | None]]:
        """RMSE and R² of each party; None where it has none."""
        rows = [self._metrics(row) for row in counts["values"]]
        return {"party_rmse": [row.get("rmse") for row in rows], "party_r2": [row.get("r2") for row in rows]}

    def by_target(self, sums: Mapping[str, Any]) -> list[dict[str, float | None]]:
        """Items, RMSE, MAE and R² of each value, on test items."""
        return [self._value_metrics(index, row) for index, row in enumerate(sums["values"].tolist())]

    def _metrics(self, sums: Tensor) -> dict[str, float | None]:
        """What the sums (T, 6) tell."""
        rows = [self._value_metrics(index, row) for index, row in enumerate(sums.tolist())]
        known = sum(row["items"] or 0.0 for row in rows)
        means = {name: mean_of_known([row.get(name) for row in rows]) for name in ("r2", "rmse", "mae")}
        return means | {"loss": max(float(sums[:, 1].sum()), 0.0) / known if known > 0 else None}

    def _value_metrics(self, index: int, sums: list[float]) -> dict[str, float | None]:
        """Of one value. R² is undefined for fewer than two items, nor of items that are all the same."""
        count, _, squares, absolute, total, total_squares = sums
        count, squares, absolute = max(count, 0.0), max(squares, 0.0), max(absolute, 0.0)
        if not count > 0:
            return {"items": 0.0, "rmse": None, "mae": None, "r2": None}
        unit = self.scale[index][1] if self.scale else 1.0
        variation = total_squares - total**2 / count
        varied = count > 1 and variation > ALIKE * max(total_squares, 0.0)
        return {
            "items": count,
            "rmse": unit * math.sqrt(squares / count),
            "mae": unit * absolute / count,
            "r2": 1 - squares / variation if varied else None,
        }


def check_scale(text: str) -> None:
    """Refuse a `value_scale` that cannot be one, however many values there are."""
    if text not in (FEDERATION, NONE):
        given_scale(text, text.count(",") + 1)


def fitted_scale(sums: Tensor) -> list[tuple[float, float]]:
    """Mean and deviation of each value, from the sums (T, 3); a value that is not known, or does not vary, has deviation 1."""
    scale = []
    for count, total, squares in sums.tolist():
        mean = total / count if count > 0 else 0.0
        variance = squares / count - mean**2 if count > 0 else 0.0
        varied = variance > ALIKE * max(squares, 0.0) / max(count, 1.0)
        scale.append((mean, math.sqrt(variance) if varied else 1.0))
    return scale


def given_scale(text: str, values: int) -> tuple[tuple[float, float], ...]:
    """`7.5:2,0:1` → the mean and deviation of each value; empty for `none`. Anything else is an error."""
    if text == NONE:
        return ()
    pairs = []
    for item in text.split(","):
        mean, _, deviation = item.strip().partition(":")
        try:
            pair = float(mean), float(deviation)
        except ValueError:
            pair = math.nan, math.nan
        if not (math.isfinite(pair[0]) and math.isfinite(pair[1]) and pair[1] > 0):
            raise AtollError(f"value_scale has {item.strip()!r}, which is not MEAN:DEVIATION, such as 7.5:2.")
        pairs.append(pair)
    if len(pairs) not in (1, values):
        raise AtollError(f"value_scale has {len(pairs)} pairs for {values} values; give one, or one per value.")
    return tuple(pairs * values if len(pairs) == 1 else pairs)


@dataclass(frozen=True)
class NodeRegression(NodeItems, Values):
    """Values of nodes."""

    name: ClassVar[str] = "node-regression"


@dataclass(frozen=True)
class GraphRegression(GraphItems, Values):
    """Values of small graphs."""

    name: ClassVar[str] = "graph-regression"


NODES, GRAPHS = NodeRegression(), GraphRegression()
