"""The papers' tables and figures in the terminal: ours beside theirs, and how far each is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atoll.papers import Exhibit, Line, Measured, measured
from atoll.papers.status import state, title
from atoll.papers.text import header, reasons, row

LEGEND = """\
done: every line that can be run has all its seeds; partly (n of m): n lines of m have them.
Counted are the runs in {root} and our recorded results; `atoll reproduce NAME` shows them and runs the rest."""


def status_table(exhibits: Iterable[Exhibit], root: Path) -> Group:
    """Every table and figure with its state, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("name", no_wrap=True)
    table.add_column("state", max_width=36)
    table.add_column("what")
    papers: dict[str, dict[str, dict[str, Measured]]] = {}
    for exhibit in exhibits:
        paper, _, name = exhibit.name.partition("/")
        if paper not in papers:
            table.add_section()
            papers[paper] = measured(paper)
        table.add_row(exhibit.name, state(exhibit, root, papers[paper].get(name, {})), title(exhibit))
    return Group(table, *(Text(line) for line in LEGEND.format(root=root).splitlines()))


def exhibit_table(exhibit: Exhibit, lines: Sequence[Line]) -> Group:
    """The exhibit as a table for the terminal; headings stand word under word, so that the numbers have the room."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, name in enumerate(header(exhibit)):
        table.add_column(name.replace(": ", " ").replace(" ", "\n"), justify="left" if index == 0 else "right")
    for line in lines:
        table.add_row(*row(exhibit, line))
    words = reasons(lines)
    if recorded := sum(line.recorded for line in lines):
        words.append(f"{recorded} of {len(lines)} lines are our recorded results, not of runs at hand.")
    return Group(Text(f"{exhibit.name}: {exhibit.title}"), table, *map(Text, words), "")
