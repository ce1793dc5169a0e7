"""Partitions that are uneven on purpose: in the classes of the parties (OpenFGL's label skew, louvain+ and metis+) or in size.

Labels of all nodes, test nodes too, steer the first three: they simulate parties that differ, nobody could compute them.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from atoll.data.builder import Ints
from atoll.data.node_lists import MAX_DIRICHLET_DRAWS, by_owner, check_concentration
from atoll.errors import AtollError


def label_skew(labels: Ints, parties: int, concentration: float, min_nodes: int, rng: np.random.Generator) -> list[Ints]:
    """OpenFGL: each class is dealt by shares from a Dirichlet distribution to the parties that hold fewer than N / P nodes.

    Unlabeled nodes count as one more class. Drawn again, up to 100 times, until every party has `min_nodes`.
    """
    check_concentration(concentration)
    for _ in range(MAX_DIRICHLET_DRAWS):
        owner, held = np.empty(len(labels), np.int64), np.zeros(parties, np.int64)
        for label in np.unique(labels):
            nodes = rng.permutation(np.flatnonzero(labels == label))
            shares = rng.dirichlet(np.full(parties, concentration))
            dealt = _capped(shares, held < len(labels) / parties)
            cuts = np.floor(dealt.cumsum()[:-1] * len(nodes))
            owner[nodes] = np.searchsorted(cuts, np.arange(len(nodes)), side="right")
            held += np.bincount(owner[nodes], minlength=parties)
        if held.min() >= min_nodes:
            break
    return by_owner(owner, parties)


def _capped(shares: NDArray[np.float64], below: NDArray[np.bool_]) -> NDArray[np.float64]:
    """The shares of the parties that are `below` their cap, with sum 1; equal ones where all of theirs are 0."""
    kept = shares * below
    kept = kept if kept.sum() > 0 else below.astype(float)
    return np.asarray(kept / kept.sum())


def by_label_histogram(pieces: Sequence[Ints], labels: Ints, classes: int, parties: int, seed: int) -> list[Ints]:
    """OpenFGL's louvain+ and metis+: communities whose classes are alike make a party (k-means on their shares of classes)."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning

    pieces = [piece for piece in pieces if len(piece)]
    if len(pieces) < parties:
        raise AtollError(
            f"{len(pieces)} communities cannot make {parties} parties; "
            f"use at most --parties {len(pieces)}, or smaller communities."
        )
    counts = np.array([np.bincount(labels[piece][labels[piece] >= 0], minlength=classes) for piece in pieces], float)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    if (distinct := len(np.unique(shares, axis=0))) < parties:
        raise AtollError(
            f"The communities have only {distinct} different shares of classes, too few for {parties} parties; "
            "use fewer parties or smaller communities."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        cluster = KMeans(parties, n_init=10, random_state=seed % 2**32).fit_predict(shares)
    return [np.sort(np.concatenate([pieces[index] for index in np.flatnonzero(cluster == party)])) for party in range(parties)]


def power_law_sizes(nodes: int, parties: int, exponent: float) -> Ints:
    """Sizes in proportion to 1, 2^−a, 3^−a, …: the first party is the largest; a = 0 is even.

    >>> power_law_sizes(110, 3, 1.0).tolist()
    [60, 30, 20]
    """
    ends = np.round(power_law_shares(parties, exponent).cumsum() * nodes).astype(np.int64)
    return np.diff(ends, prepend=0)


def power_law_shares(parties: int, exponent: float) -> NDArray[np.float64]:
    """The parties' shares of the nodes, with sum 1."""
    shares = np.arange(1, parties + 1, dtype=float) ** -exponent
    return np.asarray(shares / shares.sum())
