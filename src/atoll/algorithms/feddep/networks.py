"""FedDEP's networks: GraphSAGE with generated embeddings beside the neighbors, the encoder of nodes, and the generator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.algorithms.feddep.settings import Settings
from atoll.algorithms.fedsage.generator import FeatureGenerator, Generated, loss_elsewhere
from atoll.algorithms.fedsage.targets import Hidden, nearest
from atoll.federation.cohort import Schema
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.hops import Hop
from atoll.graphs.masks import node_weights
from atoll.graphs.sparse import multiply, stored
from atoll.models.backbone import ModelShape, normalized
from atoll.models.layers import Dense, SAGELayer
from atoll.models.sage import GraphSAGE
from atoll.random import Draws
from atoll.tasks import Task


class MendedSAGE(GraphSAGE):
    """GraphSAGE whose layers also map the mean of a node's generated embeddings: H⁺ = relu(D⁻¹A·H·W + H·V + G·U + b).

    Attributes:
        given: (N, z) G, of all nodes of the graph that the next pass is on; zeros for a node without any.
    """

    given: Tensor | None = None

    def __init__(self, shape: ModelShape, draws: Draws | None = None, settings: Any = None, *, width: int = 0) -> None:
        self.width = width  # z; 0 for GraphSAGE itself
        super().__init__(shape, draws, settings)

    def make(self, fan_in: int, fan_out: int, draws: Draws | None) -> nn.Module:
        """W, b, V and U."""
        layer = super().make(fan_in, fan_out, draws)
        if self.width:
            layer.generated = Dense(self.shape.parties, self.width, fan_out, draws, bias=False)
        return layer

    def layer(self, index: int, x: Features | Tensor, graph: Hop, draws: Draws | None) -> Tensor:
        """Activated between layers."""
        layer = self.layers[index]
        out: Tensor = layer(x, graph)
        if self.width and self.given is not None:
            rows = self.given if isinstance(graph, Graph) and not hasattr(graph, "index") else self.given[graph.index]  # type: ignore[attr-defined]
            out = out + layer.generated(graph.targets(rows), graph.out_blocks)  # type: ignore[operator]
        return normalized(layer, out, graph, draws).relu() if index < self.last else out


def network(settings: Settings, schema: Schema, parties: int, draws: Draws | None) -> MendedSAGE:
    """The parties' network, made on the CPU."""
    sizes = (parties, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    shape = ModelShape(*sizes, settings.dropout, settings.input_dropout, settings.bias, settings.norm)
    return MendedSAGE(shape, draws, width=settings.embedding_width if settings.generated_neighbors else 0)


class NodeEncoder(nn.Module):
    """Two GraphSAGE layers, the second through tanh: a node's embedding; a linear classifier on it; P = 1."""

    def __init__(self, settings: Settings, schema: Schema, draws: Draws) -> None:
        super().__init__()
        widths = schema.features, settings.encoder_hidden, settings.embedding_width
        self.first, self.second = (SAGELayer(1, *pair, draws) for pair in (widths[:2], widths[1:]))
        self.classifier = Dense(1, settings.embedding_width, schema.classes, draws)

    def embed(self, graph: Graph) -> Tensor:
        """(N, z)."""
        rows: Tensor = self.second(self.first(graph.features, graph).relu(), graph).tanh()
        return rows

    def forward(self, graph: Graph) -> Tensor:
        """(N, C) logits."""
        out: Tensor = self.classifier(self.embed(graph), graph.blocks)
        return out


class EmbeddingGenerator(nn.Module):
    """An encoder, dGen for the number of neighbors, fGen for their embeddings, and a classifier with them beside; P = 1."""

    def __init__(self, settings: Settings, schema: Schema, draws: Draws) -> None:
        super().__init__()
        self.settings = settings
        hidden, latent, width = settings.generator_hidden, settings.generator_latent, settings.embedding_width
        self.encoder = nn.ModuleList([SAGELayer(1, schema.features, hidden, draws), SAGELayer(1, hidden, latent, draws)])
        self.count = Dense(1, latent, 1, draws)
        self.features = FeatureGenerator(settings, replace(schema, features=width), draws)  # type: ignore[arg-type]
        shape = ModelShape(1, schema.features, schema.classes, hidden, 2, settings.generator_dropout)
        self.classifier = MendedSAGE(shape, draws, width=width)

    def encode(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, latent)."""
        rows = self.encoder[0](graph.features, graph).relu()
        if draws is not None and self.settings.generator_dropout:
            rows = rows * draws.keep(1 - self.settings.generator_dropout, [len(rows)], rows.shape[1])
        latents: Tensor = self.encoder[1](rows, graph).relu()
        return latents

    def numbers(self, latents: Tensor) -> Tensor:
        """(N,) m̂."""
        out: Tensor = self.count(latents, Blocks([len(latents)], latents.device), relu=True)
        return out[:, 0]

    def make(self, latents: Tensor, numbers: Tensor, noise: Tensor, draws: Draws | None = None) -> Generated:
        """Embeddings of the neighbors of each node: m̂ of them as a whole number, at most `generated_neighbors`."""
        numbers = numbers.detach()
        rounded = numbers.round() if self.settings.rounding == "round" else numbers.floor()
        counts = rounded.long().clamp(0, self.settings.generated_neighbors)
        rows = counts.nonzero()[:, 0]
        return Generated(counts, self.features(latents[rows] + noise[rows], draws))

    def classify(self, graph: Graph, made: Generated, draws: Draws | None = None) -> Tensor:
        """(N, C) logits of the real nodes, with the mean of their generated embeddings beside."""
        sums = made.features.new_zeros(len(made.counts), made.features.shape[1]).index_add(0, made.owner, made.features)
        self.classifier.given = sums / made.counts.clamp(min=1)[:, None]
        logits: Tensor = self.classifier(graph, draws)
        return logits


def generator_loss(
    net: EmbeddingGenerator, hidden: Hidden, targets: Tensor, others: Tensor, noise: Tensor, task: Task, draws: Draws
) -> Tensor:
    """β₁·smoothL1(m̂, m) + β₂·(L_own + L_others) + β₃·CE, over the party's training nodes.

    L_own: each generated embedding from the nearest of the `targets` (E, z) of its node's hidden neighbors. L_others: from the
    nearest of the other parties' prototypes (Q, z).
    """
    s, graph = net.settings, hidden.graph
    latents = net.encode(graph, draws)
    numbers = net.numbers(latents)
    made = net.make(latents, numbers, noise, draws)
    off = F.smooth_l1_loss(numbers, hidden.counts.float(), reduction="none") @ node_weights(graph, "train")
    loss = s.count_weight * off + s.label_weight * task.loss(net.classify(graph, made, draws), graph)
    trains = graph.train[made.owner]
    vectors = made.features[trains]
    rows, best = nearest(vectors, made.owner[trains], hidden.edges, targets)
    if len(rows):
        loss = loss + s.prototype_weight * (vectors[rows] - targets[best]).square().mean()
    if len(vectors) and len(others):
        loss = loss + s.prototype_weight * loss_elsewhere(vectors, others)
    return loss


def mean_embeddings(counts: Tensor, rows: Tensor, kept: Tensor | None = None) -> Tensor:
    """(N, z) the mean of each node's generated embeddings (M, z), those of the first node first; of those `kept` (M,) alone."""
    weights = rows.new_ones(len(rows)) if kept is None else kept.to(rows.dtype)
    owner = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts, output_size=len(rows))
    present = weights.new_zeros(len(counts)).index_add(0, owner, weights)
    values = weights / present.clamp(min=1).index_select(0, owner)
    starts = F.pad(counts.cumsum(0, dtype=torch.int32), (1, 0))
    columns = torch.arange(len(rows), dtype=torch.int32, device=rows.device)
    return multiply(stored(starts, columns, values, (len(counts), len(rows))), rows)
