"""Pages of results: ours beside the paper's, in Markdown and in the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich import box
from rich.table import Table

from atoll.reproduce import Exhibit, Line

NAMES = {"accuracy": "accuracy", "minority_accuracy": "minority", "macro_f1": "macro F1", "local_accuracy": "local accuracy"}


def header(exhibit: Exhibit) -> list[str]:
    """The columns: for each metric ours, the paper's and the difference."""
    columns = ["", "seeds"]
    for metric in exhibit.metrics:
        name = NAMES.get(metric, metric.replace("_", " "))
        columns += [f"{name}: ours", "paper", "difference"]
    return columns


def row(exhibit: Exhibit, line: Line) -> list[str]:
    """One line of a table; ‼ marks what is outside the range we state."""
    if line.cell.missing:
        return [line.cell.row, "–", line.cell.missing] + [""] * (3 * len(exhibit.metrics) - 1)
    cells = [line.cell.row, str(line.seeds) if line.ours else "–"]
    for metric in exhibit.metrics:
        paper = line.cell.paper.get(metric)
        theirs = paper if isinstance(paper, list) else [paper] if paper is not None else []
        ours = line.ours.get(metric)
        mark = " ‼" if metric in line.outside() else ""
        difference = f"{ours[0] - theirs[0]:+.{2 if abs(theirs[0]) >= 1 else 3}f}" if ours and theirs else ""
        cells += [(_pair(*ours) if ours else "not run") + mark, _pair(*theirs) if theirs else "–", difference]
    return cells


def _pair(value: float, spread: float = math.nan) -> str:
    digits = 0 if float(value).is_integer() and abs(value) < 1e9 else 2 if abs(value) >= 1 else 3
    return f"{value:.{digits}f}" + ("" if math.isnan(spread) else f" ± {spread:.{max(digits, 2)}f}")


def terminal(exhibit: Exhibit, lines: Sequence[Line]) -> Table:
    """The exhibit as a table for the terminal."""
    table = Table(title=f"{exhibit.name}: {exhibit.title}", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for place, name in enumerate(header(exhibit)):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    for line in lines:
        table.add_row(*row(exhibit, line))
    return table


def markdown(exhibits: Sequence[tuple[Exhibit, Sequence[Line]]]) -> str:
    """A page: every exhibit with its note, its table and what is said of single lines."""
    first = exhibits[0][0]
    paper = first.name.split("/", maxsplit=1)[0]
    text = [f"# Results: {first.paper}", ""]
    text += [f"Made by `atoll reproduce {paper} --page`; mean ± standard deviation over the seeds, selected by validation.", ""]
    text += ["`‼` marks what lies outside the range we state; the notes say what was found.", ""]
    for exhibit, lines in exhibits:
        text += [f"## {exhibit.title}", ""]
        if exhibit.note:
            text += [exhibit.note.strip(), ""]
        if exhibit.missing:
            text += [f"Not run: {exhibit.missing}", ""]
            continue
        columns = header(exhibit)
        text += ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
        text += ["| " + " | ".join(row(exhibit, line)) + " |" for line in lines]
        notes = [f"- **{line.cell.row}**: {line.cell.note}" for line in lines if line.cell.note]
        text += ["", *notes, ""] if notes else [""]
    return "\n".join(text).rstrip() + "\n"
