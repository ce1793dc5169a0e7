"""What each party counts for the fit of an encoding: whole numbers, with a party axis. No value leaves a party.

Numbers are counted by sign and power of 16, then in `CELLS` equal cells of a range; their sums are in fixed point. Categories are
counted by keyed digest of their name: in `BUCKETS` buckets, in `PARTS` parts of some of them, and in parts of these.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.data.encoding import BUCKETS, CODES, PARTS, PREFIXES, codes_of
from atoll.graphs.table import Column, Floats, Table

Ints = NDArray[np.int64]
SMALLEST, LARGEST = -16, 254  # powers of 16; smaller absolute values count as 0
POWERS = LARGEST - SMALLEST + 1
EXPONENT_CELLS = 2 * POWERS + 1
CELLS = 512
FIXED_POINT = 2.0**32


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
        for col, column in enumerate(self.table.columns):
            if column.values:
                listed = np.isin(np.array([*self.table.names[col], ""], object), column.values)
                rows = present[:, col]
                unlisted[rows, col] = ~listed[self.table.values[rows, col].astype(np.int64)]
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
        cols = numeric(self.table.columns)
        sums = np.zeros((self.parties, len(cols), 2), np.int64)
        for index, col in enumerate(cols):
            rows, values = self._present(col)
            t = unit_interval(values, float(low[index]), float(high[index]))
            for power in (1, 2):
                np.add.at(sums[:, index, power - 1], rows, np.round(t**power * FIXED_POINT).astype(np.int64))
        return {"sums": torch.from_numpy(sums)}

    def count_categories(self) -> dict[str, Tensor]:
        """(P, columns, buckets) rows by bucket of the category's name."""
        cols = hashed(self.table.columns)
        codes = {col: self._codes(col) // (CODES // BUCKETS) for col in cols}
        return {"counts": self._cells(cols, lambda index, values: codes[cols[index]][values.astype(np.int64)], BUCKETS)}

    def refine_categories(self, columns: Tensor, buckets: Tensor) -> dict[str, Tensor]:
        """(P, M, parts) rows by part of each of M buckets; `columns` are indices among those that `count_categories` counts."""
        return self._parts(columns, buckets, BUCKETS)

    def split_categories(self, columns: Tensor, prefixes: Tensor) -> dict[str, Tensor]:
        """(P, M, parts) rows by part of each of M parts of buckets."""
        return self._parts(columns, prefixes, PREFIXES)

    def _parts(self, columns: Tensor, cells: Tensor, count: int) -> dict[str, Tensor]:
        """Rows by part of some of `count` cells of the codes."""
        cols, counts = hashed(self.table.columns), np.zeros((self.parties, len(columns), PARTS), np.int64)
        for index in np.unique(columns.numpy()).tolist():
            listed = (columns == index).nonzero()[:, 0].numpy()
            listed_cells = cells.numpy()[listed]
            order = np.argsort(listed_cells)
            rows, code = self._coded(cols[index])
            part = code // (CODES // count // PARTS)
            nearest = order[np.minimum(np.searchsorted(listed_cells[order], part // PARTS), len(listed_cells) - 1)]
            inside = listed_cells[nearest] == part // PARTS
            np.add.at(counts, (rows[inside], listed[nearest[inside]], part[inside] % PARTS), 1)
        return {"counts": torch.from_numpy(counts)}

    def seal_categories(self, columns: Tensor, codes: Tensor) -> dict[str, Tensor]:
        """(P, M) rows with each of M codes, times the sealed code: whoever has the key finds the open one (`opened`); and times
        its tag, by which they find that it is not another (`tag`)."""
        cols = hashed(self.table.columns)
        sealed, tags = (np.zeros((self.parties, len(columns)), np.int64) for _ in range(2))
        for index in np.unique(columns.numpy()).tolist():
            listed = (columns == index).nonzero()[:, 0]
            position = {int(codes[row]): row for row in listed.tolist()}
            column, names = self.table.columns[cols[index]].name, self.table.names[cols[index]]
            numbers, marks = np.zeros(len(names), np.int64), np.zeros(len(names), np.int64)
            target = np.full(len(names), -1)
            for name, (code, open_code) in enumerate(zip(self._codes(cols[index]), codes_of(column, names), strict=True)):
                if int(code) in position:
                    target[name] = position[int(code)]
                    numbers[name] = (int(open_code) + pad(column, int(code), self.key)) % CODES
                    marks[name] = tag(column, int(code), int(open_code), self.key)
            rows, values = self._present(cols[index])
            name_of = values.astype(np.int64)
            inside = target[name_of] >= 0
            np.add.at(sealed, (rows[inside], target[name_of[inside]]), numbers[name_of[inside]])
            np.add.at(tags, (rows[inside], target[name_of[inside]]), marks[name_of[inside]])
        return {"sealed": torch.from_numpy(sealed), "tags": torch.from_numpy(tags)}

    def _codes(self, col: int) -> Ints:
        return codes_of(self.table.columns[col].name, self.table.names[col], self.key)

    def _coded(self, col: int) -> tuple[Ints, Ints]:
        """The party and the code of each value of a category."""
        rows, values = self._present(col)
        return rows, self._codes(col)[values.astype(np.int64)]

    def _present(self, col: int) -> tuple[Ints, Floats]:
        values = self.table.values[:, col]
        rows = np.flatnonzero(~np.isnan(values))
        return self.party[rows], values[rows]

    def _sums(self, marks: NDArray[np.bool_]) -> Tensor:
        sums = np.zeros((self.parties, marks.shape[1]), np.int64)
        for col in range(marks.shape[1]):
            sums[:, col] = np.bincount(self.party[marks[:, col]], minlength=self.parties)
        return torch.from_numpy(sums)

    def _cells(self, cols: Sequence[int], cell: Callable[[int, Floats], Ints], cells: int) -> Tensor:
        counts = np.zeros((self.parties, len(cols), cells), np.int64)
        for index, col in enumerate(cols):
            rows, values = self._present(col)
            if len(values):
                flat = np.bincount(rows * cells + cell(index, values), minlength=self.parties * cells)
                counts[:, index] = flat.reshape(self.parties, cells)
        return torch.from_numpy(counts)


def numeric(columns: Sequence[Column]) -> list[int]:
    """Columns whose range or mean has to be fitted."""
    return [col for col, column in enumerate(columns) if column.numeric and (column.low is None or column.mean is None)]


def hashed(columns: Sequence[Column]) -> list[int]:
    """Categories whose values are not given."""
    return [col for col, column in enumerate(columns) if column.kind == "category" and not column.values]


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


def pad(column: str, code: int, key: bytes) -> int:
    """What is added to the open code of a category whose keyed code is `code`, so that only the key's holders can read it."""
    text = column.encode() + code.to_bytes(8, "little")
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=b"category pad").digest()
    return int.from_bytes(digest, "little") % CODES


def tag(column: str, code: int, open_code: int, key: bytes) -> int:
    """Shows the key's holders that an open code belongs to a keyed one; without the key none can be made for another."""
    text = column.encode() + code.to_bytes(8, "little") + open_code.to_bytes(8, "little")
    digest = hashlib.blake2b(text, digest_size=8, key=key, person=b"category tag").digest()
    return int.from_bytes(digest, "little") % CODES


def opened(column: str, code: int, sealed: int, key: bytes) -> int:
    """The open code of a category: the digest of its name without a key."""
    return (sealed - pad(column, code, key)) % CODES
