"""The metric that `select_by` names, on test nodes: what a run or a comparison is about, where it is not the accuracy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from atoll.errors import AtollError
from atoll.runs.config import Config
from atoll.tasks import TASKS, selecting_metric
from atoll.tasks.options import class_index, split_class_metric

if TYPE_CHECKING:
    from atoll.runs.result import Result


def selected_metric(config: Config) -> str:
    """The metric by which the best round is selected, such as `auc`, for the loss the task's own score; empty for accuracy."""
    task = TASKS.find(config.run.task)
    name = selecting_metric(task, config.run.select_by)[0]
    name = task.score if name == "loss" else name
    return "" if name == "accuracy" else name


def score_of(result: Result, name: str) -> float | None:
    """A metric of the best round's test nodes, of all or, as in `recall[CLASS]`, of one class; None where it is not known."""
    if isinstance(value := result.metrics.get(name), float):
        return value
    kind, label = split_class_metric(name)
    if not label:
        score = result.detail.get("overall", {}).get(name)
    else:
        classes = result.detail.get("classes", ())
        try:
            row = result.detail["by_class"][classes[class_index(label, classes, len(classes), "The metric")]]
        except (KeyError, AtollError):
            return None
        score = row.get(kind)
    return None if score is None else float(score)
