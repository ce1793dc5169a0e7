"""Features that reveal the label: a column that is a copy of it, a code that implies it, or an indicator of one class.

Three forms are searched for among the labeled nodes, with up to 0.1 % of exceptions:

- every value of the column belongs to one class (a copy, a renamed copy, a finer code);
- the classes are intervals of the column (a score with thresholds, row numbers of a sorted file);
- a column with two values has one of them exactly at the nodes of one class (one of a one-hot group).

Any column with many values fits some labels, so a column counts only where chance does not explain it: if the labels were
shuffled, fewer than one graph in a thousand would have such a column.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

MAX_EXCEPTIONS = 0.001  # share of the labeled nodes
MAX_MISSED = 0.1  # and of the nodes outside the largest class: a rare class must not be lost among the exceptions
MAX_LOG_CHANCE = math.log(1e-3)
MIN_LABELED = 50
MIN_CLASS_SIZE = 20  # nodes inside and outside a class that a column indicates
SAMPLE_ROWS = 2048  # on which most columns are ruled out
CHUNK_COLUMNS = 256  # tested together

Values = Any  # scipy sparse or numpy, (N, d)
Ints = NDArray[np.int64]


def label_leaks(x: Values, y: Ints) -> list[int]:
    """The columns of x (N, d) that reveal the label y (N,), −1 where unlabeled."""
    rows = np.flatnonzero(y >= 0)
    classes, labels = np.unique(y[rows], return_inverse=True)
    if len(rows) < MIN_LABELED or len(classes) < 2:
        return []
    order = np.argsort(labels, kind="stable")  # a stable sort then keeps classes together within equal values
    rows, labels = rows[order], labels[order]
    sizes = np.bincount(labels)
    if sp.issparse(x):
        x = sp.csc_array(x)[rows]
        columns = _dense_enough(x, sizes)
    else:
        columns = np.arange(x.shape[1])
    step = -(-len(rows) // SAMPLE_ROWS)
    leaking: list[int] = []
    for start in range(0, len(columns), CHUNK_COLUMNS):
        selected = columns[start : start + CHUNK_COLUMNS]
        block = x[:, selected].toarray() if sp.issparse(x) else None
        sample = x[np.ix_(rows[::step], selected)] if block is None else block[::step]  # of a file, no more than is looked at
        for index in _possible(sample, labels[::step], len(sizes)):
            column = x[rows, selected[index]] if block is None else block[:, index]
            if leaks_label(column, labels, sizes, x.shape[1]):
                leaking.append(int(selected[index]))
    return leaking


def leaks_label(column: NDArray[Any], labels: Ints, sizes: Ints, columns: int) -> bool:
    """Whether one column reveals the labels, and more clearly than the best of that many columns would by chance."""
    nodes, classes, largest = len(labels), len(sizes), int(sizes.max())
    allowed = _allowed(nodes, largest)
    values, inverse = np.unique(column, return_inverse=True)
    tries, labelings = math.log(columns), _log_multinomial(sizes)
    if len(values) < 2:
        return False
    if len(values) <= nodes // 2:
        table = np.bincount(inverse * classes + labels, minlength=len(values) * classes).reshape(-1, classes)
        wrong = nodes - int(table.max(1).sum())
        fitting = len(values) * math.log(classes) + _log_choose(nodes, wrong) + wrong * math.log(classes)
        if wrong <= allowed and tries + fitting - labelings < MAX_LOG_CHANCE:
            return True
        if len(values) == 2 and _indicates_class(table, sizes, allowed, tries):
            return True
    in_order = labels[np.argsort(column, kind="stable")]
    separated = int((np.diff(in_order) != 0).sum()) == classes - 1 and not _shared(column, labels)
    return separated and tries + math.lgamma(classes + 1) + _log_choose(nodes - 1, classes - 1) - labelings < MAX_LOG_CHANCE


def _indicates_class(table: Ints, sizes: Ints, allowed: float, tries: float) -> bool:
    """Whether one of two values is exactly that of one class's nodes; `table` (2, C): nodes by value and class."""
    nodes = int(sizes.sum())
    for members in table:
        for label, size in enumerate(sizes.tolist()):
            wrong = int(members.sum()) + size - 2 * int(members[label])
            if min(size, nodes - size) < MIN_CLASS_SIZE or wrong > min(allowed, MAX_MISSED * size):
                continue
            if tries + math.log(2 * len(sizes)) + _log_choose(nodes, wrong) - _log_choose(nodes, size) < MAX_LOG_CHANCE:
                return True
    return False


def _shared(column: NDArray[Any], labels: Ints) -> bool:
    """Whether two classes have a value in common."""
    pairs = np.unique(np.stack([np.unique(column, return_inverse=True)[1], labels]), axis=1)
    return bool((np.diff(pairs[0]) == 0).any())


def _possible(block: NDArray[Any], labels: Ints, classes: int) -> Ints:
    """Columns that a sample of the rows, sorted by class, does not rule out."""
    nodes = len(labels)
    order = np.argsort(block, axis=0, kind="stable")
    values, along = np.take_along_axis(block, order, 0), labels[order]
    new_value, new_class = values[1:] != values[:-1], along[1:] != along[:-1]
    groups = 1 + new_value.sum(0)
    mixed = (~new_value & new_class).sum(0)  # at most the nodes that do not fit
    allowed = 1 + MAX_EXCEPTIONS * nodes
    pure = (mixed <= allowed) & ((groups <= nodes // 2 + 1) | (new_class.sum(0) <= classes - 1))
    return np.flatnonzero((groups > 1) & (pure | ((groups == 2) & (mixed <= classes - 2 + allowed))))


def _dense_enough(x: sp.csc_array, sizes: Ints) -> Ints:
    """Columns with enough non-zeros to reveal the label: the zeros are all in one class, or the non-zeros are one class."""
    stored = np.diff(x.indptr)
    nodes, allowed = int(sizes.sum()), _allowed(int(sizes.sum()), int(sizes.max()))
    fits = (stored >= nodes - int(sizes.max()) - allowed) & (stored > 0)
    for size in sizes.tolist():
        fits |= np.abs(stored - size) <= allowed
    return np.flatnonzero(fits)


def _allowed(nodes: int, largest: int) -> float:
    return min(MAX_EXCEPTIONS * nodes, MAX_MISSED * (nodes - largest))


def _log_choose(total: int, chosen: int) -> float:
    return math.lgamma(total + 1) - math.lgamma(chosen + 1) - math.lgamma(total - chosen + 1)


def _log_multinomial(sizes: Ints) -> float:
    return math.lgamma(int(sizes.sum()) + 1) - sum(math.lgamma(size + 1) for size in sizes.tolist())
