"""What scripts and notebooks call to compare and tune: `atoll.compare`, `atoll.tune`. No files are needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.data.script_data import ScriptData
from atoll.errors import AtollError
from atoll.models import user
from atoll.runs import parallel
from atoll.runs.api import Loggers, called, dataset_name, given_objects, partition_name
from atoll.runs.comparison import Comparison
from atoll.runs.loggers import open_loggers
from atoll.runs.result import Result
from atoll.runs.space import DEFAULTS, asked_space
from atoll.runs.trial import Trial
from atoll.runs.tuned import Tuned, as_tuned
from atoll.runs.tuning import SEEDS, TuningRequest, execute_here, tuning_seeds


def compare(
    algorithms: Sequence[str] | str,
    *,
    dataset: Any = None,
    seeds: int | Iterable[int] = 5,
    models: Sequence[Any] | str = (),
    partition: Any = None,
    parties: int | None = None,
    sweep: Mapping[str, Sequence[Any]] | None = None,
    tune: int = 0,
    tune_seeds: int | Iterable[int] = SEEDS,
    space: str | Path | Mapping[str, Any] = DEFAULTS,
    tuned: Sequence[str | Path | Tuned] = (),
    jobs: int = 1,
    device: str = "cpu",
    out: str | Path | None = None,
    progress: bool = False,
    loggers: Loggers = (),
    **settings: Any,
) -> Comparison:
    """Run several algorithms on the same data, split, seeds and budget.

    Parameters:
        algorithms: A list of names, or one text with commas.
        dataset, partition, parties, device, progress, loggers: As for `run`; the loggers are called with every run.
        seeds: How many seeds (0, 1, 2, …), or the seeds themselves.
        models: Backbones to run each algorithm with, as for `run`; the paper's by default.
        sweep: Settings of the algorithms, each with several values: every combination is a row.
        tune: Tune every row first, with this many trials each; 0 does not.
        tune_seeds: The seeds of those trials, as for `tune`; they must not be among `seeds`.
        space: The space of those trials, as for `tune`: the same for all contestants.
        tuned: What `tune` returned, or the files it wrote, for some of the algorithms.
        jobs: Runs at the same time, each in a process of its own with one thread.
        out: A folder for all runs; those already there are not run again.
        **settings: Any setting; it goes to every algorithm that has it. Data and budget are the same for all.

    Returns:
        The results by row, and their means and standard deviations.

    Examples:
        >>> import atoll
        >>> comparison = atoll.compare("local,fedavg", dataset="csbm", parties=2, rounds=2, nodes=200, seeds=2)
        >>> [(row["row"], row["seeds"]) for row in comparison.summary()]
        [('local', 2), ('fedavg', 2)]
    """
    given = given_objects(dataset, partition)
    comparison = Comparison(
        _listed("algorithms", algorithms),
        dataset=dataset_name(dataset),
        models=user.load_all(_listed("models", models)),
        seeds=_listed("seeds", range(seeds) if isinstance(seeds, int) else seeds),
        partition=partition_name(given, partition),
        parties=parties,
        values=settings,
        sweep={key: _listed(f"sweep of {key}", values) for key, values in (sweep or {}).items()},
        tuned_files=[as_tuned(one) for one in _listed("tuned", tuned)],
        device=device,
    )
    folder = Path(out) if out is not None else None
    _check_jobs(comparison, given, jobs, loggers)

    def one(trial: Trial, path: Path | None) -> Result:
        with open_loggers(called(progress, loggers), trial.label, path, trial.config) as watch:
            result = trial.run(path, given, watch)
            watch.finish(result)
        return result

    with parallel.open_pool(jobs) as pool:
        if tune:
            request = _request(tune, tune_seeds, space)
            comparison.tune(request, pool.execute if pool else execute_here(given), folder, given=given)
        if pool:
            parallel.run(comparison, folder, pool)
        else:
            comparison.run(one, folder, given)
    return comparison


def tune(
    algorithm: str,
    *,
    space: str | Path | Mapping[str, Any] = DEFAULTS,
    trials: int = 20,
    seeds: int | Iterable[int] = SEEDS,
    sampler: str = "tpe",
    sampler_seed: int = 0,
    dataset: Any = None,
    partition: Any = None,
    parties: int | None = None,
    model: Any = None,
    jobs: int = 1,
    device: str = "cpu",
    out: str | Path | None = None,
    **settings: Any,
) -> Tuned:
    """Choose an algorithm's settings by their score on validation nodes; test nodes are not looked at.

    The first trial is the settings as they are. A trial's score is the mean over the seeds of the best round's validation metric,
    that of `select_by`. The same arguments give the same trials, whatever `jobs` is.

    Parameters:
        algorithm, dataset, partition, parties, model, device: As for `run`.
        space: `"defaults"` (learning rate, width, weight decay, dropout, and what the method's paper searched), the path of a
            TOML file, or a dict: setting → list of values, or `{"low": 0.001, "high": 0.1, "log": True}`.
        trials: How many.
        seeds: How many seeds each trial is run with (1000, 1001, …), or the seeds themselves. Report others.
        sampler: `"tpe"` or `"random"`, which are Optuna's, or `"grid"`: every combination of lists.
        sampler_seed: Its seed.
        jobs: Runs at the same time, each in a process of its own with one thread.
        out: A folder for the trials, in which an interrupted tuning is continued, and a finished one with more `trials`.
        **settings: Settings that are fixed for all trials, as for `run`.

    Returns:
        The chosen values, the space, the seeds and every trial; `run` and `compare` take it as `tuned`.

    Examples:
        >>> import atoll
        >>> small = {"dataset": "csbm", "parties": 2, "nodes": 200, "rounds": 3}
        >>> tuned = atoll.tune("fedavg", space={"lr": [0.003, 0.03], "hidden": [16, 64]}, trials=5, sampler="grid", **small)
        >>> sorted(tuned.values), [trial.number for trial in tuned.trials]
        (['hidden', 'lr'], [0, 1, 2, 3])
        >>> atoll.run("fedavg", tuned=tuned, **small).config.settings.lr == tuned.values["lr"]
        True
    """
    given = given_objects(dataset, partition)
    comparison = Comparison(
        [algorithm],
        dataset=dataset_name(dataset),
        models=[] if model is None else user.load_all([model]),
        partition=partition_name(given, partition),
        parties=parties,
        values=settings,
        device=device,
    )
    _check_jobs(comparison, given, jobs, ())
    request = _request(trials, seeds, space, sampler, sampler_seed)
    [tuning] = comparison.tunings(request).values()
    with parallel.open_pool(jobs) as pool:
        return tuning.run(pool.execute if pool else execute_here(given), Path(out) if out is not None else None, given=given)


def _request(
    trials: int,
    seeds: int | Iterable[int],
    space: str | Path | Mapping[str, Any],
    sampler: str = "tpe",
    sampler_seed: int = 0,
) -> TuningRequest:
    chosen = tuning_seeds(seeds) if isinstance(seeds, int) else _listed("seeds", seeds)
    return TuningRequest(trials, chosen, asked_space(space), sampler, sampler_seed)


def _check_jobs(comparison: Comparison, given: ScriptData | None, jobs: int, loggers: Loggers) -> None:
    """Refuse objects that other processes could not have."""
    objects = [model for model in comparison.models if user.is_user_model(model) and user.file_of(model) is None]
    if jobs != 1 and (given is not None or objects or loggers):
        raise AtollError("jobs runs in other processes: give datasets and models by name or file and no loggers, or jobs=1.")


def _listed(what: str, items: Any) -> list[Any]:
    """Several of something, from a list or from text with commas."""
    if isinstance(items, str):
        return items.split(",")
    if not isinstance(items, Iterable):
        raise AtollError(f"{what} is {items!r} but must be a list.")
    return list(items)
