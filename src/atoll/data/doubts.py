"""Own data that is valid but may not mean what its owner expects: one sentence for each doubt, as an `AtollWarning`.

Readers of own graphs (tables, .npz, PyG) call `mind_features` and `mind_edges` once everything else is checked. Nothing is
changed and nothing is sent: a site sees its own warnings only.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from atoll.data.leaks import telling
from atoll.errors import AtollWarning

EXACT = 2**24  # up to here float32 holds every whole number
MIN_ROWS = 20  # fewer rows may be numbered 0, 1, 2, … by chance
MAX_LISTED = 3  # columns that a sentence names one by one
LABEL_NAMES = {
    *("label", "labels", "y", "y_true", "target", "targets", "class", "classes"),
    *("class_label", "ground_truth", "groundtruth", "true_label"),
}

Values = Any  # scipy sparse or numpy, (N, d)
Ints = NDArray[np.int64]


def caution(sentence: str) -> None:
    """Warn; the command line prints it as one line, once."""
    warnings.warn(sentence, AtollWarning, stacklevel=4)


def mind_features(x: Values, y: Ints, names: Sequence[str] | None, where: str) -> None:
    """Warn of columns that lose digits, number the rows or tell the label; x as it came, before it is float32."""
    if len(large := losing_digits(x)):
        value = _first_lost(x, large[0])
        caution(
            f"{where}: {_listed(large, names)} has whole numbers above {EXACT:,} that lose digits as float32 "
            f"({int(value)} becomes {int(np.float32(value))}); leave it out if it is an id, else scale it."
        )
    called = [place for place, name in enumerate(names or ()) if name.strip().lower().replace(" ", "_") in LABEL_NAMES]
    if called:
        caution(
            f"{where}: {_listed(called, names)} is named like a label but is taken as a feature; "
            "leave it out, or name the label's column `label`."
        )
    found = [place for place in telling(x, y) if place not in called]
    if found:
        caution(
            f"{where}: {_listed(found, names)} tells the label of (nearly) all labelled nodes, as a copy of it would; "
            "leave it out unless it is known before the label is."
        )
    numbered = [place for place in row_numbers(x) if place not in found]
    if numbered:
        caution(f"{where}: {_listed(numbered, names)} numbers the rows; leave it out, it says nothing of the nodes.")


def mind_edges(edges: Ints, where: str, ignored: Sequence[str] = ()) -> None:
    """Warn of self loops and repeated edges that are dropped, and of weights that are `ignored`; (2, E) edges as they came."""
    if ignored:
        listed = ", ".join(f"`{name}`" for name in ignored)
        caution(f"{where}: {listed} is ignored; edges have no weights here.")
    source, target = edges[0].astype(np.int64), edges[1].astype(np.int64)
    proper = source != target
    if loops := int((~proper).sum()):
        caution(f"{where}: {_counted(loops, 'edge')} from a node to itself {'is' if loops == 1 else 'are'} dropped.")
    codes = source[proper] * (1 + int(target.max(initial=0))) + target[proper]
    codes.sort()
    if repeats := int((codes[1:] == codes[:-1]).sum()):
        caution(
            f"{where}: {_counted(repeats, 'repeated edge')} {'is' if repeats == 1 else 'are'} dropped; each edge counts once."
        )


def losing_digits(x: Values) -> list[int]:
    """Columns with a whole number that float32 cannot hold; float32 and narrower types have none left to lose."""
    if x.dtype.kind not in "iuf" or x.dtype.itemsize < 4 or x.dtype == np.float32:
        return []
    values = x.data if sp.issparse(x) else x
    with np.errstate(over="ignore"):
        lost = np.abs(values) > EXACT
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
    large = values[np.abs(values) > EXACT]
    if large.dtype.kind == "f":
        large = large[large == np.round(large)]
    narrow = large.astype(np.float32)
    if large.dtype.kind in "iu":  # beyond 2⁵³ float64 could not tell either
        same = [int(a) == int(b) for a, b in zip(large.tolist(), narrow.tolist(), strict=True)]
        lost = ~np.array(same, bool)
    else:
        lost = narrow.astype(np.float64) != large
    found: NDArray[Any] = large[lost]
    return found


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
    """`column age` or `feature 3` (from 0), some of them where there are many."""
    words = [f"`{names[column]}`" if names else str(column) for column in columns[:MAX_LISTED]]
    more = f" (and {len(columns) - MAX_LISTED} more)" if len(columns) > MAX_LISTED else ""
    noun = ("column" if names else "feature") + ("s" if len(columns) > 1 else "")
    return f"{noun} {', '.join(words)}{more}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
