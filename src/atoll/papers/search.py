"""The search behind a paper's table: every line's setting is chosen from one grid, on validation nodes, with seeds of its own.

    python -m atoll.papers.search glasu/table1 --only Cora --out runs/search --record

The grids are in `searches/PAPER.toml`, by table, and what came out in `searches/PAPER.jsonl`. Each line is searched alike:

1. With the first seed, the values that the search `starts` with; while the best is the smallest or largest that was tried, the
   next one of the grid, if there is one.
2. The `finalists` with the remaining seeds; the one with the highest mean validation accuracy is chosen.

No test node is looked at, and no seed of the search is one that the table reports. Runs are resumable, one folder each.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import mean

from atoll import papers, storage
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit
from atoll.papers.execute import folder_of
from atoll.runs.config import Config
from atoll.runs.reader import read
from atoll.runs.trial import Trial

FOLDER = papers.HOME / "searches"
Measure = Callable[[Config], float]  # the validation accuracy of a run


@dataclass(frozen=True)
class LineGrid:
    """What a table's lines are searched over."""

    setting: str
    values: tuple[float, ...]  # ascending
    starts: tuple[float, ...]  # the values that are tried first
    seeds: tuple[int, ...]
    finalists: int = 2


@dataclass(frozen=True)
class LineSearch:
    """What a search has found for one line: validation accuracies by value and seed, and the value chosen."""

    row: str
    tried: Mapping[float, Mapping[int, float]] = field(default_factory=dict)
    chosen: float | None = None


def grid_of(exhibit: Exhibit) -> LineGrid | None:
    """The grid of a table; None where nothing is searched."""
    paper, _, table = exhibit.name.partition("/")
    file = FOLDER / f"{paper}.toml"
    document = tomllib.loads(file.read_text()).get(table) if file.exists() else None
    if document is None:
        return None
    lists = {name: tuple(document[name]) for name in ("values", "starts", "seeds")}
    return LineGrid(document["setting"], finalists=document.get("finalists", 2), **lists)


def search(cell: Cell, grid: LineGrid, measure: Measure) -> LineSearch:
    """Search one line (see the module)."""
    tried: dict[float, dict[int, float]] = {}

    def run(value: float, seed: int) -> None:
        tried.setdefault(value, {})[seed] = measure(config_of(cell, grid, value, seed))

    first, *others = grid.seeds
    for value in grid.starts:
        run(value, first)
    while (further := beyond(grid, {value: known[first] for value, known in tried.items()})) is not None:
        run(further, first)
    best = sorted(tried, key=lambda value: (-tried[value][first], value))[: grid.finalists]
    for seed in others:
        for value in best:
            run(value, seed)
    chosen = max(best, key=lambda value: (mean(tried[value].values()), -value))
    return LineSearch(cell.row, {value: tried[value] for value in sorted(tried)}, chosen)


def beyond(grid: LineGrid, known: Mapping[float, float]) -> float | None:
    """The grid's next value outside those tried, on the side of the best one if that is an end; otherwise None."""
    best = min(known, key=lambda value: (-known[value], value))
    lower = [value for value in grid.values if value < min(known)]
    higher = [value for value in grid.values if value > max(known)]
    if best == min(known) and lower:
        return lower[-1]
    return higher[0] if best == max(known) and higher else None


def config_of(cell: Cell, grid: LineGrid, value: float, seed: int) -> Config:
    """The run of a line with one value of the grid."""
    return replace(cell.configs(1, {grid.setting: value})[0], seed=seed)


def measured_in(root: Path, progress: Callable[[str], None]) -> Measure:
    """Run what has no result yet in the folders below `root`, and read the validation accuracy of the selected round."""

    def measure(config: Config) -> float:
        folder = folder_of(config, root)
        if not (folder / "result.json").exists():
            Trial("", config).run(folder, None, None)
        accuracy = round(float(read(folder, config, history=False, state=False).metrics["val_accuracy"]), 6)
        progress(f"{folder.name}: {accuracy:.4f}")
        return accuracy

    return measure


def recorded(name: str) -> list[LineSearch]:
    """The recorded searches of a table, in its order."""
    file = record_of(name)
    lines = map(json.loads, file.read_text().splitlines()) if file.exists() else ()
    return [
        LineSearch(
            line["row"],
            {float(value): {int(seed): one for seed, one in known.items()} for value, known in line["validation"].items()},
            line["chosen"],
        )
        for line in lines
        if line["table"] == name
    ]


def rows(paper: str) -> list[dict[str, str]]:
    """The recorded searches as rows of the paper's page: the values with their validation accuracy and seeds, and the choice."""
    return [
        _row(exhibit, grid.setting, one)
        for exhibit in papers.exhibits(paper)
        if (grid := grid_of(exhibit)) is not None
        for one in recorded(exhibit.name)
    ]


def _row(exhibit: Exhibit, setting: str, one: LineSearch) -> dict[str, str]:
    data = next((column for column in exhibit.columns if Cell(one.row).within(column)), "")
    return {
        "method": one.row.removeprefix(data).strip(),
        "data": data or exhibit.name.partition("/")[2],
        "setting": setting,
        "grid": ", ".join(f"{value:g}: {_shown(known)}" for value, known in one.tried.items()),
        "chosen": f"{one.chosen:g}",
        "by": "validation accuracy (seeds)",
        "seeds": ", ".join(map(str, sorted({seed for known in one.tried.values() for seed in known}))),
    }


def record(name: str, searches: Iterable[LineSearch]) -> None:
    """Keep searches as data of the package; a line's new search replaces the one before."""
    file, new = record_of(name), {one.row: one for one in searches}
    before = list(map(json.loads, file.read_text().splitlines())) if file.exists() else []
    kept = [line for line in before if line["table"] != name or line["row"] not in new]
    lines = [
        {"table": name, "row": one.row, "chosen": one.chosen, "validation": {str(v): k for v, k in one.tried.items()}}
        for one in new.values()
    ]
    text = "\n".join(json.dumps(line, ensure_ascii=False) for line in [*kept, *lines])
    storage.write_whole(file, f"{text}\n".encode())


def record_of(name: str) -> Path:
    """The file of a paper's recorded searches."""
    return FOLDER / f"{name.partition('/')[0]}.jsonl"


def table(searches: Sequence[LineSearch], setting: str) -> str:
    """The searches as a Markdown table: mean validation accuracy in percent by value, the number of seeds, and the choice."""
    values = sorted({value for one in searches for value in one.tried})
    lines = [f"| | {' | '.join(f'{value:g}' for value in values)} | chosen `{setting}` |", f"|---|{'---:|' * (len(values) + 1)}"]
    for one in searches:
        shown = (_shown(one.tried.get(value, {})) for value in values)
        lines.append(f"| {one.row} | {' | '.join(shown)} | {one.chosen:g} |")
    return "\n".join(lines)


def _shown(known: Mapping[int, float]) -> str:
    """`71.3 (3)`: the mean over 3 seeds."""
    return f"{100 * mean(known.values()):.1f} ({len(known)})" if known else ""


def main(arguments: Sequence[str] | None = None) -> None:
    """Search the lines of one table."""
    parser = argparse.ArgumentParser(prog="python -m atoll.papers.search", description="Choose a setting for a table's lines.")
    parser.add_argument("table", help="for instance glasu/table1")
    parser.add_argument(
        "--only", default="", help="search only the line with this label, or else those whose label contains this text"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/search"), help="folder of the runs; those there are not repeated")
    parser.add_argument("--record", action="store_true", help="keep the result as data of the package (for a source checkout)")
    options = parser.parse_args(arguments)
    [exhibit] = papers.find(options.table) if "/" in options.table else [None]
    grid = None if exhibit is None else grid_of(exhibit)
    if exhibit is None or grid is None:
        raise AtollError(f"{options.table} is not a table with a grid in {FOLDER}.")
    measure = measured_in(options.out, lambda text: print(text, file=sys.stderr, flush=True))
    rows = papers.selected([cell.row for cell in exhibit.runnable], options.only)
    searches = [search(cell, grid, measure) for cell in exhibit.runnable if cell.row in rows]
    if options.record:
        record(exhibit.name, searches)
    print(table(searches, grid.setting))


if __name__ == "__main__":
    try:
        main()
    except AtollError as error:
        sys.exit(str(error))
