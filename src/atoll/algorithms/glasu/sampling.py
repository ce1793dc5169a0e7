"""Algorithm 2 at the parties: which nodes each level of a batch holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.algorithms.glasu.settings import SplitTraining, sampled
from atoll.graphs.graph import Graph
from atoll.graphs.sampling import Batch, Level, below
from atoll.parties import Parties
from atoll.random import Draws, generator


@dataclass(frozen=True)
class Sampler:
    """The random choices of a cohort in one round, or in one evaluation."""

    graph: Graph
    targets: Tensor  # labels of the training nodes; −1 elsewhere
    settings: SplitTraining
    seed: int
    parties: Parties
    round: int
    training: bool

    def top(self) -> Tensor:
        """S[L]: training nodes drawn uniformly, the same at every party; in a sampled evaluation the nodes that are judged."""
        size = self.graph.sizes[0]
        if not self.training:
            return (self.graph.val | self.graph.test)[:size].nonzero()[:, 0]
        candidates = (self.targets >= 0).view(-1, size).any(0).nonzero()[:, 0]
        order = torch.randperm(len(candidates), generator=generator(self.seed, "batch", self.round)).to(candidates.device)
        return candidates[order[: self.settings.batch_size]]

    def batch(self, nodes: Tensor | None, *, edges: bool) -> Batch:
        """A batch of which S[L] is known: `nodes` (P, n) as the server sent them, or drawn. Without edges all levels are S[L]."""
        layers = self.settings.layers
        if not sampled(self.settings, self.training):
            return Batch.everything(self.graph, layers)
        drawn = self.top().expand(len(self.parties), -1) if nodes is None else nodes
        top = Level.from_nodes(self.graph, list(drawn.cpu()))
        return Batch.of(self.graph, layers, top) if edges else Batch(self.graph, [top] * (layers + 1))

    def draw(self, batch: Batch, level: int) -> Level:
        """S_m[l] from the neighbors of S_m[l + 1] (line 6)."""
        draws = Draws(self.seed, self.parties, "sample", self.round, int(self.training), level)
        return below(self.graph, batch.level(level + 1), self.settings.fan_out, draws.generators)

    def fill(self, batch: Batch, lowest: int, united: Callable[[int], Tensor | None]) -> None:
        """The levels down to `lowest` (lines 3-7): united ones as the server sent them, the others drawn."""
        for level in reversed(range(lowest, self.settings.layers)):
            if batch.levels[level] is None:
                nodes = united(level)
                batch.levels[level] = (
                    self.draw(batch, level) if nodes is None else Level.from_nodes(self.graph, list(nodes.cpu()))
                )
