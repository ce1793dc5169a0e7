"""Run what the papers' tables need: each run once, in its own folder, resumable, several at a time."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, recorded, summarize
from atoll.runs import runner
from atoll.runs.config import Config, plain
from atoll.runs.reader import read
from atoll.settings import first_named

Runs = Mapping[str, Mapping[str, Any]]  # results by folder name
Progress = Callable[[str, int, int], None]  # name of the run, number done, number in total


def folder_of(config: Config, root: Path) -> Path:
    """The folder of a run's result: one folder per configuration, whichever table needs it.

    The digest uses the original names of all settings, so that renaming a setting does not lose earlier runs.
    """
    tables = {name: plain(first_named(group)) for name, group in config.groups.items()}
    document = plain(config.arguments) | {name: table for name, table in tables.items() if table}
    digest = hashlib.blake2b(json.dumps(document, sort_keys=True).encode(), digest_size=6).hexdigest()
    return root / f"{config.algorithm}-{Path(config.dataset).name}-{config.seed}-{digest}"


def jobs_of(exhibits: Sequence[Exhibit], quick: bool, seeds: int | None) -> dict[tuple[str, str], list[Config]]:
    """The runs behind every cell that can be run, by exhibit and row."""
    jobs: dict[tuple[str, str], list[Config]] = {}
    for exhibit in exhibits:
        over = {name: value for name, value in exhibit.quick.items() if name != "seeds"} if quick else {}
        count = seeds or (exhibit.quick.get("seeds", 1) if quick else exhibit.seeds)
        if exhibit.kind != "facts":
            jobs |= {(exhibit.name, cell.row): cell.configs(count, over) for cell in exhibit.runnable}
    return jobs


def execute(configs: Sequence[Config], root: Path, workers: int, progress: Progress) -> None:
    """Run every configuration that has no result yet; an interrupted run continues from its checkpoint."""
    waiting = {folder_of(config, root): config for config in configs}
    waiting = {folder: config for folder, config in waiting.items() if not (folder / "result.json").exists()}
    if workers == 1:
        for done, (folder, config) in enumerate(waiting.items(), 1):
            run_one(config, folder)
            progress(folder.name, done, len(waiting))
        return
    os.environ["OMP_NUM_THREADS"] = "1"  # for the children: one thread each
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = {pool.submit(run_one, config, folder): folder for folder, config in waiting.items()}
        for done, future in enumerate(as_completed(futures), 1):
            future.result()
            progress(futures[future].name, done, len(waiting))


def run_one(config: Config, folder: Path) -> None:
    """Run or resume one configuration."""
    if (folder / "config.toml").exists():
        runner.resume(folder)
    else:
        runner.run(config, out=folder)


def lines(exhibit: Exhibit, jobs: Mapping[tuple[str, str], Sequence[Config]], root: Path) -> list[Line]:
    """The results, cell by cell; a cell without results has an empty line."""
    if exhibit.kind == "facts":
        return [_facts(exhibit, cell) for cell in exhibit.cells]
    if exhibit.kind == "embeddings":
        return [_embedded(exhibit, cell, jobs.get((exhibit.name, cell.row), ()), root) for cell in exhibit.cells]
    known = recorded(exhibit.name.partition("/")[0])
    if exhibit.kind == "figure" or exhibit.panels:
        jobs = _comparable(exhibit, jobs, root, known)
    return [_line(exhibit, cell, jobs.get((exhibit.name, cell.row), ()), root, known) for cell in exhibit.cells]


def _comparable(
    exhibit: Exhibit, jobs: Mapping[tuple[str, str], Sequence[Config]], root: Path, known: Runs
) -> dict[tuple[str, str], list[Config]]:
    """The runs whose seeds all lines of their panel have, so that a missing seed does not bend a curve."""
    selected: dict[tuple[str, str], list[Config]] = {}
    for panel in {exhibit.panel(cell): None for cell in exhibit.runnable}:
        names = [(exhibit.name, cell.row) for cell in exhibit.runnable if exhibit.panel(cell) == panel]
        finished_seeds = {
            name: {index for index, config in enumerate(jobs.get(name, ())) if results([config], root, known)} for name in names
        }
        nonempty = [indices for indices in finished_seeds.values() if indices]
        common = sorted(set.intersection(*nonempty)) if nonempty else []
        selected |= {name: [jobs[name][index] for index in common if finished_seeds[name]] for name in names}
    return selected


def _line(exhibit: Exhibit, cell: Cell, configs: Sequence[Config], root: Path, known: Runs) -> Line:
    available = results(configs, root, known)
    return replace(summarize(exhibit, cell, available), recorded=len(available) > len(finished(configs, root)))


def results(configs: Sequence[Config], root: Path, known: Runs) -> list[dict[str, Any]]:
    """The results of the finished runs; where a run's folder is not here, its recorded result."""
    available: list[dict[str, Any]] = []
    for config in configs:
        folder = folder_of(config, root)
        if (folder / "result.json").exists():
            available.append(read(folder, config, history=False, state=False).to_dict())
        elif folder.name in known:
            available.append(dict(known[folder.name]))
    return available


def finished(configs: Sequence[Config], root: Path) -> list[Path]:
    """The folders of the finished runs."""
    return [folder for folder in (folder_of(config, root) for config in configs) if (folder / "result.json").exists()]


def _embedded(exhibit: Exhibit, cell: Cell, configs: Sequence[Config], root: Path) -> Line:
    """The results with the silhouette of their embeddings; none if the graph is not available."""
    from atoll.reports.embedding import silhouette

    embedded = []
    for folder in finished(configs, root):
        try:
            result = read(folder)
            embedded.append({**result.to_dict(), "metrics": {**result.metrics, "silhouette": silhouette(result)}})
        except (AtollError, OSError):
            continue
    return summarize(exhibit, cell, embedded)


def _facts(exhibit: Exhibit, cell: Cell) -> Line:
    """Statistics of one party of a partition as metrics; none if its graph is not available."""
    from atoll.data.federated import SCENARIOS, federate
    from atoll.data.statistics import partition_statistics

    try:
        data = federate(cell.configs(1, {})[0], None, SCENARIOS)
    except (AtollError, OSError):
        return Line(cell, {}, 0)
    party = vars(partition_statistics(data.parts, data.source).parties[cell.party or 0])
    return Line(cell, {name: (float(party[name]), math.nan) for name in exhibit.metrics if name in party}, 1)
