"""Sums over the neighbors of a node, those at other parties included: each party's share of them, and graphs whose first
propagation is these sums (Yao et al., NeurIPS 2023).

Of a node i with neighbors N(i) at any party, d the degrees of the whole A + I, s_j = d_j^(-1/2) (1 for `normalization=none`),

    row_i = Σ_{j ∈ N(i) ∪ i} a_ij·s_j·x_j,  to which party k's share is the sum over its own j; then (Â·X)_i = s_i·row_i.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, overload

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.borders import Borders
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.neighbors import NeighborLists
from atoll.graphs.sparse import SparseMatrix

Floats = NDArray[np.float64]
SUM, NONE = "sym", "none"


def needed_rows(graph: Graph, hops: int) -> list[Tensor]:
    """Per party, the nodes whose rows it needs, by number: its own with neighbors elsewhere and, with 2 hops, these neighbors."""
    borders = _borders(graph)
    owner, into = graph.host.party[borders.row], borders.into
    ids = graph.host.ids[borders.row]
    lists = []
    for party in range(graph.parties):
        border = (owner == party) & into
        lists.append(torch.unique(torch.cat([ids[border], borders.other[border]] if hops > 1 else [ids[border]])))
    return lists


def shares(graph: Graph, rows: Tensor, normalization: str) -> Tensor:
    """(P, R, d + 2) each party's share of the rows of nodes (R,), by ascending number; of their degrees; 1 where it has any."""
    graph, borders = graph.host, _borders(graph)
    count = len(rows)
    degree, weights, loops = _degrees(graph, borders), _weights(graph), np.ones(graph.num_nodes)
    scale = degree**-0.5 if normalization == SUM else np.ones_like(degree)
    edges, ids, out = graph.edge_index.numpy(), graph.ids, ~borders.into
    every = np.arange(graph.num_nodes)
    source = np.concatenate([edges[0], every, borders.row[out].numpy()])
    number = torch.cat([ids[graph.edge_index[1]], ids, borders.other[out]])
    weight = np.concatenate([weights, loops, _border_weights(borders)[out.numpy()]])
    position = torch.searchsorted(rows, number).clamp(max=max(count - 1, 0))
    wanted = (rows[position] == number).numpy() if count else np.zeros(len(number), bool)
    source, weight, wanted_row = source[wanted], weight[wanted], position.numpy()[wanted]
    at = graph.party.numpy()[source] * count + wanted_row
    size = graph.parties * count
    sums = sp.csr_array((weight * scale[source], (at, source)), shape=(size, graph.num_nodes)) @ _sparse(graph)
    result = np.zeros((size, graph.num_features + 2), np.float32)
    result[:, :-2] = sums.toarray()
    result[:, -2] = np.bincount(at, weight, minlength=size)
    result[:, -1] = np.bincount(at, minlength=size) > 0
    return torch.from_numpy(result).view(graph.parties, count, -1)


@dataclass(frozen=True, eq=False)
class ExchangedGraph(Graph):
    """The parties' graphs, whose first propagations are over the edges between parties, too."""

    propagations: tuple[Any, ...] = ()

    def hop(self, index: int) -> Any:
        """The exchanged sums; with two hops, the neighbors at other parties; then the party's own graph."""
        return self.propagations[index] if index < len(self.propagations) else self


class FirstHopSums:
    """The first propagation, done before training: what is read is (Â·X), and no matrix is left."""

    normalized_adjacency = None

    def __init__(self, x: sp.csr_array | Tensor, blocks: Blocks) -> None:
        self.x, self.features = x, Features.of(x, blocks)
        self.blocks, self.out_blocks, self.sizes = blocks, blocks, blocks.sizes

    def targets(self, rows: Features | Tensor) -> Features | Tensor:
        """All rows."""
        return rows


class Across:
    """The second propagation: from a party's nodes and their neighbors elsewhere to its nodes."""

    def __init__(
        self, matrix: sp.csr_array, own: Tensor, read: Blocks, out: Blocks, half: NDArray[np.float64] | None = None
    ) -> None:
        """`own`: where the party's nodes stand among the rows that are read; `half`: d^(-1/2) of these, to be sampled by."""
        self.matrix, self.half = matrix, half
        self.blocks, self.out_blocks, self.sizes, self.own = read, out, read.sizes, own.to(read.device)
        self.normalized_adjacency = SparseMatrix(matrix, device=read.device)
        self.normalized_adjacency.row_blocks = out

    @cached_property
    def elsewhere(self) -> NeighborLists:
        """The neighbors of the party's nodes at other parties, with their entries."""
        away = np.ones(self.matrix.shape[1], bool)
        away[self.own.cpu().numpy()] = False
        return NeighborLists.of_entries(self.matrix, away[self.matrix.indices])

    @overload
    def targets(self, rows: Tensor) -> Tensor: ...
    @overload
    def targets(self, rows: Features | Tensor) -> Features | Tensor: ...
    def targets(self, rows: Features | Tensor) -> Features | Tensor:
        """The rows of the party's own nodes."""
        return rows.take(self.own, self.out_blocks) if isinstance(rows, Features) else rows.index_select(0, self.own)


def exchanged(graph: Graph, received: Sequence[Tensor], hops: int, normalization: str) -> ExchangedGraph:
    """The graph with the rows that its parties received (M_k, d + 1), of `needed_rows`; the last column is the degree, or 0.

    A row of an own node that is none is the party's share of it; a neighbor elsewhere without a row is left out.
    """
    device, graph = graph.device, graph.host
    borders = _known(graph, received)
    needed, nodes = needed_rows_or_none(graph, received, hops), graph.num_nodes
    degree, edges, every = _degrees(graph, borders), graph.edge_index.numpy(), np.arange(graph.num_nodes)
    half = degree**-0.5
    scale = half if normalization == SUM else np.ones_like(half)
    source, target = np.concatenate([edges[0], every]), np.concatenate([edges[1], every])
    weight = np.concatenate([_weights(graph), np.ones(nodes)])
    local = sp.csr_array((weight * scale[source] * scale[target], (target, source)), shape=(nodes, nodes)) @ _sparse(graph)
    rows = _Rows.of(graph, received, needed)
    theirs = rows.sums * (rows.degree**-0.5 if normalization == SUM else np.ones(len(rows.degree)))[:, None]
    index, read, own = rows.placed(graph, hops)
    x = sp.csr_array(sp.vstack([sp.csr_array(local), sp.csr_array(theirs)], format="csr")[index]).astype(np.float32)
    blocks = Blocks(read, device)
    values = torch.from_numpy(x.toarray()).to(device) if isinstance(graph.x, Tensor) else x
    first = FirstHopSums(values, blocks)
    fields = {name: getattr(graph, name) for name in Graph.__dataclass_fields__}
    if hops == 1:
        return ExchangedGraph(**fields, propagations=(first,)).to(device)  # type: ignore[return-value]
    column = own.numpy()
    values_in, pairs = weight * half[source] * half[target], (target, column[source])
    crossing, far = rows.crossing(graph, borders, index)
    into = borders.row.numpy()[crossing]
    values_out = _border_weights(borders)[crossing] * half[into] * rows.degree[index[far] - nodes] ** -0.5
    entries = np.concatenate([pairs[0], into]), np.concatenate([pairs[1], far])
    matrix = sp.csr_array((np.concatenate([values_in, values_out]), entries), shape=(nodes, len(index)))
    matrix.sort_indices()
    second = Across(matrix, own, blocks, Blocks(graph.sizes, device), half)
    return ExchangedGraph(**fields, propagations=(first, second)).to(device)  # type: ignore[return-value]


def needed_rows_or_none(graph: Graph, received: Sequence[Tensor], hops: int) -> list[Tensor]:
    """The numbers of the rows that each party received; none for a party that received nothing."""
    if graph.borders is None:
        return [torch.empty(0, dtype=torch.int64)] * graph.parties
    return [ids if len(rows) else ids[:0] for ids, rows in zip(needed_rows(graph, hops), received, strict=True)]


@dataclass(frozen=True)
class _Rows:
    """The rows that parties received, those of all parties one after the other, without those that are none."""

    sums: Floats  # (M, d)
    degree: Floats  # (M,)
    party: NDArray[np.int64]
    number: NDArray[np.int64]
    at: NDArray[np.int64]  # the row of an own node; −1 for one elsewhere

    @staticmethod
    def of(graph: Graph, received: Sequence[Tensor], needed: Sequence[Tensor]) -> _Rows:
        rows = torch.cat([each.cpu() for each in received]).double().numpy()
        party = np.repeat(np.arange(graph.parties), [len(each) for each in received])
        number = torch.cat(list(needed)).numpy()
        known = rows[:, -1] > 0
        order = graph.ids.argsort()
        position = order[torch.searchsorted(graph.ids[order], torch.from_numpy(number)).clamp(max=graph.num_nodes - 1)].numpy()
        local = (graph.ids.numpy()[position] == number) & (graph.party.numpy()[position] == party)
        at = np.where(local, position, -1)
        return _Rows(rows[known, :-1], rows[known, -1], party[known], number[known], at[known])

    def placed(self, graph: Graph, hops: int) -> tuple[NDArray[np.int64], list[int], Tensor]:
        """Where each row that is read is among [own ‖ received]; how many a party reads; where its own nodes are among them."""
        nodes, base = graph.num_nodes, np.arange(graph.num_nodes)
        mine = np.flatnonzero(self.at >= 0)
        base[self.at[mine]] = nodes + mine
        far = np.flatnonzero(self.at < 0) if hops > 1 else np.empty(0, np.int64)
        owner = np.concatenate([graph.party.numpy(), self.party[far]])
        order = np.argsort(owner, kind="stable")
        position = np.empty(len(order), np.int64)
        position[order] = np.arange(len(order))
        sizes: list[int] = np.bincount(owner, minlength=graph.parties).tolist()
        return np.concatenate([base, nodes + far])[order], sizes, torch.from_numpy(position[:nodes])

    def crossing(self, graph: Graph, borders: Borders, index: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The edges that come from a node whose row was received, and where that row is among those that are read."""
        nodes, owner, other = graph.num_nodes, graph.party[borders.row].numpy(), borders.other.numpy()
        read = np.full(len(self.at) + 1, -1)  # where each received row is among those that are read
        read[index[index >= nodes] - nodes] = np.flatnonzero(index >= nodes)
        far = np.flatnonzero(self.at < 0)
        above = max(other.max(initial=0), self.number.max(initial=0)) + 1
        keys = self.party[far] * above + self.number[far]  # ascending, party by party
        edges = np.flatnonzero(borders.into.numpy())
        wanted = owner[edges] * above + other[edges]
        position = np.minimum(np.searchsorted(keys, wanted), max(len(keys) - 1, 0))
        matches = keys[position] == wanted if len(keys) else np.zeros(len(edges), bool)
        return edges[matches], read[far[position[matches]]]


def _known(graph: Graph, received: Sequence[Tensor]) -> Borders:
    """The borders of the parties that received rows; the others' are as if there were none."""
    borders = _borders(graph)
    taking = torch.tensor([len(rows) > 0 for rows in received])
    kept = taking[graph.party[borders.row]].nonzero()[:, 0]
    weight = None if borders.weight is None else borders.weight[kept]
    return Borders(borders.row[kept], borders.other[kept], borders.into[kept], weight)


def _borders(graph: Graph) -> Borders:
    none = torch.empty(0, dtype=torch.int64)
    return Borders(none, none, none.bool()) if graph.borders is None else graph.borders


def _degrees(graph: Graph, borders: Borders) -> Floats:
    """(N,) the row sums of the whole A + I."""
    into: NDArray[np.bool_] = borders.into.numpy()
    between = np.bincount(borders.row.numpy()[into], _border_weights(borders)[into], minlength=graph.num_nodes)
    within = np.bincount(graph.edge_index[1].numpy(), _weights(graph), minlength=graph.num_nodes)
    return np.asarray(within + between + 1, np.float64)


def _weights(graph: Graph) -> Floats:
    count = graph.edge_index.shape[1]
    return np.ones(count) if graph.edge_weight is None else graph.edge_weight.numpy().astype(np.float64)


def _border_weights(borders: Borders) -> Floats:
    return np.ones(len(borders.row)) if borders.weight is None else borders.weight.numpy().astype(np.float64)


def _sparse(graph: Graph) -> sp.csr_array:
    return sp.csr_array(graph.x.numpy()) if isinstance(graph.x, Tensor) else graph.x
