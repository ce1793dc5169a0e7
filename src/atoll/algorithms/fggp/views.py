"""FGGP's second view of a party's graph: its edges and those to the nearest nodes, sampled in every step."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.graphs.graph import Graph
from atoll.graphs.knn import entries_per_row, exact_search
from atoll.graphs.learned import reweighted
from atoll.graphs.negatives import NonEdges, pair_codes, pairs_of
from atoll.random import Draws

EPSILON = 1e-6  # uniform numbers are kept that far from 0 and 1, whose logits are infinite


def nearest_nodes(graph: Graph, rows: Tensor, count: int) -> Tensor:
    """(N, count) the nearest other nodes of the same party by cosine, as indices there; −1 where there are fewer.

    Similarities are computed in blocks: N² in total, never all at once.
    """
    unit, found = F.normalize(rows, dim=1), torch.full((graph.num_nodes, count), -1, device=graph.device)
    for first, last in graph.blocks.ranges:
        width = entries_per_row(count, last - first, itself=False)
        found[first:last, :width] = exact_search(unit[first:last], width, itself=False)[1].long()
    return found


class SecondView:
    """A party's edges and those to the nearest nodes, as pairs; undirected and without weights.

    Attributes:
        graph: The graph with these edges.
        pairs: (2, M) the ends of each pair, once.
    """

    def __init__(self, graph: Graph, neighbors: Tensor) -> None:
        """`neighbors`: what `nearest_nodes` gives."""
        nodes = graph.num_nodes
        source = torch.arange(nodes, device=graph.device)[:, None].expand_as(neighbors)[neighbors >= 0]
        target = (neighbors + graph.ptr[:-1][graph.party][:, None])[neighbors >= 0]
        codes = pair_codes(torch.cat([graph.edge_index, torch.stack([source, target])], 1), nodes).unique()  # type: ignore[no-untyped-call]
        self.pairs = pairs_of(codes, nodes)
        self.graph = replace(graph, edge_index=torch.cat([self.pairs, self.pairs.flip(0)], 1), edge_weight=None)
        self.graph.__dict__["features"] = graph.features
        party = graph.party[self.pairs[0]]
        self.counts: list[int] = torch.bincount(party, minlength=graph.parties).tolist()
        self.share = (1 / torch.bincount(party, minlength=graph.parties).clamp(min=1))[party]  # (M,) 1 / a party's pairs
        local = torch.split((self.pairs - graph.ptr[:-1][party]).cpu(), self.counts, 1)
        self.non_edges = [NonEdges(size, pair_codes(own, size)) for size, own in zip(graph.sizes, local, strict=True)]

    def logits(self, rows: Tensor) -> Tensor:
        """(M,) z_i·z_j."""
        return pair_products(rows, self.pairs)

    def sampled(self, logits: Tensor, temperature: float, draws: Draws, *, learned: bool) -> Graph:
        """The graph with each pair with its probability σ(logit); `learned`: with the gradient of a relaxed sample.

        A relaxed Bernoulli variable is σ((logit + noise) / temperature) with logistic noise (Gumbel softmax of two classes); what
        is propagated over is whether it is above ½.
        """
        drawn = [torch.rand(count, generator=one) for count, one in zip(self.counts, draws.generators, strict=True)]
        uniform = torch.cat(drawn).clamp(EPSILON, 1 - EPSILON).to(logits.device)
        soft = sigmoid((logits + uniform.logit()) / temperature)
        kept = soft > 0.5
        if learned:
            return reweighted(self.graph, (kept + (soft - soft.detach())).repeat(2))
        pairs = self.pairs[:, kept]
        made = replace(self.graph, edge_index=torch.cat([pairs, pairs.flip(0)], 1))
        made.__dict__["features"] = self.graph.features
        return made

    def edge_loss(self, rows: Tensor, logits: Tensor, negatives: int, draws: Draws) -> Tensor:
        """Σ_k ½·mean over pairs of −log σ(z_i·z_j) + ½·mean over non-edges of −log σ(−z_i·z_j).

        That is the cross-entropy of all pairs with weights (N² − m)/m of the edges and N²/(2(N² − m)) of all.
        Deviation: a few drawn pairs stand for all non-edges, so that there are not N² of them; the mean is the same.
        """
        numbers = [count * negatives for count in self.counts]
        codes = [one.draw(n, source) for one, n, source in zip(self.non_edges, numbers, draws.generators, strict=True)]
        others = torch.cat([pairs_of(code, one.nodes) for code, one in zip(codes, self.non_edges, strict=True)], 1)
        found = torch.tensor([len(code) for code in codes])
        party = torch.repeat_interleave(torch.arange(len(codes)), found)
        starts = torch.tensor(self.graph.bounds[:-1])
        unlike = pair_products(rows, (others + starts[party]).to(rows.device))
        share = (1 / found.clamp(min=1))[party].to(rows.device)
        return 0.5 * (softplus(-logits) @ self.share + softplus(unlike) @ share)


def pair_products(rows: Tensor, pairs: Tensor) -> Tensor:
    """(M,) the inner products of the ends of each pair."""
    return (rows.index_select(0, pairs[0]) * rows.index_select(0, pairs[1])).sum(1)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e⁻ˣ). torch rounds a tensor's tail differently in its own, so results would depend on position."""
    return 1 / (1 + (-x).exp())


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ), for the same reason."""
    return x.relu() + (-x.abs()).exp().log1p()
