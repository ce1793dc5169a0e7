"""How far every table and figure is: `atoll reproduce --list`. What needs torch waits until there is something to look at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

from atoll.papers import Cell, Exhibit, Measured, measured, recorded

LEGEND = """\
done: every line that can be run has all its seeds; partly (n of m): n lines of m have them.
Counted are the runs in {root} and our recorded results; `atoll reproduce NAME` shows them and runs the rest."""


def listing(exhibits: Iterable[Exhibit], root: Path) -> Group:
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
        table.add_row(exhibit.name, state(exhibit, root, papers[paper].get(name, {})), _title(exhibit))
    return Group(table, *(Text(line) for line in LEGEND.format(root=root).splitlines()))


def state(exhibit: Exhibit, root: Path, lines: Mapping[str, Measured]) -> str:
    """`done`, `partly (n of m)` lines, `not run`, `data missing here: …` or `not applicable: …`."""
    if exhibit.missing:
        return f"not applicable: {exhibit.missing}"
    cells = exhibit.runnable
    if not cells:
        return "data missing here: " + "; ".join(sorted({cell.missing.rstrip(".") for cell in exhibit.cells}))
    known = recorded(exhibit.name.partition("/")[0])
    seeds = [_seeds(exhibit, cell, root, lines.get(cell.row), known) for cell in cells]
    full = sum(count >= exhibit.wanted for count in seeds)
    if full == len(cells):
        return "done"
    if any(seeds):
        return f"partly ({full} of {len(cells)})"
    needed = {str(cell.run["dataset"]).lower() for cell in cells if "dataset" in cell.run}
    if needed and needed <= _absent():
        return f"data missing here: {', '.join(sorted(needed))}"
    return "not run"


def _seeds(exhibit: Exhibit, cell: Cell, root: Path, kept: Measured | None, known: Mapping[str, Mapping[str, Any]]) -> int:
    """Seeds with a result: in the folder of runs, or recorded for the configuration as it is now."""
    if kept is None and (exhibit.kind == "facts" or not (known or root.is_dir())):
        return 0
    from atoll.papers.execute import results
    from atoll.papers.record import digest

    configs = cell.configs(exhibit.wanted, {})
    there = len(results(configs, root, known)) if exhibit.kind != "facts" else 0
    return max(there, kept.seeds if kept is not None and kept.config == digest(configs[0]) else 0)


@cache
def _absent() -> frozenset[str]:
    """The known graphs whose files are not here."""
    from atoll.data.datasets import known

    return frozenset(dataset.name for dataset in known() if not dataset.available)


def _title(exhibit: Exhibit) -> str:
    without = len(exhibit.cells) - len(exhibit.runnable)
    return exhibit.title + (f" ({without} of {len(exhibit.cells)} lines without data)" if without and exhibit.runnable else "")
