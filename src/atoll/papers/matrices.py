"""A table of a paper as a matrix: methods down, datasets across, ours and in brackets the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from atoll.papers import Exhibit, Line
from atoll.papers.text import pair, printed, table
from atoll.runs.metrics import metric_format


def matrices(exhibit: Exhibit, lines: Sequence[Line]) -> list[str]:
    """One matrix per metric, as Markdown; columns without any result are left out."""
    text: list[str] = []
    available = [column for column in exhibit.columns if any(_within(line, column) and line.ours for line in lines)]
    for metric in exhibit.metrics:
        methods = list(dict.fromkeys(_method(line, column) for column in available for line in lines if _within(line, column)))
        by_place = {(_method(line, column), column): line for column in available for line in lines if _within(line, column)}
        rows = [[name, *(_cell(by_place.get((name, column)), metric) for column in available)] for name in methods]
        words = metric_format(metric).heading
        text += [*([f"**{words}**", ""] if len(exhibit.metrics) > 1 else []), *table(["", *available], rows), ""]
    return text


def _within(line: Line, column: str) -> bool:
    return line.cell.row.startswith(f"{column} ")


def _method(line: Line, column: str) -> str:
    return line.cell.row.removeprefix(f"{column} ")


def _cell(line: Line | None, metric: str) -> str:
    """`84.79 ± 0.91 ‼ (80.30 ± 1.20)`."""
    if line is None:
        return ""
    ours = line.ours.get(metric)
    theirs = printed(line.cell, metric)
    mark = " ‼" if metric in line.outside() else ""
    return (pair(*ours) + mark if ours else "–") + (f" ({pair(*theirs)})" if theirs else "")
