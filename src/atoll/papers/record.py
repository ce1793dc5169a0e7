"""Our results, shipped with the package so that every user sees them: `measured/PAPER.jsonl` and `.toml`.

The first holds one run per line, under the name of its folder: every table that needs the run finds it, and seeds can be added
one by one. A line has the run's metrics of test and validation items at the best round, what selected it, rounds and bytes, and
what tables show of other rounds. It is appended as the run ends, so that a recording can be stopped at any time; of two lines
of a run the later counts.

The second holds lines that are not means over runs (facts about a partition, silhouettes) and means whose runs were not kept,
each with the digest of its configuration. When settings or defaults change, so does the digest (which also ends a folder's
name), and what was recorded is no longer shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from atoll import papers, storage
from atoll.errors import AtollError
from atoll.papers import Exhibit, Line, Measured, execute, ranges
from atoll.papers.execute import folder_of, jobs_of
from atoll.papers.snapshots import beside
from atoll.runs.config import Config
from atoll.runs.reader import read
from atoll.runs.result import Result
from atoll.runs.trial import Trial

Jobs = Mapping[tuple[str, str], Sequence[Config]]
COMPUTED = ("facts", "embeddings")  # kinds of exhibits whose lines are not means over runs


def digest(config: Config) -> str:
    """The digest that identifies a configuration."""
    return folder_of(config, Path()).name.rpartition("-")[2]


def filled(exhibit: Exhibit, lines: Sequence[Line], jobs: Jobs) -> list[Line]:
    """The lines; where fewer runs are here than were requested and recorded, the recorded line instead.

    A figure's line keeps its runs if its panel has lines with as many runs and no recorded mean, because curves are compared.
    """
    paper, _, table = exhibit.name.partition("/")
    known = papers.measured(paper).get(table, {})
    alone = {(exhibit.panel(line.cell), line.seeds) for line in lines if line.seeds and line.cell.row not in known}
    compared = alone if exhibit.kind == "figure" else set()
    return [
        line
        if (exhibit.panel(line.cell), line.seeds) in compared
        else _better(line, known.get(line.cell.row), jobs.get((exhibit.name, line.cell.row), ()))
        for line in lines
    ]


def alone(exhibit: Exhibit) -> list[Line]:
    """What the record shows of an exhibit where there are no runs at hand."""
    jobs = jobs_of([exhibit], False, None)
    nowhere = papers.MEASURED / "none"
    empty = [Line(cell, {}, 0) for cell in exhibit.cells]
    return filled(exhibit, empty if exhibit.kind in COMPUTED else execute.lines(exhibit, jobs, nowhere), jobs)


def judged(exhibit: Exhibit, lines: Sequence[Line]) -> list[Line]:
    """The lines with the ranges that they are expected in."""
    return ranges.with_ranges(exhibit, lines, {line.cell.row: line for line in alone(exhibit) if line.ours})


def _better(line: Line, kept: Measured | None, configs: Sequence[Config]) -> Line:
    if kept is None or line.cell.missing or line.seeds >= min(len(configs) or 1, kept.seeds):
        return line
    first = configs[0] if configs else line.cell.configs(1, {})[0]
    return replace(line, ours=kept.ours, seeds=kept.seeds, recorded=True) if kept.config == digest(first) else line


def of_lines(exhibits: Sequence[Exhibit], names: Iterable[str]) -> set[str]:
    """Those of the folder names that are runs of some line, whichever their seed."""
    folders = set(names)
    seeds = {int(name.rsplit("-", 2)[1]) for name in folders}
    firsts = {digest(each[0]): each[0] for each in jobs_of(exhibits, False, 1).values()}
    return folders & {folder_of(replace(first, seed=seed), Path()).name for first in firsts.values() for seed in seeds}


def ready() -> None:
    """Check, before anything runs, that results can be recorded."""
    try:
        papers.MEASURED.mkdir(exist_ok=True)
        probe = papers.MEASURED / ".probe"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise AtollError(
            f"{papers.MEASURED} cannot be written to ({error.strerror}); --record needs atoll's source checkout."
        ) from error


def unrecorded(selected: Sequence[Exhibit], jobs: Jobs, *, means: bool = True) -> dict[tuple[str, str], list[Config]]:
    """The runs that are not recorded, by line: neither themselves nor, with `means`, as the mean of as many seeds."""
    runs: dict[str, Any] = {}
    lines: dict[str, dict[str, Measured]] = {}
    for paper in {exhibit.name.partition("/")[0] for exhibit in selected}:
        runs |= papers.recorded(paper)
        lines |= {f"{paper}/{table}": known for table, known in papers.measured(paper).items()}
    left = {}
    for (name, row), configs in jobs.items():
        line = lines.get(name, {}).get(row)
        if not means or line is None or line.seeds < len(configs) or line.config != digest(configs[0]):
            left[name, row] = [config for config in configs if folder_of(config, Path()).name not in runs]
    return left


def add(paper: str, trial: Trial, folder: Path) -> None:
    """Append a finished run to the paper's record."""
    shown = _shown(papers.exhibits(paper))
    kept = _kept(read(folder, trial.config, history=False, state=False), shown)
    text = _run_line(folder.name, kept | _short(beside(folder, shown)))
    storage.append_line(papers.MEASURED / f"{paper}.jsonl", text)


def write(paper: str, shown: Mapping[str, Sequence[Line]], jobs: Jobs, root: Path) -> list[str]:
    """Add the local runs and the computed lines to the paper's record; return what was dropped, in words."""
    exhibits = papers.exhibits(paper)
    wanted = jobs_of(exhibits, False, None)
    configs = [config for asked in (wanted, jobs) for each in asked.values() for config in each]
    return _write_runs(paper, exhibits, configs, root) + _write_lines(paper, exhibits, shown, wanted)


def _write_runs(paper: str, exhibits: Sequence[Exhibit], configs: Sequence[Config], root: Path) -> list[str]:
    """The runs that some line needs, sorted by name: local ones first, then those recorded before."""
    before, shown = papers.recorded(paper), _shown(exhibits)
    runs = {name: before[name] for name in of_lines(exhibits, before)}
    for config in configs:
        folder = folder_of(config, root)
        if (folder / "result.json").exists():
            kept = _kept(read(folder, config, history=False, state=False), shown)
            runs[folder.name] = kept | _short(beside(folder, shown))
    lines = [_run_line(name, runs[name]) for name in sorted(runs)]
    if lines:
        storage.write_whole(papers.MEASURED / f"{paper}.jsonl", ("\n".join(lines) + "\n").encode())
    dropped = len(before.keys() - runs.keys())
    return [f"{paper}: {dropped} recorded runs dropped: no line needs them any more."] if dropped else []


def _shown(exhibits: Sequence[Exhibit]) -> set[str]:
    """The names of all metrics that the paper's tables show."""
    return {metric for exhibit in exhibits for metric in exhibit.metrics}


def _run_line(name: str, run: Mapping[str, Any]) -> str:
    return json.dumps({"run": name, **run}, ensure_ascii=False)


def _kept(result: Result, shown: set[str]) -> dict[str, Any]:
    """What a record keeps: every single metric of the best round, lists and other parts of result.json that tables show."""
    lists = {metric.partition(".")[0] for metric in shown}
    metrics = {
        name: _short(value)
        for name, value in sorted(result.metrics.items())
        if isinstance(value, (int, float)) or (isinstance(value, list) and name in lists)
    }
    kept: dict[str, Any] = {"metrics": metrics, "select_by": result.config.run.select_by}
    kept |= {"rounds": result.rounds, "best_round": result.best_round}
    kept["bytes"] = {way: result.bytes[way] for way in ("up", "down") if way in result.bytes}
    if "seconds.simulated" in shown and "simulated" in result.seconds:
        kept["seconds"] = {"simulated": _short(result.seconds["simulated"])}
    for name in sorted(each for each in shown if each.startswith("averages.")):
        _, how, metric = name.split(".")
        if metric in result.averages.get(how, {}):
            kept.setdefault("averages", {}).setdefault(how, {})[metric] = _short(result.averages[how][metric])
    return kept


def _short(value: Any) -> Any:
    """Every number to six significant digits."""
    if isinstance(value, list):
        return [_short(each) for each in value]
    if isinstance(value, dict):
        return {name: _short(each) for name, each in value.items()}
    return float(f"{value:.6g}") if isinstance(value, float) else value


def _write_lines(paper: str, exhibits: Sequence[Exhibit], shown: Mapping[str, Sequence[Line]], jobs: Jobs) -> list[str]:
    """Computed lines, new ones replacing old ones; of the others, those that recorded runs do not cover."""
    known, runs = papers.measured(paper), papers.recorded(paper)
    text, words = [HEADER.format(paper=paper)], []
    for exhibit in exhibits:
        table = exhibit.name.partition("/")[2]
        before, kept = known.pop(table, {}), {}
        computed = shown.get(exhibit.name, ()) if exhibit.kind in COMPUTED else ()
        fresh = {line.cell.row: line for line in computed if line.ours and not line.recorded}
        for cell in exhibit.runnable:
            line, old = fresh.get(cell.row), before.pop(cell.row, None)
            if line is None and old is None:
                continue
            now = digest(cell.configs(1, {})[0])
            if old is not None and old.config != now:
                words.append(f"{exhibit.name}, {cell.row}: dropped, its configuration has changed since it was recorded.")
                old = None
            if line is not None and (old is None or line.seeds >= old.seeds):
                old = Measured(line.seeds, now, line.ours)
            configs = jobs.get((exhibit.name, cell.row), ()) if exhibit.kind not in COMPUTED else ()
            if old is not None and sum(folder_of(config, Path()).name in runs for config in configs) < old.seeds:
                kept[cell.row] = old
        words += [f"{exhibit.name}, {row}: dropped, there is no such line." for row in before]
        if kept:
            text += ["", f"[{table}]", *(_line(row, measured) for row, measured in kept.items())]
    words += [f"{paper}/{table}: dropped, there is no such table." for table in known]
    storage.write_whole(papers.MEASURED / f"{paper}.toml", ("\n".join(text) + "\n").encode())
    return words


HEADER = """\
# Ours, next to the paper's in ../{paper}.toml: mean and standard deviation over the seeds, in the paper's unit.
# Written by `atoll reproduce {paper} --record`, not by hand. `config` is the digest of the configuration that was run."""


def _line(row: str, measured: Measured) -> str:
    pairs = {metric: [_rounded(value) for value in pair if not math.isnan(value)] for metric, pair in measured.ours.items()}
    ours = ", ".join(f"{_text(metric)} = [{', '.join(values)}]" for metric, values in pairs.items())
    return f'{_text(row)} = {{ seeds = {measured.seeds}, config = "{measured.config}", ours = {{ {ours} }} }}'


def _rounded(value: float) -> str:
    """Four decimals for large values, five significant digits for small ones."""
    short = round(value, 4) if abs(value) >= 1 else float(f"{value:.5g}")
    return str(int(short)) if short.is_integer() and abs(short) < 1e15 else repr(short)


def _text(name: str) -> str:
    """A TOML key, bare where allowed."""
    return name if name.replace("_", "").isascii() and name.replace("_", "").isalnum() else json.dumps(name, ensure_ascii=False)
