"""Clusters of every party's graph: METIS parts with few edges between them (Karypis & Kumar, 1998)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from atoll.graphs.graph import Graph
from atoll.graphs.neighbors import Ints


def clusters(graph: Graph, counts: Sequence[int]) -> list[list[Ints]]:
    """Per party, the rows of each of `counts[p]` clusters, ascending; found once for each party and count.

    The graph of some parties remembers them with that of all, so that who takes part in a round does not matter.
    """
    starts, ends = graph.ptr[:-1].tolist(), graph.ptr[1:].tolist()
    parties = graph.__dict__.get("_parties")
    numbers = range(graph.parties) if parties is None else parties.tolist()
    origin = graph if parties is None else graph.__dict__["_cut"].graph
    cache: dict[tuple[int, int], list[Ints]] = origin.__dict__.setdefault("_clusters", {})
    cut = []
    for number, start, end, count in zip(numbers, starts, ends, counts, strict=True):
        if (number, count) not in cache:
            cache[number, count] = _cut(graph, start, end, count)
        cut.append([cell + start for cell in cache[number, count]])
    return cut


def _cut(graph: Graph, start: int, end: int, count: int) -> list[Ints]:
    """The clusters of one party, whose rows are numbered from 0: a function of its own graph alone."""
    if count >= end - start:
        return [np.array([row]) for row in range(end - start)]
    if count == 1:
        return [np.arange(end - start)]
    import pymetis

    lists = graph.neighbors
    first, last = lists.indptr[start], lists.indptr[end]
    source = lists.indices[first:last].astype(np.int64) - start
    target = np.repeat(np.arange(end - start), lists.degree[start:end])
    pairs = np.unique(np.concatenate([source * (end - start) + target, target * (end - start) + source]))  # both directions
    indptr = np.searchsorted(pairs, np.arange(end - start + 1) * (end - start))
    adjacency = pymetis.CSRAdjacency(indptr, pairs % (end - start))
    _, part = pymetis.part_graph(count, adjacency, options=pymetis.Options(seed=0))
    owner = np.asarray(part, np.int64)
    order = owner.argsort(kind="stable")
    cells = np.split(order, np.bincount(owner, minlength=count).cumsum()[:-1])
    return [cell for cell in cells if len(cell)]
