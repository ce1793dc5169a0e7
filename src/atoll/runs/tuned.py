"""What tuning has chosen, from what, and on which seeds: a file that `atoll run` and `atoll compare` take as `--tuned`."""

from __future__ import annotations

import json
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from statistics import mean
from typing import Any

from atoll import storage
from atoll.algorithms import find
from atoll.data.script_data import ScriptData
from atoll.errors import AtollError, AtollWarning
from atoll.runs.config import Config
from atoll.runs.documents import checksum
from atoll.runs.experiment import data_changes, data_extent
from atoll.runs.metrics import metric_format
from atoll.runs.setting_names import bare_names
from atoll.runs.terms import flat
from atoll.runs.tuned_by import TunedBy
from atoll.version import __version__

KIND = "tuned"
FILE = "tuned.json"
KEYS = {
    "algorithm": str,
    "values": dict,
    "objective": str,
    "space": dict,
    "seeds": list,
    "trials": list,
    "data": dict,
    "extent": dict,
}


@dataclass(frozen=True)
class TuningTrial:
    """One trial: its values and the score of each seed; `score` is their mean, None where a run failed."""

    number: int
    values: Mapping[str, Any]
    scores: Sequence[float | None]
    error: str = ""  # why it failed

    @property
    def score(self) -> float | None:
        """The mean over the seeds."""
        known = [value for value in self.scores if value is not None]
        return mean(known) if len(known) == len(self.scores) else None


@dataclass(frozen=True, repr=False)
class Tuned:
    """Settings that were chosen on validation nodes, with everything that the choice rests on; `atoll.tune` makes one.

    Attributes:
        algorithm: What was tuned.
        values: The chosen settings by name.
        score: Their validation score, a mean over `seeds`.
        default_score: That of the settings as they are without tuning, which are the first trial; None where it failed.
        objective: The metric of the validation nodes, as in `val_accuracy`: that of `select_by`.
        higher_is_better: Its direction.
        space: What was searched, setting by setting: a list of values, or the ends of a range.
        sampler, sampler_seed: How trials were chosen: `tpe`, `random` or `grid`, and the seed of that.
        seeds: The seeds that every trial was run with; reported seeds must be others.
        trials: All trials: `number`, `values`, `score`, `scores` by seed, and for a failed one its `error`.
        data: Dataset, partition, split and budget of all trials.
        extent: The size and a digest of the parties' data with the first of the seeds; empty where they cannot be had again.
        optuna: The version of Optuna; empty for a grid.

    Examples:
        >>> import atoll
        >>> tuned = atoll.tune("fedavg", dataset="csbm", parties=2, nodes=200, rounds=3, trials=4, space={"lr": [0.003, 0.1]})
        >>> sorted(tuned.values), len(tuned.trials), tuned.seeds
        (['lr'], 4, (1000, 1001))
    """

    algorithm: str
    values: Mapping[str, Any]
    score: float
    default_score: float | None
    objective: str
    higher_is_better: bool
    space: Mapping[str, Any]
    sampler: str
    sampler_seed: int
    seeds: Sequence[int]
    trials: Sequence[TuningTrial]
    data: Mapping[str, Any] = field(default_factory=dict)
    extent: Mapping[str, int] = field(default_factory=dict)
    optuna: str = ""

    def __repr__(self) -> str:
        return f"Tuned({self.algorithm}: {listed(self.values)}; {len(self.trials)} trials, {self.words} {self.text(self.score)})"

    @property
    def words(self) -> str:
        """The objective in words."""
        return metric_format(self.objective).words

    def text(self, score: float | None) -> str:
        """A score as it is shown."""
        if score is None:
            return "–"
        return f"{100 * score:.2f} %" if metric_format(self.objective).percent else f"{score:.4g}"

    @property
    def failed(self) -> list[TuningTrial]:
        """The trials without a score."""
        return [trial for trial in self.trials if trial.score is None]

    def to_dict(self) -> dict[str, Any]:
        """What the file holds."""
        trials = [asdict(trial) | {"score": trial.score} for trial in self.trials]
        return {"atoll": __version__, "kind": KIND} | asdict(self) | {"seeds": list(self.seeds), "trials": trials}

    def brief(self) -> dict[str, Any]:
        """All but the trials, which are counted: for the summary of a comparison."""
        document = self.to_dict()
        return {name: document[name] for name in document if name not in ("atoll", "kind", "data", "extent")} | {
            "trials": len(self.trials)
        }

    def document(self) -> dict[str, Any]:
        """What the file holds, with its checksum."""
        document: dict[str, Any] = json.loads(json.dumps(self.to_dict()))
        return document | {"sha256": checksum(document)}

    def save(self, path: str | Path) -> None:
        """Write the file."""
        storage.write_whole(Path(path), (json.dumps(self.document(), indent=1) + "\n").encode())

    def mark(self) -> TunedBy:
        """For the configurations of the runs that use the values."""
        document = self.document() | {"trials": len(self.trials), "seeds": tuple(self.seeds)}
        return TunedBy(**{field.name: document[field.name] for field in fields(TunedBy)})

    def changed_data(self, config: Config, given: ScriptData | None = None) -> str:
        """A sentence where the data of the same name and settings has changed since; empty otherwise."""
        if not self.extent or self.data != tuned_data(config):  # other settings are said anyway
            return ""
        changes = data_changes(self.extent, data_extent(replace(config, seed=self.seeds[0]), given))
        return f"{self.algorithm} was tuned on other data: {changes}." if changes else ""

    def check(self) -> None:
        """Refuse values that no trial had, and settings of data or budget, which tuning does not choose."""
        names = {setting.name for setting in fields(find(self.algorithm).Settings)}
        if other := [name for name in self.values if name not in names and not name.startswith("model.")]:
            raise AtollError(f"--tuned has {other[0]}, which tuning does not choose for {self.algorithm}; give it with --set.")
        if all(dict(trial.values) != dict(self.values) for trial in self.trials):
            raise AtollError(f"--tuned has {listed(self.values)}, but no trial of {self.algorithm} had these; tune again.")

    def check_seeds(self, seeds: Collection[int]) -> None:
        """Refuse to report seeds that the values were chosen on."""
        check_untuned_seeds(self.algorithm, self.seeds, seeds)


def check_untuned_seeds(algorithm: str, tuned_on: Collection[int], seeds: Collection[int]) -> None:
    """Refuse to report seeds that an algorithm's values were chosen on."""
    if shared := [seed for seed in seeds if seed in tuned_on]:
        which = ", ".join(map(str, shared))
        raise AtollError(
            f"Seed{'s' if len(shared) > 1 else ''} {which} {'were' if len(shared) > 1 else 'was'} used to tune "
            f"{algorithm}, so a result with {'them' if len(shared) > 1 else 'it'} would flatter; report other seeds."
        )


def read_tuned(path: str | Path) -> Tuned:
    """The file that `atoll tune --out` wrote; the folder will do."""
    file = Path(path)
    file = file / FILE if file.is_dir() else file
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise AtollError(f"--tuned {path} cannot be read ({error.strerror}); give the {FILE} of `atoll tune --out`.") from error
    except (ValueError, RecursionError) as error:
        raise AtollError(f"--tuned {path} is not the {FILE} of `atoll tune --out`: it is not JSON ({error}).") from error
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise AtollError(f"--tuned {path} is not the {FILE} of `atoll tune --out`.")
    for name, kind in KEYS.items():
        if not isinstance(document.get(name), kind):
            raise AtollError(f"--tuned {path} is damaged: {name} is missing or not of its kind; run `atoll tune` again.")
    if document.get("sha256") != checksum(document):
        raise AtollError(f"--tuned {path} is not as `atoll tune` wrote it: its checksum does not match; run `atoll tune` again.")
    try:
        trials = [TuningTrial(one["number"], one["values"], one["scores"], one["error"]) for one in document["trials"]]
        names = [name for name in Tuned.__dataclass_fields__ if name not in ("trials", "seeds")]
        return Tuned(**{name: document[name] for name in names}, trials=trials, seeds=tuple(map(int, document["seeds"])))
    except (KeyError, TypeError, ValueError) as error:
        raise AtollError(f"--tuned {path} is damaged ({error}); run `atoll tune` again.") from error


def listed(values: Mapping[str, Any]) -> str:
    """`lr=0.01, hidden=64`."""
    return ", ".join(f"{name}={value}" for name, value in values.items())


def tuned_data(config: Config) -> dict[str, Any]:
    """What values are tuned for: data, budget and model."""
    return flat(config) | {"model": str(getattr(config.settings, "model", ""))}


def tuned_by(config: Config) -> TunedBy | None:
    """What the settings of a run were tuned by; None where they are not those that were chosen."""
    mark = config.tuned
    return mark if mark is not None and mark.holds_for(config.settings) else None


def tuning_notes(configs: Mapping[str, Config]) -> list[str]:
    """Where rows of a comparison were not tuned alike, or with other data than they are compared on, in one sentence each."""
    marks = {row: tuned_by(config) for row, config in configs.items()}
    if not any(marks.values()):
        return []
    notes = []
    if len({None if mark is None else (mark.trials, mark.seeds) for mark in marks.values()}) > 1:
        words = [f"{row} {mark.budget if mark else 'not at all'}" for row, mark in marks.items()]
        notes.append(f"Not tuned alike: {', '.join(words)}.")
    for row, mark in marks.items():
        here = tuned_data(configs[row])
        if mark is not None and (other := [name for name in here if mark.data.get(name) != here[name]]):
            words = [f"{name}={mark.data.get(name)} (here {here[name]})" for name in other]
            notes.append(f"{row} was tuned with {', '.join(words)}.")
    return notes


def changed_notes(tuned: Mapping[str, Tuned], configs: Mapping[str, Config], given: ScriptData | None = None) -> list[str]:
    """Where data has changed since rows were tuned on it, in one sentence each."""
    notes = (one.changed_data(configs[row], given) for row, one in tuned.items())
    return list(dict.fromkeys(note for note in notes if note))


def tuned_rows(files: Sequence[Tuned], rows: Mapping[str, str], fixed: Mapping[str, Collection[str]]) -> dict[str, Tuned]:
    """Each result of tuning for the rows of its algorithm; `rows`: their algorithms, `fixed`: what was set for them."""
    by_row: dict[str, Tuned] = {}
    for tuned in files:
        mine = [row for row, algorithm in rows.items() if algorithm == tuned.algorithm]
        if not mine:
            there = ", ".join(dict.fromkeys(rows.values()))
            raise AtollError(f"--tuned is for {tuned.algorithm}, which is not compared; there is {there}.")
        tuned.check()
        for row in mine:
            if by_row.setdefault(row, tuned) != tuned:
                raise AtollError(f"--tuned is given twice for {tuned.algorithm}; give it once.")
            if both := sorted(set(tuned.values) & set(fixed[row])):
                raise AtollError(f"{both[0]} of {row} is set and tuned; leave --set or --tuned out.")
    return by_row


def as_tuned(tuned: str | Path | Tuned) -> Tuned:
    """A result of tuning, or the one that a file holds."""
    return tuned if isinstance(tuned, Tuned) else read_tuned(tuned)


def with_tuned(values: Mapping[str, Any], tuned: Tuned | None, algorithm: str, seed: int) -> dict[str, Any]:
    """Settings that were asked for and those that were tuned, for one run."""
    if tuned is None:
        return dict(values)
    if tuned.algorithm != algorithm:
        raise AtollError(f"--tuned is for {tuned.algorithm}, but {algorithm} is run; give the file of {algorithm}.")
    tuned.check()
    asked = {name if name.startswith("model.") else bare for name in values for bare in bare_names({name: 0}, algorithm)}
    if both := sorted(asked & set(tuned.values)):
        raise AtollError(f"{both[0]} is set and tuned; leave --set or --tuned out.")
    tuned.check_seeds([seed])
    return {**values, **tuned.values}


def marked(config: Config, tuned: Tuned | None, given: ScriptData | None = None) -> Config:
    """The configuration of one run with what it was tuned by; a warning where that was with other data."""
    if tuned is None:
        return config
    config = replace(config, tuned=tuned.mark())
    notes = tuning_notes({config.algorithm: config})
    for note in notes or [changed for changed in [tuned.changed_data(config, given)] if changed]:
        warnings.warn(note, AtollWarning, stacklevel=3)
    return config


def still_tuned(config: Config) -> Config:
    """A configuration that was changed after tuning: with other values it is not tuned, and not with the seeds of tuning."""
    mark = tuned_by(config)
    if mark is not None:
        check_untuned_seeds(config.algorithm, mark.seeds, [config.seed])
    return replace(config, tuned=mark)
