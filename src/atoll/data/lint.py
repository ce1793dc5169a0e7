"""Warnings about valid data that may not mean what its owner expects, each one sentence as an `AtollWarning`.

The readers of users' own graphs (tables, .npz, PyG) call `warn_about_features` and `warn_about_edges` after all other checks.
Nothing is changed and nothing is sent: a site sees only its own warnings.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll.data.builder import MAX_FEATURE
from atoll.data.edge_weights import is_weight
from atoll.data.leaks import label_leaks
from atoll.errors import AtollWarning
from atoll.graphs.symmetric_matrices import is_sorted
from atoll.graphs.table import Table

MAX_EXACT = 2**24  # float32 represents every integer up to here
MIN_ROWS = 20  # in fewer rows a feature may count 0, 1, 2, … by chance
MAX_LISTED = 3  # columns that a sentence names
LABEL_NAMES = {
    *("label", "labels", "y", "y_true", "target", "targets", "class", "classes"),
    *("class_label", "ground_truth", "groundtruth", "true_label"),
}
EDGE_TYPE_NAMES = ("type", "edge_type", "kind", "relation", "rel")

Values = Any  # scipy sparse or numpy, (N, d)
Ints = NDArray[np.int64]


def _warn(sentence: str) -> None:
    """The command line prints it as one line, once."""
    warnings.warn(sentence, AtollWarning, stacklevel=4)


def warn_about_features(
    x: Values, y: Ints, names: Sequence[str] | None, where: str, unscaled: Collection[int] | None = None
) -> None:
    """Warn about columns that lose digits, number the rows or reveal the label; x before its conversion to float32.

    Only `unscaled` columns, by default all, become float32 as they are and so may lose digits.
    """
    if large := [column for column in losing_digits(x) if unscaled is None or column in unscaled]:
        value = _first_lost(x, large[0])
        _warn(
            f"{where}: {_listed(large, names)} has whole numbers above {MAX_EXACT:,} that lose digits as float32 "
            f"({int(value)} becomes {int(np.float32(value))}); leave it out if it is an id, else scale it."
        )
    named = [column for column, name in enumerate(names or ()) if name.strip().lower().replace(" ", "_") in LABEL_NAMES]
    if named:
        _warn(
            f"{where}: {_listed(named, names)} is named like a label but is used as a feature; "
            "leave it out, or name the label's column `label`."
        )
    leaking = [column for column in label_leaks(x, y) if column not in named]
    if leaking:
        _warn(
            f"{where}: {_listed(leaking, names)} reveals the label of (nearly) all labeled nodes, as a copy of it would; "
            "leave it out unless it is known before the label."
        )
    numbered = [column for column in row_numbers(x) if column not in leaking]
    if numbered:
        _warn(f"{where}: {_listed(numbered, names)} numbers the rows; leave it out, it says nothing about the nodes.")


def comparable(table: Table) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Numbers that tell a table's values apart, to look for leaks: its values, and which are missing."""
    absent = np.isnan(table.values)
    lowest = np.min(np.where(absent, np.inf, table.values), axis=0, initial=0.0)
    partly: NDArray[np.bool_] = np.any(absent, axis=0) & ~np.all(absent, axis=0)
    x = np.concatenate([np.where(absent, lowest - 1, table.values), absent[:, partly].astype(np.float64)], 1)
    missing = [f"{name}=missing" for name, some in zip(table.column_names, partly.tolist(), strict=True) if some]
    return np.clip(x, -MAX_FEATURE, MAX_FEATURE), (*table.column_names, *missing)


def warn_about_edges(edges: Ints, where: str, *, weighted: bool = False) -> None:
    """Warn about self-loops, which are dropped, and repeats, whose weights are added or which are dropped; as they were read."""
    if is_sorted(*edges):  # each once, and none to itself
        return
    source, target = edges[0].astype(np.int64), edges[1].astype(np.int64)
    proper = source != target
    if loops := int((~proper).sum()):
        _warn(f"{where}: {_counted(loops, 'edge')} from a node to itself {'is' if loops == 1 else 'are'} dropped.")
    codes = source[proper] * (1 + int(target.max(initial=0))) + target[proper]
    codes.sort()
    if repeats := int((codes[1:] == codes[:-1]).sum()):
        if weighted:
            _warn(f"{where}: {_counted(repeats, 'repeated edge')}: the weights of parallel edges are added.")
        else:
            _warn(
                f"{where}: {_counted(repeats, 'repeated edge')} {'is' if repeats == 1 else 'are'} dropped; each edge counts once."
            )


def warn_about_edge_columns(names: Sequence[str], where: str, what: str = "column") -> None:
    """Warn about each further column of an edge table; no model uses it."""
    for name in names:
        plain = name.strip().lower().replace(" ", "_")
        if is_weight(name):
            reason = "another column holds the weights of the edges"
        elif plain in EDGE_TYPE_NAMES:
            reason = "edges have no types here, all are of one kind"
        else:
            reason = "edges have no features here; name a weight `" + ("edge_weight" if what != "column" else "weight") + "`"
        _warn(f"{where}: {what} `{name}` is not used: {reason}.")


def losing_digits(x: Values) -> list[int]:
    """Columns with an integer that float32 cannot represent; float32 and narrower types have already lost it."""
    if x.dtype.kind not in "iuf" or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return []
    values = x.data if sp.issparse(x) else x
    with np.errstate(over="ignore"):
        lost = np.abs(values) > MAX_EXACT
    if not lost.any():
        return []
    if sp.issparse(x):
        columns = x.tocoo().col[lost]
        candidates = np.unique(columns)
    else:
        candidates = np.flatnonzero(lost.any(axis=0))
    return [int(column) for column in candidates if len(_lost(x, int(column)))]


def _lost(x: Values, column: int) -> NDArray[Any]:
    values = _column(x, column)
    large = values[np.abs(values) > MAX_EXACT]
    if large.dtype.kind == "f":
        large = large[large == np.round(large)]
    narrow = large.astype(np.float32)
    if large.dtype.kind in "iu":  # beyond 2⁵³ float64 would not be exact either
        same = [int(a) == int(b) for a, b in zip(large.tolist(), narrow.tolist(), strict=True)]
        lost = ~np.array(same, bool)
    else:
        lost = narrow.astype(np.float64) != large
    result: NDArray[Any] = large[lost]
    return result


def _first_lost(x: Values, column: int) -> Any:
    return _lost(x, column)[0]


def row_numbers(x: Values) -> list[int]:
    """Columns that count the rows: each value is one more than the value above it."""
    if sp.issparse(x) or x.dtype.kind == "b" or len(x) < MIN_ROWS:
        return []
    first = np.flatnonzero((x[1] - x[0] == 1) & (x[2] - x[1] == 1))
    return [int(column) for column in first if bool((np.diff(x[:, column].astype(np.float64)) == 1).all())]


def _column(x: Values, column: int) -> NDArray[Any]:
    values: NDArray[Any] = x[:, [column]].toarray()[:, 0] if sp.issparse(x) else x[:, column]
    return values


def _listed(columns: Sequence[int], names: Sequence[str] | None) -> str:
    """`column age` or `feature 3` (from 0); of many, the first few."""
    words = [f"`{names[column]}`" if names else str(column) for column in columns[:MAX_LISTED]]
    more = f" (and {len(columns) - MAX_LISTED} more)" if len(columns) > MAX_LISTED else ""
    noun = ("column" if names else "feature") + ("s" if len(columns) > 1 else "")
    return f"{noun} {', '.join(words)}{more}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
