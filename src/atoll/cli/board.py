"""What is shown while runs go on: the table of a comparison, the runs of a paper's tables, the trials of tuning."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from atoll.cli.console import PLAIN_EVERY, err
from atoll.errors import shown
from atoll.runs.metrics import mean_std, mean_text, metric_format
from atoll.runs.scores import selected_metric

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison
    from atoll.runs.trial import Trial
    from atoll.runs.tuned import TuningTrial

SECONDS_BETWEEN_DRAWINGS = 0.2
CAPTION = "last round of each seed: mean ± standard deviation (n − 1)"


class Screen:
    """Draws on a terminal, in place; elsewhere prints a line from time to time, and if quiet nothing. In a `with` block."""

    def __init__(self, draw: Callable[[], RenderableType], *, quiet: bool = False) -> None:
        self.draw, self.quiet = draw, quiet
        self.printed, self.drawn = time.perf_counter(), 0.0
        self.live: Live | None = None

    def __enter__(self) -> Screen:
        if err.is_terminal and not self.quiet:
            self.live = Live(self.draw(), console=err, transient=True, refresh_per_second=4)
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def show(self, line: str, *, always: bool = False) -> None:
        """Something has changed, which `line` says; without a terminal it is printed now and then, or `always`."""
        now = time.perf_counter()
        if self.live is not None:
            if always or now >= self.drawn + SECONDS_BETWEEN_DRAWINGS:  # rounds may be many per second
                self.drawn = now
                self.live.update(self.draw())
        elif not self.quiet and (always or now > self.printed + PLAIN_EVERY):
            self.printed = now
            print(shown(line), file=sys.stderr, flush=True)


class Board:
    """Each row of a comparison: its seeds, rounds and validation score."""

    def __init__(self, comparison: Comparison, *, quiet: bool) -> None:
        self.seeds = len(list(comparison.seeds))
        self.metric = "val_accuracy"
        self.rows: dict[str, dict[int, tuple[Mapping[str, Any], int]]] = {}  # by row and seed: the last round, of how many
        self.screen = Screen(self._table, quiet=quiet)

    def watch(self, trial: Trial, row: Mapping[str, Any], rounds: int) -> None:
        """Note a round of a trial."""
        self.metric = f"val_{selected_metric(trial.config) or 'accuracy'}"
        self.rows.setdefault(trial.row, {})[trial.config.seed] = (row, rounds)
        self.screen.show(f"{trial.label}: round {row['round']}/{rounds}")

    def watcher(self, trial: Trial) -> Callable[[Mapping[str, Any], int], None]:
        """`watch` for one trial."""
        return lambda row, rounds: self.watch(trial, row, rounds)

    def _table(self) -> Table:
        table = Table(box=None, padding=(0, 2, 0, 0), caption=CAPTION, caption_justify="left")
        form = metric_format(self.metric)
        for name in ("", "seeds", "rounds", form.words):
            table.add_column(name, justify="left" if not name else "right", no_wrap=True)
        for row, by_seed in self.rows.items():
            rounds = ", ".join(f"{seen['round']}/{total}" for seen, total in list(by_seed.values())[-2:])
            scale = 100 if form.percent else 1
            values = [scale * seen[self.metric] for seen, _ in by_seed.values() if self.metric in seen]
            summary = mean_std(values)
            table.add_row(shown(row), f"{len(by_seed)}/{self.seeds}", rounds, mean_text(*summary, 2) if summary else "–")
        return table


class RunBoard:
    """How many runs of a paper's tables are done, and the round of each that goes on."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = time.perf_counter()
        self.running: dict[str, str] = {}  # by the label of a run: its round
        self.screen = Screen(self._lines, quiet=not total)

    def watch(self, trial: Trial, row: Mapping[str, Any], rounds: int) -> None:
        """Note a round of a run."""
        self.running[trial.label] = f"round {row['round']}/{rounds}"
        self.screen.show(f"{self.done}/{self.total} {trial.label}: {self.running[trial.label]}")

    def finished(self, trial: Trial, folder: Path) -> None:
        """Count a run that has ended."""
        self.done += 1
        self.running.pop(trial.label, None)
        self.screen.show(f"{self.done}/{self.total} {folder.name} ({trial.label})", always=True)

    def _lines(self) -> Text:
        passed = time.perf_counter() - self.began
        left = f", about {passed / self.done * (self.total - self.done) / 60:.0f} minutes left" if self.done else ""
        going = [f"  {label}: {round_}" for label, round_ in self.running.items()]
        return Text(shown("\n".join([f"{self.done} of {self.total} runs done{left}", *going]), lines=True))


class TuningLine:
    """How many trials of tuning are done, and the best score so far."""

    def __init__(self, *, quiet: bool) -> None:
        self.spinner = Spinner("dots", Text("Tuning"))
        self.screen = Screen(lambda: self.spinner, quiet=quiet)

    def show(self, row: str, done: int, count: int, best: TuningTrial | None) -> None:
        """A trial has ended."""
        known = "none has a score" if best is None else f"best validation score {best.score:.4g} (trial {best.number})"
        text = f"Tuning {row}: {done} of {count} trials, {known}"
        self.spinner.update(text=Text(shown(text)))
        self.screen.show(text)
