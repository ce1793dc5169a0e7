"""Weights of edges as users have them: checked, summed where edges are parallel, the same in both directions where undirected."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.errors import AtollError, AtollWarning

Ints = NDArray[np.int64]
Weights = NDArray[np.float64]
NAMES = ("weight", "weights", "edge_weight", "edge_weights", "w")  # of a column or array of weights, in upper or lower case
REMEDY = "give finite numbers that are not negative, or set edge_weights=false to ignore the weights"
MAX_WEIGHT = 1e30  # sums of float32 weights stay finite


def is_weight(name: str) -> bool:
    """Whether a column or array of this name holds weights."""
    return name.strip().lower().replace(" ", "_") in NAMES


def first_invalid(weights: Weights) -> int | None:
    """The first weight that is not finite or is negative; None where all are."""
    wrong = np.flatnonzero(~((weights >= 0) & (weights <= MAX_WEIGHT)))
    return int(wrong[0]) if len(wrong) else None


def checked_weights(values: Any, edges: int, where: str) -> Weights:
    """The weights of (2, E) edges as numbers; (E, 1) is taken for (E,)."""
    array = np.asarray(values)
    array = array[:, 0] if array.ndim == 2 and array.shape[1] == 1 else array
    if array.shape != (edges,) or array.dtype.kind not in "biuf":
        raise AtollError(
            f"{where}: the edge weights have shape {array.shape} and type {array.dtype} for {edges} edges; "
            "give one number per edge."
        )
    weights = array.astype(np.float64)
    if (wrong := first_invalid(weights)) is not None:
        raise AtollError(f"{where}: the weight of edge {wrong} is {array[wrong]}; {REMEDY}.")
    return weights


def tidy_weights(
    edges: Ints, weights: Weights, nodes: int, directed: bool, where: str
) -> tuple[Ints, NDArray[np.float32] | None]:
    """The edges of `builder.tidy_edges` and their weights; None where every weight is 1.

    Weights of parallel edges are added. An undirected edge that is listed in both directions has the larger of the two weights
    (as in Kipf and Welling's code), so a graph that lists every edge twice is the same as one that lists it once.
    """
    source, target = edges[0].astype(np.int64), edges[1].astype(np.int64)
    proper = source != target
    code, index = np.unique(source[proper] * nodes + target[proper], return_inverse=True)
    total: Weights = np.bincount(index, weights[proper], minlength=len(code)).astype(np.float64)
    if not directed:
        reverse = code % max(nodes, 1) * nodes + code // max(nodes, 1)
        known = np.searchsorted(code, reverse).clip(max=max(len(code) - 1, 0))
        if len(code) and bool(((code[known] == reverse) & (total[known] != total)).any()):
            sentence = (
                f"{where}: some edges have another weight in the other direction; the larger one counts for both, "
                "unless directed=true is set."
            )
            warnings.warn(sentence, AtollWarning, stacklevel=4)
        code, index = np.unique(np.concatenate([code, reverse]), return_inverse=True)
        both = np.zeros(len(code))
        np.maximum.at(both, index, np.concatenate([total, total]))
        total = both
    result = total.astype(np.float32)
    return np.stack([code // max(nodes, 1), code % max(nodes, 1)]), None if bool((result == 1).all()) else result
