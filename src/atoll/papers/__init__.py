"""The papers' tables and figures: their numbers are the data files beside this one, ours come from runs or from `measured/`."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.errors import AtollError, suggest
from atoll.runs.metrics import mean_std

if TYPE_CHECKING:
    from atoll.papers.ranges import ExpectedRange
    from atoll.runs.config import Config

HOME = Path(__file__).parent
MEASURED = HOME / "measured"  # our recorded results, shipped with the package, one file per paper
ARGUMENTS = ("algorithm", "dataset", "partition", "parties")  # of a cell's `run`; everything else there is a setting


@dataclass(frozen=True)
class Cell:
    """One line of a table or one point of a figure."""

    row: str
    run: Mapping[str, Any] = field(default_factory=dict)  # arguments of atoll.run
    paper: Mapping[str, Any] = field(default_factory=dict)  # metric → value or [mean, standard deviation]
    range: Mapping[str, Sequence[float]] = field(default_factory=dict)  # metric → another range than the rule's (`ranges`)
    range_reason: str = ""  # why it is another
    note: str = ""
    missing: str = ""  # why our record has no result; it is run where the data is
    party: int | None = None  # for a table of facts
    series: str = ""  # for a figure
    x: float | str | None = None

    def configs(self, seeds: int, over: Mapping[str, Any]) -> list[Config]:
        """The runs behind the cell, one per seed; `over` overrides settings. A table of facts is computed from `local`'s data."""
        from atoll.runs import config

        values = {name: value for name, value in self.run.items() if name not in (*ARGUMENTS, "seed")} | dict(over)
        named = {name: self.run[name] for name in ARGUMENTS if name in self.run and name != "algorithm"}
        first = config.resolve(self.run.get("algorithm", "local"), seed=self.run.get("seed", 0), values=values, **named)
        return [replace(first, seed=first.seed + index) for index in range(seeds)]

    @property
    def has_data(self) -> bool:
        """Whether the cell says what to run, on a graph whose files are here."""
        return "algorithm" in self.run and str(self.run.get("dataset", "")).lower() in _available()

    def within(self, panel: str) -> bool:
        """Whether this panel of a figure shows the cell."""
        return not panel or self.row == panel or self.row.startswith(f"{panel} ")


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of a paper."""

    name: str  # paper/table2
    paper: str
    title: str
    cells: tuple[Cell, ...]
    metrics: tuple[str, ...] = ("accuracy",)
    kind: str = "table"  # or figure, boxes (over the seeds), embeddings, facts (about a partition; nothing is trained)
    axis: str = ""  # for a figure: what x is
    curves: Sequence[str] = ()  # for a figure over the rounds: which metrics of the histories are drawn
    panels: Sequence[str] = ()  # groups of lines compared seed by seed, each by the first words of its rows
    columns: Sequence[str] = ()  # a table as methods × columns: the first words of its rows; the rest names the method
    percent: bool = False
    seeds: int = 5
    quick: Mapping[str, Any] = field(default_factory=dict)
    run: Mapping[str, Any] = field(default_factory=dict)  # what all cells have in common
    scale: Mapping[str, float] = field(default_factory=dict)  # metric → factor from ours to the paper's unit
    repetitions: int = 5  # of the paper's results
    plus_minus: str = "std"  # what stands after the paper's ±: std, or ci95 (half a 95 % confidence interval of the mean)
    incomparable: Sequence[str] = ()  # metrics whose printed values are another quantity; the note says which
    note: str = ""
    missing: str = ""

    @property
    def runnable(self) -> list[Cell]:
        """The cells that can have a result: also those without one here, for whoever has their data."""
        return [] if self.missing else [cell for cell in self.cells if not cell.missing or cell.has_data]

    @property
    def wanted(self) -> int:
        """Number of results that complete a cell: one per seed; facts do not depend on seeds."""
        return 1 if self.kind == "facts" else self.seeds

    def panel(self, cell: Cell) -> str:
        """The panel that shows a cell."""
        return next((panel for panel in self.panels if cell.within(panel)), "")

    def printed(self, metric: str) -> bool:
        """Whether the paper prints values of a metric."""
        return any(metric in cell.paper for cell in self.cells)

    def value(self, metric: str, result: Mapping[str, Any]) -> float | None:
        """A metric of a result in the paper's unit; dots reach into lists (`party_accuracy.0`) and result.json (`bytes.up`)."""
        first, *rest = metric.split(".")
        measured = first in result["metrics"]
        value: Any = result["metrics"][first] if measured else result.get(first)
        for part in rest:
            value = value[int(part)] if isinstance(value, list) else value.get(part) if isinstance(value, Mapping) else None
        if not isinstance(value, (int, float)):
            return None
        return value * self.scale.get(metric, 100.0 if self.percent and measured else 1.0)


@dataclass(frozen=True)
class Line:
    """A cell with our results: metric → (mean, standard deviation)."""

    cell: Cell
    ours: Mapping[str, tuple[float, float]]
    seeds: int
    recorded: bool = False  # from `measured/`, not from local runs
    ranges: Mapping[str, ExpectedRange] = field(default_factory=dict)  # around the paper's values
    expected: Mapping[str, ExpectedRange] = field(default_factory=dict)  # around our recorded ones

    def outside(self) -> list[str]:
        """The metrics outside the range around the paper's value."""
        return self._out_of(self.ranges)

    def deviates(self) -> list[str]:
        """The metrics of runs at hand that do not come out as recorded or, where nothing is recorded, as in the paper."""
        return [] if self.recorded else self._out_of({**self.ranges, **self.expected})

    def _out_of(self, ranges: Mapping[str, ExpectedRange]) -> list[str]:
        return [name for name, range_ in ranges.items() if name in self.ours and not range_.holds(self.ours[name][0])]


@dataclass(frozen=True)
class Measured:
    """A line of `measured/PAPER.toml`: the results of one configuration over several seeds."""

    seeds: int
    config: str  # digest of the first seed's configuration, which determines the others
    ours: Mapping[str, tuple[float, float]]


def papers() -> list[str]:
    """The papers that have a data file."""
    return sorted(file.stem for file in HOME.glob("*.toml"))


def exhibits(paper: str) -> list[Exhibit]:
    """All tables and figures of a paper."""
    if paper not in papers():
        raise AtollError(f"There is no paper {paper!r} to reproduce{suggest(paper, papers())}")
    document = tomllib.loads((HOME / f"{paper}.toml").read_text())
    title, about = document.pop("paper"), document.pop("about", {})
    tables = {name: table for name, table in document.items() if isinstance(table, dict)}  # `claims` and `tuning` are lists
    return [_exhibit(f"{paper}/{name}", title, about | table) for name, table in tables.items()]


def all_exhibits() -> list[Exhibit]:
    """Those of all papers."""
    return [exhibit for paper in papers() for exhibit in exhibits(paper)]


def measured(paper: str) -> dict[str, dict[str, Measured]]:
    """The recorded lines, by table and row; `record` checks that their configurations are unchanged."""
    file = MEASURED / f"{paper}.toml"
    document = tomllib.loads(file.read_text()) if file.exists() else {}
    return {table: {row: _measured(line) for row, line in lines.items()} for table, lines in document.items()}


def recorded(paper: str) -> dict[str, dict[str, Any]]:
    """The recorded runs by folder name: the parts of result.json that the paper's tables show."""
    file = MEASURED / f"{paper}.jsonl"
    text = file.read_text() if file.exists() else ""
    whole = text[: text.rfind("\n") + 1]  # a last line without its end was cut off by a crash
    return {run.pop("run"): run for run in map(json.loads, whole.splitlines())}


def _measured(line: dict[str, Any]) -> Measured:
    ours = {metric: (float(value), float(std[0]) if std else math.nan) for metric, (value, *std) in line["ours"].items()}
    return Measured(line["seeds"], line["config"], ours)


def find(name: str) -> list[Exhibit]:
    """`paper` or `paper/table2`."""
    paper, _, table = name.partition("/")
    available = exhibits(paper)
    if not table:
        return available
    matches = [exhibit for exhibit in available if exhibit.name == name]
    if not matches:
        raise AtollError(f"There is no {name!r} to reproduce{suggest(name, [exhibit.name for exhibit in available])}")
    return matches


def selected(rows: Iterable[str], only: str | None) -> set[str]:
    """The label that `only` is, or else all those that contain it; without it all.

    >>> sorted(selected(["GCN FedLit", "GCN FedLit (deep)", "GCN Local"], "GCN FedLit"))
    ['GCN FedLit']
    >>> sorted(selected(["GCN FedLit", "GCN FedLit (deep)", "GCN Local"], "FedLit"))
    ['GCN FedLit', 'GCN FedLit (deep)']
    """
    labels = set(rows)
    return {only} if only in labels else {row for row in labels if only is None or only in row}


def _exhibit(name: str, paper: str, table: dict[str, Any]) -> Exhibit:
    common = table.get("run", {})
    cells = tuple(Cell(**{**cell, "run": {**common, **cell.get("run", {})}}) for cell in table.pop("cells", []))
    return Exhibit(name, paper, cells=cells, **{**table, "metrics": tuple(table.get("metrics", ("accuracy",)))})


def summarize(exhibit: Exhibit, cell: Cell, results: Sequence[Mapping[str, Any]]) -> Line:
    """Mean and standard deviation over the seeds for every metric of the exhibit."""
    ours = {}
    for metric in exhibit.metrics:
        values = [value for value in (exhibit.value(metric, result) for result in results) if value is not None]
        pair = mean_std(values)
        if pair is not None:
            ours[metric] = (pair[0], math.nan if pair[1] is None else pair[1])
    return Line(cell, ours, len(results))


@cache
def _available() -> frozenset[str]:
    """The known graphs whose files are here."""
    from atoll.data.registry import known

    return frozenset(dataset.name for dataset in known() if dataset.available)
