"""The command `atoll tune`. Heavy imports wait until needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.options import (
    Dataset,
    Device,
    Jobs,
    Model,
    Parties,
    Partition,
    Quiet,
    Rounds,
    Sets,
    Space,
    Threads,
    TuningSeeds,
    prepare_torch,
    read_tuning,
    read_values,
    say_device,
)

if TYPE_CHECKING:
    from atoll.runs.tuned import Tuned

MAX_SHOWN = 5  # trials in the table
MAX_REASON = 160  # characters of why a trial failed

Sampler = Annotated[str, typer.Option(help="tpe or random (Optuna's), or grid: every combination of lists of values.")]


def tune(
    algorithm: Annotated[str, typer.Argument(help="An algorithm, or a FILE.py with one.")],
    space: Space = "defaults",
    trials: Annotated[int, typer.Option(help="Trials; the first is the settings as they are.")] = 20,
    seeds: TuningSeeds = "2",
    sampler: Sampler = "tpe",
    sampler_seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Model = None,
    rounds: Rounds = None,
    sets: Sets = None,
    jobs: Jobs = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trials and tuned.json; an interrupted tuning continues.")
    ] = None,
    device: Device = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Choose an algorithm's settings on validation nodes. Report the result with other seeds: `--tuned DIR/tuned.json`."""
    from atoll.runs import parallel

    with parallel.open_pool(jobs) as pool:  # before the heavy imports, which then go on at the same time as the workers'
        prepare_torch(threads)
        from atoll.cli.board import TuningLine
        from atoll.cli.console import out as console
        from atoll.runs.comparison import Comparison
        from atoll.runs.tuning import execute_here

        request = read_tuning(trials, seeds, space, sampler, sampler_seed)
        comparison = Comparison(
            [algorithm],
            dataset=dataset,
            models=[] if model is None else [model],
            partition=partition,
            parties=parties,
            values=read_values(sets, rounds=rounds),
            device=device or "cpu",
        )
        say_device(device, quiet=quiet)
        [tuning] = comparison.tunings(request).values()
        line = TuningLine(quiet=quiet)
        with line.screen:
            tuned = tuning.run(pool.execute if pool else execute_here(), out, line.show)
    show_tuned(tuned)
    if out is not None:
        console.print(f"Written to {out / 'tuned.json'}; use it with --tuned and other seeds.", soft_wrap=True)


def show_tuned(tuned: Tuned) -> None:
    """Print what was chosen, from what, and the best trials."""
    from rich import box
    from rich.table import Table

    from atoll.cli.console import out as console
    from atoll.errors import short
    from atoll.runs.tuned import listed

    seeds = ", ".join(map(str, tuned.seeds))
    title = f"{tuned.algorithm}: {len(tuned.trials)} trials ({tuned.sampler}), mean {tuned.words} over the seeds {seeds}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("trial", tuned.words, "values"):
        table.add_column(name, justify="left" if name == "values" else "right", no_wrap=name != "values")
    sign = -1 if tuned.higher_is_better else 1
    ranked = sorted((one for one in tuned.trials if one.score is not None), key=lambda one: sign * (one.score or 0.0))
    for one in ranked[:MAX_SHOWN]:
        table.add_row(str(one.number), tuned.text(one.score), listed(one.values))
    console.print(table)
    before = f"{tuned.text(tuned.default_score)} with the settings as they are"
    console.print(f"Chosen: {listed(tuned.values)}; {tuned.words} {tuned.text(tuned.score)}, {before}.", soft_wrap=True)
    if tuned.failed:
        first = tuned.failed[0]
        many = f"{len(tuned.failed)} trials" if len(tuned.failed) > 1 else "1 trial"
        why = short(first.error, MAX_REASON)
        console.print(f"{many} failed, for instance {first.number} ({listed(first.values)}): {why}", soft_wrap=True)
