"""The forward pass of a cohort in one round: layer by layer, with the others' representations as the server last sent them."""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.algorithms.glasu.inbox import Inbox
from atoll.algorithms.glasu.sampling import Sampler
from atoll.algorithms.glasu.settings import Settings, shared
from atoll.graphs.blocks import broadcast_to_rows
from atoll.graphs.graph import Graph
from atoll.graphs.sampling import Batch, Level
from atoll.models.split import SplitModel
from atoll.random import Draws
from atoll.tasks.task import ClassTask


class ForwardPass:
    """How far a cohort has computed on this round's batch; follows from its memory and can be computed again."""

    def __init__(
        self, model: SplitModel, inbox: Inbox, sampler: Sampler, settings: Settings, parties: int, task: ClassTask
    ) -> None:
        """`parties`: M, those of all cohorts."""
        self.task = task
        self.model, self.inbox, self.sampler, self.settings, self.parties = model, inbox, sampler, settings, parties
        self.shared = shared(settings)  # 𝓘
        self.partial = sampler.batch(inbox.stored("nodes", settings.layers), edges=model.edges)
        self.step = 0  # q
        self.hidden: list[Tensor] = []  # H_m[0], H_m[1], …
        self.local: dict[int, Tensor] = {}  # H⁺_m[l]
        self.others: dict[int, Tensor] = {}  # H_−m[l + 1], l ∈ 𝓘

    def next_step(self) -> None:
        """Begin the next step q on the same batch."""
        self.step, self.hidden, self.local = self.step + 1, [], {}

    def batch(self, lowest: int = 0) -> Batch:
        """The batch with its levels down to `lowest` (Algorithm 2)."""
        self.sampler.fill(self.partial, lowest, lambda level: self.inbox.stored("nodes", level))
        return self.partial

    def draw(self, level: int) -> Level:
        """S_m[level], from the level above."""
        return self.sampler.draw(self.batch(level + 1), level)

    def run(self, target: int | None = None) -> Tensor:
        """Algorithm 4, lines 2-10, continued from the last computed layer to H⁺_m[target], or to H_m[L]."""
        batch, model, layers = self.batch(), self.model, self.settings.layers
        if not self.hidden:
            self.hidden.append(model.encode(batch))
        for layer in range(len(self.hidden) - 1, layers):
            if layer not in self.local:
                self.local[layer] = model.layer(layer, self.hidden, batch, self._dropout(layer))
            local = self.local[layer]
            if layer == target:
                return local
            self.hidden.append(model.merge(layer + 1, self._aggregate(layer, local) if layer in self.shared else local, batch))
        return self.hidden[layers]

    def local_output(self, layer: int) -> Tensor:
        """(P, n, h) H⁺_m[layer]."""
        return self.per_party(self.run(layer))

    def _aggregate(self, layer: int, local: Tensor) -> Tensor:
        """H_m[l + 1] = Agg(H_−m[l + 1], H⁺_m[l]); in evaluation, and where the server differentiates, as the server sent it."""
        s, aggregate = self.settings, self.inbox.required("aggregate", layer)
        if not self.sampler.training:
            return aggregate.flatten(0, 1)
        if s.backward == "server":
            self.others[layer] = aggregate.flatten(0, 1).clone().requires_grad_()
            return self.others[layer]
        fresh, width = self.per_party(local), s.hidden
        if s.aggregation == "concatenation":
            rows = zip(aggregate, fresh, self.sampler.parties, strict=True)
            return torch.cat([torch.cat([x[:, : p * width], h, x[:, (p + 1) * width :]], 1) for x, h, p in rows])
        share = fresh / self.parties
        if layer not in self.others:
            self.others[layer] = aggregate - share.detach()  # Extract
        return (self.others[layer] + share).flatten(0, 1)

    def _dropout(self, layer: int) -> Draws | None:
        """Fresh masks for every step and layer; the first step's are those of the joint inference, which it continues."""
        sampler = self.sampler
        if not sampler.training or not self.settings.dropout:
            return None
        words = ("dropout", sampler.round, self.step, layer)
        return Draws(sampler.seed, sampler.parties, *words, device=sampler.graph.device)

    def loss(self, top: Tensor) -> Tensor:
        """Algorithm 4, line 11: Σ_m mean over S[L] of ℓ(y, f_m(H_m[L])), over the parties that hold labels."""
        return self.node_losses(top).sum()

    def node_losses(self, top: Tensor) -> Tensor:
        """(P·n,) the summands: ℓ / |S[L]| of every node at every party."""
        batch, layers = self.batch(), self.settings.layers
        y = self.sampler.targets[batch.level(layers).index]
        losses = self.task.item_losses(self.model.classify(top, batch, self._dropout(layers)), y)
        counts = batch.blocks(layers).sum((y >= 0).float()).clamp(min=1)
        return losses / broadcast_to_rows(counts, batch.blocks(layers))

    def through(self, layer: int) -> Tensor:
        """⟨∇, H⁺_m[l]⟩: its gradient is the part of the loss's that passes through this layer."""
        return (self.inbox.required("share", layer) * self.per_party(self.local[layer])).sum()

    def logits(self, graph: Graph) -> Tensor:
        """(P·N, C) for all nodes of a graph like the sampler's; NaN for those that are not in the batch."""
        logits = self.model.classify(self.run(), self.batch(), None)
        nodes = graph.num_nodes
        if len(logits) == nodes:
            return logits
        rows = self.batch().level(self.settings.layers).index
        return logits.new_full((nodes, logits.shape[1]), torch.nan).index_copy_(0, rows, logits)

    def per_party(self, rows: Tensor) -> Tensor:
        """(P·n, h) → (P, n, h)."""
        return rows.view(len(self.sampler.parties), -1, rows.shape[1])
