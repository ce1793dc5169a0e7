"""FedLit: Xie et al., WWW 2023. Link types are latent: cluster the links, and give each type a branch of one network.

The authors' network: a shared input layer, per type a projection and convolutions without self loops over the links of the type,
the branches' sum, a shared classifier. A link is what the input layer makes of its two ends. `fedlit_deep` is another network.

Payload bytes per round and party, K types, hidden width h, w_S parameters in the shared layers, w_B per branch, r = 2·h numbers
per center: down 4·w_S + 4·K·(w_B + r), up 4·w_S + 4·K·(w_B + r) + 16·K (links of each type, and training nodes that they touch)
+ 8 (training nodes). Once, before the first round: down 4·w_S, up 4·K·r + 8·K.
The server sees *each party's* shared layers, branches, centers of its link types, the number of links of each type, of training
nodes that they touch, and of training nodes: it cannot match sums, which is why its verbs cannot be asked under secure
aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import Fields, Schema, verb
from atoll.federation.declarations import COUNTS, WEIGHT, real, whole
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.links import LinkEnds, greedy_matching
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.neighbors import Ints
from atoll.models import optim
from atoll.models.batching import fan_outs
from atoll.models.parameters import Parameters, get_parameters, scale, weighted
from atoll.models.relational import Branch, BranchedModel, SharedLayers
from atoll.random import SERVER, Draws
from atoll.settings import BatchedTraining, setting

SCENARIOS = ("horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings, mini-batches and the link types; `model` names the convolutions of the branches."""

    link_types: int = setting(2, "Number of latent link types, each with its own branch (K).", low=1, high=1000)
    em_steps: int = setting(1, "E and M steps on the link types per epoch.", low=1, high=10**5)
    initial_em_steps: int = setting(
        10, "E and M steps, after k-means++, with which each party finds its initial link types.", low=0, high=10**5
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")


def shared_layers(settings: Settings, schema: Schema, parties: int, draws: Draws | None) -> SharedLayers:
    """Input layer and classifier."""
    return SharedLayers(parties, schema.features, settings.hidden, schema.outputs or schema.classes, draws)


def branch(settings: Settings, parties: int, draws: Draws | None) -> Branch:
    """A projection and convolutions."""
    return Branch(settings.model, parties, settings.hidden, settings.layers, draws, bias=settings.bias)


SHARED = ModelForm(lambda settings, schema: shared_layers(settings, schema, 1, None))
BRANCHES = ModelForm(lambda settings, schema: branch(settings, 1, None)).stacked("link_types")
CENTERS = real("link_types", lambda case: 2 * case.settings.hidden)
PER_TYPE = whole("link_types")


class Cohort(LocalTraining):
    """Parties that cluster their links and train a branch per type between layers that all types share."""

    one_graph = "its types of links are those of one graph"
    no_backbone = "its network has one branch per type of links, and the types are clusters that it finds in each graph"
    settings: Settings

    def setup(self) -> None:
        """The network and its optimizer; the links."""
        s, parties, types = self.settings, self.graph.parties, self.settings.link_types
        shared, branches = shared_layers(s, self.schema, parties, None), branch(s, parties * types, None)
        self.network = BranchedModel(shared.to(self.device), branches.to(self.device), self.graph, types, s.dropout)
        self.optimizer = optim.of_settings(s, self.network.trainable)
        self.links = LinkEnds(self.graph)

    @verb(takes={"shared": SHARED}, gives={"centres": CENTERS, "links": PER_TYPE})
    def cluster(self, shared: Fields) -> Fields:
        """The party's first link types: k-means++, then E and M steps."""
        s = self.settings
        self.network.load(shared, self.network.branches)
        nodes = self.network.embed(self.graph).detach()
        centers = self.links.first_centers(nodes, self.draws().uniform(s.link_types))  # (P, K, r)
        for _ in range(s.initial_em_steps):
            centers = self.links.means(nodes, self.links.nearest(nodes, centers), centers)
        return {"centres": centers, "links": self.links.count(self.links.nearest(nodes, centers), s.link_types)}

    @verb(
        takes={"shared": SHARED, "branches": BRANCHES, "centres": CENTERS},
        gives={
            "shared": SHARED,
            "branches": BRANCHES,
            "centres": CENTERS,
            "links": PER_TYPE,
            "trained": PER_TYPE,
            "nodes": WEIGHT,
        },
    )
    def fit(self, shared: Fields, branches: Fields, centres: Tensor) -> Fields:  # type: ignore[override]  # more than a model
        """E epochs, in each of which links first find their types again."""
        types = self.settings.link_types
        self.network.load(shared, branches)
        self.centers = centres.expand(self.graph.parties, -1, -1)  # (P, K, r)
        self.types = self.links.nearest(self.network.embed(self.graph).detach(), self.centers)
        self.train()
        return {
            "shared": get_parameters(self.network.shared, copy=True),
            "branches": {name: value.detach().clone() for name, value in self.network.branches.items()},
            "centres": self.centers,
            "links": self.links.count(self.types, types),
            "trained": self.network.trained_nodes(self.types),
            "nodes": self.weights,
        }

    @property
    def hops(self) -> int | None:
        """Those of a branch."""
        return self.network.hops

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """The whole graph; or types for all links, then mini-batches, whose neighbors each branch samples among its links."""
        s = self.settings
        if not self.batched:
            yield from super().epoch(draws)
            return
        self.sampling, self.fan_outs = draws.repeated(s.link_types), fan_outs(s, self.hops)
        with torch.no_grad():
            self.find_types(self.network.embed(self.graph))
        yield from minibatch.epoch(self.graph, s.batch_size, [], s.sampler, draws)

    def sample(self, copies: Graph, rows: Ints) -> MiniBatch:
        """Some of the nodes, once for every branch, with links of its type."""
        return minibatch.batch_of(copies, rows, self.fan_outs, self.settings.sampler, self.sampling)

    def find_types(self, embedded: Tensor) -> None:
        """E and M steps over all links."""
        for _ in range(self.settings.em_steps):
            self.types = self.links.nearest(embedded, self.centers)
            self.centers = self.links.means(embedded, self.types, self.centers)

    def objective(self, batch: Graph, draws: Draws) -> Tensor:
        """E step: every link to its nearest center; M step: centers to their links' mean; then the loss with these types."""
        dropout = self.settings.input_dropout
        if isinstance(batch, MiniBatch):
            return self.task.loss(self.network.of_batch(batch, self.types, self.sample, draws, dropout), batch)
        embedded = self.network.embed(batch, draws, dropout)
        self.find_types(embedded.detach())
        summed = self.network.sum_branches(embedded, self.types, draws)
        return self.task.loss(self.network.classify(summed, batch), batch)

    @verb(takes={"shared": SHARED, "branches": BRANCHES, "centres": CENTERS}, gives=COUNTS)
    def evaluate(self, shared: Fields, branches: Fields, centres: Tensor) -> Fields:  # type: ignore[override]
        """Counts of the server's network, every link with its nearest of the server's centers."""
        return self.task.counts(self.predict(shared, branches, centres), self.graph)

    def predict(self, shared: Fields, branches: Fields, centres: Tensor) -> Tensor:
        """(N, C) the output of the server's network."""
        return self.network.classify(self.embeddings(shared, branches, centres), self.graph)

    def embeddings(self, shared: Fields, branches: Fields, centres: Tensor) -> Tensor:
        """(N, h) the sum of the branches."""
        self.network.load(shared, branches)
        embedded = self.network.embed(self.graph)
        types = self.links.nearest(embedded, centres.expand(self.graph.parties, -1, -1))
        return self.network.sum_branches(embedded, types)


def start(federation: Federation, settings: Settings) -> State:
    """First layers and branches, and centers from the parties' own first types, matched with those of the first party."""
    schema, seed = federation.schema, federation.seed
    layers = shared_layers(settings, schema, 1, Draws(seed, [SERVER], "shared"))
    drawn = [branch(settings, 1, Draws(seed, [SERVER], "branch", k)) for k in range(settings.link_types)]
    shared = {name: value[0] for name, value in get_parameters(layers).items()}
    names = get_parameters(drawn[0])
    branches = {name: torch.cat([get_parameters(one)[name] for one in drawn]) for name in names}  # (K, …)
    replies = federation.ask("cluster", shared=shared)
    centers, links = replies.stack("centres"), replies.stack("links")
    order = match(centers, centers[0])
    return {"shared": shared, "branches": branches, "centres": mean_of_types(centers, links > 0, order, centers[0])}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Match every party's types with the server's; shared layers by training nodes; branches and centers by their plain mean."""
    replies = federation.ask("fit", **state)
    centers, trained, n = replies.stack("centres"), replies.stack("trained"), replies.stack("nodes")
    order = match(centers, state["centres"])
    layers: Parameters = {name: value.sum(0) for name, value in weighted(replies.stack("shared"), n).items()}
    branches = replies.stack("branches")
    return {
        "shared": scale(layers, 1 / n.sum()),
        "branches": {name: mean_of_types(branches[name], trained > 0, order, value) for name, value in state["branches"].items()},
        "centres": mean_of_types(centers, replies.stack("links") > 0, order, state["centres"]),
    }


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, **state)


def match(centers: Tensor, reference: Tensor) -> Tensor:
    """(P, K): which of a party's types matches each of the server's: greedily, by the cosine of their centers."""
    return greedy_matching(F.normalize(reference, dim=1) @ F.normalize(centers, dim=2).transpose(1, 2))


def mean_of_types(values: Tensor, present: Tensor, order: Tensor, before: Tensor) -> Tensor:
    """(P, K, …) → (K, …): each type's plain mean over the parties that have it, in the server's order; `before` where none."""
    rows = torch.arange(len(values))[:, None]
    counts = present[rows, order].view(*order.shape, *[1] * (values.ndim - 2))  # (P, K, 1, …)
    sums = torch.where(counts, values[rows, order], 0).sum(0)
    return torch.where(counts.any(0), sums / counts.sum(0).clamp(min=1), before)
