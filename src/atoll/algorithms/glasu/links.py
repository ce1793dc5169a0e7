"""Link prediction between nodes that all parties hold: the label holder's edges are predicted, and it alone knows the pairs.

S[L] are the ends of the pairs that the label holder drew: training edges of its own, and as many pairs that are not. Only it
has a loss (Algorithms 5 to 7). The others learn the ends, not which of them make a pair; half of the pairs are not edges.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from atoll.algorithms.glasu.forward import ForwardPass
from atoll.algorithms.glasu.sampling import Sampler
from atoll.graphs.graph import Graph
from atoll.random import Draws
from atoll.tasks.link_prediction import drawn_batch, party_pairs


class PairSampler(Sampler):
    """The random choices of a round: of pairs, and of the nodes below their ends."""

    @cached_property
    def pairs(self) -> Graph:
        """The round's pairs: `batch_size` training edges of each party that has some (0: all), and as many that are no edges."""
        draws = Draws(self.seed, self.parties, "pairs", self.round, device=self.graph.device)
        size, edges = self.settings.batch_size, party_pairs(self.graph)
        if size:
            orders = draws.orders([own.shape[1] for own in edges])
            edges = [own[:, order.cpu()[:size]] for own, order in zip(edges, orders, strict=True)]
        return drawn_batch(self.graph, edges, draws)

    def top(self) -> Tensor:
        """S[L]: the ends of the label holder's pairs; the same rows at every party, so only the holder's cohort can tell."""
        pairs = self.pairs.pairs
        assert pairs is not None
        ends: Tensor = (pairs % self.graph.sizes[0]).unique()  # type: ignore[no-untyped-call]
        return ends


class PairForwardPass(ForwardPass):
    """The forward pass whose items are pairs of nodes."""

    sampler: PairSampler

    def loss(self, top: Tensor) -> Tensor:
        """The mean over the round's pairs of the label holder; 0 of parties that have none."""
        drawn, layers = self.sampler.pairs, self.settings.layers
        assert drawn.pairs is not None
        batch = self.batch()
        index = torch.searchsorted(batch.level(layers).index, drawn.pairs)
        logits = self.model.score_pairs(top, index, drawn.items, batch, self._dropout(layers))
        loss: Tensor = self.task.loss(logits, drawn)
        return loss

    def logits(self, graph: Graph) -> Tensor:
        """(M, 2) of the graph's pairs: all, or those that are judged."""
        assert graph.pairs is not None
        return self.model.score_pairs(self.run(), graph.pairs, graph.items, self.batch(), None)
