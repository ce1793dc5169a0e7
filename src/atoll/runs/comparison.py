"""Comparisons: several algorithms on the same data, split, seeds and budget, summarized as mean ± standard deviation."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

from atoll import storage
from atoll.algorithms import find
from atoll.data.federated_data import check_scenario
from atoll.data.given import Given
from atoll.errors import AtollError, suggest
from atoll.models import user
from atoll.runs import config
from atoll.runs.comparison_text import comparison_text, summarize
from atoll.runs.config import Config
from atoll.runs.experiment import data_extent
from atoll.runs.own_partition import unlocated
from atoll.runs.paired import Difference, compare_rows
from atoll.runs.result import Result
from atoll.runs.scores import score_of, selected_metric
from atoll.runs.setting_names import bare_names
from atoll.runs.space import check_names, space_for
from atoll.runs.terms import Terms, check_same_data, check_shared, check_values, own_notes, own_settings, sweeps
from atoll.runs.trial import Trial
from atoll.runs.tuned import Tuned, changed_notes, tuned_rows, tuning_notes
from atoll.runs.tuning import Execute, Progress, Tuning, TuningRequest

TUNING = "tuning"  # the folder of a comparison's tuning
Rows: TypeAlias = dict[str, tuple[str, str, dict[str, Any]]]


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
        tuned_files: What `atoll.tune` has chosen for some of the algorithms: they run with it.

    Attributes:
        results: After `run`: the results by row, one per seed.
        notes: After `run`: where a method's own defaults are for other data or another budget, in one sentence each.
        tuned: What was chosen for each row by tuning, and on which seeds; empty without tuning.

    Examples:
        >>> import atoll
        >>> comparison = atoll.compare("local,fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, seeds=2)
        >>> sorted(comparison.results), len(comparison.results["fedavg"])
        (['fedavg', 'local'], 2)
        >>> comparison
        Comparison(local, fedavg on csbm; 2 seeds)
        >>> print(comparison)  # doctest: +ELLIPSIS
        csbm, metis, mean ± standard deviation (n − 1) over 2 seeds (%)
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
    tuned_files: Sequence[Tuned] = ()
    results: dict[str, list[Result]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tuned: dict[str, Tuned] = field(default_factory=dict)

    def __repr__(self) -> str:
        names, data = ", ".join(map(str, self.algorithms)), f" on {self.dataset}" if self.dataset else ""
        return f"Comparison({names}{data}; {len(self.seeds)} seeds{'' if self.results else ', not run'})"

    def __str__(self) -> str:
        return comparison_text(self) if self.results else repr(self)

    def trials(self) -> list[Trial]:
        """All runs, the seeds of a row together; everything is checked before the first one starts."""
        terms, rows = self._plan()
        self._take_files(rows)
        for tuned in self.tuned.values():
            tuned.check_seeds(self.seeds)
        trials = [
            Trial(row, terms.apply(self._config(algorithm, model, {**point, **self._tuned_values(row)}, seed)))
            for row, (algorithm, model, point) in rows.items()
            for seed in self.seeds
        ]
        check_values(self.values, [trial.config for trial in trials], self.algorithms)
        check_same_data((trial.row, trial.config) for trial in trials)
        self.notes += own_notes(self.values, (trial.config for trial in trials))
        self.notes += tuning_notes({row: self.tuned.get(row) for row in rows}, {trial.row: trial.config for trial in trials})
        return trials

    def _plan(self) -> tuple[Terms, Rows]:
        """The terms and the rows: each an algorithm, a model and a point of the sweep."""
        self.algorithms, self.models, self.seeds = _once(self.algorithms), _once(self.models), list(dict.fromkeys(self.seeds))
        if not self.seeds or not self.algorithms:
            raise AtollError("A comparison needs at least one algorithm and one seed, for instance local,fedavg --seeds 5.")
        user.check_short_names(self.models)
        terms = Terms(self._reference())
        self.dataset, self.partition = terms.reference.dataset, terms.reference.partition
        check_shared(terms.reference, self.values, self.sweep, self._settings())
        rows: Rows = {
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
        return terms, rows

    def tunings(self, request: TuningRequest) -> dict[str, Tuning]:
        """The tuning of every row on the comparison's terms: the same trials, seeds and space of shared settings for all."""
        terms, rows = self._plan()
        if self.tuned_files:
            raise AtollError("Tuning chooses values and --tuned gives them; leave one of them out.")
        bases = {row: self._config(*made) for row, made in rows.items()}
        check_values(self.values, list(bases.values()), self.algorithms)
        if request.space is not None:
            check_names(request.space, list(bases.values()))
        names = {base.algorithm for base in bases.values()}
        made = {}
        for row, (algorithm, model, point) in rows.items():
            space = space_for(bases[row], request.space, self._fixed(algorithm, point), names)
            made[row] = Tuning(row, request, space, self._configurer(terms, algorithm, model, point))
        return made

    def check(self, request: TuningRequest | None = None) -> None:
        """Check everything before the first run; with tuning, that reported seeds are not tuned on."""
        if request is None:
            self.trials()
        elif shared := sorted(set(request.seeds) & set(self.seeds)):
            raise AtollError(
                f"Seed {', '.join(map(str, shared))} would be both tuned on and reported; choose other --tune-seeds or --seeds."
            )
        else:
            self.tunings(request)

    def check_data(self) -> None:
        """Load the data once, to find before the first run that it cannot be had."""
        data_extent(replace(self._plan()[0].reference, seed=self.seeds[0]))

    def tune(
        self,
        request: TuningRequest,
        execute: Execute,
        out: Path | None = None,
        progress: Progress | None = None,
        given: Given | None = None,
    ) -> None:
        """Tune every row before it is run; with `out`, in folders of `out/tuning`."""
        self.check(request)
        for row, tuning in self.tunings(request).items():
            folder = None if out is None else out / TUNING / row.replace(" ", "-")
            self.tuned[row] = tuning.run(execute, folder, progress, given)

    def _configurer(
        self, terms: Terms, algorithm: str, model: str, point: Mapping[str, Any]
    ) -> Callable[[Mapping[str, Any], int], Config]:
        return lambda values, seed: terms.apply(self._config(algorithm, model, {**point, **values}, seed))

    def _fixed(self, algorithm: str, point: Mapping[str, Any]) -> set[str]:
        """The names of the settings that were asked for, and so are not tuned."""
        return {
            name if name.startswith("model.") else bare
            for name in (*self.values, *point)
            for bare in bare_names({name: 0}, self._resolved(algorithm))
        }

    def _take_files(self, rows: Rows) -> None:
        """The values of `tuned_files`, each for the rows of its algorithm."""
        named = {row: self._resolved(algorithm) for row, (algorithm, _, _) in rows.items()}
        fixed = {row: self._fixed(algorithm, point) for row, (algorithm, _, point) in rows.items()}
        self.tuned |= tuned_rows(self.tuned_files, named, fixed)

    def _tuned_values(self, row: str) -> Mapping[str, Any]:
        return self.tuned[row].values if row in self.tuned else {}

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
        own = {name: values for name, values in self.sweep.items() if sweeps(name, algorithm, settings)}
        return [dict(zip(own, point, strict=True)) for point in itertools.product(*own.values())]

    def _settings(self) -> dict[str, type]:
        """The settings of each contestant."""
        return {algorithm: find(self._resolved(algorithm)).Settings for algorithm in self.algorithms}

    def _resolved(self, algorithm: str) -> str:
        """A method may have a baseline of its own: beside GLASU, `centralized` is its network on the joined columns."""
        baselines = [getattr(find(other), "YARDSTICKS", {}) for other in self.algorithms]
        return next((names[algorithm] for names in baselines if algorithm in names), algorithm)

    def folders(self, out: Path | None, given: Given | None = None) -> Iterator[tuple[Trial, Path | None]]:
        """The trials, each with its folder under `out`; where data has changed since it was tuned on, the notes say so."""
        trials = self.trials()
        if self.tuned_files:
            self.notes += changed_notes(self.tuned, {trial.row: trial.config for trial in trials}, given)
        for trial in trials:
            yield trial, out / f"{trial.row.replace(' ', '-')}-{trial.config.seed}" if out else None

    def run(self, one: Callable[[Trial, Path | None], Result], out: Path | None = None, given: Given | None = None) -> None:
        """Run every trial with `one`; with `out`, each in a folder of its own, and those already there are not run again."""
        for trial, folder in self.folders(out, given):
            self.add(trial, one(trial, folder))

    def add(self, trial: Trial, result: Result) -> None:
        """Take a trial's result; one with other data is refused."""
        if self.results:
            row, results = next(iter(self.results.items()))
            pairs = ((row, results[0]), (trial.row, result))
            check_same_data((name, unlocated(one.config, one.folder)) for name, one in pairs)
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
        return [
            summarize(row, results)
            | ({"given": given} if (given := own_settings(self.values, results[0].config)) else {})
            | ({"tuned": self.tuned[row].brief()} if row in self.tuned else {})
            for row, results in self.results.items()
        ]

    def save(self, path: Path) -> None:
        """Write the summary as JSON."""
        storage.write_whole(path, (json.dumps(self.summary(), indent=1) + "\n").encode())


def _listed(point: Mapping[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())


def _once(names: Sequence[str]) -> list[str]:
    """Drop duplicate names, keeping their order."""
    return list(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))
