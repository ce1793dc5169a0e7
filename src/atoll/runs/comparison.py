"""Comparisons: several algorithms on the same data, split, seeds and budget, summarized as mean ± standard deviation."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from atoll import storage
from atoll.algorithms import find
from atoll.data.federated import check_scenario
from atoll.data.given import Given
from atoll.errors import AtollError, suggest
from atoll.models import user
from atoll.runs import config, runner
from atoll.runs.config import Config
from atoll.runs.folder import Folder
from atoll.runs.loop import Watch
from atoll.runs.metrics import in_order, mean_std
from atoll.runs.own_partition import unlocated
from atoll.runs.paired import Difference, compare_rows
from atoll.runs.result import Result
from atoll.runs.scores import score_of, selected_metric
from atoll.runs.setting_names import PREFIXED
from atoll.runs.summary import comparison_text
from atoll.runs.terms import Terms, check_same_data, shared_names
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

    def run(self, folder: Path | None, given: Given | None, watch: Watch | None) -> Result:
        """Run it, or continue it where the folder holds it already."""
        if folder is not None and (folder / "config.toml").exists():
            if unlocated(Folder.open(folder)[1], folder).to_dict() != self.config.to_dict():
                raise AtollError(f"{folder} holds a run with other settings; choose another --out or delete that folder.")
            if given is not None and callable(given.partition):  # it may be random: the folder has what it gave
                given = given.without_partition
            return runner.resume(folder, given, algorithm=self.config.algorithm, watch=watch)
        return runner.run(self.config, given, out=folder, watch=watch)


@dataclass(repr=False)
class Comparison:
    """Several algorithms, models and seeds on the same terms; `atoll.compare` makes and runs one.

    Data, partition, split, feature scaling and budget (rounds, patience, how the best round is selected) are one table for all
    contestants: what was asked for, else the defaults of the first algorithm, or of the only one that needs its partition. Only
    the algorithms' own settings differ.

    Parameters:
        algorithms: Names, each a row of the table.
        dataset, partition, parties: As for `atoll.run`; where algorithms differ in their default partition, it must be
            given.
        models: Backbones; each algorithm is run with each of them.
        seeds: The seeds of every row.
        values: Settings by name; each goes to every algorithm that has it. Those of data and budget are the same for all.
        sweep: Settings of the algorithms, each with several values: every combination is a row.
        against: The row that `differences` are taken from; the first by default.

    Attributes:
        results: After `run`: the results by row, one per seed.
        notes: After `run`: where a method's own defaults are for other data or another budget, in one sentence each.

    Examples:
        >>> import atoll
        >>> comparison = atoll.compare("local,fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, seeds=2)
        >>> sorted(comparison.results), len(comparison.results["fedavg"])
        (['fedavg', 'local'], 2)
        >>> comparison
        Comparison(local, fedavg on csbm; 2 seeds)
        >>> print(comparison)  # doctest: +ELLIPSIS
        csbm, louvain, mean ± standard deviation over 2 seeds (%)
        ...
    """

    algorithms: Sequence[str]
    dataset: str | None = None
    models: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2, 3, 4)
    partition: str | None = None
    parties: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    sweep: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    against: str | None = None
    results: dict[str, list[Result]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        names, data = ", ".join(map(str, self.algorithms)), f" on {self.dataset}" if self.dataset else ""
        return f"Comparison({names}{data}; {len(self.seeds)} seeds{'' if self.results else ', not run'})"

    def __str__(self) -> str:
        return comparison_text(self) if self.results else repr(self)

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
        terms = Terms(self._reference())
        self.dataset, self.partition = terms.reference.dataset, terms.reference.partition
        self._check_shared(terms.reference)
        rows = {
            f"{algorithm} {user.short_name(model)} {_listed(point)}".strip().replace("  ", " "): (algorithm, model, point)
            for model in (self.models or [""])
            for algorithm in self.algorithms
            for point in self._grid(algorithm)
        }
        if self.against is not None and self.against not in rows:
            raise AtollError(f"against is {self.against!r}, which is not a row of the comparison{suggest(self.against, rows)}")
        for algorithm in self.algorithms:
            check_scenario(terms.reference, find(self._resolved(algorithm)).SCENARIOS, self._resolved(algorithm))
        notes = (terms.note(self._config(algorithm, model)) for algorithm, model, _ in rows.values())
        self.notes = list(dict.fromkeys(note for note in notes if note))
        trials = [Trial(row, terms.apply(self._config(*made))) for row, made in _by_seed(rows, self.seeds)]
        self._check_values([trial.config for trial in trials])
        check_same_data((trial.row, trial.config) for trial in trials)
        return trials

    def _config(self, algorithm: str, model: str = "", point: Mapping[str, Any] | None = None, seed: int = 0) -> Config:
        """A contestant by its own defaults and what was asked for."""
        values = dict(self.values) | dict(point or {}) | ({"settings.model": model} if model else {})
        return config.resolve(
            self._resolved(algorithm),
            dataset=self.dataset,
            partition=self.partition,
            parties=self.parties,
            seed=seed,
            values=values,
            optional=True,
        )

    def _reference(self) -> Config:
        """The contestant whose defaults for data and budget hold for all: the first, or the only one that needs its partition."""
        if self.partition is not None:
            return self._config(self.algorithms[0])
        usual = {name: self._config(name).partition for name in self.algorithms}
        if len(set(usual.values())) == 1:
            return self._config(self.algorithms[0])
        special = [name for name in usual if find(self._resolved(name)).SCENARIOS[0] not in ("horizontal", "whole")]
        if len({usual[name] for name in special}) != 1:
            listed = ", ".join(f"{name}: {partition}" for name, partition in usual.items())
            raise AtollError(
                f"These algorithms are spread differently by default ({listed}); give --partition to compare them fairly."
            )
        return self._config(special[0])

    def _grid(self, algorithm: str) -> list[dict[str, Any]]:
        """The points of the sweep in the settings that an algorithm has; one, the empty one, where it has none of them."""
        settings = find(self._resolved(algorithm)).Settings
        own = {name: values for name, values in self.sweep.items() if self._sweeps(name, algorithm, settings)}
        return [dict(zip(own, point, strict=True)) for point in itertools.product(*own.values())]

    @staticmethod
    def _sweeps(name: str, algorithm: str, settings: type) -> bool:
        owner, _, rest = name.rpartition(".")
        return (owner in ("", "settings", algorithm) and rest in {*known(settings), *renamed(settings)}) or owner == "model"

    def _check_shared(self, reference: Config) -> None:
        """Data and budget are the same for all: no contestant may have its own, and no sweep may change them."""
        shared = shared_names(reference)
        for name in self.values:
            owner, _, rest = name.rpartition(".")
            if owner in self.algorithms and rest in shared and rest not in known(find(self._resolved(owner)).Settings):
                raise AtollError(f"{rest} is the same for all in a comparison, so {name} cannot be set; set {rest} alone.")
        for name in self.sweep:
            if not any(self._sweeps(name, other, find(self._resolved(other)).Settings) for other in self.algorithms):
                rest = name.rpartition(".")[2]
                why = (
                    f"{rest} is the same for all in a comparison; compare once for each value."
                    if rest in shared or rest in ("dataset", "partition", "parties", "seed")
                    else f"none of {', '.join(self.algorithms)} has such a setting."
                )
                raise AtollError(f"--sweep {name}: {why}")

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

    def folders(self, out: Path | None) -> Iterator[tuple[Trial, Path | None]]:
        """The trials, each with its folder under `out`."""
        for trial in self.trials():
            yield trial, out / f"{trial.row.replace(' ', '-')}-{trial.config.seed}" if out else None

    def run(self, one: Callable[[Trial, Path | None], Result], out: Path | None = None) -> None:
        """Run every trial with `one`; with `out`, each in a folder of its own, and those already there are not run again."""
        for trial, folder in self.folders(out):
            self.add(trial, one(trial, folder))

    def add(self, trial: Trial, result: Result) -> None:
        """Take a trial's result; one with other data is refused."""
        if self.results:
            row, results = next(iter(self.results.items()))
            check_same_data([(row, _own(results[0])), (trial.row, _own(result))])
        self.results.setdefault(trial.row, []).append(result)

    @property
    def metric(self) -> str:
        """The test metric that the comparison is about: that of `select_by`, else the accuracy."""
        results = [result for several in self.results.values() for result in several]
        name = selected_metric(results[0].config) if results else ""
        return name if name and any(score_of(result, name) is not None for result in results) else "accuracy"

    def differences(self, metric: str | None = None) -> list[Difference]:
        """Every other row minus the row `against` (the first, unless named), paired by seed; in `self.metric` by default."""
        name = metric or self.metric
        values = {
            row: {result.config.seed: score_of(result, name) for result in results} for row, results in self.results.items()
        }
        return compare_rows(values, self.against or next(iter(values)))

    def summary(self) -> list[dict[str, Any]]:
        """One row per algorithm (and model): means and standard deviations over the seeds."""
        return [summarize(row, results) for row, results in self.results.items()]

    def save(self, path: Path) -> None:
        """Write the summary as JSON."""
        storage.write_whole(path, (json.dumps(self.summary(), indent=1) + "\n").encode())


def _own(result: Result) -> Config:
    """A result's configuration without the place of its folder."""
    return result.config if result.folder is None else unlocated(result.config, result.folder)


def _by_seed(rows: Mapping[str, Any], seeds: Sequence[int]) -> Iterator[tuple[str, tuple[Any, ...]]]:
    for row, made in rows.items():
        for seed in seeds:
            yield row, (*made, seed)


def _listed(point: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def _once(names: Sequence[str]) -> list[str]:
    """Drop duplicate names, keeping their order."""
    return list(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))


def summarize(row: str, results: Sequence[Result]) -> dict[str, Any]:
    """Means ± standard deviations (n − 1) of the test metrics, megabytes both ways, seconds.

    `selected` names the metric of `select_by` where it is not the loss or the accuracy; `val_…` is that of validation nodes.
    """
    summary: dict[str, Any] = {"row": row, "seeds": len(results)}
    names = in_order(name for result in results for name in result.metrics if not name.startswith("val_"))
    if selected := selected_metric(results[0].config):
        summary["selected"] = selected
        names += [name for name in (selected, f"val_{selected}") if name not in names]
    for name in names:
        found = mean_std([value for result in results if isinstance(value := score_of(result, name), float)])
        if found is not None:
            summary[name], std = found
            summary[f"{name}_std"] = math.nan if std is None else std
    summary["mb_up"] = mean(result.bytes["up"] for result in results) / 1e6
    summary["mb_down"] = mean(result.bytes["down"] for result in results) / 1e6
    summary["seconds"] = mean(result.seconds["total"] for result in results)
    return summary
