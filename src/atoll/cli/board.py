"""The live table of a comparison: rows fill in as their runs end."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.table import Table

from atoll.cli.console import PLAIN_EVERY, err
from atoll.errors import shown
from atoll.runs.metrics import mean_std, mean_text, metric_format
from atoll.runs.scores import selected_metric

if TYPE_CHECKING:
    from atoll.runs.comparison import Comparison
    from atoll.runs.trial import Trial

SECONDS_BETWEEN_TABLES = 0.2
CAPTION = "last round of each seed: mean ± standard deviation (n − 1)"


class Board:
    """Shows, while a comparison runs, each row's seeds, rounds and validation score; on a terminal as a table that changes."""

    def __init__(self, comparison: Comparison, *, quiet: bool) -> None:
        self.seeds = len(list(comparison.seeds))
        self.metric = "val_accuracy"
        self.rows: dict[str, dict[int, tuple[Mapping[str, Any], int]]] = {}  # by row and seed: the last round, of how many
        self.reported, self.drawn = time.perf_counter(), 0.0
        self.live = (
            Live(self._table(), console=err, transient=True, refresh_per_second=4) if err.is_terminal and not quiet else None
        )
        self.quiet = quiet

    def __enter__(self) -> Board:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def watch(self, trial: Trial, row: Mapping[str, Any], rounds: int) -> None:
        """Note a round of a trial."""
        self.metric = f"val_{selected_metric(trial.config) or 'accuracy'}"
        self.rows.setdefault(trial.row, {})[trial.config.seed] = (row, rounds)
        if self.live:
            if time.perf_counter() >= self.drawn + SECONDS_BETWEEN_TABLES:  # rounds may be many per second
                self.drawn = time.perf_counter()
                self.live.update(self._table())
        elif not self.quiet and time.perf_counter() - self.reported > PLAIN_EVERY:
            self.reported = time.perf_counter()
            print(shown(f"{trial.label}: round {row['round']}/{rounds}"), file=sys.stderr, flush=True)

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
            found = mean_std(values)
            table.add_row(shown(row), f"{len(by_seed)}/{self.seeds}", rounds, mean_text(*found, 2) if found else "–")
        return table
