"""Links and their types: both directions of an edge are one link; a graph whose nodes stand once for every type of link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph, stack
from atoll.graphs.sparse import SparseMatrix

LINKS_AT_A_TIME = 4096  # represented together: this many fit in the cache
KEPT_WITHOUT_EDGES = ("sizes", "blocks", "features", "party")  # what of a graph does not depend on its edges


class Links:
    """The links of P parties, party after party."""

    def __init__(self, graph: Graph) -> None:
        low, high = graph.edge_index.min(0).values, graph.edge_index.max(0).values
        pairs, self.of_edge = (low * graph.num_nodes + high).unique(return_inverse=True)  # type: ignore[no-untyped-call]  # (L,), (E,)
        self.ends = torch.stack([pairs // graph.num_nodes, pairs % graph.num_nodes])  # (2, L)
        self.party = graph.party[self.ends[0]]
        self.blocks = Blocks(torch.bincount(self.party, minlength=graph.parties).tolist())

    def represent(self, nodes: Tensor) -> Tensor:
        """(N, h) → (L, 2·h): [a + b ‖ |a − b|] of a link's ends as a unit vector; its length is √(2·(‖a‖² + ‖b‖²))."""
        width = nodes.shape[1]
        squares = nodes.square().sum(1)[self.ends].sum(0)
        scale = (2 * squares).sqrt_().clamp_(min=1e-12).reciprocal_()[:, None]
        links = nodes.new_empty(len(scale), 2 * width)
        for start in range(0, len(scale), LINKS_AT_A_TIME):
            rows = slice(start, start + LINKS_AT_A_TIME)
            one, other = (nodes.index_select(0, end[rows]) for end in self.ends)
            torch.sub(one, other, out=links[rows, width:]).abs_()
            torch.add(one, other, out=links[rows, :width])
            links[rows] *= scale[rows]
        return links

    def sample(self, links: Tensor, uniform: Tensor) -> Tensor:
        """(P, K, r): K links of each party, chosen by uniform numbers (P, K); zeros for a party without links."""
        sizes = torch.tensor(self.blocks.sizes)
        starts = F.pad(sizes.cumsum(0)[:-1], (1, 0))
        selected = (uniform * sizes[:, None]).long() + starts[:, None]
        if not len(links):
            return torch.zeros(*selected.shape, links.shape[1])
        return links[selected.clamp(max=len(links) - 1)] * (sizes > 0)[:, None, None]

    def nearest(self, links: Tensor, centers: Tensor) -> Tensor:
        """(L,): of each link the type whose center, among its party's (P, K, r), has the greatest cosine."""
        return self.blocks.product(links, F.normalize(centers, dim=2).transpose(1, 2)).argmax(1)

    def means(self, links: Tensor, types: Tensor, centers: Tensor) -> Tensor:
        """(P, K, r): the mean of every party's links of each type; the center stays where a type has none."""
        parties, count, width = centers.shape
        sums = torch.zeros(parties * count, width).index_add_(0, self.party * count + types, links)
        sizes = self.count(types, count)[:, :, None]
        return torch.where(sizes > 0, sums.view(parties, count, width) / sizes.clamp(min=1), centers)

    def count(self, types: Tensor, count: int) -> Tensor:
        """(P, K) links of each type."""
        parties = len(self.blocks.sizes)
        return torch.bincount(self.party * count + types, minlength=parties * count).view(parties, count)


class TypedCopies:
    """The nodes of a graph once for every type of link: P·K blocks, a party's types one after the other."""

    def __init__(self, graph: Graph, types: int) -> None:
        self.graph, self.links = graph, Links(graph)
        self.copies = stack([graph.select([p]) for p in range(graph.parties) for _ in range(types)])
        self.unlinked = _rewired(self.copies, torch.zeros(2, 0, dtype=torch.int64), None)
        start, size = graph.ptr[graph.party], graph.ptr.diff()[graph.party]
        offsets = torch.arange(types)[:, None] * size + torch.arange(graph.num_nodes) - start
        self.copy_of = types * start + offsets  # (K, N): the row of each node's copy for each type
        self.total = _summing(self.copy_of)  # (N, N·K): adds up a node's copies
        self.last: tuple[Tensor, Graph] | None = None  # types seldom change

    def linked(self, types: Tensor) -> Graph:
        """The copies with links (L,) of these types, each among the copies of its type."""
        if self.last is None or not torch.equal(types, self.last[0]):
            edges = self.copy_of[types[self.links.of_edge], self.graph.edge_index]
            self.last = types, _rewired(self.copies, edges, self.graph.edge_weight, symmetric=self.graph.symmetric)
        return self.last[1]


def best_matching(scores: Tensor) -> Tensor:
    """(P, K, K) → (P, K): for each row the column of the one-to-one matching with the greatest sum of scores."""
    return torch.stack([torch.from_numpy(linear_sum_assignment(one.numpy(), maximize=True)[1]) for one in scores])


def _summing(copy_of: Tensor) -> SparseMatrix:
    types, nodes = copy_of.shape
    starts = np.arange(0, types * nodes + 1, types)
    ones = np.ones(types * nodes)
    return SparseMatrix(sp.csr_array((ones, copy_of.t().flatten().numpy(), starts), shape=(nodes, types * nodes)))


def _rewired(graph: Graph, edge_index: Tensor, edge_weight: Tensor | None, *, symmetric: bool = True) -> Graph:
    """The same nodes with other edges."""
    other = replace(graph, edge_index=edge_index, edge_weight=edge_weight)
    other.__dict__.update({name: getattr(graph, name) for name in KEPT_WITHOUT_EDGES})
    other.__dict__["symmetric"] = symmetric
    return other
