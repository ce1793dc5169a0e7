"""The neighbor generator of one party: how many neighbors each of its nodes lacks, and their features."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.algorithms.fedsage.settings import Settings
from atoll.algorithms.fedsage.targets import Hidden, nearest
from atoll.federation.cohort import Schema
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.graphs.masks import node_weights
from atoll.models.layers import Dense, SAGELayer
from atoll.random import Draws
from atoll.tasks import Task


class FeatureGenerator(nn.Module):
    """fGen: a noised latent → widths, relu → tanh → the features of several neighbors. It is what other parties are sent."""

    def __init__(self, settings: Settings, schema: Schema, draws: Draws | None) -> None:
        super().__init__()
        self.shape, self.dropout = (settings.generated_neighbors, schema.features), settings.generator_dropout
        widths = [settings.generator_latent, *settings.generator_widths, settings.generated_neighbors * schema.features]
        self.layers = nn.ModuleList(Dense(1, *pair, draws) for pair in pairwise(widths))

    def forward(self, latents: Tensor, draws: Draws | None = None) -> Tensor:
        """(R, z) → (R, neighbors, d); with draws, dropout below the last layer."""
        blocks, rows = Blocks([len(latents)], latents.device), latents
        for layer in self.layers[:-1]:
            rows = layer(rows, blocks, relu=True)
        if draws is not None and self.dropout:
            rows = rows * draws.keep(1 - self.dropout, blocks.sizes, rows.shape[1])
        made: Tensor = self.layers[-1](rows, blocks).tanh()
        return made.view(len(latents), *self.shape)


class Generated:
    """The neighbors that a generator makes for some nodes of a graph.

    Attributes:
        counts: (N,) how many each node gets.
        owner: (M,) the node of each.
        features: (M, d).
    """

    def __init__(self, counts: Tensor, features: Tensor) -> None:
        """`features`: (R, neighbors, d) of the nodes with a positive count."""
        rows = counts.nonzero()[:, 0]
        used = torch.arange(features.shape[1], device=counts.device) < counts[rows, None]
        self.counts, self.owner, self.features = counts, rows[used.nonzero()[:, 0]], features[used]


class NeighborGenerator(nn.Module):
    """An encoder, dGen for the number of neighbors, fGen for their features, and a classifier on the mended graph; P = 1."""

    def __init__(self, settings: Settings, schema: Schema, draws: Draws | None = None) -> None:
        super().__init__()
        self.settings = settings
        hidden, latent = settings.generator_hidden, settings.generator_latent
        self.encoder = nn.ModuleList([SAGELayer(1, schema.features, hidden, draws), SAGELayer(1, hidden, latent, draws)])
        self.count = Dense(1, latent, 1, draws)
        self.features = FeatureGenerator(settings, schema, draws)
        self.classifier = nn.ModuleList(
            [SAGELayer(1, schema.features, hidden, draws), SAGELayer(1, hidden, schema.classes, draws)]
        )

    def encode(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, z) latents."""
        rows = self.dropped(self.encoder[0](graph.features, graph).relu(), draws)
        latents: Tensor = self.encoder[1](rows, graph).relu()
        return latents

    def numbers(self, latents: Tensor) -> Tensor:
        """(N,) m̂."""
        out: Tensor = self.count(latents, Blocks([len(latents)], latents.device), relu=True)
        return out[:, 0]

    def whole(self, numbers: Tensor) -> Tensor:
        """(N,) how many neighbors nodes get: m̂ as a whole number, at most `generated_neighbors`."""
        numbers = numbers.detach()
        rounded = numbers.round() if self.settings.rounding == "round" else numbers.floor()
        return rounded.long().clamp(0, self.settings.generated_neighbors)

    def make(self, latents: Tensor, noise: Tensor, counts: Tensor, draws: Draws | None = None) -> Generated:
        """Neighbors of the nodes with a positive count."""
        rows = counts.nonzero()[:, 0]
        return Generated(counts, self.features(latents[rows] + noise[rows], draws))

    def classify(self, graph: Graph, made: Generated, draws: Draws | None = None) -> Tensor:
        """(N, C) logits of the real nodes on the mended graph, whose generated nodes have one neighbor each."""
        first, second = self.classifier
        own, other = self.layer(first, graph.features, made.features, graph, made)
        own, other = self.dropped(own.relu(), draws), other.relu()
        return self.layer(second, own, other, graph, made)[0]

    def layer(
        self, layer: nn.Module, own: Features | Tensor, other: Tensor, graph: Graph, made: Generated
    ) -> tuple[Tensor, Tensor]:
        """One GraphSAGE layer on the mended graph, of the real nodes and of the generated ones."""
        assert isinstance(layer, SAGELayer)
        blocks = Blocks([len(other)])
        near, fresh = (_times(rows, layer.near.weight, part) for rows, part in ((own, graph.blocks), (other, blocks)))
        degree = torch.bincount(graph.edge_index[1], graph.edge_weight, graph.num_nodes).float()
        sums = (graph.mean_adjacency @ near) * degree[:, None]
        sums = sums.index_add(0, made.owner, fresh) / (degree + made.counts).clamp(min=1)[:, None]
        bias = layer.near.bias
        assert bias is not None
        of_real = sums + bias[0] + _times(own, layer.own.weight, graph.blocks)
        return of_real, near[made.owner] + bias[0] + _times(other, layer.own.weight, blocks)

    def dropped(self, rows: Tensor, draws: Draws | None) -> Tensor:
        """Dropout in training."""
        if draws is None or not self.settings.generator_dropout:
            return rows
        return rows * draws.keep(1 - self.settings.generator_dropout, [len(rows)], rows.shape[1])


def _times(rows: Features | Tensor, weight: Tensor, blocks: Blocks) -> Tensor:
    """X·W."""
    return rows @ weight if isinstance(rows, Features) else rows @ weight[0]


def loss_at_home(net: NeighborGenerator, hidden: Hidden, latents: Tensor, noise: Tensor, task: Task, draws: Draws) -> Tensor:
    """a·smoothL1(m̂, m) + b·L_f + c·CE on the mended graph, over the party's training nodes."""
    s, graph = net.settings, hidden.graph
    numbers = net.numbers(latents)
    made = net.make(latents, noise, net.whole(numbers), draws)
    off = F.smooth_l1_loss(numbers, hidden.counts.float(), reduction="none") @ node_weights(graph, "train")
    labels = task.loss(net.classify(graph, made, draws), graph)
    return s.count_weight * off + s.feature_weight * feature_loss(made, hidden) + s.label_weight * labels


def feature_loss(made: Generated, hidden: Hidden) -> Tensor:
    """L_f: the mean squared difference of each generated vector from the nearest hidden neighbor of its training node."""
    trains = hidden.graph.train[made.owner]
    owner, vectors = made.owner[trains], made.features[trains]
    rows, best = nearest(vectors, owner, hidden.edges, hidden.features)
    return (vectors[rows] - hidden.features[best]).square().mean() if len(rows) else vectors.new_zeros(())


def loss_elsewhere(vectors: Tensor, targets: Tensor) -> Tensor:
    """L_f of another party's generated vectors (M, d): the mean squared difference of each from the nearest of the targets."""
    scores = targets.square().sum(1) - 2 * vectors.detach() @ targets.t()
    return (vectors - targets[scores.argmin(1)]).square().mean()
