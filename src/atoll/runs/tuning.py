"""Tuning: trials of an algorithm's settings, judged on validation nodes alone, resumable and the same whatever the processes.

With a folder, each run is recorded in `trials.jsonl` when it ends and its files are removed; a killed one
continues where it was.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll import storage
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError
from atoll.runs import search
from atoll.runs.config import Config
from atoll.runs.experiment import data_changes, data_extent
from atoll.runs.loop import Watch
from atoll.runs.progress import Selection
from atoll.runs.result import Result
from atoll.runs.space import Space, plain_space
from atoll.runs.trial import Trial
from atoll.runs.tuned import FILE, Tuned, TuningTrial, tuned_data

FIRST_SEED = 1000  # tuning seeds are 1000, 1001, … unless given: reported ones are 0, 1, …
SEEDS = 2
REQUEST, TRIALS, RUNNING = "tune.json", "trials.jsonl", "running"

Execute = Callable[[Sequence[tuple[Trial, Path | None]]], Iterator[tuple[Trial, Result | AtollError]]]
Progress = Callable[[str, int, int, "TuningTrial | None"], None]  # row, trials done, of how many, the best so far


def tuning_seeds(count: int = SEEDS) -> list[int]:
    """The seeds of tuning where only their number is given."""
    return [FIRST_SEED + number for number in range(count)]


def execute_here(given: ScriptData | None = None, watch: Callable[[Trial], Watch] | None = None) -> Execute:
    """Trials in this process, one after the other; `watch` gives what is called with the rounds of one."""

    def execute(todo: Sequence[tuple[Trial, Path | None]]) -> Iterator[tuple[Trial, Result | AtollError]]:
        for trial, folder in todo:
            try:
                yield trial, trial.run(folder, given, watch(trial) if watch else None)
            except AtollError as error:
                yield trial, error

    return execute


@dataclass(frozen=True)
class TuningRequest:
    """What every contestant gets: the number of trials, their seeds, and how values are proposed."""

    trials: int
    seeds: Sequence[int] = field(default_factory=tuning_seeds)
    space: Mapping[str, Any] | None = None  # as a file has it; None: the defaults
    sampler: str = "tpe"
    sampler_seed: int = 0
    option: str = "--trials"  # of the command line, which errors name


class Tuning:
    """The tuning of one row; `configure` makes the configuration of some values and a seed."""

    def __init__(
        self, row: str, request: TuningRequest, space: Space, configure: Callable[[Mapping[str, Any], int], Config]
    ) -> None:
        self.row, self.request, self.space, self.configure = row, request, space, configure
        if not request.seeds or len(set(request.seeds)) < len(request.seeds):
            raise AtollError("Tuning needs at least one seed, each named once.")
        self.base = configure({}, request.seeds[0])
        self.selection = Selection.of(self.base.run)
        self.first = {name: _current(self.base, name) for name in space}
        search.open_search(space, request.sampler, request.sampler_seed, higher_is_better=True, first=self.first)
        search.check_trials(request.trials, request.sampler, space, self.first, request.option)
        full = request.sampler == "grid"
        self.count = search.GridSearch(space, self.first).size if full else request.trials
        configure(self.first, request.seeds[0])

    @property
    def objective(self) -> str:
        """The validation metric by which values are chosen."""
        return f"val_{self.selection.metric}"

    def run(
        self, execute: Execute, out: Path | None = None, progress: Progress | None = None, given: ScriptData | None = None
    ) -> Tuned:
        """Run the trials that `out` does not hold already, batch by batch, and choose the best."""
        extent = data_extent(self.base, given)
        with _open_store(out, self._asked() | {"extent": extent}) as store:
            done: list[TuningTrial] = []
            proposals = search.open_search(
                self.space,
                self.request.sampler,
                self.request.sampler_seed,
                higher_is_better=self.selection.higher_is_better,
                first=self.first,
            )
            while len(done) < self.count:
                size = min(search.BATCH, self.count - len(done))
                batch = [(len(done) + number, proposals.ask()) for number in range(size)]
                for trial in self._batch(batch, done, execute, store):
                    proposals.tell(trial.number, trial.score)
                    done.append(trial)
                    if progress is not None:
                        progress(self.row, len(done), self.count, self._best(done))
                if self._best(done) is None:
                    raise AtollError(f"{self.row}: all of the first {len(done)} trials failed: {done[0].error}")
            tuned = self._tuned(done, extent)
            if out is not None:
                tuned.save(out / FILE)
        return tuned

    def _batch(
        self, batch: Sequence[tuple[int, dict[str, Any]]], done: Sequence[TuningTrial], execute: Execute, store: _Store
    ) -> list[TuningTrial]:
        """Run what is neither stored nor a repetition of an earlier trial."""
        earlier = {_key(trial.values): trial.number for trial in done}
        todo: dict[tuple[str, int], tuple[int, dict[str, Any]]] = {}
        runs = []
        for number, values in batch:
            if earlier.setdefault(_key(values), number) != number:
                continue
            for seed in self.request.seeds:
                if store.get(number, seed, values) is None:
                    trial = Trial(f"{self.row} trial {number}", self.configure(values, seed))
                    todo[trial.row, seed] = number, values
                    runs.append((trial, store.folder(number, seed)))
        for trial, outcome in execute(runs) if runs else ():
            number, values = todo[trial.row, trial.config.seed]
            store.add({"trial": number, "seed": trial.config.seed, "values": values} | self._judged(outcome))
        return [self._trial(number, earlier[_key(values)], values, store) for number, values in batch]

    def _judged(self, outcome: Result | AtollError) -> dict[str, Any]:
        """The score of a run on its validation nodes; of one that failed, why."""
        if isinstance(outcome, AtollError):
            return {"score": None, "error": str(outcome)}
        value = outcome.metrics.get(self.objective)
        if not isinstance(value, (int, float)):
            raise AtollError(f"Tuning needs validation nodes: {self.row} has no {self.objective}; choose another split.")
        if not math.isfinite(value):
            return {"score": None, "error": f"{self.objective} is {value}: the training diverges"}
        return {"score": float(value), "error": "", "best_round": outcome.best_round, "rounds": outcome.rounds}

    def _trial(self, number: int, source: int, values: dict[str, Any], store: _Store) -> TuningTrial:
        records = [store.get(source, seed, values) or {} for seed in self.request.seeds]
        errors = [str(record["error"]) for record in records if record.get("error")]
        return TuningTrial(number, values, [record.get("score") for record in records], errors[0] if errors else "")

    def _best(self, done: Sequence[TuningTrial]) -> TuningTrial | None:
        """The first of the trials with the best score."""
        sign = -1 if self.selection.higher_is_better else 1
        scored = [trial for trial in done if trial.score is not None]
        return min(scored, key=lambda trial: (sign * (trial.score or 0.0), trial.number), default=None)

    def _tuned(self, done: Sequence[TuningTrial], extent: Mapping[str, int]) -> Tuned:
        best = self._best(done)
        assert best is not None
        assert best.score is not None
        return Tuned(
            algorithm=self.base.algorithm,
            values=dict(best.values),
            score=best.score,
            default_score=done[0].score,
            objective=self.objective,
            higher_is_better=self.selection.higher_is_better,
            space=plain_space(self.space),
            sampler=self.request.sampler,
            sampler_seed=self.request.sampler_seed,
            seeds=tuple(self.request.seeds),
            trials=list(done),
            data=tuned_data(self.base),
            extent=extent,
            optuna="" if self.request.sampler == "grid" else search.version(),
        )

    def _asked(self) -> dict[str, Any]:
        """What a folder's trials belong to; only their number may change."""
        request = self.request
        chosen = {"space": plain_space(self.space), "seeds": list(request.seeds), "sampler": request.sampler}
        return chosen | {"sampler_seed": request.sampler_seed, "config": self.base.to_dict()}


class _Store:
    """The runs of a tuning that have ended, in memory and, with a folder, in trials.jsonl."""

    def __init__(self, out: Path | None) -> None:
        self.out = out
        self.records: dict[tuple[int, int], dict[str, Any]] = {}
        if out is not None and (out / TRIALS).is_file():
            lines = (out / TRIALS).read_text(encoding="utf-8", errors="replace").split("\n")[:-1]  # a cut line was not recorded
            try:
                read = [json.loads(line) for line in lines]
                self.records = {(int(one["trial"]), int(one["seed"])): one for one in read}
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                raise AtollError(f"{out / TRIALS} is damaged ({error}); delete {out} and tune again.") from error
            for number, seed in self.records:
                self._remove(number, seed)

    def folder(self, number: int, seed: int) -> Path | None:
        """Where a run is written while it goes on."""
        return None if self.out is None else self.out / RUNNING / f"{number}-{seed}"

    def get(self, number: int, seed: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """What is known of a run."""
        record = self.records.get((number, seed))
        if record is not None and record.get("values") != dict(values):
            raise AtollError(f"{self.out} holds trials that another version of Optuna proposed; choose another --out.")
        return record

    def add(self, record: dict[str, Any]) -> None:
        """Keep a run's outcome; its files are not needed any more."""
        self.records[record["trial"], record["seed"]] = record
        if self.out is not None:
            storage.append_line(self.out / TRIALS, json.dumps(record))
            self._remove(record["trial"], record["seed"])

    def _remove(self, number: int, seed: int) -> None:
        folder = self.folder(number, seed)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
            with contextlib.suppress(OSError):
                folder.parent.rmdir()  # once it is empty


@contextlib.contextmanager
def _open_store(out: Path | None, asked: dict[str, Any]) -> Iterator[_Store]:
    """The store of a folder, which is new or holds the same tuning."""
    if out is None:
        yield _Store(None)
        return
    with storage.writing(out):
        out.mkdir(parents=True, exist_ok=True)
    with storage.Lock(out, f"The tuning {out}"):
        storage.sweep(out)
        request = out / REQUEST
        if request.is_file():
            _check_same(request, asked)
        elif any(path.name != storage.LOCK for path in out.iterdir()):
            raise AtollError(f"{out} holds something else than a tuning; choose another --out.")
        else:
            storage.write_whole(request, (json.dumps(asked, indent=1) + "\n").encode())
        yield _Store(out)


def _check_same(request: Path, asked: Mapping[str, Any]) -> None:
    try:
        there = json.loads(request.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise AtollError(f"{request} is damaged ({error}); delete {request.parent} and tune again.") from error
    wanted = json.loads(json.dumps(asked))
    if there != wanted:
        name = next((name for name in wanted if there.get(name) != wanted[name]), "something")
        if name == "extent" and (changes := data_changes(there.get(name) or {}, wanted[name])):
            raise AtollError(f"{request.parent} holds trials on other data: {changes}; restore the data or choose another --out.")
        raise AtollError(f"{request.parent} holds a tuning with another {name}; choose another --out or delete that folder.")


def _current(config: Config, name: str) -> Any:
    """A setting's value without tuning."""
    group, _, rest = name.rpartition(".")
    return getattr(config.model if group == "model" else config.settings, rest)


def _key(values: Mapping[str, Any]) -> str:
    return json.dumps(values, sort_keys=True)
