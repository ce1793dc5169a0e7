"""Which metric selects the best round, and metrics and names of single classes."""

from __future__ import annotations

import re
from collections.abc import Sequence

from atoll.errors import AtollError, closest, suggest
from atoll.tasks.task import Metric, Task

CLASS_METRICS = {  # metrics of one class, as in recall[CLASS]
    "precision": Metric("precision", percent=True),
    "recall": Metric("recall", percent=True),
    "f1": Metric("F1", percent=True),
    "auc": Metric("AUC", percent=True),
    "average_precision": Metric("average precision", percent=True),
}
LAST = "last"  # select_by: the last round, whatever its scores
LOSS_NAMES = ("loss", "log_loss")  # the same for classes


def selecting_metric(task: Task, select_by: str, setting: str = "select_by") -> tuple[str, Metric]:
    """The metric that `select_by` names, without `val_`, and how it is read; the loss for `last`; an unknown name is an error.

    `setting` is where the name is from.
    """
    if select_by in (*LOSS_NAMES, LAST):
        return "loss", task.headings.get("loss", Metric("loss", higher_is_better=False))
    scores = ("score", *(() if "accuracy" in task.headings else ("accuracy",)))
    name = task.score if select_by in scores else select_by
    if name in task.headings:
        return name, task.headings[name]
    if name == task.score:
        return name, Metric(name.replace("_", " "))
    kind, label = split_class_metric(name)
    per_class = task.class_metrics
    if label and kind in per_class:
        return name, per_class[kind]
    options = ["loss", "score", LAST, *task.headings, *(f"{kind}[CLASS]" for kind in per_class)]
    near = closest(kind, options) or f"; it is one of {', '.join(dict.fromkeys(options))}."
    raise AtollError(f"{setting} is {select_by!r}, which is not a metric of {task.name}{near}")


def split_class_metric(name: str) -> tuple[str, str]:
    """`recall[spam]` → ("recall", "spam"); a metric of all classes has no label."""
    match = re.fullmatch(r"([\w.]+)\[(.+)\]", name)
    return (match[1], match[2]) if match else (name, "")


def class_index(label: str, class_names: Sequence[str], classes: int, where: str) -> int:
    """The class that a name, or the number of a class, stands for."""
    if label in class_names:
        return list(class_names).index(label)
    if label.isdecimal() and int(label) < classes:
        return int(label)
    if not class_names:
        raise AtollError(
            f"{where} names the class {label!r}, but the classes' names are not known here (those of sites stay there); "
            f"give the number of a class, 0 to {classes - 1}."
        )
    raise AtollError(f"{where} names the class {label!r}, which the data does not have{suggest(label, list(class_names))}")
