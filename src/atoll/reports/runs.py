"""The runs of a report, read from their folders, finished or still going; those that differ only in their seed are one row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll.errors import AtollError
from atoll.runs import absence
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.metrics import mean_std
from atoll.runs.own_partition import unlocated
from atoll.runs.reader import read
from atoll.runs.result import Result

AXES = {"round": "round", "megabytes": "megabytes up and down", "seconds": "seconds", "simulated_seconds": "simulated seconds"}


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run in its folder, finished or still going."""

    path: Path
    text: str  # config.toml
    result: Result

    @property
    def config(self) -> Config:
        """Its configuration."""
        return self.result.config

    @property
    def rows(self) -> list[dict[str, Any]]:
        """Its history so far."""
        return self.result.rows

    @property
    def metrics(self) -> dict[str, Any]:
        """Test metrics at the round with the best validation score, so far."""
        return self.result.metrics

    @property
    def absence(self) -> str:
        """Who was missing how often and what that means for the best round, in one sentence; empty where nobody was."""
        missing = absence.rounds_missed(self.rows)
        if not missing:
            return ""
        verdict = absence.verdict(missing, self.result.partial, self.config.run.allow_partial_best)
        return f"{self.path.name}: missing were {absence.summary(missing, self.result.rounds, self.result.names)}; {verdict}."

    @property
    def by_verb(self) -> dict[str, dict[str, int]]:
        """Bytes of training by verb and direction."""
        return dict(self.result.bytes.get("by_verb", {}))

    def megabytes(self, way: str) -> float:
        """Payload of training, `up` or `down`."""
        return sum(traffic[way] for traffic in self.by_verb.values()) / 1e6

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, if there is one that can be read; unlike a resume, nothing is changed."""
        return Folder(self.path).look()

    def axis(self, name: str) -> list[float]:
        """Where each line of the history stands on an axis; empty where the history does not say."""
        if name == "megabytes":
            return list(accumulate((row["up"] + row["down"]) / 1e6 for row in self.rows))
        found = [row[name] for row in self.rows if name in row]
        if len(found) < len(self.rows):
            return []
        return list(accumulate(found)) if name == "simulated_seconds" else found  # a round's own; `seconds` are since the start


@dataclass(frozen=True, eq=False)
class Row:
    """Runs that differ only in their seed."""

    label: str
    runs: list[StoredRun] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all of them are over."""
        return all(run.result.finished for run in self.runs)

    def mean(self, name: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation (n − 1) of a metric over the seeds that have it."""
        return mean_std([run.metrics[name] for run in self.runs if isinstance(run.metrics.get(name), (int, float))])

    def curve(self, metric: str, axis: str) -> list[tuple[float, float, float]]:
        """(x, mean, standard deviation) at every round that all seeds have evaluated."""
        places = [(run.axis(axis), run.rows) for run in self.runs]
        if not all(xs for xs, _ in places):
            return []
        found = []
        for lines in zip(*(zip(xs, rows, strict=True) for xs, rows in places), strict=False):
            values = [row.get(metric) for _, row in lines]
            if None not in values:
                middle = mean_std(values)
                assert middle is not None
                found.append((fmean(x for x, _ in lines), middle[0], middle[1] or 0.0))
        return found


def gather(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs in these folders, each a run or a folder of runs; files that a shell's * brought along are passed over."""
    paths = list(paths)
    found: list[Path] = []
    for path in paths:
        if not path.exists():
            raise AtollError(f"{path} does not exist; give the folders that --out named.")
        if path.is_dir():
            inside = [path] if (path / "config.toml").is_file() else sorted(item.parent for item in path.rglob("config.toml"))
            if not inside:
                raise AtollError(f"{path} is not a run: it holds no config.toml; give the folders that --out named.")
            found += inside
    if not found:
        raise AtollError("There is no run to report; give the folders that --out named, for instance `atoll report runs/*`.")
    return [read_run(path) for path in dict.fromkeys(found)]


def read_run(path: Path) -> StoredRun:
    """The run of a folder, without its model."""
    result = read(path, state=False)
    return StoredRun(path, (path / "config.toml").read_text(encoding="utf-8"), result)


def grouped(runs: Sequence[StoredRun]) -> list[Row]:
    """Rows of runs that differ only in their seed, labeled by what tells them apart."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        config = unlocated(replace(run.config, seed=0), run.path)
        groups.setdefault(json.dumps(config.to_dict(), sort_keys=True, default=str), []).append(run)
    settings = [_flat(unlocated(group[0].config, group[0].path)) for group in groups.values()]
    rows = []
    for own, group in zip(settings, groups.values(), strict=True):
        peers = [other for other in settings if other["algorithm"] == own["algorithm"]]
        shared = [name for name in ("dataset", "partition", "parties") if len({str(other.get(name)) for other in settings}) > 1]
        apart = [name for name in own if name not in shared and len({str(other.get(name)) for other in peers}) > 1]
        words = [str(own[name]) for name in shared if name in own and name != "parties"]
        words += [f"{own['parties']} parties"] if "parties" in shared and "parties" in own else []
        words += [str(own[name]) if name == "settings.model" else f"{name.rpartition('.')[2]}={own[name]}" for name in apart]
        rows.append(Row(" ".join([str(own["algorithm"]), *words]), sorted(group, key=lambda run: run.config.seed)))
    return rows


def _flat(config: Config) -> dict[str, Any]:
    """Every setting but the seed, `group.name` by value."""
    flat: dict[str, Any] = {}
    for name, value in config.to_dict().items():
        if isinstance(value, dict):
            flat |= {f"{name}.{key}": item for key, item in value.items()}
        elif name != "seed":
            flat[name] = value
    return flat
