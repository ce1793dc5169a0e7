"""FedLit: Xie et al., WWW 2023. Links are of types nobody wrote down: cluster them, and give each type a channel of its own.

A channel is a backbone that sees the links of its type only; the channels' outputs are added. Links are clustered by the
representations of their ends; parties' types, and with them the channels, are aligned on the server.

Payload bytes a round and party, K types, w parameters a channel, r numbers a centre (2·hidden; SGC 2·classes): down 4·K·(w + r),
up 4·K·(w + r) + 8·K (links of each type) + 8 (training nodes). Once, before the first round: down 4·K·w, up 4·K·r + 8·K.
The server sees *each party's* channels, centres of its link types, number of links of each type and number of training nodes:
it cannot align sums, which is why its verbs cannot be asked under secure aggregation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn
from torch.func import functional_call

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Case, real, whole
from atoll.federation.federation import Federation
from atoll.graphs.blocks import Blocks
from atoll.graphs.graph import Graph, stack
from atoll.graphs.sparse import SparseMatrix
from atoll.models import optim
from atoll.models.backbone import ModelShape
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.models.registry import find_model
from atoll.random import SERVER, Draws
from atoll.settings import Training, setting

SCENARIOS = ("horizontal", "overlapping")
CHUNK = 4096  # links represented at a time


@dataclass(frozen=True)
class Settings(Training):
    """The shared training settings and the link types."""

    types: int = setting(2, "Number of latent link types, each with a channel of its own (K); 1 is FedAvg.", low=1, high=1000)
    iterations: int = setting(1, "E and M steps of the link types a round.", low=1, high=10**5)
    first_iterations: int = setting(10, "E and M steps by which every party finds its first link types.", low=0, high=10**5)
    keep_optimizer: bool = setting(True, "Keep the parties' optimiser state from round to round instead of starting afresh.")


def numbers(case: Case) -> int:
    """r: twice the width of a node's representation."""
    settings: Settings = case.settings
    shape = ModelShape(1, case.schema.features, case.schema.outputs or case.schema.classes, settings.hidden, settings.layers)
    return 2 * find_model(settings.model).embedding_width(shape)


CHANNELS = MODEL.stacked("types")
CENTRES = real("types", numbers)
LINKS = whole("types")


class Cohort(atoll.federation.cohort.Cohort):
    """Parties that cluster their links and train one channel a type."""

    memory = {"optimizer": PARTY}  # channels and centers arrive with every message
    settings: Settings

    def setup(self) -> None:
        """Channels, the links, and the nodes once for every channel."""
        s, parties = self.settings, self.graph.parties
        self.model = backbone(s, self.schema, parties * s.types, None)  # a block for each party and channel, party by party
        shapes = {name: value.shape[1:] for name, value in get_parameters(self.model).items()}
        self.channels = {name: nn.Parameter(torch.zeros(parties, s.types, *shape)) for name, shape in shapes.items()}
        self.optimizer = optim.make(s.optimizer, self.channels, s.lr, s.weight_decay)
        self.links = Links(self.graph)
        self.copies = stack([self.graph.select([p]) for p in range(parties) for _ in range(s.types)])
        self.alone = rewired(self.copies, torch.zeros(2, 0, dtype=torch.int64))
        self.places = places(self.graph, s.types)
        self.added = summing(self.places)
        self.typed: tuple[Tensor, Graph] | None = None  # the last types and their graph: they seldom change

    @verb(takes={"model": CHANNELS}, gives={"centres": CENTRES, "links": LINKS})
    def cluster(self, model: Fields) -> Fields:
        """The party's first link types: K random links as centres, then E and M steps."""
        s = self.settings
        self.take(model)
        links = self.represent()
        sizes = torch.tensor(self.links.blocks.sizes)
        starts = F.pad(sizes.cumsum(0)[:-1], (1, 0))
        chosen = (self.draws().uniform(s.types) * sizes[:, None]).long() + starts[:, None]  # (P, K)
        centres = torch.zeros(len(sizes), s.types, links.shape[1])
        if len(links):
            centres = links[chosen.clamp(max=len(links) - 1)] * (sizes > 0)[:, None, None]
        for _ in range(s.first_iterations):
            centres = self.links.means(links, self.links.nearest(links, centres), centres)
        return {"centres": centres, "links": self.links.count(self.links.nearest(links, centres), s.types)}

    @verb(
        takes={"model": CHANNELS, "centres": CENTRES},
        gives={"model": CHANNELS, "centres": CENTRES, "links": LINKS, "nodes": WEIGHT},
    )
    def fit(self, model: Fields, centres: Tensor) -> Fields:
        """E step: every link to its nearest centre; M step: centres to their links' mean; then E epochs of all channels."""
        s = self.settings
        self.take(model)
        if not s.keep_optimizer:
            self.optimizer.reset()
        links = self.represent()
        own = centres.expand(self.graph.parties, -1, -1)  # (P, K, r)
        for _ in range(s.iterations):
            types = self.links.nearest(links, own)
            own = self.links.means(links, types, own)
        graph, draws = self.by_type(types), self.draws().repeated(s.types)  # a party draws for all its channels
        for _ in range(s.epochs):
            optim.descend(self.optimizer, self.task.loss(self.logits(graph, draws), self.graph))
        channels = {name: value.detach().clone() for name, value in self.channels.items()}
        return {"model": channels, "centres": own, "links": self.links.count(types, s.types), "nodes": self.graph.num_train}

    @verb(takes={"model": CHANNELS, "centres": CENTRES}, gives=COUNTS)
    def evaluate(self, model: Fields, centres: Tensor) -> Fields:
        """Counts of the server's channels, every link with its nearest of the server's centres."""
        return self.task.counts(self.predict(model, centres), self.graph)

    def predict(self, model: Fields, centres: Tensor) -> Tensor:
        """(N, C) the output of the server's channels."""
        self.take(model)
        types = self.links.nearest(self.represent(), centres.expand(self.graph.parties, -1, -1))
        return self.logits(self.by_type(types))

    @torch.no_grad()
    def take(self, model: Fields) -> None:
        """The server's channels (K, …) to every party."""
        for name, value in self.channels.items():
            value.copy_(model[name])

    def logits(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C): the sum of the channels' outputs, each channel on the links of its type."""
        stacked: Tensor = functional_call(self.model, self.by_channel(), (graph, draws))  # (N·K, C)
        return self.added @ stacked

    @torch.no_grad()
    def represent(self) -> Tensor:
        """(L, r): a link is the sum and the absolute difference of its ends' hidden representations, as a unit vector.

        An end's representation is what the channels' hidden layers make of the node alone, without any links.
        """
        set_parameters(self.model, self.by_channel())
        return self.links.represent(self.added @ self.model.embed(self.alone))

    def by_channel(self) -> Parameters:
        """(P, K, …) → (P·K, …)."""
        return {name: value.flatten(0, 1) for name, value in self.channels.items()}

    def by_type(self, types: Tensor) -> Graph:
        """The nodes once for every channel, with the links of its type."""
        if self.typed is None or not torch.equal(types, self.typed[0]):
            edges = self.places[types[self.links.of_edge], self.graph.edge_index]
            self.typed = types, rewired(self.copies, edges, symmetric=self.graph.symmetric)
        return self.typed[1]


class Links:
    """The links of P parties, party after party: both directions of an edge are one link."""

    def __init__(self, graph: Graph) -> None:
        low, high = graph.edge_index.min(0).values, graph.edge_index.max(0).values
        pairs, self.of_edge = (low * graph.num_nodes + high).unique(return_inverse=True)  # type: ignore[no-untyped-call]  # (L,), (E,)
        self.ends = torch.stack([pairs // graph.num_nodes, pairs % graph.num_nodes])  # (2, L)
        self.party = graph.party[self.ends[0]]
        self.blocks = Blocks(torch.bincount(self.party, minlength=graph.parties).tolist())

    def represent(self, nodes: Tensor) -> Tensor:
        """(N, h) → (L, 2·h): [a + b ‖ |a − b|] of a link's ends as a unit vector; its length is √(2·(‖a‖² + ‖b‖²)).

        Some links at a time, which stay in the cache.
        """
        width = nodes.shape[1]
        squares = nodes.square().sum(1)[self.ends].sum(0)
        scale = (2 * squares).sqrt_().clamp_(min=1e-12).reciprocal_()[:, None]
        links = nodes.new_empty(len(scale), 2 * width)
        for start in range(0, len(scale), CHUNK):
            rows = slice(start, start + CHUNK)
            one, other = (nodes.index_select(0, end[rows]) for end in self.ends)
            torch.sub(one, other, out=links[rows, width:]).abs_()
            torch.add(one, other, out=links[rows, :width])
            links[rows] *= scale[rows]
        return links

    def nearest(self, links: Tensor, centres: Tensor) -> Tensor:
        """(L,): of each link the type whose centre, among its party's (P, K, r), has the greatest cosine."""
        return self.blocks.product(links, F.normalize(centres, dim=2).transpose(1, 2)).argmax(1)

    def means(self, links: Tensor, types: Tensor, centres: Tensor) -> Tensor:
        """(P, K, r): the mean of every party's links of each type; the centre stays where a type has none."""
        parties, count, width = centres.shape
        sums = torch.zeros(parties * count, width).index_add_(0, self.party * count + types, links)
        sizes = self.count(types, count)[:, :, None]
        return torch.where(sizes > 0, sums.view(parties, count, width) / sizes.clamp(min=1), centres)

    def count(self, types: Tensor, count: int) -> Tensor:
        """(P, K) links of each type."""
        parties = len(self.blocks.sizes)
        return torch.bincount(self.party * count + types, minlength=parties * count).view(parties, count)


def places(graph: Graph, types: int) -> Tensor:
    """(K, N): where each node stands among the copies, a party's channels one after the other."""
    start, size = graph.ptr[graph.party], graph.ptr.diff()[graph.party]
    return types * start + torch.arange(types)[:, None] * size + torch.arange(graph.num_nodes) - start


def summing(places: Tensor) -> SparseMatrix:
    """(N, N·K): adds up a node's copies."""
    types, nodes = places.shape
    starts = np.arange(0, types * nodes + 1, types)
    return SparseMatrix(
        sp.csr_array((np.ones(types * nodes), places.t().flatten().numpy(), starts), shape=(nodes, types * nodes))
    )


def rewired(graph: Graph, edge_index: Tensor, *, symmetric: bool = True) -> Graph:
    """The same nodes with other edges; what does not depend on edges is kept."""
    other = replace(graph, edge_index=edge_index)
    other.__dict__.update({name: getattr(graph, name) for name in ("sizes", "blocks", "features", "party")})
    other.__dict__["symmetric"] = symmetric
    return other


def start(federation: Federation, settings: Settings) -> State:
    """First channels, and centres from the parties' own first types, aligned with those of the first party."""
    schema, seed = federation.schema, federation.seed
    channels = [first_model(settings, schema, seed)]
    for channel in range(1, settings.types):
        drawn = backbone(settings, schema, 1, Draws(seed, [SERVER], "model", channel))
        channels.append({name: value[0] for name, value in get_parameters(drawn).items()})
    model = {name: torch.stack([channel[name] for channel in channels]) for name in channels[0]}  # (K, …)
    replies = federation.ask("cluster", model=model)
    centres, links = replies.stack("centres"), replies.stack("links")
    return {"model": model, "centres": merge(centres, links, align(centres, centres[0]), centres[0])}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Align every party's types with the server's; then the mean of each type's channels and centres."""
    replies = federation.ask("fit", model=state["model"], centres=state["centres"])
    centres, links, n = replies.stack("centres"), replies.stack("links"), replies.stack("nodes")
    order = align(centres, state["centres"])
    model = average(replies.stack("model"), links, n, order)
    return {"model": model, "centres": merge(centres, links, order, state["centres"])}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"], centres=state["centres"])


def align(centres: Tensor, reference: Tensor) -> Tensor:
    """(P, K): which of a party's types stands at each place of the server's: the matching with the greatest sum of cosines."""
    cosines = F.normalize(reference, dim=1) @ F.normalize(centres, dim=2).transpose(1, 2)  # (P, K server, K party)
    return torch.stack([torch.from_numpy(linear_sum_assignment(own.numpy(), maximize=True)[1]) for own in cosines])


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


def merge(centres: Tensor, links: Tensor, order: Tensor, before: Tensor) -> Tensor:
    """(K, r): the mean of the parties' centres by their links; a type that nobody has keeps its centre."""
    links = reorder(links, order)[:, :, None]
    sums = (reorder(centres, order) * links).sum(0)
    return torch.where(links.sum(0) > 0, sums / links.sum(0).clamp(min=1), before)
