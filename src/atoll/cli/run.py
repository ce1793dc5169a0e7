"""The commands `atoll run` and `atoll resume`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.options import (
    Address,
    Dataset,
    Device,
    Log,
    Model,
    OwnAlgorithm,
    OwnModel,
    Parties,
    Partition,
    Quiet,
    Rounds,
    Sets,
    Threads,
    open_loggers,
    prepare_torch,
    print_result,
    read_toml,
    read_values,
    say_device,
)
from atoll.errors import AtollError

if TYPE_CHECKING:
    from atoll.runs.config import Config


def run(
    what: Annotated[
        str, typer.Argument(metavar="ALGORITHM|FILE", help="An algorithm, a FILE.py with one, or the FILE.toml of a run.")
    ],
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Model = None,
    rounds: Rounds = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    sets: Sets = None,
    engine: Annotated[
        str | None,
        typer.Option(help="What carries the messages: inprocess, ray (a cluster), or nvflare (processes on this machine)."),
    ] = None,
    address: Address = None,
    secure: Annotated[bool, typer.Option("--secure", help="Secure aggregation: the server sees sums only.")] = False,
    start_from: Annotated[
        str | None, typer.Option("--from", metavar="RUN", help="Begin with the trained model of this run, on new or grown data.")
    ] = None,
    tuned: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The tuned.json of `atoll tune`: its values, with another seed.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the configuration, history, checkpoint and result.")] = None,
    device: Device = None,
    log: Log = None,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="The same as --log tensorboard.")] = False,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Run one algorithm. Whatever you leave out is as in the algorithm's own paper."""
    prepare_torch(threads)
    from atoll.runs import runner

    values = read_values(sets, model=model, rounds=rounds, address=address) | ({"secure": True} if secure else {})
    given = {"dataset": dataset, "partition": partition, "parties": parties, "seed": seed, "engine": engine}
    given |= {"start_from": start_from, "device": device}
    say_device(device, engine=engine, quiet=quiet)
    config = _config(what, {name: value for name, value in given.items() if value is not None}, values, tuned)
    names = [*(log or []), *(["tensorboard"] if tensorboard else [])]
    with open_loggers(config.algorithm, quiet=quiet, log=names, folder=out, config=config) as watch:
        result = runner.run(config, out=out, watch=watch)
        watch.finish(result)
    print_result(result)


def _config(what: str, given: dict[str, Any], values: dict[str, Any], tuned: Path | None) -> Config:
    """The configuration of an algorithm or of a file, with the arguments given on the command line."""
    from atoll.runs import config
    from atoll.runs.tuned import marked, read_tuned, still_tuned, with_tuned

    if not what.endswith(".toml"):
        choice = None if tuned is None else read_tuned(tuned)
        chosen = config.resolve(what, **given, values=with_tuned(values, choice, what, given.get("seed", 0)))
        return marked(chosen, choice)
    if tuned is not None:
        raise AtollError("--tuned goes with an algorithm's name, not with the file of a run, which has all its settings.")
    if "\0" in what:
        raise AtollError(f"{what!r} is not a path; give the path of a configuration.")
    document = read_toml(Path(what))
    if "start_from" in given:
        document.pop("start_digest", None)  # of the model that it named
    return still_tuned(config.from_dict(document | given, what, values))


def resume(
    folder: Annotated[Path, typer.Argument(help="The folder that --out named.")],
    rounds: Annotated[int | None, typer.Option(help="Another number of rounds: a finished run is extended.")] = None,
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="patience or target_accuracy, of a run that stopped early."),
    ] = None,
    algorithm: OwnAlgorithm = None,
    model: OwnModel = None,
    address: Address = None,
    device: Device = None,
    log: Log = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Continue a run from its last checkpoint, or with more rounds."""
    prepare_torch(threads)
    from atoll.runs import runner
    from atoll.runs.folder import Folder

    ending = read_values(sets, rounds=rounds)
    config = Folder.open(folder)[1]
    say_device(device, engine=config.engine, quiet=quiet)
    with open_loggers(str(folder), quiet=quiet, log=log, folder=folder, config=config) as watch:
        own: dict[str, Any] = {"algorithm": algorithm, "model": model, "device": device}
        result = runner.resume(folder, **own, watch=watch, ending=ending, address=address)
        watch.finish(result)
    print_result(result)
