"""FedLit with whole backbones, after Xie et al., WWW 2023. Link types are latent: cluster the links, give each type a channel.

The authors' own network is `fedlit`. A channel here is a backbone that sees the links of its type only; the channels' outputs are
added. Links are clustered by the representations of their ends; parties' types, and with them the channels, are aligned on the
server.

Payload bytes per round and party, K types, w parameters per channel, r numbers per center (2·hidden; SGC 2·classes):
down 4·K·(w + r), up 4·K·(w + r) + 8·K (links of each type) + 8 (training nodes). Once, before the first round: down 4·K·w,
up 4·K·r + 8·K.
The server sees *each party's* channels, centers of its link types, number of links of each type and number of training nodes:
it cannot align sums, which is why its verbs cannot be asked under secure aggregation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Case, real, whole
from atoll.federation.federation import Federation
from atoll.federation.first_model import embedding_width
from atoll.federation.local_training import LocalTraining
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.links import best_matching
from atoll.graphs.minibatch import MiniBatch
from atoll.graphs.neighbors import Ints
from atoll.models import optim
from atoll.models.batching import fan_outs
from atoll.models.parameters import Parameters, get_parameters
from atoll.models.relational import RelationalModel
from atoll.random import SERVER, Draws
from atoll.settings import BatchedTraining, setting

SCENARIOS = ("horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings, mini-batches and the link types."""

    link_types: int = setting(
        2, "Number of latent link types, each with its own channel (K); 1 is FedAvg.", low=1, high=1000, was="types"
    )
    em_steps: int = setting(1, "E and M steps on the link types per round.", low=1, high=10**5, was="iterations")
    initial_em_steps: int = setting(
        10, "E and M steps with which each party finds its initial link types.", low=0, high=10**5, was="first_iterations"
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")


def numbers(case: Case) -> int:
    """r: twice the width of a node's representation."""
    return 2 * embedding_width(case.settings, case.schema)


CHANNELS = MODEL.stacked("link_types")
CENTERS = real("link_types", numbers)
LINKS = whole("link_types")


class Cohort(LocalTraining):
    """Parties that cluster their links and train one channel per type."""

    one_graph = "its types of links are those of one graph"
    no_backbone = "its network has one channel per type of links, and the types are clusters that it finds in each graph"
    settings: Settings

    def setup(self) -> None:
        """The channels and their optimizer, which clips each channel's gradient by itself; the links."""
        s, parties = self.settings, self.graph.parties
        network = backbone(s, self.schema, parties * s.link_types, None, device=self.device)
        self.channels = RelationalModel(network, self.graph, s.link_types)
        self.optimizer = optim.of_settings(s, self.channels.channels)
        self.links = self.channels.nodes.links

    @verb(takes={"model": CHANNELS}, gives={"centres": CENTERS, "links": LINKS})
    def cluster(self, model: Fields) -> Fields:
        """The party's first link types: K random links as centers, then E and M steps."""
        s = self.settings
        self.channels.load(model)
        links = self.represent()
        centers = self.links.sample(links, self.draws().uniform(s.link_types))  # (P, K, r)
        for _ in range(s.initial_em_steps):
            centers = self.links.means(links, self.links.nearest(links, centers), centers)
        return {"centres": centers, "links": self.links.count(self.links.nearest(links, centers), s.link_types)}

    @verb(
        takes={"model": CHANNELS, "centres": CENTERS},
        gives={"model": CHANNELS, "centres": CENTERS, "links": LINKS, "nodes": WEIGHT},
    )
    def fit(self, model: Fields, centres: Tensor) -> Fields:  # type: ignore[override]  # more arrives than a model
        """E step: every link to its nearest center; M step: centers to their links' mean; then E epochs of all channels."""
        s = self.settings
        self.channels.load(model)
        links = self.represent()
        centers = centres.expand(self.graph.parties, -1, -1)  # (P, K, r)
        for _ in range(s.em_steps):
            types = self.links.nearest(links, centers)
            centers = self.links.means(links, types, centers)
        self.train(types=types)
        counts = self.links.count(types, s.link_types)
        return {"model": self.channels.parameters(), "centres": centers, "links": counts, "nodes": self.weights}

    @property
    def hops(self) -> int | None:
        """Those of a channel."""
        return self.channels.backbone.hops

    def epoch(self, draws: Draws) -> Iterator[Graph]:
        """The whole graph, or mini-batches, whose neighbors each channel samples among the links of its type."""
        s = self.settings
        if not self.batched:
            return super().epoch(draws)
        self.sampling, self.fan_outs = draws.repeated(s.link_types), fan_outs(s, self.hops)
        return minibatch.epoch(self.graph, s.batch_size, [], s.sampler, draws)

    def sample(self, copies: Graph, rows: Ints) -> MiniBatch:
        """Some of the nodes, once for every channel, with links of its type."""
        return minibatch.batch_of(copies, rows, self.fan_outs, self.settings.sampler, self.sampling)

    def objective(self, batch: Graph, draws: Draws, types: Tensor) -> Tensor:
        """The loss of all channels together."""
        if isinstance(batch, MiniBatch):
            return self.task.loss(self.channels.of_batch(batch, types, self.sample, draws), batch)
        return self.task.loss(self.channels(types, draws), batch)

    @verb(takes={"model": CHANNELS, "centres": CENTERS}, gives=COUNTS)
    def evaluate(self, model: Fields, centres: Tensor) -> Fields:  # type: ignore[override]
        """Counts of the server's channels, every link with its nearest of the server's centers."""
        return self.task.counts(self.predict(model, centres), self.graph)

    def predict(self, model: Fields, centres: Tensor) -> Tensor:
        """(N, C) the output of the server's channels."""
        self.channels.load(model)
        return self.channels(self.links.nearest(self.represent(), centres.expand(self.graph.parties, -1, -1)))

    def embeddings(self, model: Fields, centres: Tensor) -> None:
        """No single hidden layer: there are several channels."""

    def represent(self) -> Tensor:
        """(L, r): a link is the sum and the absolute difference of its ends' hidden representations, as a unit vector.

        An end's representation is what the channels' hidden layers make of the node alone, without any links.
        """
        return self.links.represent(self.channels.embed_alone())


def start(federation: Federation, settings: Settings) -> State:
    """First channels, and centers from the parties' own first types, aligned with those of the first party."""
    schema, seed = federation.schema, federation.seed
    channels = [first_model(settings, schema, seed)]
    for channel in range(1, settings.link_types):
        drawn = backbone(settings, schema, 1, Draws(seed, [SERVER], "model", channel))
        channels.append({name: value[0] for name, value in get_parameters(drawn).items()})
    model = {name: torch.stack([channel[name] for channel in channels]) for name in channels[0]}  # (K, …)
    replies = federation.ask("cluster", model=model)
    centers, links = replies.stack("centres"), replies.stack("links")
    return {"model": model, "centres": merge(centers, links, align(centers, centers[0]), centers[0])}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Align every party's types with the server's; then the mean of each type's channels and centers."""
    replies = federation.ask("fit", model=state["model"], centres=state["centres"])
    centers, links, n = replies.stack("centres"), replies.stack("links"), replies.stack("nodes")
    order = align(centers, state["centres"])
    model = average(replies.stack("model"), links, n, order)
    return {"model": model, "centres": merge(centers, links, order, state["centres"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"], centres=state["centres"])


def align(centers: Tensor, reference: Tensor) -> Tensor:
    """(P, K): which of a party's types matches each of the server's: the matching with the greatest sum of cosines."""
    cosines = F.normalize(reference, dim=1) @ F.normalize(centers, dim=2).transpose(1, 2)  # (P, K server, K party)
    return best_matching(cosines)


def reorder(values: Tensor, order: Tensor) -> Tensor:
    """(P, K, …) with every party's types in the server's order."""
    return values[torch.arange(len(values))[:, None], order]


def average(channels: Parameters, links: Tensor, n: Tensor, order: Tensor) -> Parameters:
    """(P, K, …) → (K, …): each type's channel, weighted by training nodes, over the parties that have links of the type."""
    present = reorder(links, order) > 0  # (P, K)
    weight = n[:, None] * (present | ~present.any(0))  # where nobody has any, everybody counts
    total = 1 / weight.sum(0)
    mean = {}
    for name, value in channels.items():
        extra = [1] * (value.ndim - 2)
        mean[name] = (reorder(value, order) * weight.view(*weight.shape, *extra)).sum(0) * total.view(-1, *extra)
    return mean


def merge(centers: Tensor, links: Tensor, order: Tensor, before: Tensor) -> Tensor:
    """(K, r): the mean of the parties' centers by their links; a type that nobody has keeps its center."""
    links = reorder(links, order)[:, :, None]
    sums = (reorder(centers, order) * links).sum(0)
    return torch.where(links.sum(0) > 0, sums / links.sum(0).clamp(min=1), before)
