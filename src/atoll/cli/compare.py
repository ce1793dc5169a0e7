"""The command `atoll compare`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import (
    Dataset,
    Log,
    Parties,
    Partition,
    Quiet,
    Rounds,
    Sets,
    Threads,
    prepare_torch,
    read_values,
    split_names,
)
from atoll.errors import AtollError

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison, Trial
    from atoll.runs.result import Result

MAX_SEEDS = 10_000


def compare(
    algorithms: Annotated[str, typer.Argument(help="Algorithms, separated by commas.")],
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Annotated[str | None, typer.Option(help="Models (`atoll models`, or a FILE.py), separated by commas.")] = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="A number of seeds (0, 1, 2, …), or the seeds themselves: 0,3,7.")] = "5",
    sets: Sets = None,
    sweep: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,…", help="Values of an algorithm's setting, each a row; several make a grid."),
    ] = None,
    against: Annotated[str | None, typer.Option(help="The row that differences are taken from; the first by default.")] = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process with one thread.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; those already there are not run again.")] = None,
    log: Log = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data, split, seeds and budget."""
    prepare_torch(threads)
    from atoll.runs.comparison import Comparison

    comparison = Comparison(
        split_names(algorithms),
        dataset=dataset,
        models=split_names(model),
        seeds=read_seeds(seeds),
        partition=partition,
        parties=parties,
        values=read_values(sets, rounds=rounds),
        sweep=read_sweep(sweep),
        against=against,
    )
    _run(comparison, out, jobs, quiet, log or [])
    _show(comparison)
    if out is not None:
        from atoll.cli.console import out as console

        comparison.save(out / "comparison.json")
        console.print(f"Written to {out}")


def read_seeds(text: str) -> list[int]:
    """`5` → 0, 1, 2, 3, 4; `0,3,7` and `7,` → those."""
    parts = split_names(text)
    if not parts or not all(part.isdecimal() for part in parts):
        raise AtollError(f"--seeds is {text!r} but must be a number of seeds, or seeds separated by commas, for instance 0,3,7.")
    if "," in text:
        return [int(part) for part in parts]
    if not 1 <= int(text) <= MAX_SEEDS:
        raise AtollError(
            f"--seeds is {text} but must be at least 1 and at most {MAX_SEEDS}; for the seed {text} alone write {text},"
        )
    return list(range(int(text)))


def read_sweep(items: list[str] | None) -> dict[str, list[str]]:
    """`lr=0.1,0.01` → the setting's values."""
    swept: dict[str, list[str]] = {}
    for item in items or []:
        key, _, values = item.partition("=")
        key = key.strip()
        if not key or not split_names(values):
            raise AtollError(f"--sweep {item!r} is not of the form key=a,b,…; write for instance --sweep lr=0.001,0.01.")
        if key in swept:
            raise AtollError(f"--sweep names {key} twice; list all its values once: --sweep {key}=a,b,…")
        swept[key] = split_names(values)
    return swept


def _run(comparison: Comparison, out: Path | None, jobs: int, quiet: bool, log: list[str]) -> None:
    from atoll.cli.board import Board
    from atoll.runs import parallel
    from atoll.runs.loggers import open_loggers

    def one(trial: Trial, folder: Path | None) -> Result:
        with open_loggers([board.watcher(trial), *log], trial.label, folder, trial.config) as watch:
            result = trial.run(folder, None, watch)
            watch.finish(result)
        return result

    with Board(comparison, quiet=quiet) as board:
        if jobs == 1:
            comparison.run(one, out)
        elif log:
            raise AtollError("--log is for runs in this process; leave --jobs or --log out.")
        else:
            parallel.run(comparison, out, jobs, board.watch)


def _show(comparison: Comparison) -> None:
    from atoll.cli.console import comparison_table, difference_table
    from atoll.cli.console import out as console
    from atoll.runs.summary import comparison_title

    for note in comparison.notes:
        console.print(note)
    console.print(comparison_table(comparison.summary(), comparison_title(comparison)))
    differences = comparison.differences()
    if differences and len(comparison.seeds) > 1:
        console.print(difference_table(differences, comparison.metric))
