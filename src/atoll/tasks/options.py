"""What a run asks of its task: which metric selects the best round, what a class weighs, how a class is decided."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

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


@dataclass(frozen=True)
class TaskOptions:
    """What a task may need to know of a run; the same at the server and at every site."""

    select_by: str = "loss"
    track: tuple[str, ...] = ()  # further metrics of validation items
    class_names: tuple[str, ...] = ()
    classes: int = 0
    parties: int = 0
    noised: bool = False  # whether counts are noised, and so written out
    class_weight: str = "none"
    threshold: str = "none"
    value_loss: str = "squared"
    value_scale: str = "federation"
    training: bool = True  # whether training items may be counted too: not where noise protects them


def configured(task: Task, options: TaskOptions) -> Task:
    """The task as a run wants it."""
    if configure := getattr(task, "configured", None):
        result: Task = configure(options)
        return result
    if options.track:
        raise AtollError(f"track is {','.join(options.track)}, but {task.name} counts nothing further; leave it out.")
    for name in ("class_weight", "threshold"):
        if getattr(options, name) != "none":
            raise AtollError(f"{name} is {getattr(options, name)!r}, but {task.name} does not use it; leave it out.")
    return task


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
    per_class = getattr(task, "class_metrics", {})
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
