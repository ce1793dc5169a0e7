"""The progress of every table and figure: `atoll reproduce --list`. Imports torch only if there is something to look at."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from atoll.papers import Cell, Exhibit, Measured, recorded


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
    """Number of seeds with a result: in the folder of runs, or recorded for the current configuration."""
    if kept is None and (exhibit.kind == "facts" or not (known or root.is_dir())):
        return 0
    from atoll.papers.execute import results
    from atoll.papers.record import digest

    configs = cell.configs(exhibit.wanted, {})
    available = len(results(configs, root, known)) if exhibit.kind != "facts" else 0
    return max(available, kept.seeds if kept is not None and kept.config == digest(configs[0]) else 0)


@cache
def _absent() -> frozenset[str]:
    """The known graphs whose files are missing."""
    from atoll.data.registry import known

    return frozenset(dataset.name for dataset in known() if not dataset.available)


def title(exhibit: Exhibit) -> str:
    """The title, with the number of lines without data."""
    without = len(exhibit.cells) - len(exhibit.runnable)
    return exhibit.title + (f" ({without} of {len(exhibit.cells)} lines without data)" if without and exhibit.runnable else "")
