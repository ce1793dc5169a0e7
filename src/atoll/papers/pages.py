"""Pages of results in Markdown: ours next to the paper's."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

from atoll.papers import Exhibit, Line
from atoll.runs.metrics import mean_text, metric_format


def header(exhibit: Exhibit) -> list[str]:
    """The columns: for each metric ours and, if the paper prints it, the paper's and the difference."""
    columns = ["", "seeds"]
    for metric in exhibit.metrics:
        columns += [f"{metric_format(metric).heading}: ours", *(("paper", "difference") if exhibit.printed(metric) else ())]
    return columns


def row(exhibit: Exhibit, line: Line) -> list[str]:
    """One line of a table; ‼ marks values outside the range around the paper's."""
    cells = [line.cell.row, str(line.seeds) if line.ours else "–"]
    for metric in exhibit.metrics:
        paper = line.cell.paper.get(metric)
        theirs = paper if isinstance(paper, list) else [paper] if paper is not None else []
        ours = line.ours.get(metric)
        mark = " ‼" if metric in line.outside() else ""
        difference = f"{ours[0] - theirs[0]:+.{2 if abs(theirs[0]) >= 1 else 3}f}" if ours and theirs else ""
        cells.append(_pair(*ours) + mark if ours else "–" if line.cell.missing or line.ours else "not run")
        cells += [_pair(*theirs) if theirs else "–", difference] if exhibit.printed(metric) else []
    return cells


def reasons(lines: Sequence[Line]) -> list[str]:
    """Why some lines cannot be run: one sentence per reason, with the number of lines."""
    counts = Counter(line.cell.missing.rstrip(".") for line in lines if line.cell.missing)
    return [f"{count} line{'s' if count > 1 else ''} cannot be run: {reason}." for reason, count in counts.items()]


def _pair(value: float, std: float = math.nan) -> str:
    """A mean and its standard deviation to the same number of digits; a count in full."""
    count = math.isnan(std) and float(value).is_integer() and abs(value) < 1e9
    digits = 0 if count else 2 if abs(value) >= 1 else 3
    return mean_text(value, std, digits)


def markdown(exhibits: Sequence[tuple[Exhibit, Sequence[Line]]], pictures: Mapping[str, str] | None = None) -> str:
    """A page: every exhibit with its note, picture, table and notes on single lines."""
    first = exhibits[0][0]
    paper = first.name.split("/", maxsplit=1)[0]
    text = [f"# Results: {first.paper}", ""]
    text += [f"Made by `atoll reproduce {paper} --page`; mean ± standard deviation over the seeds, selected by validation.", ""]
    text += ["`‼` marks values outside the range we claim; the notes explain them.", ""]
    for exhibit, lines in exhibits:
        text += [f"## {exhibit.title}", ""]
        if exhibit.note:
            text += [exhibit.note.strip(), ""]
        if exhibit.missing:
            text += [f"Not run: {exhibit.missing}", ""]
            continue
        if exhibit.runnable and not any(line.ours for line in lines):
            count = len(exhibit.runnable)
            text += [f"Not run yet: {count} line{'s' if count > 1 else ''}.", ""]
            continue
        if pictures and exhibit.name in pictures:
            text += [f"![{exhibit.title}]({pictures[exhibit.name]})", ""]
        columns = header(exhibit)
        text += ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
        shown = [line for line in lines if line.ours or line.cell.paper or line.cell.missing]
        text += ["| " + " | ".join(row(exhibit, line)) + " |" for line in shown]
        notes = [f"- **{line.cell.row}**: {line.cell.note}" for line in shown if line.cell.note]
        notes += [f"- {reason}" for reason in reasons(lines)]
        if hidden := len(lines) - len(shown):
            notes.append(f"- Not run yet: {hidden} more line{'s' if hidden > 1 else ''}.")
        text += ["", *notes, ""] if notes else [""]
    return "\n".join(text).rstrip() + "\n"
