"""The runs of a report, read from their folders, finished or still going; those that differ only in their seed are one row."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from atoll.errors import AtollError
from atoll.federation.ledger import Ledger
from atoll.runs import absence
from atoll.runs.config import Config
from atoll.runs.folder import Folder, is_whole
from atoll.runs.runner import Progress

AXES = {"round": "round", "megabytes": "megabytes up and down", "seconds": "seconds", "simulated_seconds": "simulated seconds"}


@dataclass(frozen=True, eq=False)
class Run:
    """One run: its configuration, its history so far and, once it is over, its result."""

    path: Path
    config: Config
    text: str  # config.toml
    rows: list[dict[str, Any]]
    result: dict[str, Any] | None

    @property
    def done(self) -> bool:
        """Whether result.json is there."""
        return self.result is not None

    @cached_property
    def book(self) -> Progress:
        """The best round by validation, told from the history."""
        book = Progress()
        for row in self.rows:
            book.round, book.seconds = row["round"], row.get("seconds", 0.0)
            metrics = {name: value for name, value in row.items() if value is not None}
            if "accuracy" in row or "val_accuracy" in row or "local_accuracy" in row:
                run = self.config.run
                book.update(metrics, run.select, partial=bool(row.get("missing")), count_missing=run.count_missing)
        return book

    @property
    def metrics(self) -> dict[str, Any]:
        """Test metrics at the round with the best validation score, so far."""
        return self.result["metrics"] if self.result else self.book.best

    @property
    def best_round(self) -> int:
        """The round with the best validation score, so far."""
        return self.result["best_round"] if self.result else self.book.best_round

    @property
    def absence(self) -> str:
        """Who was missing how often and what that means for the best round, in one sentence; empty where nobody was."""
        missing = absence.rounds_missed(self.rows)
        if not missing:
            return ""
        partial = bool(self.result["partial"]) if self.result and "partial" in self.result else self.book.partial
        verdict = absence.verdict(missing, partial, self.config.run.count_missing)
        return f"{self.path.name}: missing were {absence.summary(missing, self.rounds, self.names)}; {verdict}."

    @property
    def rounds(self) -> int:
        """Rounds done."""
        return self.result["rounds"] if self.result else self.book.round

    @property
    def names(self) -> list[str]:
        """What the parties are called, in party order; empty where they have only numbers, or while that is not known yet."""
        return [str(name) for name in (self.result or {}).get("names") or []]

    @property
    def seconds(self) -> float:
        """How long they took."""
        return float(self.result["seconds"].get("total", 0.0) if self.result else self.book.seconds)

    @property
    def warnings(self) -> list[str]:
        """What went wrong with files and was mended: other checkpoints or saves than the last were used."""
        found = self.result.get("warnings", []) if self.result else []
        return [str(text) for text in found] if isinstance(found, list) else []

    @cached_property
    def by_verb(self) -> dict[str, dict[str, int]]:
        """Payload bytes of training by verb and direction; without a result from the checkpoint, else the history's sums."""
        if self.result:
            return dict(self.result["bytes"].get("by_verb", {}))
        if "ledger" in (checkpoint := self.checkpoint() or {}):
            ledger = Ledger(int(checkpoint["ledger"]["by_party"].shape[0]))
            ledger.restore(checkpoint["ledger"])
            return dict(ledger.summary()["by_verb"])
        return {"all verbs": {way: sum(row[way] for row in self.rows) for way in ("up", "down")}} if self.rows else {}

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
    runs: list[Run] = field(default_factory=list)

    @property
    def done(self) -> bool:
        """Whether all of them are over."""
        return all(run.done for run in self.runs)

    def mean(self, name: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation (n − 1) of a metric over the seeds that have it."""
        return mean([run.metrics[name] for run in self.runs if isinstance(run.metrics.get(name), (int, float))])

    def curve(self, metric: str, axis: str) -> list[tuple[float, float, float]]:
        """(x, mean, standard deviation) at every round that all seeds have evaluated."""
        places = [(run.axis(axis), run.rows) for run in self.runs]
        if not all(xs for xs, _ in places):
            return []
        found = []
        for lines in zip(*(zip(xs, rows, strict=True) for xs, rows in places), strict=False):
            values = [row.get(metric) for _, row in lines]
            if None not in values:
                middle = mean(values)
                assert middle is not None
                found.append((fmean(x for x, _ in lines), middle[0], middle[1] or 0.0))
        return found


def mean(values: Sequence[float]) -> tuple[float, float | None] | None:
    """Mean and standard deviation (n − 1; None of one value); None of nothing."""
    if not values:
        return None
    return fmean(values), stdev(values) if len(values) > 1 else None


def gather(paths: Iterable[Path]) -> list[Run]:
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
    return [read(path) for path in dict.fromkeys(found)]


def read(path: Path) -> Run:
    """One run. The last line of a run in progress may be half written and is passed over."""
    folder, config = Folder.open(path)
    text = _text(folder.history)
    rows = [_json(folder.history, line, ROUND) for line in text[: text.rfind("\n") + 1].splitlines()]
    result = _json(folder.result, _text(folder.result), RESULT) if folder.result.exists() else None
    if result is not None:
        _check(folder, result, text)
    return Run(path, config, (path / "config.toml").read_text(), rows, result)


def _check(folder: Folder, result: Mapping[str, Any], history: str) -> None:
    """Refuse numbers that are not those that were written: a changed digit is valid JSON."""
    if not is_whole(dict(result)):
        raise AtollError(f"{folder.result} is damaged (its checksum does not match); resume this run or leave it out.")
    known = result.get("history_sha256")
    if known is not None and known != hashlib.sha256(history.encode()).hexdigest():
        raise AtollError(f"{folder.history} is damaged (its checksum does not match); restore it or leave this run out.")


def _text(path: Path) -> str:
    """What a file says; nothing where it is not there yet."""
    try:
        return path.read_text() if path.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise AtollError(f"{path} cannot be read ({error}); resume this run or leave it out.") from error


NUMBER = (int, float)
ROUND = {"round": NUMBER, "up": NUMBER, "down": NUMBER}
RESULT = {"metrics": dict, "best_round": NUMBER, "rounds": NUMBER, "bytes": dict, "seconds": dict}


def _json(path: Path, text: str, needed: Mapping[str, Any]) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise AtollError(f"{path} is damaged ({error}); resume this run or leave it out.") from error
    if not isinstance(document, dict) or not all(isinstance(document.get(name), kind) for name, kind in needed.items()):
        raise AtollError(f"{path} is damaged (it lacks one of {', '.join(needed)}); resume this run or leave it out.")
    return document


def grouped(runs: Sequence[Run]) -> list[Row]:
    """Rows of runs that differ only in their seed, labelled by what tells them apart."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(json.dumps(replace(run.config, seed=0).to_dict(), sort_keys=True, default=str), []).append(run)
    settings = [_flat(group[0].config) for group in groups.values()]
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
