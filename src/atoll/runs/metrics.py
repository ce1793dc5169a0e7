"""How metrics are shown: the tasks' own tables, in one order for every report; and mean ± standard deviation.

A metric of the parties' own graphs begins with `local_`, one of validation items with `val_`, one of training
items with `train_`, one of users who join after training with `late_`.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import TYPE_CHECKING

from atoll.errors import AtollError

if TYPE_CHECKING:
    from atoll.tasks import Metric

PREFIXES = {"local_": "local", "val_": "validation", "train_": "training", "late_": "late"}


def metrics_table() -> dict[str, Metric]:
    """Every metric of every task, in the order of columns; `majority` is computed by reports: runs count the minority."""
    from atoll.tasks import DEFAULT_TASK, TASKS, Metric

    table: dict[str, Metric] = {}
    losses: dict[str, Metric] = {}  # these and what follows them, in every task, come last
    for task in dict.fromkeys([DEFAULT_TASK, *TASKS]):
        with contextlib.suppress(AtollError):  # another package's task that cannot be imported
            headings = TASKS.find(task).headings
            last = list(headings).index("loss") if "loss" in headings else len(headings)
            for index, (name, metric) in enumerate(headings.items()):
                if name not in table and name not in losses:
                    (table if index < last else losses)[name] = metric
    first, *rest = (table | losses).items()
    return dict([first, ("majority", Metric("majority accuracy", percent=True, heading="majority")), *rest])


def metric_format(name: str) -> Metric:
    """How a metric is shown; one that no task lists is shown by its name."""
    from atoll.tasks import Metric
    from atoll.tasks.options import CLASS_METRICS, split_class_metric

    for prefix, word in PREFIXES.items():
        if name.startswith(prefix):
            plain = metric_format(name.removeprefix(prefix))
            return replace(plain, words=f"{word} {plain.words}", heading=f"{word} {plain.heading}")
    kind, label = split_class_metric(name)
    if label and kind in CLASS_METRICS:
        plain = CLASS_METRICS[kind]
        return replace(plain, words=f"{plain.words} of {label}", heading=f"{plain.words} of {label}")
    words = name.replace("_", " ")
    known = metrics_table().get(name, Metric(words, name.endswith("accuracy"), not name.endswith("loss")))
    return replace(known, heading=known.heading or known.words)


def in_order(names: Iterable[str]) -> list[str]:
    """Names of metrics: the tasks' in their order, then those of the parties' own graphs, then the others."""
    there = list(dict.fromkeys(names))
    usual = [*metrics_table(), *(f"local_{name}" for name in metrics_table())]
    return [*(name for name in usual if name in there), *(name for name in there if name not in usual)]


def mean_std(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean and sample standard deviation (n − 1), which is None for a single value; None for no values.

    >>> mean_std([0.5, 0.75])
    (0.625, 0.1767766952966369)
    """
    if not values:
        return None
    return mean(values), stdev(values) if len(values) > 1 else None


def mean_text(mean: float, std: float | None, digits: int, plus_minus: str = " ± ") -> str:
    """A mean and, where there is one, its standard deviation, to the same number of digits.

    >>> mean_text(84.213, 0.3, 2), mean_text(84.213, None, 1)
    ('84.21 ± 0.30', '84.2')
    """
    return f"{mean:.{digits}f}" + ("" if std is None or math.isnan(std) else f"{plus_minus}{std:.{digits}f}")
