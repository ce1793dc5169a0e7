"""FedSage and FedSage+: Zhang et al., NeurIPS 2021. Parties mend their graphs with generated neighbors, then FedAvg of GraphSAGE.

With `generator=none` it is FedSage: FedAvg with equal weights. With `federated`, FedSage+: before the first round every party
trains a generator of missing neighbors on nodes that it hides from itself, then with the other parties' help.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (1 with `weighting=parties`). Before the first round, for
each of `generator_rounds` steps of each party's generator, which has w_g parameters from a latent of z numbers to features, and n
training nodes at that party: from it 4·(w_g + z·n) + 4·n; to every party the same, from every party 4·w_g;
to it 4·w_g. Nothing with `generator=local`.
The server sees the sum of the parties' models and of the weights. With `generator=federated` it sees, and so do all parties,
*each party's* feature generator and the latents of its training nodes with noise on them, which say something of these nodes; and
the sum of the parties' gradients for each generator. Features are in no message; but gradients tell what a generator was compared
with, which is why that is a mean of at least `min_targets` nodes, always of the same ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, SCENARIOS, evaluate, step
from atoll.algorithms.fedsage.generator import FeatureGenerator, Generated, NeighborGenerator, loss_at_home, loss_elsewhere
from atoll.algorithms.fedsage.settings import Settings
from atoll.algorithms.fedsage.targets import Hidden, hide
from atoll.errors import AtollError, PartyFailure
from atoll.federation.cohort import NODE, PARTY, Fields, verb
from atoll.federation.declarations import ROWS, Scalar, ragged, real, whole
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph
from atoll.graphs.groups import group_means
from atoll.graphs.mending import mended
from atoll.models import optim
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.random import Draws

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]

TASKS = ("node-classification",)
NO_PROPAGATE_FIRST = "parties mend their graphs"
FEATURES = "features."  # how the names of fGen's parameters begin in a neighbor generator
GENERATOR = ModelForm(lambda settings, schema: FeatureGenerator(settings, schema, None))
LATENTS = real(ROWS, "generator_latent")
NUMBERS = whole(ROWS, high="generated_neighbors", dtype=torch.int32)
Lists = dict[str, list[Tensor]]  # a tensor per party; empty tensors where there is nothing


class Cohort(fedavg.Cohort):
    """FedAvg's parties, which train on mended graphs."""

    memory = {"optimizer": PARTY, "nets": PARTY, "moments": PARTY, "counts": NODE, "neighbors": PARTY}
    settings: Settings

    def setup(self) -> None:
        """No generator yet, and no neighbors."""
        super().setup()
        parties = self.graph.parties
        with torch.device("meta"):
            net = NeighborGenerator(self.settings, self.schema)
            names = [name for name, _ in net.named_parameters()]
            moments = list(optim.Adam(net.features, 0.0).state())
        self.nets: Lists = {name: [torch.empty(0, device=self.device)] * parties for name in names}  # until the graph is mended
        self.moments: Lists = {name: [torch.empty(0, device=self.device)] * parties for name in moments}
        self.counts = torch.zeros(self.graph.num_nodes, dtype=torch.int64, device=self.device)  # generated neighbors of each node
        self.neighbors = [torch.empty(0, self.schema.features, device=self.device)] * parties  # (M_k, d) theirs

    @verb(takes={}, gives={})
    def prepare(self) -> None:
        """Phase 0: each party trains its neighbor generator alone, on the graph without some of its validation nodes."""
        for party in range(self.graph.parties):
            hidden = self.impaired(party)
            net = NeighborGenerator(self.settings, self.schema, self.own_draws(party, "first")).to(self.device)
            optimizer = self.adam(net)
            draws, of_noise = self.own_draws(party, "phase 0"), self.own_draws(party, "noise")
            for _ in range(self.settings.generator_epochs):
                noise = of_noise.normal(hidden.graph.num_nodes, self.settings.generator_latent)[0]
                latents = net.encode(hidden.graph, draws)
                optim.descend(optimizer, loss_at_home(net, hidden, latents, noise, self.task, draws))
            self.keep(party, net)

    @verb(
        public=True,
        takes={},
        gives={"generator": GENERATOR, "latents": ragged(LATENTS), "numbers": ragged(NUMBERS)},
    )
    def offer(self) -> Fields:
        """fGen, and of the training nodes their noised latents and how many neighbors they get: what others are to judge."""
        generators: list[Parameters] = []
        latents, numbers = [], []
        for party in range(self.graph.parties):
            net, hidden = self.net(party), self.impaired(party)
            with torch.no_grad():
                encoded = net.encode(hidden.graph)
                counts = net.whole(net.numbers(encoded))
            rows = hidden.graph.train
            generators.append(get_parameters(net.features))
            latents.append((encoded + self.noise(party))[rows])
            numbers.append(counts[rows].int())
        stacked = {name: torch.cat([each[name] for each in generators]) for name in generators[0]}
        return {"generator": stacked, "latents": latents, "numbers": numbers}

    @verb(
        takes={
            "owner": Scalar(0, lambda case: case.schema.parties - 1),
            "generator": GENERATOR,
            "latents": LATENTS,
            "numbers": NUMBERS,
        },
        gives={"gradient": GENERATOR},
    )
    def judge(self, owner: int, generator: Fields, latents: Tensor, numbers: Tensor) -> Fields:
        """The gradient of L_f between what another party's generator makes and this party's nodes, clipped; of its own 0."""
        net = FeatureGenerator(self.settings, self.schema, None).to(self.device)
        set_parameters(net, generator)
        rows = numbers > 0
        vectors = Generated(numbers[rows].long(), net(latents[rows])).features
        gradients: list[Sequence[Tensor]] = []
        for party, targets in zip(self.parties, group_means(self.graph, self.settings.min_targets), strict=True):
            if party == owner or not len(targets) or not len(vectors):
                gradients.append(tuple(torch.zeros_like(value) for value in net.parameters()))
            else:
                gradients.append(torch.autograd.grad(loss_elsewhere(vectors, targets), list(net.parameters()), retain_graph=True))
        names = [name for name, _ in net.named_parameters()]
        gradients = [clip(each, self.settings.gradient_clip) for each in gradients]
        return {"gradient": {name: torch.cat(each) for name, each in zip(names, zip(*gradients, strict=True), strict=True)}}

    @verb(takes={"gradient": GENERATOR}, gives={})
    def improve(self, gradient: Fields) -> None:
        """Phase 1: a step of fGen down its own loss and the others', all else frozen; the mean over all parties."""
        draws = self.draws()
        for party in range(self.graph.parties):
            net, hidden = self.net(party), self.impaired(party)
            with torch.no_grad():
                latents = net.encode(hidden.graph)
            loss = loss_at_home(net, hidden, latents, self.noise(party), self.task, draws.select([party]))
            optimizer = self.adam(net.features)
            own = dict(zip(optimizer.params, optim.gradients(optimizer, loss), strict=True))
            if self.moments["steps"][party].numel():
                optimizer.restore({name: values[party] for name, values in self.moments.items()})
            optimizer.step([(own[name] + gradient[name][None]) / self.schema.parties for name in own])
            self.keep(party, net)
            for name, value in optimizer.state().items():
                self.moments[name][party] = value

    @verb(takes={}, gives={})
    def mend(self) -> None:
        """Phase 2 begins: neighbors for the nodes of each party; generators are forgotten."""
        counts, neighbors = [], []
        for party in range(self.graph.parties):
            net, hidden = self.net(party), self.impaired(party)
            with torch.no_grad():
                encoded = net.encode(self.one(party) if self.settings.mended_from == "whole" else hidden.graph)
                count = net.whole(net.numbers(encoded))
                if self.settings.mended_from == "impaired":
                    count[hidden.nodes] = 0
                made = net.make(encoded, self.noise(party), count)
            counts.append(count)
            neighbors.append(made.features)
        self.counts, self.neighbors = torch.cat(counts), neighbors
        self.nets = {name: [torch.empty(0, device=self.device) for _ in neighbors] for name in self.nets}
        self.moments = {name: [torch.empty(0, device=self.device) for _ in neighbors] for name in self.moments}

    def epoch(self, draws: Draws) -> Any:
        """One pass over the training nodes of the mended graph."""
        graph = self.graph
        self.graph = self.mended[0]
        try:
            return super().epoch(draws)
        finally:
            self.graph = graph

    def predict(self, *args: Any, **arguments: Any) -> Tensor:
        """(N, C) the model's output for the real nodes, on the party's own graph or on the mended one."""
        out = self.of_real(super().predict, *args, **arguments)
        assert out is not None
        return out

    def embeddings(self, *args: Any, **arguments: Any) -> Tensor | None:
        """(N, h) the last hidden representation of the real nodes, likewise."""
        return self.of_real(super().embeddings, *args, **arguments)

    def of_real(self, compute: Callable[..., Tensor | None], *args: Any, **arguments: Any) -> Tensor | None:
        """What is computed on the graph that nodes are judged on, for the real nodes."""
        if self.settings.judged_on == "real":
            return compute(*args, **arguments)
        graph = self.graph
        self.graph, rows = self.mended
        try:
            out = compute(*args, **arguments)
        finally:
            self.graph = graph
        return None if out is None else out[rows]

    @property
    def mended(self) -> tuple[Graph, Tensor]:
        """The mended graph, and where the real nodes are in it; kept with the graph as long as its neighbors are these."""
        graph, held = self.graph, self.graph.__dict__.get("_mended")
        if not bool(self.counts.any()):
            return graph, torch.arange(graph.num_nodes, device=self.device)
        if held is None or any(one is not other for one, other in zip(held[0], self.neighbors, strict=True)):
            both = self.settings.mended_edges == "both"
            held = list(self.neighbors), mended(graph, self.counts, torch.cat(self.neighbors), both=both)
            graph.__dict__["_mended"] = held
        made: tuple[Graph, Tensor] = held[1]
        return made

    def trained(self) -> Fields:
        """Without generators and, where nodes are judged on their own graph, without neighbors."""
        left_out = {"nets", "moments"} | ({"counts", "neighbors"} if self.settings.judged_on == "real" else set())
        return {name: value for name, value in super().trained().items() if name not in left_out}

    def transfer(self, memory: Mapping[str, Any]) -> None:
        """New nodes have no generated neighbors."""
        super().transfer({name: value for name, value in memory.items() if name not in ("counts", "neighbors")})

    def one(self, party: int) -> Graph:
        """A party's graph."""
        return self.graph.select([party])

    def impaired(self, party: int) -> Hidden:
        """A party's graph with some nodes hidden, the same ones in every call; kept with its graph."""
        graph = self.one(party)
        if "_hidden" not in graph.__dict__:
            (order,) = self.own_draws(party, "hidden").orders(graph.sizes)
            graph.__dict__["_hidden"] = hide(graph, self.settings.hidden_share, order)
        found: Hidden = graph.__dict__["_hidden"]
        return found

    def noise(self, party: int) -> Tensor:
        """(N, z) noise on a party's latents, drawn once: fresh noise in every message could be averaged out."""
        return self.own_draws(party, "latents").normal(self.graph.sizes[party], self.settings.generator_latent)[0]

    def own_draws(self, party: int, word: str) -> Draws:
        """A party's draws for its generator, the same in every call."""
        return Draws(self.seed, [self.parties[party]], "generator", word, device=self.device)

    def adam(self, params: nn.Module) -> optim.Adam:
        """A generator's optimizer."""
        return optim.Adam(params, self.settings.generator_lr, self.settings.generator_weight_decay)

    def net(self, party: int) -> NeighborGenerator:
        """A party's generator as it was left."""
        if not self.nets["count.bias"][party].numel():
            raise PartyFailure("its generator was not prepared")
        net = NeighborGenerator(self.settings, self.schema).to(self.device)
        set_parameters(net, {name: values[party] for name, values in self.nets.items()})
        return net

    def keep(self, party: int, net: NeighborGenerator) -> None:
        """Keep a party's generator for the next message."""
        for name, value in get_parameters(net).items():
            self.nets[name][party] = value


def clip(gradient: Sequence[Tensor], most: float) -> list[Tensor]:
    """One party's gradient, scaled to that norm where it is longer; 0 does not clip."""
    norm = torch.stack([torch.linalg.vector_norm(value) for value in gradient]).norm()
    return [value * (most / norm) for value in gradient] if most and norm > most else list(gradient)


def start(federation: Federation, settings: Settings) -> State:
    """Generators are trained, with the others' help or without, and graphs mended; a first model."""
    if settings.generator != "none":
        federation.tell("prepare")
        for owner in federation.parties if settings.generator == "federated" else ():
            cooperate(federation, owner, settings)
        federation.tell("mend")
    return fedavg.start(federation, settings)


def cooperate(federation: Federation, owner: int, settings: Settings) -> None:
    """Phase 1 for one party's generator; it ends early if the party is missing."""
    for _ in range(settings.generator_rounds):
        if owner in federation.missing:
            return
        try:
            offered = federation.ask("offer", to=[owner])[owner]
        except AtollError:
            if owner not in federation.missing:
                raise
            return
        total = federation.total("judge", owner=owner, **offered)
        federation.tell("improve", to=[owner], gradient=total["gradient"])
