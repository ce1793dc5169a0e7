"""The command `atoll compare`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import (
    Dataset,
    Parties,
    Partition,
    Quiet,
    Rounds,
    Sets,
    Threads,
    open_loggers,
    prepare_torch,
    read_values,
    split_names,
)

if TYPE_CHECKING:
    from atoll.runs.comparison import Trial
    from atoll.runs.result import Result


def compare(
    algorithms: Annotated[str, typer.Argument(help="Algorithms, separated by commas.")],
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Annotated[str | None, typer.Option(help="Models (`atoll models`, or a FILE.py), separated by commas.")] = None,
    rounds: Rounds = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds: 0, 1, 2, …")] = 5,
    sets: Sets = None,
    out: Annotated[Path | None, typer.Option(help="Folder for all runs; those already there are not run again.")] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Compare algorithms on the same data, splits and seeds."""
    prepare_torch(threads)
    from atoll.cli.console import comparison_table
    from atoll.cli.console import out as console
    from atoll.runs.comparison import Comparison

    comparison = Comparison(
        split_names(algorithms),
        dataset=dataset,
        models=split_names(model),
        seeds=range(seeds),
        partition=partition,
        parties=parties,
        values=read_values(sets, rounds=rounds),
    )

    def one(trial: Trial, folder: Path | None) -> Result:
        with open_loggers(trial.label, quiet=quiet) as watch:
            return trial.run(folder, None, watch)

    comparison.run(one, out)
    first = next(iter(comparison.results.values()))[0]
    title = f"{first.config.dataset}, {first.config.partition}, mean ± std over {seeds} seed{'s' if seeds > 1 else ''} (%)"
    console.print(comparison_table(comparison.summary(), title))
    if out is not None:
        comparison.save(out / "comparison.json")
        console.print(f"Written to {out}")
