"""Layer-wise inference in blocks: every node's output over all its edges, without the whole graph's matrices.

A network is a sequence of stages, each of which reads at most the neighbors of the rows that it computes. One stage after the
other is computed for all rows of a party, a block of rows at a time. Beside the result, two stages' rows of one party are held
(of several small parties together), and the rows that one block reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop, SampledHop
from atoll.graphs.neighbors import Ints

MAX_ROWS = 1 << 16  # of a block, and of small parties that are computed together
MAX_NEIGHBORS = 1 << 19  # of the rows of a block


class Stage(NamedTuple):
    """One step of a network: `compute(rows, hop)` gives the hop's computed rows from those that it reads."""

    hops: int  # 1 where it reads neighbors, 0 where it reads only the rows that it computes
    compute: Callable[[Features | Tensor, Hop], Tensor]


@torch.no_grad()
def in_blocks(stages: Sequence[Stage], graph: Graph) -> Tensor:
    """(N, C) the last stage's output for all nodes; the first stage reads their features."""
    result: Tensor | None = None
    starts = graph.bounds.tolist()
    for first, last in party_groups(graph.sizes):
        start, end = starts[first], starts[last]
        state: Tensor | None = None
        for stage in stages:
            state = _stage(stage, graph, start, end, state)
        assert state is not None
        if end - start == graph.num_nodes:
            return state
        result = state.new_empty(graph.num_nodes, state.shape[1]) if result is None else result
        result[start:end] = state
    assert result is not None
    return result


def _stage(stage: Stage, graph: Graph, start: int, end: int, state: Tensor | None) -> Tensor:
    """One stage of the rows from `start` to `end`; `state` are the rows of the stage before, None for the features."""
    out: Tensor | None = None
    for first, last in row_ranges(graph, start, end, stage.hops):
        hop = block(graph, first, last, stage.hops)
        computed = stage.compute(hop.features if state is None else state[hop.index - start], hop)
        out = computed.new_empty(end - start, computed.shape[1]) if out is None else out
        out[first - start : last - start] = computed
    assert out is not None
    return out


def block(graph: Graph, first: int, last: int, hops: int) -> SampledHop:
    """The rows from `first` to `last`, and all their neighbors where there is a hop."""
    lists, ptr, rows = graph.neighbors, graph.bounds, np.arange(first, last)
    if not hops:
        none = np.empty(0, np.int64)
        return SampledHop(lists, graph.x, ptr, rows, rows - first, none, np.zeros(len(rows), np.int64), none, graph.device)
    positions = np.arange(lists.indptr[first], lists.indptr[last])
    near = lists.indices[lists.indptr[first] : lists.indptr[last]]
    low, high = (min(first, int(near.min())), max(last, int(near.max()) + 1)) if len(near) else (first, last)
    read = np.zeros(high - low, bool)
    read[near - low] = True
    read[first - low : last - low] = True
    local: Ints = read.cumsum() - 1
    columns, out = local[near - low], local[first - low : last - low]
    rows = np.flatnonzero(read) + low
    return SampledHop(lists, graph.x, ptr, rows, out, columns, lists.degree[first:last], positions, graph.device)


def party_groups(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Consecutive parties that are computed together: as many as have no more than `MAX_ROWS` rows, at least one."""
    first = rows = 0
    for party, size in enumerate(sizes):
        if party > first and rows + size > MAX_ROWS:
            yield first, party
            first, rows = party, 0
        rows += size
    if sizes:
        yield first, len(sizes)


def row_ranges(graph: Graph, start: int, end: int, hops: int) -> Iterator[tuple[int, int]]:
    """Blocks of consecutive rows within both limits, at least one row each."""
    while start < end:
        last = min(end, start + MAX_ROWS)
        if hops:
            limit = graph.neighbors.indptr[start] + MAX_NEIGHBORS
            last = min(last, max(start + 1, int(np.searchsorted(graph.neighbors.indptr, limit, side="right")) - 1))
        yield start, last
        start = last
