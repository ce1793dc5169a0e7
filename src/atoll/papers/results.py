"""Everything a page about one paper needs: the lines of all its tables, and single runs for comparisons seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from atoll import papers
from atoll.errors import AtollError, suggest
from atoll.papers import Cell, Exhibit, Line, execute, record
from atoll.runs.paired import Difference, compare_rows

NOWHERE = Path("/nonexistent")


@dataclass(frozen=True)
class Results:
    """The results of a paper's tables: of the record, and of the runs in a folder."""

    paper: str
    shown: Sequence[tuple[Exhibit, Sequence[Line]]]
    root: Path = NOWHERE

    @classmethod
    def recorded(cls, paper: str) -> Results:
        """What the record alone has."""
        return cls(paper, [(exhibit, record.judged(exhibit, record.alone(exhibit))) for exhibit in papers.exhibits(paper)])

    @cached_property
    def runs(self) -> dict[str, dict[str, Any]]:
        """The recorded runs by folder name."""
        return papers.recorded(self.paper)

    @cached_property
    def seeds(self) -> list[int]:
        """All seeds of recorded runs."""
        return sorted({int(name.rsplit("-", 2)[1]) for name in self.runs})

    @cached_property
    def tables(self) -> dict[str, tuple[Exhibit, Sequence[Line]]]:
        """All tables of the paper by name; of those that are not shown, what the record has."""
        tables = {exhibit.name.partition("/")[2]: (exhibit, lines) for exhibit, lines in self.shown}
        if self.paper not in papers.papers():
            return tables
        others = [each for each in papers.exhibits(self.paper) if each.name.partition("/")[2] not in tables]
        return tables | {each.name.partition("/")[2]: (each, record.judged(each, record.alone(each))) for each in others}

    def exhibit(self, table: str) -> Exhibit:
        """The exhibit `table` of the paper."""
        if table not in self.tables:
            raise AtollError(f"{self.paper} has no table {table!r}{suggest(table, self.tables)}")
        return self.tables[table][0]

    def line(self, table: str, row: str) -> Line:
        """A line of a table."""
        self.exhibit(table)
        lines = {line.cell.row: line for line in self.tables[table][1]}
        if row not in lines:
            raise AtollError(f"{self.paper}/{table} has no line {row!r}{suggest(row, lines)}")
        return lines[row]

    def by_seed(self, exhibit: Exhibit, cell: Cell, metric: str) -> dict[int, float | None]:
        """A metric of every run of a cell, in the paper's unit: of all recorded seeds and of the finished runs in the folder.

        A cell that states its first seed has its own seeds only: others may be those that its settings were chosen with.
        """
        (first,) = cell.configs(1, {})
        by_seed: dict[int, float | None] = {}
        others = [] if "seed" in cell.run else self.seeds
        for seed in sorted({*others, *range(first.seed, first.seed + exhibit.wanted)}):
            for result in execute.results([replace(first, seed=seed)], self.root, self.runs, [metric]):
                by_seed[seed] = exhibit.value(metric, result)
        return by_seed

    def difference(self, table: str, row: str, against: str, metric: str, margin: float = 0.0) -> Difference:
        """One line minus another and a margin, run by run; where their runs are not recorded, of the means (0 pairs)."""
        exhibit, lines = self.exhibit(table), (self.line(table, row), self.line(table, against))
        values = {line.cell.row: self.by_seed(exhibit, line.cell, metric) for line in lines}
        values[row] = {seed: None if value is None else value - margin for seed, value in values[row].items()}
        (difference,) = compare_rows(values, against)
        if difference.pairs:
            return difference
        means = [line.ours.get(metric, (math.nan, math.nan))[0] for line in lines]
        return replace(difference, mean=means[0] - means[1] - margin)
