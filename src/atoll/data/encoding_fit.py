"""Fitting an encoding from sums over the parties: what follows from the totals of what they count (`encoding_counts`).

Everything that is summed is a whole number (counts, and values in fixed point within an agreed range), so the fit does not
depend on how rows are distributed over parties, and secure totals give the same bits. No value leaves a party.

Quantiles: counts by sign and power of 16 first, then in `CELLS` equal cells of the range that holds both quantiles, which is
narrowed until a cell is at most 1 / `MIN_CELLS` of the distance between them. Each bound is moved outwards to the edge of its
cell, so it differs from the pooled quantile by at most that.

Categories: counts of names in `BUCKETS` buckets by keyed digest, then in parts of the buckets that are frequent, then in parts of
these. Two names share a column with probability 1 / `CODES`, about one in 300 million per pair. The key must not matter: it
decides neither which values are kept nor their order, for which each kept value's digest without a key (its open code) is
summed, sealed under the key. So the fit of sites that share a key is that of one process, where the key is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.data.encoding import CODES, PARTS, EncodedColumn, Encoding, codes_of
from atoll.data.encoding_counts import (
    CELLS,
    FIXED_POINT,
    POWERS,
    Ints,
    PartyCounts,
    exponent_edges,
    hashed,
    numeric,
    opened,
    tag,
)
from atoll.errors import AtollError
from atoll.graphs.table import Column, Table

Total = Callable[..., Mapping[str, Tensor]]  # (verb, **arguments) → the sums over all parties
MIN_CELLS, MAX_LEVELS = 256, 5
MIN_DEVIATION = 1e-7  # of the range; a smaller one is that of a constant
FOREIGN = "the categories of the encoding are not those that the sites sealed."
MAX_CALLS = {
    "count_columns": 1,
    "count_exponents": 1,
    "histogram": MAX_LEVELS,
    "sum_columns": 1,
    "count_categories": 1,
    "refine_categories": 2,
    "split_categories": 1,
    "seal_categories": 1,
}  # of each verb, in one fit


@dataclass(frozen=True)
class FittedEncoding:
    """What the totals say: an encoding whose categories are keyed codes, and per column what `named` orders them by."""

    encoding: Encoding
    sealed: tuple[tuple[int, ...], ...]  # per kept value: how many are more frequent · CODES + its sealed open code
    tags: tuple[tuple[int, ...], ...]  # per kept value: shows the key's holders that the sealed code is its own


def fit(columns: Sequence[Column], total: Total, max_buckets: int = 1 << 20) -> FittedEncoding:
    """The encoding, from sums over the parties; `total` calls a verb of `PartyCounts` at all of them.

    `max_buckets`: the most that rare names can have refined beyond the fullest ones, in all columns.
    """
    columns = tuple(columns)
    counted = total("count_columns")
    rows, present, unlisted = (counted[name].numpy() for name in ("rows", "present", "unlisted"))
    ranges, moments, kept = fit_numbers(columns, present, total), {}, fit_categories(columns, total, max_buckets)
    if ranges:
        low, high = (torch.tensor([ranges[col][end] for col in ranges], dtype=torch.float64) for end in (0, 1))
        sums = total("sum_columns", low=low, high=high)["sums"].numpy()
        moments = {col: moments_of(sums[index], int(present[col]), *ranges[col]) for index, col in enumerate(ranges)}
    encoded = []
    for col, column in enumerate(columns):
        each = EncodedColumn(column, missing=bool(present[col] < rows) and column.kind != "empty")
        if column.numeric:
            bounds = ranges.get(col, (column.low or 0.0, column.high or 0.0))
            mean, std = moments.get(col, (0.0, 1.0))
            if column.mean is not None and column.std is not None:
                mean, std = column.mean, column.std
            elif not column.standardize:
                mean, std = unscaled(column, bounds[0]), 1.0
            each = replace(each, low=bounds[0], high=bounds[1], mean=mean, std=std)
        elif column.values:
            each = replace(each, labels=column.values, other=bool(unlisted[col] > 0))
        elif column.kind == "category":
            buckets, few = kept[col].codes, kept[col].rows < present[col]
            each = replace(each, buckets=buckets, labels=("",) * len(buckets), other=bool(few))
        encoded.append(each)
    sealed, tags = (
        tuple(getattr(kept[col], name) if col in kept else () for col in range(len(columns))) for name in ("sealed", "tags")
    )
    return FittedEncoding(Encoding(tuple(encoded)), sealed, tags)


def unscaled(column: Column, low: float) -> float:
    """What is subtracted from a value that is not standardized: for dates the reference day."""
    if column.kind != "date":
        return 0.0
    return low if column.reference is None else column.reference


def fit_numbers(columns: Sequence[Column], present: Ints, total: Total) -> dict[int, tuple[float, float]]:
    """The range to which each number is clipped, by column."""
    cols = numeric(columns)
    if not cols:
        return {}
    exponents = total("count_exponents")["counts"].numpy()
    outer, inner, targets = [], [], []
    for index, col in enumerate(cols):
        column, count = columns[col], int(present[col])
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
    open_ = [columns[col].clip is not None and columns[col].low is None and int(present[col]) > 0 for col in cols]
    ranges = list(inner)
    same = [False] * len(cols)
    for _ in range(MAX_LEVELS):
        if not any(open_):
            break
        below, above = (torch.tensor([one[end] for one in ranges], dtype=torch.float64) for end in (0, 1))
        counts = total("histogram", low=below, high=above)["counts"].numpy()
        for index in np.flatnonzero(open_).tolist():
            ranges[index], same[index], done = narrowed(counts[index], ranges[index], targets[index])
            open_[index] = not done
    result: dict[int, tuple[float, float]] = {}
    for index, col in enumerate(cols):
        column = columns[col]
        if column.low is not None and column.high is not None:
            result[col] = (column.low, column.high)
        else:  # nearly all values are equal: clipping would leave nothing of the others
            result[col] = outer[index] if column.clip is None or same[index] else ranges[index]
    return result


def narrowed(counts: Ints, span: tuple[float, float], ranks: tuple[int, int]) -> tuple[tuple[float, float], bool, bool]:
    """The range from the cell of one rank to that of the other; whether it is one cell; whether it is fine enough."""
    low, high = span
    steps = np.cumsum(counts)
    first, last = (int(np.clip(np.searchsorted(steps, rank), 1, CELLS)) for rank in ranks)
    width = (high - low) / CELLS
    narrow = (low + (first - 1) * width, high if last == CELLS else low + last * width)
    return narrow if narrow[1] > narrow[0] else span, first == last, last - first + 1 >= MIN_CELLS


def moments_of(sums: Ints, count: int, low: float, high: float) -> tuple[float, float]:
    """Mean and deviation of the clipped values."""
    if count == 0:
        return low, 1.0
    first, second = (float(one) / FIXED_POINT / count for one in sums.tolist())
    deviation = max(second - first**2, 0.0) ** 0.5 * (high - low)
    return low + first * (high - low), deviation if deviation > MIN_DEVIATION * (high - low) else 1.0


def fit_categories(columns: Sequence[Column], total: Total, max_buckets: int) -> dict[int, KeptValues]:
    """Per column the kept values, the most frequent first, whatever the key of the digests."""
    cols = hashed(columns)
    if not cols:
        return {}

    def parts(verb: str, cells: str, wanted: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
        """(column, code, rows) of the parts of some cells that have enough rows."""
        pairs = torch.tensor(wanted, dtype=torch.int64).view(-1, 2)
        counted = total(verb, columns=pairs[:, 0], **{cells: pairs[:, 1]})["counts"].numpy()
        least = np.array([columns[cols[index]].min_count for index, _ in wanted])
        frequent = np.argwhere(counted >= least[:, None]).tolist()
        return [(wanted[row][0], wanted[row][1] * PARTS + part, int(counted[row, part])) for row, part in frequent]

    counts = total("count_categories")["counts"].numpy()
    prefixes: dict[int, dict[int, int]] = {index: {} for index in range(len(cols))}  # prefix → rows
    refined: set[tuple[int, int]] = set()
    for promising in (_fullest, _as_full):
        buckets = [(i, bucket) for i, col in enumerate(cols) for bucket in promising(columns[col], counts[i], prefixes[i])]
        wanted = [one for one in buckets if one not in refined]
        wanted = sorted(wanted, key=lambda one: -counts[one])[:max_buckets] if refined else wanted
        for index, prefix, rows in parts("refine_categories", "buckets", wanted) if wanted else []:
            prefixes[index][prefix] = rows
        refined.update(wanted)
    codes: dict[int, dict[int, int]] = {index: {} for index in prefixes}
    wanted = [(i, prefix) for i, col in enumerate(cols) for prefix in _most_frequent(prefixes[i], _candidates(columns[col]))]
    for index, code, rows in parts("split_categories", "prefixes", wanted) if wanted else []:
        codes[index][code] = rows
    kept = [(i, code) for i, col in enumerate(cols) for code in _most_frequent(codes[i], columns[col].max_categories)]
    pairs = torch.tensor(kept, dtype=torch.int64).view(-1, 2)
    answer = total("seal_categories", columns=pairs[:, 0], codes=pairs[:, 1]) if kept else {"sealed": pairs, "tags": pairs}
    values = zip(answer["sealed"].tolist(), answer["tags"].tolist(), strict=True)
    sealed = {(i, c): (one // codes[i][c], mark // codes[i][c]) for (i, c), (one, mark) in zip(kept, values, strict=True)}
    return {col: _kept(columns[col], codes[i], {c: sealed[i, c] for j, c in kept if j == i}) for i, col in enumerate(cols)}


def _fullest(column: Column, counts: Ints, rows_of: Mapping[int, int]) -> list[int]:
    """The buckets with the most rows, as many as there are values to keep."""
    order = np.argsort(-counts, kind="stable")[: column.max_categories]
    return [int(bucket) for bucket in order if counts[bucket] >= column.min_count]


def _as_full(column: Column, counts: Ints, rows_of: Mapping[int, int]) -> list[int]:
    """The buckets that hold as many rows as the last of the candidates; rare names together may have filled fuller ones."""
    frequent = sorted(rows_of.values(), reverse=True)[: _candidates(column)]
    least = frequent[-1] if len(frequent) == _candidates(column) else column.min_count
    return [int(bucket) for bucket in np.flatnonzero(counts >= least)]


def _candidates(column: Column) -> int:
    """How many prefixes to split: more than there are values to keep, as two names that share one look like a frequent one."""
    return 2 * column.max_categories


def _most_frequent(rows_of: Mapping[int, int], most: int) -> list[int]:
    """The most frequent codes, with all that are as frequent as the last of them: `named` cuts to `max_categories`."""
    counts = sorted(rows_of.values(), reverse=True)
    least = counts[most - 1] if len(counts) > most else 0
    return sorted((code for code, count in rows_of.items() if count >= least), key=lambda code: (-rows_of[code], code))


def _kept(column: Column, rows_of: Mapping[int, int], sealed: Mapping[int, tuple[int, int]]) -> KeptValues:
    ranks = {code: sum(other > rows_of[code] for other in rows_of.values()) for code in sealed}
    rows = sum(sorted(rows_of.values(), reverse=True)[: column.max_categories])
    values = tuple(ranks[code] * CODES + one for code, (one, _) in sealed.items())
    return KeptValues(tuple(sealed), rows, values, tuple(mark for _, mark in sealed.values()))


@dataclass(frozen=True)
class KeptValues:
    """The values of a category that are kept, as keyed codes, and how many rows have one of them."""

    codes: tuple[int, ...]
    rows: int
    sealed: tuple[int, ...]  # see `FittedEncoding`
    tags: tuple[int, ...]


def _wider(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1.0)


def named(fitted: FittedEncoding, table: Table, key: bytes = b"") -> Encoding:
    """The encoding with open codes in the common order, and with the names of the kept categories that occur in a table."""
    columns = []
    for each, sealed, tags in zip(fitted.encoding.columns, fitted.sealed, fitted.tags, strict=True):
        if each.buckets:
            name, most = each.column.name, each.column.max_categories
            codes = [opened(name, code, value % CODES, key) for code, value in zip(each.buckets, sealed, strict=True)]
            if tags != tuple(tag(name, code, one, key) for code, one in zip(each.buckets, codes, strict=True)):
                raise AtollError(FOREIGN)
            order = sorted(range(len(codes)), key=lambda col: (sealed[col] // CODES, codes[col]))[:most]
            names = table.names[table.column_names.index(name)]
            known: dict[int, list[str]] = {}
            for value, code in zip(names, codes_of(name, names).tolist(), strict=True):
                known.setdefault(code, []).append(value)
            buckets = tuple(codes[col] for col in order)
            each = replace(each, buckets=buckets, labels=tuple("|".join(sorted(known.get(code, []))) for code in buckets))
        columns.append(each)
    return Encoding(tuple(columns), table.ignored, table.roles)


def fit_locally(table: Table) -> Encoding:
    """The encoding of one table by itself, as for a single party."""
    counts = PartyCounts(table, np.zeros(len(table), np.int64), 1)

    def total(verb: str, **arguments: Any) -> dict[str, Tensor]:
        replies: dict[str, Tensor] = getattr(counts, verb)(**arguments)
        return {name: value.sum(0) for name, value in replies.items()}

    return named(fit(table.columns, total), table)
