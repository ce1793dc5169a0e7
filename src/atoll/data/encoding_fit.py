"""Fitting an encoding from sums over the parties: what each party counts, and what follows from the totals.

Everything that is summed is a whole number (counts, and values in fixed point within an agreed range), so the fit does not
depend on how rows are distributed over parties, and secure totals give the same bits. No value leaves a party.

Quantiles: counts by sign and power of 16 first, then in `CELLS` equal cells of the range that holds both quantiles, which is
narrowed until a cell is at most 1 / `MIN_CELLS` of the distance between them. Each bound is moved outwards to the edge of its
cell, so it differs from the pooled quantile by at most that.

Categories: counts of names in `BUCKETS` buckets by keyed digest, then in `SUB_BUCKETS` parts of the buckets that are frequent.
Two kept names share a column with probability 1 / (BUCKETS · SUB_BUCKETS), about one in a million per pair.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.encoding import BUCKETS, SUB_BUCKETS, EncodedColumn, Encoding, codes_of
from atoll.graphs.table import Column, Floats, Table

Ints = NDArray[np.int64]
Total = Callable[..., Mapping[str, Tensor]]  # (verb, **arguments) → the sums over all parties
SMALLEST, LARGEST = -16, 254  # powers of 16; smaller absolute values count as 0
POWERS = LARGEST - SMALLEST + 1
EXPONENT_CELLS = 2 * POWERS + 1
CELLS, MIN_CELLS, MAX_LEVELS = 512, 256, 5
FIXED_POINT = 2.0**32
MIN_DEVIATION = 1e-7  # of the range; a smaller one is that of a constant


# What a party counts.


@dataclass(frozen=True)
class PartyCounts:
    """The counts of some parties' rows; every reply has a party axis. `key`: of the digests of category names."""

    table: Table
    party: Ints  # (N,) whose row it is, from 0
    parties: int
    key: bytes = b""

    def count_columns(self) -> dict[str, Tensor]:
        """Rows, and per column the values that are present and those that are not among the given categories."""
        present = ~np.isnan(self.table.values)
        unlisted = np.zeros_like(present)
        for place, column in enumerate(self.table.columns):
            if column.values:
                listed = np.isin(np.array([*self.table.names[place], ""], object), column.values)
                rows = present[:, place]
                unlisted[rows, place] = ~listed[self.table.values[rows, place].astype(np.int64)]
        rows = np.bincount(self.party, minlength=self.parties).astype(np.int64)
        return {"rows": torch.from_numpy(rows), "present": self._sums(present), "unlisted": self._sums(unlisted)}

    def count_exponents(self) -> dict[str, Tensor]:
        """(P, columns, cells) values of each number by sign and power of 16."""
        return {"counts": self._cells(numeric(self.table.columns), lambda _, values: exponent_cell(values), EXPONENT_CELLS)}

    def histogram(self, low: Tensor, high: Tensor) -> dict[str, Tensor]:
        """(P, columns, cells) values of each number in equal cells from low to high; those outside are in the first and last."""

        def cell(index: int, values: Floats) -> Ints:
            return uniform_cell(values, float(low[index]), float(high[index]))

        return {"counts": self._cells(numeric(self.table.columns), cell, CELLS + 2)}

    def sum_columns(self, low: Tensor, high: Tensor) -> dict[str, Tensor]:
        """(P, columns, 2) sums of t and t², t = (value − low) / (high − low) clipped to [0, 1], in units of 2⁻³²."""
        places = numeric(self.table.columns)
        sums = np.zeros((self.parties, len(places), 2), np.int64)
        for index, place in enumerate(places):
            rows, values = self._present(place)
            t = unit_interval(values, float(low[index]), float(high[index]))
            for power in (1, 2):
                np.add.at(sums[:, index, power - 1], rows, np.round(t**power * FIXED_POINT).astype(np.int64))
        return {"sums": torch.from_numpy(sums)}

    def count_categories(self) -> dict[str, Tensor]:
        """(P, columns, buckets) rows by bucket of the category's name."""
        places = hashed(self.table.columns)
        codes = {place: self._codes(place) // SUB_BUCKETS for place in places}
        return {"counts": self._cells(places, lambda index, values: codes[places[index]][values.astype(np.int64)], BUCKETS)}

    def refine_categories(self, columns: Tensor, buckets: Tensor) -> dict[str, Tensor]:
        """(P, M, parts) rows by part of each of M buckets; `columns` are indices among those that `count_categories` counts."""
        places, counts = hashed(self.table.columns), np.zeros((self.parties, len(columns), SUB_BUCKETS), np.int64)
        for row, (index, bucket) in enumerate(zip(columns.tolist(), buckets.tolist(), strict=True)):
            codes = self._codes(places[index])
            rows, values = self._present(places[index])
            code = codes[values.astype(np.int64)] if len(values) else np.empty(0, np.int64)
            inside = code // SUB_BUCKETS == bucket
            np.add.at(counts, (rows[inside], row, code[inside] % SUB_BUCKETS), 1)
        return {"counts": torch.from_numpy(counts)}

    def _codes(self, place: int) -> Ints:
        return codes_of(self.table.columns[place].name, self.table.names[place], self.key)

    def _present(self, place: int) -> tuple[Ints, Floats]:
        values = self.table.values[:, place]
        rows = np.flatnonzero(~np.isnan(values))
        return self.party[rows], values[rows]

    def _sums(self, marks: NDArray[np.bool_]) -> Tensor:
        sums = np.zeros((self.parties, marks.shape[1]), np.int64)
        for place in range(marks.shape[1]):
            sums[:, place] = np.bincount(self.party[marks[:, place]], minlength=self.parties)
        return torch.from_numpy(sums)

    def _cells(self, places: Sequence[int], cell: Callable[[int, Floats], Ints], cells: int) -> Tensor:
        counts = np.zeros((self.parties, len(places), cells), np.int64)
        for index, place in enumerate(places):
            rows, values = self._present(place)
            if len(values):
                flat = np.bincount(rows * cells + cell(index, values), minlength=self.parties * cells)
                counts[:, index] = flat.reshape(self.parties, cells)
        return torch.from_numpy(counts)


def numeric(columns: Sequence[Column]) -> list[int]:
    """Columns whose range or mean has to be fitted."""
    return [place for place, column in enumerate(columns) if column.numeric and (column.low is None or column.mean is None)]


def hashed(columns: Sequence[Column]) -> list[int]:
    """Categories whose values are not given."""
    return [place for place, column in enumerate(columns) if column.kind == "category" and not column.values]


def exponent_cell(values: Floats) -> Ints:
    """The cell of each number by sign and power of 16: large negative ones first, 0 in the middle."""
    power = (np.frexp(values)[1].astype(np.int64) - 1) // 4
    size = np.where((values == 0) | (power < SMALLEST), 0, np.minimum(power, LARGEST) - SMALLEST + 1)
    return POWERS + np.where(values < 0, -size, size)


def exponent_edges(cell: int) -> tuple[float, float]:
    """The range of a cell."""
    size = abs(cell - POWERS)
    if size == 0:
        return 0.0, 0.0
    near, far = 16.0 ** (SMALLEST + size - 1), 16.0 ** (SMALLEST + size)
    return (near, far) if cell > POWERS else (-far, -near)


def uniform_cell(values: Floats, low: float, high: float) -> Ints:
    """0 below low, 1 to CELLS within, CELLS + 1 above high."""
    inner = 1 + np.clip(np.floor((values - low) / (high - low) * CELLS), 0, CELLS - 1)
    return np.where(values < low, 0, np.where(values > high, CELLS + 1, inner)).astype(np.int64)


def unit_interval(values: Floats, low: float, high: float) -> Floats:
    """Values clipped to [low, high], as shares of the way from low to high."""
    return (np.clip(values, low, high) - low) / (high - low) if high > low else np.zeros_like(values)


# What follows from the totals.


def needs_fit(columns: Sequence[Column]) -> bool:
    """Whether anything beyond which columns have missing or other values must be learned from the data."""
    return bool(numeric(columns) or hashed(columns))


def fit(columns: Sequence[Column], total: Total) -> Encoding:
    """The encoding, from sums over the parties; `total` calls a verb of `PartyCounts` at all of them."""
    columns = tuple(columns)
    counted = total("count_columns")
    rows, present, unlisted = (counted[name].numpy() for name in ("rows", "present", "unlisted"))
    ranges, moments, kept = fit_numbers(columns, present, total), {}, fit_categories(columns, total)
    if ranges:
        low, high = (torch.tensor([ranges[place][end] for place in ranges], dtype=torch.float64) for end in (0, 1))
        sums = total("sum_columns", low=low, high=high)["sums"].numpy()
        moments = {place: moments_of(sums[index], int(present[place]), *ranges[place]) for index, place in enumerate(ranges)}
    encoded = []
    for place, column in enumerate(columns):
        each = EncodedColumn(column, missing=bool(present[place] < rows) and column.kind != "empty")
        if column.numeric:
            bounds = ranges.get(place, (column.low or 0.0, column.high or 0.0))
            mean, std = moments.get(place, (0.0, 1.0))
            if column.mean is not None and column.std is not None:
                mean, std = column.mean, column.std
            elif not column.standardize:
                mean, std = _unscaled(column, bounds[0]), 1.0
            each = replace(each, low=bounds[0], high=bounds[1], mean=mean, std=std)
        elif column.values:
            each = replace(each, labels=column.values, other=bool(unlisted[place] > 0))
        elif column.kind == "category":
            buckets, covered = kept[place]
            each = replace(each, buckets=buckets, labels=("",) * len(buckets), other=bool(covered < present[place]))
        encoded.append(each)
    return Encoding(tuple(encoded))


def _unscaled(column: Column, low: float) -> float:
    """What is subtracted from a value that is not standardized: for dates the reference day."""
    if column.kind != "date":
        return 0.0
    return low if column.reference is None else column.reference


def fit_numbers(columns: Sequence[Column], present: Ints, total: Total) -> dict[int, tuple[float, float]]:
    """The range to which each number is clipped, by column."""
    places = numeric(columns)
    if not places:
        return {}
    exponents = total("count_exponents")["counts"].numpy()
    outer, inner, targets = [], [], []
    for index, place in enumerate(places):
        column, count = columns[place], int(present[place])
        cells = np.flatnonzero(exponents[index])
        first, last = (int(cells[0]), int(cells[-1])) if len(cells) else (POWERS, POWERS)
        outer.append(_wider(exponent_edges(first)[0], exponent_edges(last)[1]))
        low, high = column.clip or (0.0, 1.0)
        targets.append((max(1, int(np.ceil(low * count))), max(1, int(np.ceil(high * count)))))
        steps = np.cumsum(exponents[index])
        ends = [
            exponent_edges(int(np.searchsorted(steps, rank)))[side] if count else 0.0 for side, rank in enumerate(targets[-1])
        ]
        inner.append(_wider(ends[0], ends[1]))
    open_ = [columns[place].clip is not None and columns[place].low is None and int(present[place]) > 0 for place in places]
    ranges = list(inner)
    same = [False] * len(places)
    for _ in range(MAX_LEVELS):
        if not any(open_):
            break
        below, above = (torch.tensor([one[end] for one in ranges], dtype=torch.float64) for end in (0, 1))
        counts = total("histogram", low=below, high=above)["counts"].numpy()
        for index in np.flatnonzero(open_).tolist():
            ranges[index], same[index], done = narrowed(counts[index], ranges[index], targets[index])
            open_[index] = not done
    result: dict[int, tuple[float, float]] = {}
    for index, place in enumerate(places):
        column = columns[place]
        if column.low is not None and column.high is not None:
            result[place] = (column.low, column.high)
        else:  # nearly all values are equal: clipping would leave nothing of the others
            result[place] = outer[index] if column.clip is None or same[index] else ranges[index]
    return result


def narrowed(counts: Ints, span: tuple[float, float], ranks: tuple[int, int]) -> tuple[tuple[float, float], bool, bool]:
    """The range from the cell of one rank to that of the other; whether it is one cell; whether it is fine enough."""
    low, high = span
    steps = np.cumsum(counts)
    first, last = (int(np.clip(np.searchsorted(steps, rank), 1, CELLS)) for rank in ranks)
    width = (high - low) / CELLS
    found = (low + (first - 1) * width, high if last == CELLS else low + last * width)
    return found if found[1] > found[0] else span, first == last, last - first + 1 >= MIN_CELLS


def moments_of(sums: Ints, count: int, low: float, high: float) -> tuple[float, float]:
    """Mean and deviation of the clipped values."""
    if count == 0:
        return low, 1.0
    first, second = (float(one) / FIXED_POINT / count for one in sums.tolist())
    deviation = max(second - first**2, 0.0) ** 0.5 * (high - low)
    return low + first * (high - low), deviation if deviation > MIN_DEVIATION * (high - low) else 1.0


def fit_categories(columns: Sequence[Column], total: Total) -> dict[int, tuple[tuple[int, ...], int]]:
    """Per column the kept values, the most frequent first, and how many rows have one of them."""
    places = hashed(columns)
    if not places:
        return {}
    counts = total("count_categories")["counts"].numpy()
    wanted: list[tuple[int, int]] = []
    for index, place in enumerate(places):
        order = np.argsort(-counts[index], kind="stable")[: columns[place].max_categories]
        wanted += [(index, int(bucket)) for bucket in order if counts[index, bucket] >= columns[place].min_count]
    found: dict[int, list[tuple[int, int]]] = {place: [] for place in places}
    if wanted:
        pairs = torch.tensor(wanted, dtype=torch.int64)
        parts = total("refine_categories", columns=pairs[:, 0], buckets=pairs[:, 1])["counts"].numpy()
        for (index, bucket), row in zip(wanted, parts, strict=True):
            place = places[index]
            for part in np.flatnonzero(row >= columns[place].min_count).tolist():
                found[place].append((int(row[part]), bucket * SUB_BUCKETS + part))
    result = {}
    for place, kept in found.items():
        kept = sorted(kept, key=lambda one: (-one[0], one[1]))[: columns[place].max_categories]
        result[place] = (tuple(code for _, code in kept), sum(count for count, _ in kept))
    return result


def _wider(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1.0)


def named(encoding: Encoding, table: Table, key: bytes = b"") -> Encoding:
    """The encoding with the names of the kept categories that occur in a table."""
    columns = []
    for each in encoding.columns:
        if each.buckets and each.column.name in table.column_names:
            names = table.names[table.column_names.index(each.column.name)]
            known: dict[int, list[str]] = {}
            for name, code in zip(names, codes_of(each.column.name, names, key).tolist(), strict=True):
                known.setdefault(code, []).append(name)
            labels = tuple(
                "|".join(sorted(known.get(code, []))) or label for code, label in zip(each.buckets, each.labels, strict=True)
            )
            each = replace(each, labels=labels)
        columns.append(each)
    return Encoding(tuple(columns))


def fit_locally(table: Table, key: bytes = b"") -> Encoding:
    """The encoding of one table by itself, as for a single party."""
    counts = PartyCounts(table, np.zeros(len(table), np.int64), 1, key)

    def total(verb: str, **arguments: Any) -> dict[str, Tensor]:
        replies: dict[str, Tensor] = getattr(counts, verb)(**arguments)
        return {name: value.sum(0) for name, value in replies.items()}

    return named(fit(table.columns, total), table, key)
