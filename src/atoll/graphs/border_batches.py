"""Mini-batches over exchanged sums (`border_sums`): the first propagation is done, the second also reads neighbors elsewhere.

A batch's nodes sample neighbors of their own party as ever, over one hop less. In the second propagation node i reads, of d_i
neighbors at other parties whose rows were received, a sample of s_i besides, each times d_i / s_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.border_sums import Across, ExchangedGraph, FirstHopSums
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.neighbors import Ints, NeighborLists
from atoll.random import Draws


@dataclass(frozen=True, eq=False)
class BorderBatch(MiniBatch):
    """A batch whose first propagations are over the edges between parties, too."""

    propagations: tuple[Any, ...] = ()

    def hop(self, index: int) -> Any:
        """The exchanged sums; with two hops, the neighbors at other parties; then the party's own graph."""
        return self.propagations[index] if index < len(self.propagations) else super().hop(index - 1)


def with_sums(batch: MiniBatch, graph: ExchangedGraph, fan_outs: Sequence[int], draws: Draws) -> BorderBatch:
    """The batch over the exchanged sums.

    Parameters:
        batch: A batch of the parties' own graphs, sampled over one hop less than the network has.
        graph: What `exchanged` gave.
        fan_outs: Those of the batch; the last is that of neighbors at other parties, too.
        draws: Each party's randomness.
    """
    fields = {name: getattr(batch, name) for name in MiniBatch.__dataclass_fields__}
    first = graph.propagations[0]
    if len(graph.propagations) == 1:
        rows = batch.index.cpu().numpy() if batch.sampled is None else batch.sampled.hop(0).rows
        return BorderBatch(**fields, propagations=(_sums(first, rows, batch.hop(0).blocks),))
    matrix, rows = _within(batch, graph) if batch.sampled is None else _sampled(batch, graph, fan_outs[-1], draws)
    across: Across = graph.propagations[1]
    own = across.own.cpu().numpy()[rows]
    read = np.union1d(own, matrix.indices)
    blocks = Blocks(np.diff(np.searchsorted(read, np.cumsum([0, *across.sizes]))).tolist(), graph.device)
    out = Blocks(np.diff(np.searchsorted(rows, graph.bounds)).tolist(), graph.device)
    local = sp.csr_array((matrix.data, np.searchsorted(read, matrix.indices), matrix.indptr), shape=(len(rows), len(read)))
    second = Across(local, torch.from_numpy(np.searchsorted(read, own)), blocks, out)
    return BorderBatch(**fields, propagations=(_sums(first, read, blocks), second))


def _sums(first: FirstHopSums, rows: Ints, blocks: Blocks) -> FirstHopSums:
    """Some rows of the exchanged sums."""
    x = first.x
    return FirstHopSums(x[torch.from_numpy(rows).to(x.device)] if isinstance(x, Tensor) else x[rows], blocks)


def _within(batch: MiniBatch, graph: ExchangedGraph) -> tuple[sp.csr_array, Ints]:
    """The second propagation of a batch of clusters: without the edges to its party's other nodes."""
    rows, across = batch.index.cpu().numpy(), graph.propagations[1]
    matrix, own = across.matrix[rows], across.own.cpu().numpy()
    left_out = np.zeros(matrix.shape[1], bool)
    left_out[own] = True
    left_out[own[rows]] = False
    kept = ~left_out[matrix.indices]
    indptr = np.concatenate([[0], kept.cumsum()])[matrix.indptr]
    return sp.csr_array((matrix.data[kept], matrix.indices[kept], indptr), shape=matrix.shape), rows


def _sampled(batch: MiniBatch, graph: ExchangedGraph, fan_out: int, draws: Draws) -> tuple[sp.csr_array, Ints]:
    """The second propagation over sampled neighbors, and the rows that it computes."""
    assert batch.sampled is not None
    across, hop = graph.propagations[1], batch.sampled.hop(0)
    own, rows = across.own.cpu().numpy(), hop.rows[hop.out]
    source, target = hop.rows[hop.columns], np.repeat(np.arange(len(rows)), hop.counts)
    near = hop.weights * across.half[rows][target] * across.half[source]
    far: NeighborLists = across.elsewhere
    positions, counts = far.sample(rows, np.diff(np.searchsorted(rows, graph.bounds)).tolist(), fan_out, draws)
    assert far.weight is not None
    away = far.weight[positions] * np.repeat(far.degree[rows] / np.maximum(counts, 1), counts)
    every = np.arange(len(rows))
    values = np.concatenate([across.half[rows] ** 2, near, away])
    columns = np.concatenate([own[rows], own[source], far.indices[positions]])
    entries = np.concatenate([every, target, np.repeat(every, counts)]), columns
    matrix = sp.csr_array((values, entries), shape=(len(rows), across.matrix.shape[1]))
    matrix.sort_indices()
    return matrix, rows
