"""The command `atoll compare`. Heavy imports wait until needed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import (
    Device,
    Jobs,
    Log,
    Parties,
    Partition,
    Quiet,
    Rounds,
    Sets,
    Space,
    Threads,
    TuningSeeds,
    prepare_torch,
    read_seeds,
    read_tuning,
    read_values,
    say_device,
    split_names,
)
from atoll.errors import AtollError

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison
    from atoll.runs.parallel import Pool
    from atoll.runs.result import Result
    from atoll.runs.trial import Trial
    from atoll.runs.tuning import TuningRequest


def compare(
    algorithms: Annotated[str, typer.Argument(help="Algorithms, separated by commas.")],
    dataset: Annotated[str | None, typer.Option(help="As for `atoll run`; several with commas, then ranks over them.")] = None,
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
    tune: Annotated[int, typer.Option(help="Tune every row first, with this many trials each, on validation nodes.")] = 0,
    tune_seeds: TuningSeeds = "2",
    space: Space = "defaults",
    tuned: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", help="What `atoll tune` chose for one of the algorithms; repeatable.")
    ] = None,
    against: Annotated[str | None, typer.Option(help="The row that differences are taken from; the first by default.")] = None,
    jobs: Jobs = 1,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; those already there are not run again.")] = None,
    device: Device = None,
    log: Log = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data, split, seeds and budget."""
    from atoll.runs import parallel

    if jobs != 1 and log:
        raise AtollError("--log is for runs in this process; leave --jobs or --log out.")
    with parallel.open_pool(jobs) as pool:  # before the heavy imports, which then go on at the same time as the workers'
        prepare_torch(threads)
        from atoll.runs.comparison import Comparison
        from atoll.runs.tuned import read_tuned

        if tune == 0 and (space != "defaults" or tune_seeds != "2"):
            raise AtollError("--space and --tune-seeds are for tuning; give --tune N, the number of trials, too.")
        request = read_tuning(tune, tune_seeds, space, within=True) if tune else None
        say_device(device, quiet=quiet)
        comparisons = {
            name: Comparison(
                split_names(algorithms),
                dataset=each,
                models=split_names(model),
                seeds=read_seeds(seeds),
                partition=partition,
                parties=parties,
                values=read_values(sets, rounds=rounds),
                sweep=read_sweep(sweep),
                against=against,
                tuned_files=[read_tuned(path) for path in tuned or []],
                device=device or "cpu",
            )
            for name, each in read_datasets(dataset).items()
        }
        _compare(comparisons, request, out, pool, quiet, log or [])


def _compare(
    comparisons: dict[str, Comparison],
    request: TuningRequest | None,
    out: Path | None,
    pool: Pool | None,
    quiet: bool,
    log: list[str],
) -> None:
    """Run and show the comparison of each dataset, then the ranks over them; all are checked before the first run."""
    from atoll.cli.console import out as console

    for comparison in comparisons.values():
        comparison.check(request)
    if len(comparisons) > 1:  # a dataset that cannot be loaded must not stop all after others have run
        for comparison in comparisons.values():
            comparison.check_data()
    for name, comparison in comparisons.items():
        folder = out / name if out is not None and len(comparisons) > 1 else out
        _run(comparison, request, folder, pool, quiet, log)
        _show(comparison)
        if folder is not None:
            comparison.save(folder / "comparison.json")
    if len(comparisons) > 1:
        _show_ranks(comparisons, out)
    if out is not None:
        console.print(f"Written to {out}")


def read_datasets(text: str | None) -> dict[str, str | None]:
    """`cora,citeseer` → both by name; a path that has a comma is one dataset."""
    if text is None or "," not in text or Path(text).exists():
        return {"": text}
    datasets: dict[str, str | None] = {}
    for each in split_names(text):
        name = Path(each).name
        if name in datasets:
            raise AtollError(f"--dataset names {name} twice; name each dataset once.")
        datasets[name] = each
    if not datasets:
        raise AtollError("--dataset is a comma; give the name of a dataset (`atoll datasets`), or several separated by commas.")
    return datasets


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


def _run(
    comparison: Comparison, request: TuningRequest | None, out: Path | None, pool: Pool | None, quiet: bool, log: list[str]
) -> None:
    from atoll.cli.board import Board, TuningLine
    from atoll.runs import parallel
    from atoll.runs.loggers import open_loggers
    from atoll.runs.tuning import execute_here

    def one(trial: Trial, folder: Path | None) -> Result:
        with open_loggers([board.watcher(trial), *log], trial.label, folder, trial.config) as watch:
            result = trial.run(folder, None, watch)
            watch.finish(result)
        return result

    if request is not None:
        line = TuningLine(quiet=quiet)
        with line.screen:
            comparison.tune(request, pool.execute if pool else execute_here(), out, line.show)
    board = Board(comparison, quiet=quiet)
    with board.screen:
        if pool is None:
            comparison.run(one, out)
        else:
            parallel.run(comparison, out, pool, board.watch)


def _show(comparison: Comparison) -> None:
    from atoll.cli.console import comparison_table, difference_table, show, tuned_table
    from atoll.cli.console import out as console
    from atoll.runs.comparison_text import beside, comparison_title

    for note in comparison.notes:
        console.print(note)
    show(comparison_table(comparison.summary(), comparison_title(comparison)))
    for sentence in beside(comparison):
        console.print(sentence, soft_wrap=True)
    if comparison.tuned:
        show(tuned_table(comparison.tuned))
    differences = comparison.differences()
    if differences and len(comparison.seeds) > 1:
        show(difference_table(differences, comparison.metric))


def _show_ranks(comparisons: dict[str, Comparison], out: Path | None) -> None:
    """The ranks over the datasets, and ranks.json."""
    from atoll import storage
    from atoll.cli.console import out as console
    from atoll.cli.console import ranks_table, show
    from atoll.runs.ranks import MIN_ROWS, mean_ranks

    if any(len(comparison.results) < MIN_ROWS for comparison in comparisons.values()):
        return  # one algorithm alone has no rank
    ranks = mean_ranks(comparisons.values(), list(comparisons))
    show(ranks_table(ranks))
    console.print(ranks.caption, soft_wrap=True)
    if out is not None:
        storage.write_whole(out / "ranks.json", (json.dumps(ranks.to_dict(), indent=1) + "\n").encode())
