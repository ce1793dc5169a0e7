"""Mean ranks over datasets as a critical-difference picture (Demšar, JMLR 2006): a bar joins rows that may be equally good."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields

from atoll.reports.figures.figure import Figure, Sketch, SketchLine, Text
from atoll.reports.page_table import PageTable
from atoll.reports.runs import Row, by_data, listed, methods
from atoll.runs.metrics import metric_format
from atoll.runs.ranks import MIN_DATASETS, MIN_ROWS, Ranks, rank
from atoll.runs.scores import selected_metric
from atoll.runs.terms import WORDS
from atoll.tasks import TASKS

SECTION = "Ranks"
MARGIN = 0.06  # of the axis' length, between its ends and the names
BAR, STEP = 0.18, 0.16  # the first bar's depth below the axis, and between bars


def ranks(rows: Sequence[Row]) -> list[Figure]:
    """The picture of the methods that were run on every dataset; nothing where there are fewer than two of either."""
    ranked = ranks_of(rows)
    if ranked is None:
        return []
    caption = f"{ranked.caption} A bar joins rows that are not significantly different."
    headings = ["", "mean rank", *ranked.datasets]
    cells = [
        [row, f"{mean:.2f}", *(f"{one:g}" for one in each)]
        for row, mean, each in zip(ranked.rows, ranked.mean, ranked.by_dataset, strict=True)
    ]
    table = PageTable("ranks", SECTION, "Ranks by dataset", headings, cells)
    title = "Mean ranks and critical difference"
    return [Figure("ranks", SECTION, title, "sketch", sketch=sketch(ranked), caption=caption, table=table)]


def ranks_of(rows: Sequence[Row]) -> Ranks | None:
    """Ranks by the means over the seeds of the score, or of the metric of `select_by`; None where there is nothing to rank."""
    datasets = by_data(rows)
    named = [dict(zip(methods(each), each, strict=True)) for each in datasets]
    shared = _shared(named)
    if not shared or _obstacle(datasets):
        return None
    run = rows[0].runs[0].config
    metric = selected_metric(run) or TASKS.find(run.run.task).score
    tables = [{name: each[name].mean(metric) for name in shared} for each in named]
    if any(each[name] is None for each in tables for name in shared):
        return None
    values = {name: [pair[0] for each in tables if (pair := each[name]) is not None] for name in shared}
    return rank(values, data_names(datasets), metric, higher_is_better=metric_format(metric).higher_is_better)


def why_unranked(rows: Sequence[Row]) -> str:
    """A sentence where several methods have several tables but their ranks would mean nothing; otherwise empty."""
    datasets = by_data(rows)
    reason = _obstacle(datasets) if _shared([dict.fromkeys(methods(each)) for each in datasets]) else ""
    return f"There are no mean ranks over the tables: {reason}." if reason else ""


def _shared(named: Sequence[Mapping[str, object]]) -> list[str]:
    """The methods that every dataset has; empty where they or the datasets are too few for ranks."""
    shared = [name for name in named[0] if all(name in each for each in named)] if named else []
    return shared if len(named) >= MIN_DATASETS and len(shared) >= MIN_ROWS else []


def _obstacle(datasets: Sequence[Sequence[Row]]) -> str:
    """Why ranks on these would not be independent and of one kind; empty where they are."""
    for word in WORDS:
        values = {str(getattr(row.runs[0].config.run, word)) for each in datasets for row in each}
        if len(values) > 1:
            return f"their numbers do not mean the same ({word} is {listed(sorted(values))})"
    keys = [_undamaged(each) for each in datasets]
    return "some have the same data and differ in noise alone" if len(set(keys)) < len(keys) else ""


def _undamaged(rows: Sequence[Row]) -> str:
    """What decides the data of a table, without noise that was added to it."""
    noise = {item.name for item in fields(rows[0].runs[0].config.noise)}
    key = {name: value for name, value in json.loads(rows[0].data).items() if name not in noise}
    return json.dumps([key, sorted({row.digest for row in rows if row.digest})], sort_keys=True)


def data_names(datasets: Sequence[Sequence[Row]]) -> list[str]:
    """A name for each dataset: its own, with the partition and a number where they would be the same."""
    plain = [each[0].data_name for each in datasets]
    named = [
        name if plain.count(name) == 1 else f"{name}, {each[0].runs[0].config.partition}"
        for name, each in zip(plain, datasets, strict=True)
    ]
    return [name if named.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(named, 1)]


def sketch(ranked: Ranks) -> Sketch:
    """The axis of ranks, the names with a line to their mean rank, the bars of the groups, and the critical difference."""
    count = len(ranked.rows)
    left, right = 1.0, float(count)
    lines = [SketchLine(left, 0.0, right, 0.0)]
    texts = []
    for number in range(1, count + 1):
        lines.append(SketchLine(number, 0.0, number, 0.1))
        texts.append(Text(number, 0.16, str(number), "center"))
    bars = [(ranked.rows.index(group[0]), ranked.rows.index(group[-1])) for group in ranked.groups]
    lines += [
        SketchLine(ranked.mean[first] - 0.03, -BAR - STEP * depth, ranked.mean[last] + 0.03, -BAR - STEP * depth, wide=True)
        for depth, (first, last) in enumerate(bars)
    ]
    lowest = -BAR - STEP * len(bars)
    half = math.ceil(count / 2)
    gap = MARGIN * (right - left)
    for index, (row, mean) in enumerate(zip(ranked.rows, ranked.mean, strict=True)):
        first = index < half
        level = lowest - 0.25 * (index + 1 if first else count - index)
        end = left - gap if first else right + gap
        lines += [SketchLine(mean, 0.0, mean, level), SketchLine(mean, level, end, level)]
        label = f"{row} ({mean:.2f})"
        texts.append(Text(end - gap / 3 if first else end + gap / 3, level, label, "right" if first else "left"))
    lines.append(SketchLine(left, 0.5, left + ranked.critical_difference, 0.5, wide=True))
    texts.append(Text(left, 0.62, f"critical difference {ranked.critical_difference:.2f}", "left"))
    return Sketch(lines, texts)
