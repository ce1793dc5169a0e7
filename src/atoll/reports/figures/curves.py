"""Curves over the rounds: the task's score and the losses, of every row or, where there is only one, of every split."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from atoll.errors import AtollError
from atoll.reports.figures.figure import KINDS, Figure, Series, thin
from atoll.reports.runs import Row, items_of_rows
from atoll.runs.metrics import metric_format
from atoll.tasks import TASKS

SPLITS = {"train_": "training", "val_": "validation", "": "test"}  # prefix of a metric → the items it is of
WIDE = 6  # ratio of the largest loss to the median above which the axis is logarithmic
LOCAL = "local_"  # metrics of the parties' own graphs where these overlap


def scores(rows: Sequence[Row]) -> list[str]:
    """The metrics drawn over the rounds: the score of each task, and that of the parties' own graphs."""
    names: dict[str, None] = {}
    for task in dict.fromkeys(run.config.run.task for row in rows for run in row.runs):
        try:
            names[TASKS.find(task).score] = None
        except AtollError:  # the task of a package that is not here
            continue
    return [*names, *(f"{LOCAL}{name}" for name in names)]


def learning(rows: Sequence[Row]) -> list[Figure]:
    """Scores and losses by round."""
    metrics = [*scores(rows), "loss", f"{LOCAL}loss"]
    if len(rows) == 1:
        figures = [_of_one_row(rows[0], metric) for metric in metrics]
    else:
        figures = [
            _of_rows(rows, f"{prefix}{metric}", split)
            for metric in metrics
            for prefix, split in reversed(SPLITS.items())
            if _is_drawn(metric, prefix)
        ]
    return [figure for figure in figures if figure is not None]


def _is_drawn(metric: str, prefix: str) -> bool:
    """With several rows: scores of test items only, and losses of every split, which local metrics do not have."""
    return not prefix or metric == "loss"


def _of_one_row(row: Row, metric: str) -> Figure | None:
    """Training, validation and test of one row; metrics of the parties' own graphs have no other split than test."""
    series = []
    for number, (prefix, split) in enumerate(SPLITS.items()):
        if prefix and metric.startswith(LOCAL):
            continue
        if one := curve(row, f"{prefix}{metric}", "round", split, KINDS + number):
            series.append(one)
    if not any(one.name == "test" for one in series) and metric != "loss":
        return None
    return _figure(metric, "", series, [row]) if series else None


def _of_rows(rows: Sequence[Row], metric: str, split: str) -> Figure | None:
    series = [one for number, row in enumerate(rows) if (one := curve(row, metric, "round", row.label, number))]
    plain = metric if split == "test" else metric.partition("_")[2]
    return _figure(plain, split, series, rows) if series else None


def _figure(metric: str, split: str, series: Sequence[Series], rows: Sequence[Row]) -> Figure:
    shown = metric_format(metric)
    title = f"{split} {shown.words} by round".strip()
    title = title[0].upper() + title[1:]
    of = f"{split.capitalize()} {items_of_rows(rows)}. " if split in ("test", "validation") else ""
    caption = f"{of}{band_words(any(row.several for row in rows))}"
    if any(one.mark for one in series):
        caption += " The dot is the best round, selected on validation."
    name = "-".join(part for part in (split if split != "test" else "", metric, "round") if part).replace("_", "-")
    log = metric.endswith("loss") and _is_wide(series)
    unit = f"{shown.words} (log scale)" if log else shown.words
    caption = caption.strip()
    return Figure(name, "Learning", title, "lines", "round", unit, series, None, caption, shown.percent, log_y=log)


def _is_wide(series: Sequence[Series]) -> bool:
    """Whether values are positive and so far apart that all but the largest would be drawn as one flat line."""
    values = [y for one in series for y in one.y if y is not None]
    return min(values) > 0 and max(values) > WIDE * median(values)


def band_words(several: bool) -> str:
    """What a band means, where there is one."""
    return "The band is ± one standard deviation over the seeds." if several else ""


def curve(row: Row, metric: str, axis: str, name: str, color: int) -> Series | None:
    """One curve of a row, with a band over its seeds; a dot at the best round where there is one seed."""
    whole = row.curve(metric, axis)
    if not whole or (axis == "megabytes" and whole[-1][0] <= 0):  # a row that sends nothing has no curve there
        return None
    x, y, std = zip(*thin(whole), strict=True)
    mark = None
    if axis == "round" and not row.several and len(whole) > 1:
        best = row.runs[0].result.best_round
        mark = next(((x, y) for x, y, _ in whole if x == best), None)
    return Series(name, x, y, color, std if row.several else None, mark)
