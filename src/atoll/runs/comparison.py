"""Comparisons: several algorithms on the same data, split, seeds and budget, summarized as mean ± standard deviation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from atoll import device as devices
from atoll import storage
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError, suggest
from atoll.models import user
from atoll.runs.comparison_text import comparison_text, summarize
from atoll.runs.config import Config
from atoll.runs.contestants import Contestant, Contestants
from atoll.runs.experiment import data_extent
from atoll.runs.own_partition import unlocated
from atoll.runs.paired import Difference, compare_rows
from atoll.runs.result import Result
from atoll.runs.scores import score_of, selected_metric
from atoll.runs.space import check_names, space_for
from atoll.runs.terms import check_same_data, check_values, own_notes, own_settings
from atoll.runs.trial import Trial
from atoll.runs.tuned import Tuned, changed_notes, tuned_rows, tuning_notes
from atoll.runs.tuning import Execute, Progress, Tuning, TuningRequest

TUNING = "tuning"  # the folder of a comparison's tuning


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
        device: Where the parties compute, as for `atoll.run`.

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
    device: str = "cpu"
    results: dict[str, list[Result]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    tuned: dict[str, Tuned] = field(default_factory=dict)
    _made: Contestants | None = field(default=None, init=False, compare=False)

    def __repr__(self) -> str:
        names, data = ", ".join(map(str, self.algorithms)), f" on {self.dataset}" if self.dataset else ""
        return f"Comparison({names}{data}; {len(self.seeds)} seeds{'' if self.results else ', not run'})"

    def __str__(self) -> str:
        return comparison_text(self) if self.results else repr(self)

    def trials(self) -> list[Trial]:
        """All runs, the seeds of a row together; everything is checked before the first one starts."""
        contestants, rows = self._contestants(), self._contestants().rows
        named = {row: contestants.resolved(algorithm) for row, (algorithm, _, _) in rows.items()}
        self.tuned |= tuned_rows(self.tuned_files, named, {row: contestants.fixed(each) for row, each in rows.items()})
        for tuned in self.tuned.values():
            tuned.check_seeds(self.seeds)
        trials = [Trial(row, self._config(row, seed)) for row in rows for seed in self.seeds]
        check_values(self.values, [trial.config for trial in trials], self.algorithms)
        check_same_data((trial.row, trial.config) for trial in trials)
        self.notes = contestants.notes() + own_notes(self.values, (trial.config for trial in trials))
        self.notes += tuning_notes({trial.row: trial.config for trial in trials})
        return trials

    def _contestants(self) -> Contestants:
        """The contestants, checked; dataset and partition are then known."""
        if self._made is None:
            self.device = devices.name(devices.find(self.device))
            self.algorithms, self.models, self.seeds = _once(self.algorithms), _once(self.models), list(dict.fromkeys(self.seeds))
            if not self.seeds or not self.algorithms:
                raise AtollError("A comparison needs at least one algorithm and one seed, for instance local,fedavg --seeds 5.")
            user.check_short_names(self.models)
            asked = (self.algorithms, self.models, self.dataset, self.partition, self.parties, self.values, self.sweep)
            made = Contestants(*asked)
            if self.against is not None and self.against not in made.rows:
                near = suggest(self.against, made.rows)
                raise AtollError(f"against is {self.against!r}, which is not a row of the comparison{near}")
            reference = made.terms.reference
            self._made, self.dataset, self.partition = made, reference.dataset, reference.partition
        return self._made

    def _config(self, row: str, seed: int) -> Config:
        """The configuration of a row, with what was tuned for it."""
        contestants, tuned = self._contestants(), self.tuned.get(row)
        chosen = self._placed(contestants.rows[row], None if tuned is None else tuned.values, seed)
        return chosen if tuned is None else replace(chosen, tuned=tuned.mark())

    def tunings(self, request: TuningRequest) -> dict[str, Tuning]:
        """The tuning of every row on the comparison's terms: the same trials, seeds and space of shared settings for all."""
        contestants = self._contestants()
        if self.tuned_files:
            raise AtollError("Tuning chooses values and --tuned gives them; leave one of them out.")
        bases = {row: contestants.by_default(each) for row, each in contestants.rows.items()}
        check_values(self.values, list(bases.values()), self.algorithms)
        if request.space is not None:
            check_names(request.space, list(bases.values()))
        names = {base.algorithm for base in bases.values()}
        made = {}
        for row, each in contestants.rows.items():
            space = space_for(bases[row], request.space, contestants.fixed(each), names)
            made[row] = Tuning(row, request, space, partial(self._placed, each))
        return made

    def _placed(self, contestant: Contestant, values: Mapping[str, Any] | None = None, seed: int = 0) -> Config:
        """A contestant on the terms of all, on the comparison's device."""
        return replace(self._contestants().config(contestant, values, seed), device=self.device)

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
        data_extent(replace(self._contestants().terms.reference, seed=self.seeds[0]))

    def tune(
        self,
        request: TuningRequest,
        execute: Execute,
        out: Path | None = None,
        progress: Progress | None = None,
        given: ScriptData | None = None,
    ) -> None:
        """Tune every row before it is run; with `out`, in folders of `out/tuning`."""
        self.check(request)
        for row, tuning in self.tunings(request).items():
            folder = None if out is None else out / TUNING / row.replace(" ", "-")
            self.tuned[row] = tuning.run(execute, folder, progress, given)

    def folders(self, out: Path | None, given: ScriptData | None = None) -> Iterator[tuple[Trial, Path | None]]:
        """The trials, each with its folder under `out`; where data has changed since it was tuned on, the notes say so."""
        trials = self.trials()
        if self.tuned_files:
            self.notes += changed_notes(self.tuned, {trial.row: trial.config for trial in trials}, given)
        for trial in trials:
            yield trial, out / f"{trial.row.replace(' ', '-')}-{trial.config.seed}" if out else None

    def run(self, one: Callable[[Trial, Path | None], Result], out: Path | None = None, given: ScriptData | None = None) -> None:
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


def _once(names: Sequence[str]) -> list[str]:
    """Drop duplicate names, keeping their order."""
    return list(dict.fromkeys(str(name).strip() for name in names if str(name).strip()))
