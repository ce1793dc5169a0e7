"""Comparisons: several algorithms on the same data, splits and seeds, summarized as mean ± standard deviation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from atoll import storage
from atoll.algorithms import find
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.models import user
from atoll.runs import config, runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.loop import Watch
from atoll.runs.metrics import in_order, mean_std
from atoll.runs.result import Result
from atoll.runs.setting_names import PREFIXED
from atoll.settings import known, renamed


@dataclass(frozen=True)
class Trial:
    """One run of a comparison."""

    row: str  # the row of the table it belongs to
    config: Config

    @property
    def label(self) -> str:
        """The row and the seed."""
        return f"{self.row} seed {self.config.seed}"

    def run(self, folder: Path | None, graph: Graph | None, watch: Watch | None) -> Result:
        """Run it, or continue it where the folder holds it already."""
        if folder is not None and (folder / "config.toml").exists():
            if Folder.open(folder)[1].to_dict() != self.config.to_dict():
                raise AtollError(f"{folder} holds a run with other settings; choose another --out or delete that folder.")
            return runner.resume(folder, graph, algorithm=self.config.algorithm, watch=watch)
        return runner.run(self.config, graph, out=folder, watch=watch)


@dataclass
class Comparison:
    """Several algorithms, models and seeds on the same data; `atoll.compare` makes and runs one.

    Parameters:
        algorithms: Names, each a row of the table.
        dataset, partition, parties: As for `atoll.run`; where algorithms differ in their default partition, it must be
            given.
        models: Backbones; each algorithm is run with each of them.
        seeds: The seeds of every row.
        values: Settings by name; each goes to every algorithm that has it.

    Attributes:
        results: After `run`: the results by row, one per seed.

    Examples:
        >>> import atoll
        >>> comparison = atoll.compare("local,fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, seeds=2)
        >>> sorted(comparison.results), len(comparison.results["fedavg"])
        (['fedavg', 'local'], 2)
    """

    algorithms: Sequence[str]
    dataset: str | None = None
    models: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    partition: str | None = None
    parties: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    results: dict[str, list[Result]] = field(default_factory=dict)

    def trials(self) -> list[Trial]:
        """All runs, the seeds of a row together; everything is checked before the first one starts."""
        self.algorithms, self.models, self.seeds = _once(self.algorithms), _once(self.models), list(dict.fromkeys(self.seeds))
        if not self.seeds or not self.algorithms:
            raise AtollError("A comparison needs at least one algorithm and one seed, for instance local,fedavg --seeds 5.")
        shown = {user.short_name(model): model for model in reversed(self.models)}
        if same := [model for model in self.models if shown[user.short_name(model)] != model]:
            first = shown[user.short_name(same[0])]
            raise AtollError(
                f"The models {first} and {same[0]} would both be the row {user.short_name(first)!r}; rename one of them."
            )
        self.partition = self._common_partition()
        trials = [
            Trial(f"{algorithm} {user.short_name(model)}".strip(), self._config(algorithm, model, seed))
            for model in (self.models or [""])
            for algorithm in self.algorithms
            for seed in self.seeds
        ]
        self._check_values([trial.config for trial in trials])
        return trials

    def _config(self, algorithm: str, model: str, seed: int) -> Config:
        values = dict(self.values) | ({"settings.model": model} if model else {})
        return config.resolve(
            self._resolved(algorithm),
            dataset=self.dataset,
            partition=self.partition,
            parties=self.parties,
            seed=seed,
            values=values,
            optional=True,
        )

    def _common_partition(self) -> str | None:
        """The partition of all rows: as given, or the default of all, or that of the only method that needs another one."""
        if self.partition is not None:
            return self.partition
        usual = {name: self._config(name, "", 0).partition for name in self.algorithms}
        if len(set(usual.values())) == 1:
            return None
        needed = {usual[name] for name in usual if find(self._resolved(name)).SCENARIOS[0] not in ("horizontal", "whole")}
        if len(needed) != 1:
            listed = ", ".join(f"{name}: {partition}" for name, partition in usual.items())
            raise AtollError(
                f"These algorithms are spread differently by default ({listed}); give --partition to compare them fairly."
            )
        return needed.pop()

    def _resolved(self, algorithm: str) -> str:
        """A method may have a baseline of its own: beside GLASU, `centralized` is its network on the joined columns."""
        baselines = [getattr(find(other), "YARDSTICKS", {}) for other in self.algorithms]
        return next((names[algorithm] for names in baselines if algorithm in names), algorithm)

    def _check_values(self, configs: Sequence[Config]) -> None:
        """Every setting must belong to at least one of the algorithms."""
        options: set[str] = set()
        accepted: set[str] = set()
        for chosen in configs:
            for name, group in config.groups_of(chosen.algorithm, chosen.dataset, getattr(chosen.settings, "model", "")).items():
                options |= set(known(group))
                keys = {*known(group), *renamed(group)}
                accepted |= {f"{name}.{key}" for key in keys}
                if name not in PREFIXED:
                    accepted |= {item for key in keys for item in (key, f"{chosen.algorithm}.{key}")}
        for name in self.values:
            if name not in accepted:
                raise AtollError(f"None of {', '.join(self.algorithms)} has a setting {name!r}{suggest(name, options)}")

    def run(self, one: Callable[[Trial, Path | None], Result], out: Path | None = None) -> None:
        """Run every trial with `one`; with `out`, each in a folder of its own, and those already there are not run again."""
        for trial in self.trials():
            folder = out / f"{trial.row.replace(' ', '-')}-{trial.config.seed}" if out else None
            self.results.setdefault(trial.row, []).append(one(trial, folder))

    def summary(self) -> list[dict[str, Any]]:
        """One row per algorithm (and model): means and standard deviations over the seeds."""
        return [summarize(row, results) for row, results in self.results.items()]

    def save(self, path: Path) -> None:
        """Write the summary as JSON."""
        storage.write_whole(path, (json.dumps(self.summary(), indent=1) + "\n").encode())


def _once(names: Sequence[str]) -> list[str]:
    """Drop duplicate names, keeping their order."""
    return list(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))


def summarize(row: str, results: Sequence[Result]) -> dict[str, Any]:
    """Means ± standard deviations (n − 1) of the metrics, megabytes both ways, seconds."""
    summary: dict[str, Any] = {"row": row, "seeds": len(results)}
    for name in in_order(name for result in results for name in result.metrics if not name.startswith("val_")):
        found = mean_std([value for result in results if isinstance(value := result.metrics.get(name), float)])
        if found is not None:
            summary[name], std = found
            summary[f"{name}_std"] = math.nan if std is None else std
    summary["mb_up"] = mean(result.bytes["up"] for result in results) / 1e6
    summary["mb_down"] = mean(result.bytes["down"] for result in results) / 1e6
    summary["seconds"] = mean(result.seconds["total"] for result in results)
    return summary
