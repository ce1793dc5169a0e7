"""Targets that are several numbers per item: labels that are there or not, and values. Any of them may be unknown (NaN).

A graph holds them as `y_columns` (I, T); its `num_classes` is T, its `class_names` are their names, and y is 0 where an item has
a known one, −1 where it has none. What is unknown has weight 0 and is replaced before anything is multiplied: 0·NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from atoll.errors import AtollError
from atoll.graphs.graph import Graph
from atoll.graphs.masks import Mask, cache_key, resolve
from atoll.tasks import class_weights
from atoll.tasks.options import selecting_metric
from atoll.tasks.task import Task, TaskOptions

CLASS, LABELS, VALUES = "class", "labels", "values"  # what may be predicted of an item
TARGETS = (CLASS, LABELS, VALUES)
SPLITS = {"val": "val_", "test": ""}  # the judged masks, and how the names of their counts and metrics begin
Self = TypeVar("Self", bound="Targets")


@dataclass(frozen=True)
class Targets(Task):
    """What labels and values have in common."""

    names: tuple[str, ...] = ()  # of the targets, where they are known

    def outputs(self, classes: int) -> int:
        """One column per target."""
        return classes

    def configured(self: Self, options: TaskOptions) -> Self:
        """The task as a run wants it; settings about classes are refused."""
        task: Any = self
        if options.class_weight != class_weights.NONE or options.threshold != "none":
            named = "class_weight" if options.class_weight != class_weights.NONE else "threshold"
            raise AtollError(f"{named} is about classes, and {task.name} has none; leave it out.")
        selecting_metric(task, options.select_by)
        for name in options.track:
            selecting_metric(task, name, "track")  # a known one is counted anyway
        return replace(self, names=options.class_names)

    def loss(self, out: Tensor, graph: Graph, mask: Mask = "train") -> Tensor:
        """Σ_p of the mean over the known entries of the party's items in the mask; a party without any counts 0."""
        targets, weights = self._entries(graph, mask)
        return (weights * self.errors(out, targets)).sum()

    def errors(self, out: Tensor, targets: Tensor) -> Tensor:
        """(I, T) the loss of every entry; `targets` are as in `fitted`."""
        raise NotImplementedError

    def fitted(self, targets: Tensor) -> Tensor:
        """(I, T) what outputs are compared with; NaN where unknown."""
        return targets

    def _entries(self, graph: Graph, mask: Mask) -> tuple[Tensor, Tensor]:
        """(I, T) targets, 0 where unknown, and weights: 1 / the party's known entries in the mask. Kept with the graph."""
        name = cache_key(graph, mask)
        keys = f"entries.{name}.{hash(self)}", f"shares.{name}"
        if name is not None and keys[0] in graph.derived:
            return graph.derived[keys[0]], graph.derived[keys[1]]
        every = targets_of(graph)
        known = resolve(graph, mask)[:, None] & ~every.isnan()
        counts = graph.items.sum(known.sum(1).double())  # (P,)
        weights = (known / counts.clamp(min=1)[graph.owner][:, None]).float()
        targets = self.fitted(every).masked_fill(~known, 0)
        if name is not None:
            graph.derived[keys[0]], graph.derived[keys[1]] = targets, weights
        return targets, weights


def targets_of(graph: Graph) -> Tensor:
    """(I, T) float32."""
    if graph.y_columns is None:
        raise AtollError("The data has classes but no labels or values; choose another task.")
    return graph.y_columns


def per_target(values: Sequence[Tensor], known: Tensor, graph: Graph) -> Tensor:
    """(P, T, 1 + k): each party's known entries per target, and its sums over them of each of k values (I, T)."""
    columns = torch.stack([known.double(), *(value.double().masked_fill(~known, 0) for value in values)], 2)
    sums = columns.new_zeros(graph.parties, *columns.shape[1:])
    return sums.index_add_(0, graph.owner, columns)


def judged_entries(graph: Graph, split: str) -> Tensor:
    """(I, T) which entries a split judges."""
    mask: Tensor = getattr(graph, split)
    return mask[:, None] & ~targets_of(graph).isnan()


def item_counts(graph: Graph, split: str) -> Tensor:
    """(P, 1) the items of a split that have a known target."""
    counted: Tensor = graph.items.sum(judged_entries(graph, split).any(1).double())
    return counted[:, None]


def mean_of_known(values: Sequence[float | None]) -> float | None:
    """The mean of those that can be said."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def without_unknown(metrics: Mapping[str, float | None], prefix: str = "") -> dict[str, float]:
    """The metrics that can be said, under their names."""
    return {prefix + name: value for name, value in metrics.items() if value is not None}
