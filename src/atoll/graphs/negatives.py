"""Pairs of nodes that are not edges, drawn by rejection: a pair is a code u·n + v with u < v, edges are sorted codes."""

from __future__ import annotations

import torch
from torch import Tensor

EXTRA = 16  # how many more pairs are drawn than a fifth more than are needed


def pair_codes(pairs: Tensor, nodes: int) -> Tensor:
    """(M,) the code of each pair, whichever end is first."""
    return pairs.min(0).values * nodes + pairs.max(0).values


def pairs_of(codes: Tensor, nodes: int) -> Tensor:
    """(2, M) the pairs of these codes, the lower end first."""
    return torch.stack([codes // max(nodes, 1), codes % max(nodes, 1)])


def contained(codes: Tensor, among: Tensor) -> Tensor:
    """(M,) whether each code is one of the sorted codes."""
    if not len(among):
        return torch.zeros(len(codes), dtype=torch.bool)
    return among[torch.searchsorted(among, codes).clamp(max=len(among) - 1)] == codes


class NonEdges:
    """The unordered pairs of distinct nodes 0 … n − 1 that are not edges; `edges` are sorted distinct codes."""

    def __init__(self, nodes: int, edges: Tensor) -> None:
        self.nodes, self.edges = nodes, edges
        self.all_pairs = nodes * (nodes - 1) // 2
        self.count = self.all_pairs - len(edges)

    def draw(self, count: int, source: torch.Generator) -> Tensor:
        """(count,) codes, uniform and independent; none where every pair is an edge."""
        if not self.count or not count:
            return torch.empty(0, dtype=torch.int64)
        if 2 * len(self.edges) > self.all_pairs:
            every = self.enumerated()
            return every[torch.randint(len(every), (count,), generator=source)]
        drawn = [torch.empty(0, dtype=torch.int64)]
        short = count
        while short:
            ends = torch.randint(self.nodes, (2, short + short // 5 + EXTRA), generator=source)
            codes = pair_codes(ends, self.nodes)
            drawn.append(codes[(ends[0] != ends[1]) & ~contained(codes, self.edges)][:short])
            short -= len(drawn[-1])
        return torch.cat(drawn)

    def draw_distinct(self, count: int, source: torch.Generator) -> Tensor:
        """(min(count, all there are),) distinct codes, uniform."""
        if 2 * count > self.count or 2 * len(self.edges) > self.all_pairs:
            every = self.enumerated()
            return every[torch.randperm(len(every), generator=source)[:count]]
        drawn = torch.empty(0, dtype=torch.int64)
        while len(drawn) < count:
            drawn = _in_order(torch.cat([drawn, self.draw(count - len(drawn), source)]))
        return drawn

    def enumerated(self) -> Tensor:
        """All of them, ascending."""
        low, high = torch.triu_indices(self.nodes, self.nodes, 1)
        codes: Tensor = low * self.nodes + high
        return codes[~contained(codes, self.edges)]


def _in_order(codes: Tensor) -> Tensor:
    """The distinct codes in the order in which they first appear."""
    distinct, index = codes.unique(return_inverse=True)  # type: ignore[no-untyped-call]
    first = torch.full((len(distinct),), len(codes)).scatter_reduce_(0, index, torch.arange(len(codes)), "amin")
    kept: Tensor = codes[first.sort().values]
    return kept


def corrupted(pairs: Tensor, nodes: int, edges: Tensor, count: int, source: torch.Generator) -> Tensor:
    """(2, T·count) for each of T edges, `count` pairs with one of its ends (drawn) and another node, that are not edges.

    Where an end has every other node as a neighbor the other end is kept; where both have, the pairs are any that are not edges.
    Nothing where every pair is an edge. Drawn with repetition.
    """
    every = NonEdges(nodes, edges)
    total = pairs.shape[1] * count
    if not every.count or not total:
        return torch.empty(2, 0, dtype=torch.int64)
    degree = torch.bincount(pairs_of(edges, nodes).flatten(), minlength=nodes)
    full = (degree >= nodes - 1)[pairs]  # (2, T)
    side = torch.randint(2, (pairs.shape[1],), generator=source)
    side = torch.where(full.gather(0, side[None])[0], 1 - side, side)
    kept = pairs.gather(0, side[None])[0].repeat_interleave(count)
    hopeless = full.all(0).repeat_interleave(count)
    other = torch.zeros(total, dtype=torch.int64)
    left = (~hopeless).nonzero()[:, 0]
    while len(left):
        other[left] = torch.randint(nodes, (len(left),), generator=source)
        codes = pair_codes(torch.stack([kept[left], other[left]]), nodes)
        left = left[(kept[left] == other[left]) | contained(codes, edges)]
    drawn = torch.stack([kept, other])
    drawn[:, hopeless] = pairs_of(every.draw(int(hopeless.sum()), source), nodes)
    return torch.stack([drawn.min(0).values, drawn.max(0).values])
