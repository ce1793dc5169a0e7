"""What people see in the terminal: a live progress line, tables of results, settings and partitions."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console, RenderableType
from rich.measure import Measurement
from rich.progress import BarColumn, TaskID, TextColumn
from rich.progress import Progress as Bar
from rich.table import Table
from rich.text import Text

from atoll.errors import shown
from atoll.runs.comparison_text import comparison_cells
from atoll.runs.metrics import metric_format
from atoll.runs.paired import TEST, Difference
from atoll.runs.summary import facts
from atoll.runs.tuned import listed
from atoll.stages import listening

if TYPE_CHECKING:
    from atoll.runs.ranks import Ranks
    from atoll.runs.result import Result
    from atoll.runs.tuned import Tuned


class Terminal(Console):
    """A console that shows every text as text: no markup, no emoji codes, nothing that a terminal would obey."""

    def __init__(self, **options: Any) -> None:
        super().__init__(highlight=False, markup=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every plain text that is printed, and every cell of a table, comes through here."""
        return super().render_str(shown(text, lines=True), **(options | {"markup": False, "emoji": False}))


out = Terminal()
err = Terminal(stderr=True)


def show(table: RenderableType) -> None:
    """Print a table that needs room: in the terminal as it is; elsewhere as wide as it wants to be, within reason."""
    if not out.is_terminal:
        wanted = Measurement.get(out, out.options.update(max_width=400), table).maximum
        Terminal(width=max(140, wanted)).print(table)
    else:
        out.print(table)


MAX_NAMES = 3  # missing parties that the progress line names
PLAIN_EVERY = 10.0  # seconds between progress lines where there is no terminal
LONG = 2.0  # seconds after which a stage without a terminal is named
LOSSES = {"train_loss": "train", "val_loss": "val"}  # those of the progress line


class ProgressLine:
    """One line while a run goes on: round, losses, validation, megabytes, seconds left. Call it with each row of the history."""

    def __init__(self, label: str, folder: Path | None = None) -> None:
        self.label = shown(label)
        self.began = self.printed = time.perf_counter()
        self.first_round = 0
        self.live = err.is_terminal
        self.bar = Bar(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[facts]}", markup=False),
            console=err,
            transient=True,
        )
        self.task: TaskID | None = None
        self.preparation: TaskID | None = None
        self.listening = ExitStack()

    def __enter__(self) -> ProgressLine:
        if self.live:
            self.bar.start()
        self.listening.enter_context(listening(self.prepare))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.listening.close()
        if self.live:
            self.bar.stop()

    def prepare(self, what: str, done: int, total: int) -> None:
        """Show how far a preparation is."""
        now = time.perf_counter()
        if self.live:
            if self.preparation is None:
                self.preparation = self.bar.add_task("", facts="")
            over = done >= total
            self.bar.update(self.preparation, description=shown(what), completed=done, total=max(total, 1), visible=not over)
        elif now - self.printed > PLAIN_EVERY:
            self.printed = now
            print(shown(f"{self.label}: {what}, {100 * done // max(total, 1)} %"), file=sys.stderr, flush=True)

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Show a round."""
        if self.task is None:
            self.task = self.bar.add_task(self.label, total=rounds, facts="")
            self.first_round = row["round"] - 1
        megabytes = (row["bytes_up_total"] + row["bytes_down_total"]) / 1e6
        now = time.perf_counter()
        left = (now - self.began) / (row["round"] - self.first_round) * (rounds - row["round"])
        facts = f"round {row['round']}/{rounds}{_score(row)}  {megabytes:.1f} MB  {_clock(left)} left"
        if self.live:
            self.bar.update(self.task, completed=row["round"], facts=facts)
        elif now - self.printed > PLAIN_EVERY:
            self.printed = now
            print(f"{self.label}: {facts}", file=sys.stderr, flush=True)


@contextmanager
def stage(text: str, *, quiet: bool = False) -> Iterator[None]:
    """Say what is going on, if it takes long: in the terminal while it lasts, elsewhere in one line."""
    if err.is_terminal and not quiet:
        with err.status(shown(text)):
            yield
        return
    timer = threading.Timer(LONG, lambda: None if quiet else print(f"{shown(text)} …", file=sys.stderr, flush=True))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _score(row: Mapping[str, Any]) -> str:
    parts = [f"{word} loss {row[name]:.3f}" for name, word in LOSSES.items() if row.get(name) is not None]
    if "val_accuracy" in row:
        parts.append(f"val acc {100 * row['val_accuracy']:.1f} %")
    if "missing" in row:
        names = list(row.get("missing_names", {}).values())
        parts.append(f"{', '.join(names) if 0 < len(names) <= MAX_NAMES else len(row['missing'])} missing")
    return "".join(f"  {part}" for part in parts)


def _clock(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


def result_table(result: Result) -> Table:
    """The end of a run: as `print(result)` has it, as wide as the terminal."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for line in facts(result):
        table.add_row(*line)
    return table


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Mean ± standard deviation over the seeds, one row per algorithm."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    head, *cells = comparison_cells(rows)
    for index, name in enumerate(head):
        table.add_column(name, justify="right" if index else "left", no_wrap=bool(index), overflow="fold")
    for row in cells:
        table.add_row(*row)
    return table


def difference_table(differences: Sequence[Difference], metric: str = "accuracy") -> Table:
    """Paired differences in a metric, in points if it is a share; a star marks those that are significant."""
    form = metric_format(metric)
    title = f"{form.words} minus that of {differences[0].against}, paired by seed; * significant at 5 % ({TEST})"
    scale, digits = (100, 2) if form.percent else (1, 4)
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", overflow="fold")
    for name in ("difference", "95 % interval", "higher in", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in differences:
        interval = f"{scale * one.low:+.{digits}f} … {scale * one.high:+.{digits}f}" if one.has_interval else "–"
        star = " *" if one.significant else ""
        p = "–" if one.p is None else f"{one.p:.3f}{star}"
        table.add_row(one.row, f"{scale * one.mean:+.{digits}f}", interval, f"{one.wins}/{one.pairs}", p)
    return table


def tuned_table(tuned: Mapping[str, Tuned]) -> Table:
    """What was chosen for each row, with the scores that decided, and where from."""
    first = next(iter(tuned.values()))
    seeds = ", ".join(map(str, first.seeds))
    title = f"Tuned on validation nodes, mean {first.words} over the seeds {seeds}; reported seeds are others"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for name in ("", "trials", "failed", "as they are", "tuned", "values"):
        table.add_column(name, justify="left" if name in ("", "values") else "right", no_wrap=name not in ("", "values"))
    for row, one in tuned.items():
        scores = (one.text(one.default_score), one.text(one.score))
        table.add_row(row, str(len(one.trials)), str(len(one.failed)), *scores, listed(one.values))
    return table


def ranks_table(ranks: Ranks) -> Table:
    """Each row's mean rank over the datasets and its rank on each."""
    table = Table(title="Ranks over the datasets", title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    for index, name in enumerate(("", "mean rank", *ranks.datasets)):
        table.add_column(name, justify="right" if index else "left", no_wrap=bool(index), overflow="fold")
    for row, mean, each in zip(ranks.rows, ranks.mean, ranks.by_dataset, strict=True):
        table.add_row(row, f"{mean:.2f}", *(f"{one:g}" for one in each))
    return table


def settings_table(groups: Mapping[str, type], chosen: Any) -> Table:
    """Every setting of an algorithm: name, default here, one sentence."""
    from atoll.settings import known

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("setting", "default", ""):
        table.add_column(name)
    holders = {"settings": chosen.settings, "run": chosen.run, "partition": chosen.partition_settings, "split": chosen.split}
    holders |= {"data": chosen.data, "dp": chosen.dp, "noise": chosen.noise, "model": chosen.model}
    for group, kind in groups.items():
        for name, field in known(kind).items():
            choices = field.metadata.get("choices")
            help = field.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
            table.add_row(name if group == "settings" else f"{group}.{name}", str(getattr(holders[group], name)), help)
    return table
