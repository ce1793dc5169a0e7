"""The papers' tables and figures in the terminal: ours beside theirs, how far each is, and the runs that are going on."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from atoll.cli.console import PLAIN_EVERY, err
from atoll.errors import shown
from atoll.papers import Exhibit, Line, Measured, measured
from atoll.papers.status import state, title
from atoll.papers.text import header, reasons, row

if TYPE_CHECKING:
    from atoll.runs.trial import Trial

LEGEND = """\
done: every line that can be run has all its seeds; partly (n of m): n lines of m have them.
Counted are the runs in {root} and our recorded results; `atoll reproduce NAME` shows them and runs the rest."""


def status_table(exhibits: Iterable[Exhibit], root: Path) -> Group:
    """Every table and figure with its state, for the terminal."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column("name", no_wrap=True)
    table.add_column("state", max_width=36)
    table.add_column("what")
    papers: dict[str, dict[str, dict[str, Measured]]] = {}
    for exhibit in exhibits:
        paper, _, name = exhibit.name.partition("/")
        if paper not in papers:
            table.add_section()
            papers[paper] = measured(paper)
        table.add_row(exhibit.name, state(exhibit, root, papers[paper].get(name, {})), title(exhibit))
    return Group(table, *(Text(line) for line in LEGEND.format(root=root).splitlines()))


def exhibit_table(exhibit: Exhibit, lines: Sequence[Line]) -> Group:
    """The exhibit as a table for the terminal; headings stand word under word, so that the numbers have the room."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1))
    for place, name in enumerate(header(exhibit)):
        table.add_column(name.replace(": ", " ").replace(" ", "\n"), justify="left" if place == 0 else "right")
    for line in lines:
        table.add_row(*row(exhibit, line))
    words = reasons(lines)
    if recorded := sum(line.recorded for line in lines):
        words.append(f"{recorded} of {len(lines)} lines are our recorded results, not of runs at hand.")
    return Group(Text(f"{exhibit.name}: {exhibit.title}"), table, *map(Text, words), "")


class RunBoard:
    """Shows, while runs go on, how many are done and the round of each; on a terminal as lines that change."""

    def __init__(self, total: int) -> None:
        self.total, self.done = total, 0
        self.began = self.reported = time.perf_counter()
        self.running: dict[str, str] = {}  # by the label of a run: its round
        self.live = Live(self._lines(), console=err, transient=True, refresh_per_second=4) if err.is_terminal and total else None

    def __enter__(self) -> RunBoard:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self.live:
            self.live.stop()

    def watch(self, trial: Trial, row: Mapping[str, Any], rounds: int) -> None:
        """Note a round of a run."""
        self.running[trial.label] = f"round {row['round']}/{rounds}"
        if self.live:
            self.live.update(self._lines())
        elif time.perf_counter() - self.reported > PLAIN_EVERY:
            self._print(f"{trial.label}: {self.running[trial.label]}")

    def finished(self, trial: Trial, folder: Path) -> None:
        """Count a run that has ended."""
        self.done += 1
        self.running.pop(trial.label, None)
        if self.live:
            self.live.update(self._lines())
        else:
            self._print(f"{folder.name} ({trial.label})")

    def _print(self, text: str) -> None:
        self.reported = time.perf_counter()
        print(shown(f"{self.done}/{self.total} {text}"), file=sys.stderr, flush=True)

    def _lines(self) -> Text:
        passed = time.perf_counter() - self.began
        left = f", about {passed / self.done * (self.total - self.done) / 60:.0f} minutes left" if self.done else ""
        going = [f"  {label}: {round_}" for label, round_ in self.running.items()]
        return Text(shown("\n".join([f"{self.done} of {self.total} runs done{left}", *going]), lines=True))
