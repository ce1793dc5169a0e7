"""Run what the papers' tables need: each run once, in its own folder, resumable, several at a time."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll.data.partition import first_kind
from atoll.errors import AtollError
from atoll.papers import Cell, Exhibit, Line, measured, recorded, summarize
from atoll.papers.snapshots import beside
from atoll.runs import parallel
from atoll.runs.argument_values import plain
from atoll.runs.config import Config
from atoll.runs.reader import read
from atoll.runs.trial import Trial
from atoll.settings import first_named

Runs = Mapping[str, Mapping[str, Any]]  # results by folder name
Watch = parallel.Watch  # a trial, a round of its history, its number of rounds
Finished = Callable[[Trial, Path], None]


def folder_of(config: Config, root: Path) -> Path:
    """The folder of a run's result: one folder per configuration, whichever table needs it.

    The digest uses the original names of settings and partitions, so that a new name does not lose earlier runs. The device is
    not in it: it is where a run is computed, not what.
    """
    tables = {name: plain(first_named(group)) for name, group in config.groups.items()}
    arguments = {name: value for name, value in plain(config.arguments).items() if name != "device"}
    arguments |= {"partition": first_kind(config.partition)}
    document = arguments | {name: table for name, table in tables.items() if table}
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


def waiting(jobs: Mapping[tuple[str, str], Sequence[Config]], root: Path) -> list[tuple[Trial, Path]]:
    """The runs without a result, each once, with their folders; a trial has the name of the first line that needs it."""
    trials: dict[Path, Trial] = {}
    for (_, row), configs in jobs.items():
        for config in configs:
            folder = folder_of(config, root)
            if folder not in trials and not (folder / "result.json").exists():
                trials[folder] = Trial(row, config)
    return [(trial, folder) for folder, trial in trials.items()]


def execute(
    todo: Sequence[tuple[Trial, Path]], workers: int, finished: Finished | None = None, watch: Watch | None = None
) -> None:
    """Run the trials, in this process or in several with one thread each; an interrupted run continues from its checkpoint.

    `finished` is called as each ends, so that a record grows with them; `watch` with every round.
    """
    parallel.check_jobs(workers)
    finished = finished or (lambda trial, folder: None)
    if workers == 1:
        for trial, folder in todo:
            trial.run(folder, None, _watched(trial, watch))
            finished(trial, folder)
    elif todo:
        folders = {id(trial): folder for trial, folder in todo}
        with parallel.Pool(min(workers, len(todo))) as pool:
            for trial in pool.all_of(todo, watch):
                finished(trial, folders[id(trial)])


def _watched(trial: Trial, watch: Watch | None) -> Callable[[Any, int], None] | None:
    return None if watch is None else lambda row, rounds: watch(trial, row, rounds)


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
    """The runs whose seeds all lines of their panel have, so that a missing seed does not bend a curve.

    A line with fewer runs than its recorded mean has seeds does not count: the mean is shown.
    """
    paper, _, table = exhibit.name.partition("/")
    means = {row: line.seeds for row, line in measured(paper).get(table, {}).items()}
    selected: dict[tuple[str, str], list[Config]] = {}
    for panel in {exhibit.panel(cell): None for cell in exhibit.runnable}:
        names = [(exhibit.name, cell.row) for cell in exhibit.runnable if exhibit.panel(cell) == panel]
        seeds = {
            name: {index for index, config in enumerate(jobs.get(name, ())) if results([config], root, known)} for name in names
        }
        counted = [name for name in names if len(seeds[name]) >= max(1, min(len(jobs.get(name, ())), means.get(name[1], 0)))]
        common = set.intersection(*(seeds[name] for name in counted)) if counted else set()
        for name in names:
            selected[name] = [jobs[name][index] for index in sorted(common if name in counted else seeds[name])]
    return selected


def _line(exhibit: Exhibit, cell: Cell, configs: Sequence[Config], root: Path, known: Runs) -> Line:
    available = results(configs, root, known, exhibit.metrics)
    return replace(summarize(exhibit, cell, available), recorded=len(available) > len(finished(configs, root)))


def results(configs: Sequence[Config], root: Path, known: Runs, shown: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The results of the finished runs, with what the metrics `shown` need; where a run's folder is not here, the recorded."""
    available: list[dict[str, Any]] = []
    for config in configs:
        folder = folder_of(config, root)
        if (folder / "result.json").exists():
            available.append(read(folder, config, history=False, state=False).to_dict() | beside(folder, shown))
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
    """Statistics of one party of a partition, or of the graph and all parties, as metrics; none if the graph is not available."""
    from atoll.data.federated import SCENARIOS, federate
    from atoll.data.separability import facts as separability
    from atoll.data.statistics import degree_shares, partition_statistics

    (config,) = cell.configs(1, {})
    try:
        if cell.missing and not cell.has_data:
            raise AtollError(cell.missing)
        data = federate(config, None, SCENARIOS)
    except (AtollError, OSError):
        return Line(cell, {}, 0)
    statistics = partition_statistics(data.parts, data.source)
    parties = statistics.parties
    if cell.party is not None:
        party = parties[cell.party]
        facts = {**vars(party), "labeled share": party.train / party.nodes, **degree_shares(data.parts)[cell.party]}
    else:
        means = {f"mean_{name}": sum(getattr(party, name) for party in parties) / len(parties) for name in ("nodes", "edges")}
        facts = {"parties": len(parties), "features": data.parts.num_features, "classes": data.parts.num_classes, **means}
        facts |= {
            "nodes": statistics.nodes + (statistics.nodes_lost or 0),
            "edges": statistics.edges_kept + (statistics.edges_lost or 0),
        }
        facts |= separability(data.parts, config.data)
    ours = {name: (float(facts[name]) * exhibit.scale.get(name, 1.0), math.nan) for name in exhibit.metrics if name in facts}
    return Line(cell, ours, 1)
