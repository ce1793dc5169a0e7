"""Links and their types: both directions of an edge are one link; a graph whose nodes stand once for every type of link."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from atoll.device import precise
from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph, stack
from atoll.graphs.segments import occurrences
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
        self.blocks = Blocks(torch.bincount(self.party, minlength=graph.parties).tolist(), graph.device)

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
        sizes = torch.tensor(self.blocks.sizes).to(links.device)
        starts = F.pad(sizes.cumsum(0)[:-1], (1, 0))
        selected = (uniform * sizes[:, None]).long() + starts[:, None]
        if not len(links):
            return links.new_zeros(*selected.shape, links.shape[1])
        return links[selected.clamp(max=len(links) - 1)] * (sizes > 0)[:, None, None]

    def nearest(self, links: Tensor, centers: Tensor) -> Tensor:
        """(L,): of each link the type whose center, among its party's (P, K, r), has the greatest cosine."""
        return self.blocks.product(links, F.normalize(centers, dim=2).transpose(1, 2)).argmax(1)

    def means(self, links: Tensor, types: Tensor, centers: Tensor) -> Tensor:
        """(P, K, r): the mean of every party's links of each type; the center stays where a type has none."""
        parties, count, width = centers.shape
        sums = centers.new_zeros(parties * count, width).index_add_(0, self.party * count + types, links)
        sizes = self.count(types, count)[:, :, None]
        return torch.where(sizes > 0, sums.view(parties, count, width) / sizes.clamp(min=1), centers)

    def count(self, types: Tensor, count: int) -> Tensor:
        """(P, K) links of each type."""
        parties = len(self.blocks.sizes)
        return occurrences(self.party * count + types, parties * count).view(parties, count)


class LinkEnds(Links):
    """Links represented by [a ‖ b], the representations of the end with the lower and the end with the higher row.

    The representations (L, 2·h) are never formed: cosines, distances and means follow from those of the nodes.
    """

    def __init__(self, graph: Graph) -> None:
        super().__init__(graph)
        self.nodes = graph.blocks

    def first_centers(self, nodes: Tensor, uniform: Tensor) -> Tensor:
        """(P, K, 2·h): K links of each party by k-means++, chosen by uniform numbers (P, K); zeros for a party without links.

        The first is any link; each further one has a probability proportional to its squared distance from the nearest before.
        """
        ends = self.ends.t()
        nearest = precise(nodes.new_full((self.ends.shape[1],), torch.inf))
        centers = nodes.new_zeros(*uniform.shape, 2, nodes.shape[1])
        for k in range(uniform.shape[1]):
            chance = torch.ones_like(nearest) if k == 0 else nearest
            for p, (start, end) in enumerate(self.blocks.ranges):
                if start < end:
                    heights = chance[start:end].cumsum(0)
                    index = int(torch.searchsorted(heights, precise(uniform[p, k]) * heights[-1], right=True))
                    centers[p, k] = nodes[ends[start + min(index, end - start - 1)]]
            both = [(nodes - self.nodes.broadcast(centers[:, k, side])).square().sum(1)[self.ends[side]] for side in (0, 1)]
            nearest = torch.minimum(nearest, precise(both[0] + both[1]))
        return centers.flatten(2)

    def nearest(self, nodes: Tensor, centers: Tensor) -> Tensor:
        """(L,): of each link the type whose center, among its party's (P, K, 2·h), has the greatest cosine."""
        low, high = F.normalize(centers, dim=2).transpose(1, 2).chunk(2, 1)  # (P, h, K) each
        scores = self.nodes.product(nodes, low)[self.ends[0]] + self.nodes.product(nodes, high)[self.ends[1]]
        return scores.argmax(1)

    def means(self, nodes: Tensor, types: Tensor, centers: Tensor) -> Tensor:
        """(P, K, 2·h): the mean of every party's links of each type; the center stays where a type has none."""
        count = centers.shape[1]
        cells = [occurrences(end * count + types, len(nodes) * count) for end in self.ends]
        sums = [self.nodes.gram(ends.view(-1, count).to(nodes.dtype), nodes) for ends in cells]
        sizes = self.count(types, count)[:, :, None]
        return torch.where(sizes > 0, torch.cat(sums, 2) / sizes.clamp(min=1), centers)


class TypedCopies:
    """The nodes of a graph once for every type of link: P·K blocks, a party's types one after the other."""

    def __init__(self, graph: Graph, types: int) -> None:
        self.graph, self.links = graph, Links(graph)
        self.copies = stack([graph.select([p]) for p in range(graph.parties) for _ in range(types)])
        self.unlinked = _rewired(self.copies, graph.edge_index[:, :0], None)
        start, size = graph.ptr[graph.party], graph.ptr.diff()[graph.party]
        types_, nodes = torch.arange(types, device=graph.device), torch.arange(graph.num_nodes, device=graph.device)
        offsets = types_[:, None] * size + nodes - start
        self.copy_of = types * start + offsets  # (K, N): the row of each node's copy for each type
        self.node_of = torch.empty(types * graph.num_nodes, dtype=torch.int64, device=graph.device)  # the inverse
        self.node_of[self.copy_of] = nodes
        summing = _summing(self.copy_of)
        self.total = SparseMatrix(summing, device=graph.device)  # (N, N·K): adds up a node's copies
        self.each = SparseMatrix(sp.csr_array(summing.T), device=graph.device)  # (N·K, N): gives every copy what the node has
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


def greedy_matching(scores: Tensor) -> Tensor:
    """(P, K, K) → (P, K): for each row its column: the greatest score first, then the greatest of the other rows and columns."""
    left, parties = scores.clone(), torch.arange(len(scores))
    matched = torch.zeros(scores.shape[:2], dtype=torch.int64)
    for _ in range(scores.shape[1]):
        best = left.flatten(1).argmax(1)
        row, column = best // scores.shape[1], best % scores.shape[1]
        matched[parties, row] = column
        left[parties, row] = -torch.inf
        left[parties, :, column] = -torch.inf
    return matched


def touched(graph: Graph) -> Tensor:
    """(N,) whether a node has an edge; kept with the graph."""
    if "touched" not in graph.derived:
        linked = torch.zeros(graph.num_nodes, dtype=torch.bool, device=graph.device)
        linked[graph.edge_index.flatten()] = True
        graph.derived["touched"] = linked
    return graph.derived["touched"]


def _summing(copy_of: Tensor) -> sp.csr_array:
    types, nodes = copy_of.shape
    starts = np.arange(0, types * nodes + 1, types)
    ones = np.ones(types * nodes)
    return sp.csr_array((ones, copy_of.t().flatten().cpu().numpy(), starts), shape=(nodes, types * nodes))


def _rewired(graph: Graph, edge_index: Tensor, edge_weight: Tensor | None, *, symmetric: bool = True) -> Graph:
    """The same nodes with other edges."""
    other = replace(graph, edge_index=edge_index, edge_weight=edge_weight)
    other.__dict__.update({name: getattr(graph, name) for name in KEPT_WITHOUT_EDGES})
    other.__dict__["symmetric"] = symmetric
    return other
