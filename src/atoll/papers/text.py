"""How values and lines of the papers' tables are written, in Markdown and in the terminal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from atoll.papers import Cell, Exhibit, Line
from atoll.papers.snapshots import heading
from atoll.runs.metrics import mean_text


def pair(value: float, std: float = math.nan) -> str:
    """A mean and its standard deviation to the same number of digits; a count in full."""
    count = math.isnan(std) and float(value).is_integer() and abs(value) < 1e9
    digits = 0 if count else 2 if abs(value) >= 1 else 3
    return mean_text(value, std, digits)


def printed(cell: Cell, metric: str) -> list[float]:
    """What the paper prints: a mean, perhaps its spread, or nothing."""
    value = cell.paper.get(metric)
    return value if isinstance(value, list) else [] if value is None else [value]


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: bool = True) -> list[str]:
    """A Markdown table; columns after the first are numbers, on the right, or text."""
    rule = "|---" + ("|---:" if numbers else "|---") * (len(head) - 1) + "|"
    return ["| " + " | ".join(head) + " |", rule, *("| " + " | ".join(row) + " |" for row in rows)]


def folded(summary: str, lines: Sequence[str]) -> list[str]:
    """Lines that a reader opens."""
    return [f'<details markdown="1"><summary>{summary}</summary>', "", *lines, "", "</details>", ""]


def header(exhibit: Exhibit) -> list[str]:
    """The columns: for each metric ours and, if the paper prints it, the paper's and the difference."""
    columns = ["", "seeds"]
    for metric in exhibit.metrics:
        columns += [f"{heading(metric)}: ours", *(("paper", "difference") if exhibit.printed(metric) else ())]
    return columns


def row(exhibit: Exhibit, line: Line) -> list[str]:
    """One line of a table; ‼ marks values outside the range around the paper's."""
    cells = [line.cell.row, str(line.seeds) if line.ours else "–"]
    for metric in exhibit.metrics:
        theirs, ours = printed(line.cell, metric), line.ours.get(metric)
        mark = " ‼" if metric in line.outside() else ""
        difference = f"{ours[0] - theirs[0]:+.{2 if abs(theirs[0]) >= 1 else 3}f}" if ours and theirs else ""
        cells.append(pair(*ours) + mark if ours else "–" if line.cell.missing or line.ours else "not run")
        cells += [pair(*theirs) if theirs else "–", difference] if exhibit.printed(metric) else []
    return cells


def reasons(lines: Sequence[Line]) -> list[str]:
    """Why some lines cannot be run: one sentence per reason, with the number of lines."""
    counts = Counter(line.cell.missing.rstrip(".") for line in lines if line.cell.missing)
    return [f"{count} line{'s' if count > 1 else ''} cannot be run: {reason}." for reason, count in counts.items()]
