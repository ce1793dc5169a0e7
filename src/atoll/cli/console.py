"""What people see in the terminal: a live progress line, tables of results, settings and partitions."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
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
from atoll.runs.absence import summary, verdict
from atoll.runs.metrics import mean_text, metric_format
from atoll.runs.paired import TEST, Difference

if TYPE_CHECKING:
    from atoll.runs.result import Result


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
LOSSES = {"train_loss": "train", "val_loss": "val"}  # those of the progress line
HIDDEN = ("local_minority_accuracy", "local_macro_f1")  # metrics that the end of a run leaves to result.json


class ProgressLine:
    """One line while a run goes on: round, losses, validation, megabytes, seconds left. Call it with each history row."""

    def __init__(self, label: str, folder: Path | None = None) -> None:
        self.label = shown(label)
        self.megabytes = 0.0
        self.began = self.told = time.perf_counter()
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

    def __enter__(self) -> ProgressLine:
        if self.live:
            self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.bar.stop()

    def __call__(self, row: Mapping[str, Any], rounds: int) -> None:
        """Show a round."""
        if self.task is None:
            self.task = self.bar.add_task(self.label, total=rounds, facts="")
            self.first_round = row["round"] - 1
        self.megabytes += (row["up"] + row["down"]) / 1e6
        now = time.perf_counter()
        left = (now - self.began) / (row["round"] - self.first_round) * (rounds - row["round"])
        facts = f"round {row['round']}/{rounds}{_score(row)}  {self.megabytes:.1f} MB  {_clock(left)} left"
        if self.live:
            self.bar.update(self.task, completed=row["round"], facts=facts)
        elif now - self.told > PLAIN_EVERY:
            self.told = now
            print(f"{self.label}: {facts}", file=sys.stderr, flush=True)


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
    """The end of a run."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    without = " (a party missing)" if result.last_partial else ""
    for name, value in result.metrics.items():
        form = metric_format(name)
        if isinstance(value, float) and form.percent and name not in HIDDEN:
            last = result.last.get(name)
            table.add_row(
                form.words, f"{100 * value:.2f} %", f"last round {100 * last:.2f} %{without}" if last is not None else ""
            )
    if decided := result.detail.get("threshold"):
        table.add_row(
            "threshold", f"{decided['value']:.4g}", f"of {decided['class']}, by {decided['by']} (details in result.json)"
        )
    table.add_row("best round", f"{result.best_round} of {result.rounds}", "by validation")
    if result.missing:
        often = summary(result.missing, result.rounds, result.names)
        table.add_row("missing", often, verdict(result.missing, result.partial, result.config.run.allow_partial_best))
    traffic = result.bytes
    messages = f"{traffic['messages']} messages"
    table.add_row("bytes", f"{traffic['up'] / 1e6:.2f} MB up, {traffic['down'] / 1e6:.2f} MB down", messages)
    table.add_row("seconds", f"{result.seconds['total']:.1f}", f"{1e3 * result.seconds['per_round']:.1f} ms per round")
    for warning in result.warnings:
        table.add_row("warning", warning)
    return table


def comparison_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    """Mean ± standard deviation over the seeds, one row per algorithm."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    second = "local" if any("local_accuracy" in row for row in rows) else "minority"
    for name in ("accuracy", second, "MB up", "MB down", "seconds"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        cells = [_percent(row, name) for name in ("accuracy", f"{second}_accuracy")]
        table.add_row(row["row"], *cells, f"{row['mb_up']:.2f}", f"{row['mb_down']:.2f}", f"{row['seconds']:.1f}")
    return table


def difference_table(differences: Sequence[Difference]) -> Table:
    """Paired differences in accuracy, in points; a star marks those that are significant."""
    title = f"accuracy minus that of {differences[0].against}, paired by seed; * significant at 5 % ({TEST})"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("", no_wrap=True)
    for name in ("difference", "95 % interval", "higher in", "p"):
        table.add_column(name, justify="right", no_wrap=True)
    for one in differences:
        interval = f"{100 * one.low:+.2f} … {100 * one.high:+.2f}"
        star = " *" if one.significant else ""
        p = "–" if one.p is None else f"{one.p:.3f}{star}"
        table.add_row(one.row, f"{100 * one.mean:+.2f}", interval, f"{one.wins}/{one.pairs}", p)
    return table


def _percent(row: Mapping[str, Any], name: str) -> str:
    if name not in row:
        return "–"
    return mean_text(100 * row[name], 100 * row[f"{name}_std"], 2)


def settings_table(groups: Mapping[str, type], chosen: Any) -> Table:
    """Every setting of an algorithm: name, default here, one sentence."""
    from atoll.settings import known

    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("setting", "default", ""):
        table.add_column(name)
    holders = {"settings": chosen.settings, "run": chosen.run, "partition": chosen.partition_settings, "split": chosen.split}
    holders |= {"data": chosen.data, "dp": chosen.dp, "model": chosen.model}
    for group, kind in groups.items():
        for name, field in known(kind).items():
            choices = field.metadata.get("choices")
            help = field.metadata["help"] + (f" One of {', '.join(choices)}." if choices else "")
            table.add_row(name if group == "settings" else f"{group}.{name}", str(getattr(holders[group], name)), help)
    return table
