"""The command `atoll tune`. Heavy imports wait until needed."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType
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
    prepare_torch,
    read_seeds,
    read_values,
)

if TYPE_CHECKING:
    from rich.status import Status

    from atoll.runs.tuned import Tuned, TuningTrial
    from atoll.runs.tuning import TuningRequest

MAX_SHOWN = 5  # trials in the table
MAX_REASON = 160  # characters of why a trial failed

Space = Annotated[str, typer.Option(metavar="FILE|defaults", help="What to search: a TOML file with one line per setting.")]
Sampler = Annotated[str, typer.Option(help="tpe or random (Optuna's), or grid: every combination of lists of values.")]


def tune(
    algorithm: Annotated[str, typer.Argument(help="An algorithm, or a FILE.py with one.")],
    space: Space = "defaults",
    trials: Annotated[int, typer.Option(help="Trials; the first is the settings as they are.")] = 20,
    seeds: Annotated[str, typer.Option(help="Seeds of every trial: a number (1000, 1001, …), or the seeds themselves.")] = "2",
    sampler: Sampler = "tpe",
    sampler_seed: Annotated[int, typer.Option(help="Seed of the sampler.")] = 0,
    dataset: Dataset = None,
    partition: Partition = None,
    parties: Parties = None,
    model: Annotated[str | None, typer.Option(help="One of `atoll models`, or a FILE.py with a torch.nn.Module.")] = None,
    rounds: Rounds = None,
    sets: Sets = None,
    jobs: Annotated[int, typer.Option(help="Runs at the same time, each in a process with one thread.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trials and tuned.json; an interrupted tuning continues.")
    ] = None,
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Choose an algorithm's settings on validation nodes. Report the result with other seeds: `--tuned DIR/tuned.json`."""
    prepare_torch(threads)
    from atoll.cli.console import out as console
    from atoll.runs import parallel
    from atoll.runs.comparison import Comparison
    from atoll.runs.tuning import execute_here

    request = read_request(trials, seeds, space, sampler, sampler_seed)
    comparison = Comparison(
        [algorithm],
        dataset=dataset,
        models=[] if model is None else [model],
        partition=partition,
        parties=parties,
        values=read_values(sets, rounds=rounds),
    )
    [tuning] = comparison.tunings(request).values()
    with parallel.open_pool(jobs) as pool, TuningLine(quiet=quiet) as line:
        tuned = tuning.run(pool.execute if pool else execute_here(), out, line.show)
    show_tuned(tuned)
    if out is not None:
        console.print(f"Written to {out / 'tuned.json'}; use it with --tuned and other seeds.", soft_wrap=True)


def read_request(
    trials: int, seeds: str, space: str, sampler: str = "tpe", sampler_seed: int = 0, *, within: bool = False
) -> TuningRequest:
    """The options of tuning as one request; `within` a comparison they have other names."""
    from atoll.runs.space import asked_space
    from atoll.runs.tuning import FIRST_SEED, TuningRequest

    chosen = read_seeds(seeds, "--tune-seeds" if within else "--seeds", FIRST_SEED)
    return TuningRequest(trials, chosen, asked_space(space), sampler, sampler_seed, "--tune" if within else "--trials")


class TuningLine:
    """One line while trials run: how many are done, and the best score so far."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet = quiet
        self.status: Status | None = None
        self.reported = time.perf_counter()

    def __enter__(self) -> TuningLine:
        from atoll.cli.console import err

        if err.is_terminal and not self.quiet:
            self.status = err.status("Tuning")
            self.status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.status is not None:
            self.status.stop()

    def show(self, row: str, done: int, count: int, best: TuningTrial | None) -> None:
        """Show that a trial has ended."""
        from atoll.cli.console import PLAIN_EVERY, err
        from atoll.errors import shown

        known = "none has a score" if best is None else f"best validation score {best.score:.4g} (trial {best.number})"
        text = shown(f"Tuning {row}: {done} of {count} trials, {known}")
        if self.status is not None:
            self.status.update(err.render_str(text))
        elif not self.quiet and time.perf_counter() - self.reported > PLAIN_EVERY:
            self.reported = time.perf_counter()
            print(text, file=sys.stderr, flush=True)


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
