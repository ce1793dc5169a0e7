"""What scripts and notebooks call to run: `atoll.run`, `atoll.resume`. No files are needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.data.script_data import ScriptData
from atoll.errors import AtollError
from atoll.runs import config, runner
from atoll.runs.folder import Folder
from atoll.runs.loggers import Logger, MakeLogger, RoundCallback, open_loggers
from atoll.runs.own_partition import PARTITION
from atoll.runs.result import Result
from atoll.runs.tuned import Tuned, as_tuned, marked, with_tuned

OnRound = Callable[[Mapping[str, Any]], Any]
Loggers = Sequence[str | MakeLogger | Logger | RoundCallback]


def run(
    algorithm: str,
    *,
    dataset: Any = None,
    partition: Any = None,
    parties: int | None = None,
    seed: int = 0,
    engine: str = "inprocess",
    device: str = "cpu",
    start_from: str | Path | None = None,
    tuned: str | Path | Tuned | None = None,
    out: str | Path | None = None,
    progress: bool = False,
    loggers: Loggers = (),
    on_round: OnRound | None = None,
    **settings: Any,
) -> Result:
    """Run one algorithm. Whatever is left out is as in the algorithm's own paper.

    Parameters:
        algorithm: A name (`atoll algorithms` lists them) or the path of a Python file with an algorithm of your own.
        dataset: A known dataset's name, a path to a graph of your own, or a graph: torch_geometric `Data`, `HeteroData` or a
            dataset of one graph, a NetworkX graph, DataFrames (nodes, edges), an atoll `Graph`. A list of graphs or paths, or
            a dict by party names, is one graph per party. By default the synthetic graph `csbm`, or the paper's.
        partition: How the graph is divided: `metis`, `louvain_balanced`, `dirichlet`, `random`, `overlap`, `vertical`, `node`,
            `whole`, or the path of an .npz file of node lists; or a list of each party's nodes, an array with each node's
            party number (-1: nobody), or a function of the `Graph` that gives one of them.
        parties: The number of parties, where the partition does not fix it.
        seed: Seed of everything random: the same configuration and seed give the same numbers.
        engine: What carries the messages: `inprocess`, `ray` (actors of a cluster), `nvflare` (one process per site on this
            machine), or another package's.
        device: Where the parties compute: `cpu`, `cuda`, `cuda:1`, `mps`, or `auto`, the first accelerator that is here. The
            numbers are the same up to rounding.
        start_from: The folder of a finished run of the same algorithm: its best round's model is what this run begins with.
        tuned: What `tune` returned for this algorithm, or the file it wrote: its values are settings. The seed must be another
            than those it was tuned on.
        out: A new folder for the configuration, history, checkpoints and result; without it nothing is written.
        progress: Whether to show a progress line.
        loggers: What else to call with every round: names such as `"tensorboard"`, `"wandb"` or `"csv"`, loggers, or functions
            of (row, rounds).
        on_round: A function that is called after every round with its row, a dict with the columns of `history`. If it returns
            False, the run ends with this round; `resume` would continue it.
        **settings: Any setting of the algorithm, model, partition, split or run (`atoll algorithms NAME` lists them).
            `model` is a name (`atoll models` lists them), the path of a Python file with a `torch.nn.Module`, such a class, or
            a function that makes a module; a setting of the model itself is written `**{"model.heads": 4}`.

    Returns:
        Metrics, bytes, seconds, the history and the trained state.

    Examples:
        >>> import atoll
        >>> result = atoll.run("fedavg", dataset="csbm", parties=3, rounds=5, nodes=300)
        >>> result.rounds, result.parties, result.scenario
        (5, 3, 'horizontal')
        >>> sorted(result.bytes["by_verb"])
        ['fit']
        >>> rows = []
        >>> result = atoll.run("local", dataset="csbm", parties=2, rounds=9, nodes=200, on_round=lambda row: row["round"] < 3)
        >>> result.rounds
        3
    """
    given, choice = given_objects(dataset, partition), None if tuned is None else as_tuned(tuned)
    chosen = config.resolve(
        algorithm,
        dataset=dataset_name(dataset),
        partition=partition_name(given, partition),
        parties=parties,
        seed=seed,
        engine=engine,
        device=device,
        start_from=start_from,
        values=with_tuned(with_given_task(settings, given), choice, algorithm, seed),
    )
    chosen = marked(chosen, choice, given)
    with open_loggers(called(progress, loggers, on_round), algorithm, out, chosen) as watch:
        result = runner.run(chosen, given, out=out, watch=watch)
        watch.finish(result)
    return result


def resume(
    path: str | Path,
    *,
    rounds: int | None = None,
    patience: int | None = None,
    target_accuracy: float | None = None,
    dataset: Any = None,
    algorithm: str | Path | None = None,
    model: Any = None,
    device: str | None = None,
    progress: bool = False,
    loggers: Loggers = (),
    on_round: OnRound | None = None,
) -> Result:
    """Continue a run from its last checkpoint, exactly; a finished run returns its result again.

    Parameters:
        path: The folder that `out` named.
        rounds: Another number of rounds, at least as many as are done: a finished run is extended, and ends as one that had
            this number from the start.
        patience, target_accuracy: Other values of these settings, for instance 0 for a run that stopped early.
        dataset: The dataset again, if it was given as an object, which a folder cannot hold.
        algorithm: The file of an algorithm of your own again: a folder alone never makes atoll run a file.
        model: The file, class or function of a model of your own again.
        device: Where the parties compute from now on, as for `run`; by default where they did.
        progress, loggers, on_round: As for `run`.

    Returns:
        As of a run that was never interrupted.

    Examples:
        >>> import atoll, tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     result = atoll.run("local", dataset="csbm", parties=2, rounds=2, nodes=200, out=f"{folder}/run")
        ...     again = atoll.resume(f"{folder}/run")
        ...     longer = atoll.resume(f"{folder}/run", rounds=3)
        >>> again.metrics == result.metrics, longer.rounds
        (True, 3)
    """
    ending = {"rounds": rounds, "patience": patience, "target_accuracy": target_accuracy}
    own: dict[str, Any] = {"algorithm": algorithm, "model": model, "device": device}
    with open_loggers(called(progress, loggers, on_round), str(path), path, Folder.open(path)[1]) as watch:
        result = runner.resume(path, given_objects(dataset), **own, watch=watch, ending=ending)
        watch.finish(result)
    return result


def with_given_task(settings: Mapping[str, Any], given: ScriptData | None) -> dict[str, Any]:
    """The settings with the task of a list of small graphs, where it is not named."""
    if given is None or not given.task or {"task", "run.task", "target", "data.target"} & settings.keys():
        return dict(settings)
    return {**settings, "task": given.task}


def given_objects(dataset: Any, partition: Any = None) -> ScriptData | None:
    """What was given as objects instead of names; None where nothing was."""
    objects = [None if isinstance(each, (str, Path)) else each for each in (dataset, partition)]
    return None if all(each is None for each in objects) else ScriptData(*objects)


def dataset_name(dataset: Any) -> str | None:
    """The dataset's name in the configuration; None for the default."""
    if dataset is None or isinstance(dataset, (str, Path)):
        return None if dataset is None else str(dataset)
    return config.GIVEN


def partition_name(given: ScriptData | None, partition: Any) -> str | None:
    """The partition's name in the configuration; None for the default."""
    if given is not None and given.partition is not None:
        return PARTITION
    return "files" if partition is None and given is not None and given.per_party else partition


def called(progress: bool, loggers: Loggers, on_round: OnRound | None = None) -> list[Any]:
    """What is called with every round; `on_round`, which may end the run, last."""
    if on_round is not None and not callable(on_round):
        raise AtollError(f"on_round is {on_round!r} but must be a function of one argument, a round's row.")
    last = [] if on_round is None else [lambda row, rounds: on_round(row)]
    return [*(["progress"] if progress else []), *loggers, *last]
