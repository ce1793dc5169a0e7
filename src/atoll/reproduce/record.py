"""Our results as data of the package: `measured/PAPER.toml`, so that who has only the package sees our numbers too.

A line holds for one configuration. It carries the digest that ends the name of its first run's folder; once settings or defaults
have changed the digest is another one, and the line is no longer shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from atoll import reproduce
from atoll.config import Config
from atoll.errors import AtollError
from atoll.reproduce import Cell, Exhibit, Line, Measured
from atoll.reproduce.execute import folder_of

Jobs = Mapping[tuple[str, str], Sequence[Config]]


def digest(config: Config) -> str:
    """What tells a configuration from all others."""
    return folder_of(config, Path()).name.rpartition("-")[2]


def filled(exhibit: Exhibit, lines: Sequence[Line], jobs: Jobs) -> list[Line]:
    """The lines, and for those with fewer runs at hand than were asked for and recorded, what was recorded."""
    paper, _, table = exhibit.name.partition("/")
    known = reproduce.measured(paper).get(table, {})
    return [_better(line, known.get(line.cell.row), jobs.get((exhibit.name, line.cell.row), ())) for line in lines]


def _better(line: Line, kept: Measured | None, configs: Sequence[Config]) -> Line:
    if kept is None or line.cell.missing or line.seeds >= min(len(configs) or 1, kept.seeds):
        return line
    first = configs[0] if configs else line.cell.configs(1, {})[0]
    return replace(line, ours=kept.ours, seeds=kept.seeds, recorded=True) if kept.config == digest(first) else line


def ready() -> None:
    """Make sure, before anything runs, that a record can be written."""
    try:
        reproduce.MEASURED.mkdir(exist_ok=True)
        probe = reproduce.MEASURED / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise AtollError(
            f"{reproduce.MEASURED} cannot be written to ({error.strerror}); --record needs atoll's source checkout."
        ) from error


def write(paper: str, told: Mapping[str, Sequence[Line]]) -> list[str]:
    """Merge lines from runs, by exhibit, into the paper's file; what was dropped from it, in words.

    A line replaces one of as many seeds or fewer. What the file has of configurations that have changed since is dropped.
    """
    known = reproduce.measured(paper)
    text, words = [HEADER.format(paper=paper)], []
    for exhibit in reproduce.exhibits(paper):
        table = exhibit.name.partition("/")[2]
        before, kept = known.pop(table, {}), {}
        fresh = {line.cell.row: line for line in told.get(exhibit.name, ()) if line.ours and not line.recorded}
        for cell in exhibit.cells:
            line, old = fresh.get(cell.row), before.pop(cell.row, None)
            if cell.missing or exhibit.missing or (line is None and old is None):
                continue
            now = _digest(cell)
            if old is not None and old.config != now:
                words.append(f"{exhibit.name}, {cell.row}: dropped, its configuration has changed since it was recorded.")
                old = None
            if line is not None and (old is None or line.seeds >= old.seeds):
                old = Measured(line.seeds, now, line.ours)
            if old is not None:
                kept[cell.row] = old
        words += [f"{exhibit.name}, {row}: dropped, there is no such line." for row in before]
        if kept:
            text += ["", f"[{table}]", *(_line(row, measured) for row, measured in kept.items())]
    words += [f"{paper}/{table}: dropped, there is no such table." for table in known]
    (reproduce.MEASURED / f"{paper}.toml").write_text("\n".join(text) + "\n")
    return words


def _digest(cell: Cell) -> str:
    return digest(cell.configs(1, {})[0])


HEADER = """\
# Ours, beside the paper's in ../{paper}.toml: mean and standard deviation over the seeds, in the paper's unit.
# Written by `atoll reproduce {paper} --record`, not by hand. `config` is the digest of the configuration that was run."""


def _line(row: str, measured: Measured) -> str:
    pairs = {metric: [_rounded(value) for value in pair if not math.isnan(value)] for metric, pair in measured.ours.items()}
    ours = ", ".join(f"{_text(metric)} = [{', '.join(values)}]" for metric, values in pairs.items())
    return f'{_text(row)} = {{ seeds = {measured.seeds}, config = "{measured.config}", ours = {{ {ours} }} }}'


def _rounded(value: float) -> str:
    """Four decimals of what is large, five digits of what is small."""
    short = round(value, 4) if abs(value) >= 1 else float(f"{value:.5g}")
    return str(int(short)) if short.is_integer() and abs(short) < 1e15 else repr(short)


def _text(name: str) -> str:
    """A key of TOML: bare where it may be."""
    return name if name.replace("_", "").isascii() and name.replace("_", "").isalnum() else json.dumps(name, ensure_ascii=False)
