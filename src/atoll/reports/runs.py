"""The runs of a report, read from their folders, finished or still going; those that differ only in their seed are one row."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from statistics import fmean
from typing import Any

from atoll.data.damage import DamageSettings
from atoll.errors import AtollError
from atoll.privacy.noise_settings import NoiseSettings
from atoll.runs import absence
from atoll.runs.argument_values import plain
from atoll.runs.comparison import TUNING
from atoll.runs.config import GIVEN, Config
from atoll.runs.folder import Folder
from atoll.runs.metrics import mean_std
from atoll.runs.model_files import folder_of, read_description
from atoll.runs.own_partition import PARTITION, unlocated
from atoll.runs.reader import read
from atoll.runs.result import Result
from atoll.runs.terms import data_key
from atoll.runs.tuned import tuned_by
from atoll.runs.tuned_by import TABLE
from atoll.tasks import TASKS
from atoll.tasks.levels import items_of

MAX_NAMES = 4  # of sites in a title


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
        """Test metrics at the round with the best validation score, so far, and those that only `detail` has."""
        overall = self.detail.get("overall") if isinstance(self.detail, dict) else None
        more = {name: value for name, value in (overall or {}).items() if isinstance(value, float)}
        return more | self.result.metrics

    @property
    def absence(self) -> str:
        """Who was missing how often and what that means for the best round, in one sentence; empty where nobody was."""
        missing = absence.rounds_missed(self.rows)
        if not missing:
            return ""
        verdict = absence.verdict(missing, self.result.partial, self.config.run.allow_partial_best)
        return f"{self.path.name}: missing: {absence.summary(missing, self.result.rounds, self.result.names)}; {verdict}."

    @property
    def by_verb(self) -> dict[str, dict[str, int]]:
        """Bytes of training by verb and direction."""
        return dict(self.result.bytes.get("by_verb", {}))

    def megabytes(self, way: str) -> float:
        """Payload of training, `up` or `down`."""
        return sum(traffic[way] for traffic in self.by_verb.values()) / 1e6

    @cached_property
    def detail(self) -> Any:
        """`detail` of result.json: confusion, metrics of each class and party, calibration; None in earlier versions."""
        return (Folder(self.path).read_result() or {}).get("detail")

    @property
    def data_name(self) -> str:
        """The data in a few words: its name or folder or, where it is at the sites, the sites' names."""
        if self.config.dataset != GIVEN:
            return Path(self.config.dataset).name or self.config.dataset
        names = self.result.names
        if not names:
            return self.path.resolve().name
        return listed([*names[:MAX_NAMES], f"{len(names) - MAX_NAMES} more"] if len(names) > MAX_NAMES else names)

    def checkpoint(self) -> dict[str, Any] | None:
        """The last checkpoint, if there is one that can be read; unlike a resume, nothing is changed."""
        return Folder(self.path).look()

    def axis(self, name: str) -> list[float]:
        """The position of each line of the history on an axis; empty where the history does not have it."""
        if name == "megabytes":
            return list(accumulate((row["up"] + row["down"]) / 1e6 for row in self.rows))
        values = [row[name] for row in self.rows if name in row]
        if len(values) < len(self.rows):
            return []
        return list(accumulate(values)) if name == "simulated_seconds" else values  # per round; `seconds` are since the start


@dataclass(frozen=True, eq=False)
class Row:
    """Runs that differ only in their seed."""

    label: str
    runs: list[StoredRun] = field(default_factory=list)

    @property
    def data(self) -> str:
        """What decides its data, as text: rows that differ in it do not belong in one table."""
        run = self.runs[0]
        key = data_key(unlocated(run.config, run.path)) | {"names": run.result.names if run.config.dataset == GIVEN else ()}
        return json.dumps(key, sort_keys=True, default=str)

    @property
    def digest(self) -> str:
        """Of the data, where it was given as an object and so has no name; empty where all nodes are in one place."""
        run = self.runs[0]
        given = run.config.dataset == GIVEN or unlocated(run.config, run.path).partition == PARTITION
        if not given or run.result.scenario == "whole":
            return ""
        try:
            return f"{run.config.seed} {read_description(folder_of(run.path)).get('data', {}).get('digest', '')}"
        except AtollError:
            return ""

    @property
    def done(self) -> bool:
        """Whether all of them are over."""
        return all(run.result.finished for run in self.runs)

    @property
    def several(self) -> bool:
        """Whether there are several seeds, so that means have standard deviations."""
        return len(self.runs) > 1

    @property
    def names(self) -> tuple[str, ...]:
        """The parties' names, where the results have them."""
        return next((run.result.names for run in self.runs if run.result.names), ())

    @property
    def data_name(self) -> str:
        """The data in a few words."""
        return self.runs[0].data_name

    @property
    def items(self) -> str:
        """What is judged, in a word: nodes, graphs or pairs."""
        task = self.runs[0].config.run.task
        return items_of(TASKS.find(task)) if task in TASKS else "items"

    def party_means(self, name: str) -> list[tuple[float, float | None] | None]:
        """Mean and standard deviation over the seeds of a metric of each party; empty where the seeds list different parties."""
        lists = [values for run in self.runs if (values := run.metrics.get(name))]
        if len({len(values) for values in lists}) != 1:
            return []
        return [mean_std([value for value in values if value is not None]) for values in zip(*lists, strict=True)]

    def mean(self, name: str) -> tuple[float, float | None] | None:
        """Mean and standard deviation (n − 1) of a metric over the seeds that have it."""
        return mean_std([run.metrics[name] for run in self.runs if isinstance(run.metrics.get(name), (int, float))])

    def curve(self, metric: str, axis: str) -> list[tuple[float, float, float]]:
        """(x, mean, standard deviation) at every round that all seeds have evaluated."""
        histories = [(run.axis(axis), run.rows) for run in self.runs]
        if not all(xs for xs, _ in histories):
            return []
        points = []
        for lines in zip(*(zip(xs, rows, strict=True) for xs, rows in histories), strict=False):
            values = [row.get(metric) for _, row in lines]
            if None not in values and (pair := mean_std(values)) is not None:
                points.append((fmean(x for x, _ in lines), pair[0], pair[1] or 0.0))
        return points


def gather(paths: Iterable[Path]) -> list[StoredRun]:
    """The runs in these folders, each a run or a folder of runs; files that a shell's * matched too are passed over."""
    folders: list[Path] = []
    for path in paths:
        if not path.exists():
            raise AtollError(f"{path} does not exist; give the folders that --out named.")
        if path.is_dir():
            inside = [path] if (path / "config.toml").is_file() else sorted(item.parent for item in path.rglob("config.toml"))
            inside = [folder for folder in inside if TUNING not in folder.relative_to(path).parts]  # not trials of tuning
            if not inside:
                raise AtollError(f"{path} is not a run: it holds no config.toml; give the folders that --out named.")
            folders += inside
    if not folders:
        raise AtollError("There is no run to report; give the folders that --out named, for instance `atoll report runs/*`.")
    return [read_run(path) for path in dict.fromkeys(folders)]


def read_run(path: Path) -> StoredRun:
    """The run of a folder, without its model."""
    result = read(path, state=False)
    return StoredRun(path, (path / "config.toml").read_text(encoding="utf-8"), result)


def grouped(runs: Sequence[StoredRun]) -> list[Row]:
    """Rows of runs that differ only in their seed, labeled by how they differ."""
    groups: dict[str, list[StoredRun]] = {}
    for run in runs:
        config = unlocated(replace(run.config, seed=0), run.path)
        document = config.to_dict() | ({"names": run.result.names} if config.dataset == GIVEN else {})
        groups.setdefault(json.dumps(document, sort_keys=True, default=str), []).append(run)
    settings = [flat_settings(group[0]) for group in groups.values()]
    data = _data_words(settings, [group[0].data_name for group in groups.values()])
    rows = []
    for number, group in enumerate(groups.values()):
        one = settings[number]
        peers = [
            other
            for index, other in enumerate(settings)
            if data[index] == data[number] and other["algorithm"] == one["algorithm"]
        ]
        ordered = sorted(group, key=lambda run: run.config.seed)
        rows.append(Row(" ".join([str(one["algorithm"]), *data[number], *_differing(one, peers)]), ordered))
    return rows


def _differing(one: dict[str, Any], peers: Sequence[dict[str, Any]]) -> list[str]:
    """The settings in which a row differs from others, and whether it was tuned."""
    names = [name for name in one if name != TABLE and len({str(other.get(name)) for other in peers}) > 1]
    words = [str(one[name]) if name == "settings.model" else f"{name.rpartition('.')[2]}={one[name]}" for name in names]
    return [*words, TABLE] if TABLE in one else words


def methods(rows: Sequence[Row]) -> list[str]:
    """Names of rows with the same data: the algorithm, and the settings in which rows of one algorithm differ."""
    settings = [flat_settings(row.runs[0]) for row in rows]
    names = []
    for one in settings:
        peers = [other for other in settings if other["algorithm"] == one["algorithm"]]
        names.append(" ".join([str(one["algorithm"]), *_differing(one, peers)]))
    return names


def by_data(rows: Sequence[Row]) -> list[list[Row]]:
    """Rows with the same data together, in order of the first of each.

    Graphs that were given as objects are told apart by their digests; a row that pools all nodes has another one and joins
    the others if they have one in common.
    """
    groups: dict[str, dict[str, list[Row]]] = {}
    for row in rows:
        groups.setdefault(row.data, {}).setdefault(row.digest, []).append(row)
    tables: list[list[Row]] = []
    for several in groups.values():
        pooled = several.get("", [])
        if pooled and len(several) == 2:
            tables.append([row for row in rows if row in pooled or any(row in each for each in several.values())])
        else:
            tables += several.values()
    return tables


def _data_words(settings: Sequence[dict[str, Any]], short: Sequence[str]) -> list[list[str]]:
    """Dataset, partition and number of parties of each row, as far as rows differ in them; `short` are the datasets' names."""
    shared = [name for name in ("dataset", "partition", "parties") if len({str(one.get(name)) for one in settings}) > 1]
    unique = len(set(short)) == len({str(one["dataset"]) for one in settings})
    words = []
    for one, name in zip(settings, short, strict=True):
        texts = {"dataset": name if unique else str(one["dataset"]), "partition": str(one["partition"])}
        texts |= {"parties": f"{one['parties']} parties"} if "parties" in one else {}
        words.append([texts[key] for key in shared if key in texts])
    return words


def flat_settings(run: StoredRun) -> dict[str, Any]:
    """Every setting but the seed, `group.name` → value; a dataset at the sites by its name in the title.

    Of dp and noise, which other runs do not have at all, those that are set; of tuning, its trials and seeds.
    """
    mark, usual = tuned_by(run.config), plain(asdict(NoiseSettings()) | asdict(DamageSettings()))
    flat: dict[str, Any] = {}
    for name, value in unlocated(replace(run.config, tuned=None), run.path).to_dict().items():
        if isinstance(value, dict):
            optional = name in ("dp", "noise")
            flat |= {f"{name}.{key}": item for key, item in value.items() if not optional or item != usual[key]}
        elif name != "seed":
            flat[name] = run.data_name if (name, value) == ("dataset", GIVEN) else value
    return flat if mark is None else flat | {TABLE: mark.budget}


def listed(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else "".join(words)


def items_of_rows(rows: Sequence[Row]) -> str:
    """What rows judge, in a word; `items` where they differ."""
    words = {row.items for row in rows}
    return words.pop() if len(words) == 1 else "items"
