"""Nodes whose first layer is the same: those with equal sums of columns over themselves and their neighbors.

A node of a molecule has one of a few labels, and so have its neighbors: of thousands of nodes a few hundred are distinct. A first
layer is computed of these alone, and each node takes its row.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features, Kept
from atoll.graphs.sparse import multiply

if TYPE_CHECKING:
    from atoll.graphs.graph import Graph

MAX_VALUES = 16  # stored values in a row; with more, rows are hardly ever the same, and finding out takes memory
MAX_SHARE = 0.5  # of the nodes that may be distinct
MAX_TABLE = 1 << 25  # numbers in the distinct rows of all parties


class DistinctRows:
    """The distinct rows of [(A + I)·X ‖ row sums of A + I], party by party, and which of them each node has."""

    def __init__(self, table: Tensor, party: Tensor, parties: int, kind: Tensor) -> None:
        self.table, self.party, self.parties, self.kind = table, party, parties, kind

    @cached_property
    def blocks(self) -> Blocks:
        """How the distinct rows are divided into parties."""
        return Blocks(torch.bincount(self.party, minlength=self.parties).tolist())

    @cached_property
    def features(self) -> Features:
        """(K, d + 1) the distinct rows."""
        return Features(self.table, self.blocks)

    @property
    def short(self) -> type[np.uint16 | np.int64]:
        """The type of numbers that count the distinct rows."""
        return np.uint16 if len(self.party) <= np.iinfo(np.uint16).max else np.int64

    @cached_property
    def nodes(self) -> Tensor:
        """(K, N) ones where a node has a row, CSR."""
        order = torch.from_numpy(
            np.argsort(self.kind.numpy().astype(self.short), kind="stable")
        )  # 16 bits are sorted by counting
        pointer = torch.nn.functional.pad(torch.bincount(self.kind, minlength=len(self.party)).cumsum(0), (1, 0))
        size = (len(self.party), len(self.kind))
        return torch.sparse_csr_tensor(pointer.int(), order.int(), torch.ones(size[1]), size=size, check_invariants=False)

    def take(self, nodes: Tensor) -> DistinctRows:
        """The rows that some of the nodes have."""
        kind = self.kind[nodes]
        present = torch.zeros(len(self.party), dtype=torch.bool)
        present[kind] = True
        rows = present.nonzero()[:, 0]
        position = present.cumsum(0).sub_(1)
        return DistinctRows(self.table.index_select(0, rows), self.party[rows], self.parties, position[kind])

    def to_nodes(self, rows: Tensor, kept: Kept | None = None) -> Tensor:
        """(K, h) → (N, h): every node's row, after dropout."""
        result: Tensor = _ToNodes.apply(rows, self, kept)  # type: ignore[no-untyped-call]
        return result


class _ToNodes(torch.autograd.Function):
    """Rows, none below zero, to the nodes that have them, and sums over these nodes on the way back.

    What is positive afterwards was so before and was kept, so that the gradient needs nothing else.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, distinct: DistinctRows, kept: Kept | None) -> Tensor:
        ctx.constants = distinct, 1.0 if kept is None else kept.scale
        result = rows.index_select(0, distinct.kind)
        if kept is not None:
            kept.drop_(result)
        ctx.save_for_backward(result)
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        distinct, scale = ctx.constants
        (result,) = ctx.saved_tensors
        gradient = torch.ops.aten.threshold_backward(gradients[0], result, 0)
        return multiply(distinct.nodes, gradient if scale == 1.0 else gradient.mul_(scale)), None, None


def distinct_rows(graph: Graph) -> DistinctRows | None:
    """Of all nodes of a graph; None where too many are distinct."""
    looped = graph.summed_adjacency.forward
    matrix = sp.csr_array(
        (looped.values().numpy(), looped.col_indices().numpy(), looped.crow_indices().numpy()), shape=looped.shape
    )
    summed = sp.csr_array(matrix @ graph.nonzero_features)
    summed.sort_indices()
    counts = np.diff(summed.indptr)
    if not len(counts) or (most := int(counts.max())) > MAX_VALUES:
        return None
    degree = matrix.sum(1).astype(np.float32)
    party = graph.party.numpy()
    keys = np.zeros((len(counts), 2 + 2 * most), np.int32)  # party, row sum, columns + 1, values: bit patterns
    keys[:, 0], keys[:, 1] = party, degree.view(np.int32)
    row = np.repeat(np.arange(len(counts)), counts)
    column = np.arange(summed.nnz) - np.repeat(summed.indptr[:-1], counts)
    keys[row, 2 + column] = summed.indices + 1
    keys[row, 2 + most + column] = summed.data.astype(np.float32).view(np.int32)
    _, first, kind = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    if len(first) > MAX_SHARE * len(counts) or len(first) * (summed.shape[1] + 1) > MAX_TABLE:
        return None
    table = np.concatenate([summed[first].toarray(), degree[first, None]], axis=1, dtype=np.float32)
    rows = torch.from_numpy(party[first]), graph.parties, torch.from_numpy(kind.reshape(-1))
    return DistinctRows(torch.from_numpy(table), *rows)
