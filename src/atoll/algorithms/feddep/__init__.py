"""FedDEP: Zhang, Sun, Ding, Yiu & Yang, SDM 2024. FedSage+ that generates embeddings of missing neighbors instead of features.

Before the first round every party learns embeddings of its nodes and clusters them; a node stands for the mean of its cluster, a
prototype. Parties share their prototypes, and each trains a generator that predicts, for every node, how many neighbors it lacks
and prototypes of them. Then FedAvg with equal weights, of GraphSAGE whose layers also map the mean ḡ of a node's generated
neighbors, some of which are drawn in every step:

    H⁺ = relu(D⁻¹A·H·W + H·V + Ḡ·U + b)

Payload bytes per round and party, w parameters (U among them): down 4·w, up 4·w + 8 (1 with `weighting=parties`). Before the
first round, K prototypes of z numbers per party, P parties: up 4·K·z + K (which of them have enough nodes), down P·(4·K·z + K);
nothing with `help=none`. With `generated_neighbors=0` it is FedSage, and nothing is sent before the first round.
The server sees the sum of the parties' models and of the weights; it and all parties see *each party's* prototypes, means over at
least `min_count` nodes. Nothing is sent about a single node: no embedding, no latent, no gradient.
Deviation: this is the paper's sharing before training. In the authors' code generators, latents of nodes and gradients go around,
as in FedSage+; from these a node can be computed (see `fedsage`), and they are not built here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.fedavg import Cohort as Averaged
from atoll.algorithms.fedavg import step
from atoll.algorithms.feddep.clusters import prototypes
from atoll.algorithms.feddep.networks import (
    EmbeddingGenerator,
    MendedSAGE,
    NodeEncoder,
    generator_loss,
    mean_embeddings,
    network,
)
from atoll.algorithms.feddep.settings import Settings
from atoll.algorithms.fedsage.targets import hide
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import NODE, PARTY, Fields, verb
from atoll.federation.declarations import COUNTS, ROUNDING, WEIGHT, Case, Forms, flag, optional, real
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.graphs.graph import Graph
from atoll.graphs.minibatch import MiniBatch
from atoll.models import optim
from atoll.models.user import short_name
from atoll.random import SERVER, Draws

__all__ = ["EVALUATIONS", "SCENARIOS", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]

SCENARIOS = ("horizontal",)
TASKS = ("node-classification",)
EVALUATIONS = ("global", "trained", "finetuned")
NO_PROPAGATE_FIRST = "its network is GraphSAGE's"
MODEL = ModelForm(lambda settings, schema: network(settings, schema, 1, None))
MOST = 1 + ROUNDING  # tanh's numbers, and their means, are at most 1


def pool(case: Case) -> Forms:
    """What a party is sent of all parties' prototypes."""
    if case.settings.help == "none":
        return {}
    shape = "parties", "num_prototypes"
    return {"prototypes": real(*shape, "embedding_width", low=-MOST, high=MOST), "known": flag(*shape)}


class Cohort(Averaged):
    """FedAvg's parties, whose nodes have generated neighbors."""

    memory = {
        "optimizer": PARTY, "cluster": NODE, "means": PARTY, "sizes": PARTY, "counts": NODE, "made": PARTY,
    }  # fmt: skip
    training_memory = frozenset({"cluster", "means", "sizes"})
    graph_memory = frozenset({"cluster", "means", "sizes", "counts", "made"})  # new nodes have no generated neighbors
    no_backbone = "its layers also map embeddings that were generated for its nodes, which an export lacks"
    settings: Settings
    model: MendedSAGE

    def setup(self) -> None:
        """A network that takes generated embeddings; no prototypes and no neighbors yet."""
        super().setup()
        s, parties, nodes = self.settings, self.graph.parties, self.graph.num_nodes
        if s.model != "sage":
            raise AtollError(f"feddep extends the layers of GraphSAGE and cannot train {short_name(s.model)}; set model=sage.")
        draws = self.first_draws("model") if "model" in self.memory and self.evaluation not in metrics.KEPT else None
        self.model = network(s, self.schema, parties, draws).to(self.device)
        self.optimizer = optim.of_settings(s, self.model)
        device, count = self.device, s.num_prototypes if s.generated_neighbors else 0
        self.cluster = torch.zeros(nodes, dtype=torch.int64, device=device)
        self.means = torch.zeros(parties, count, s.embedding_width, device=device)
        self.sizes = torch.zeros(parties, count, dtype=torch.int64, device=device)
        self.counts = torch.zeros(nodes, dtype=torch.int64, device=device)  # generated neighbors of each node
        self.made = [torch.empty(0, s.embedding_width, device=device)] * parties  # (M_k, z) theirs

    @verb(takes={}, gives={})
    def prepare(self) -> None:
        """Each party alone: embeddings of its nodes, learned from its labels, and their clusters."""
        s, parts = self.settings, []
        for party in range(self.graph.parties):
            graph = self.one(party)
            encoder = NodeEncoder(s, self.schema, Draws(self.seed, [SERVER], "encoder")).to(self.device)  # all begin alike
            optimizer = optim.Adam(encoder, s.encoder_lr)
            for _ in range(s.encoder_epochs):
                optim.descend(optimizer, self.task.loss(encoder(graph), graph))
            with torch.no_grad():
                rows = encoder.embed(graph)
            parts.append(prototypes(rows, s, self.own_draws(party, "clusters")))
        self.cluster = torch.cat([part.cluster for part in parts])
        self.means, self.sizes = torch.stack([part.means for part in parts]), torch.stack([part.sizes for part in parts])

    @verb(
        public=True,
        takes={},
        gives={
            "prototypes": real("num_prototypes", "embedding_width", low=-MOST, high=MOST),
            "known": flag("num_prototypes"),
        },
    )
    def offer(self) -> Fields:
        """The means of the clusters with enough nodes, and which these are."""
        known = self.sizes >= self.settings.min_count
        return {"prototypes": torch.where(known[..., None], self.means, 0), "known": known}

    @verb(takes=pool, gives={})
    def mend(self, prototypes: Tensor | None = None, known: Tensor | None = None) -> None:
        """Each party trains its generator with the others' prototypes, and generates neighbors for all its nodes."""
        s, counts, made = self.settings, [], []
        for party, number in enumerate(self.parties):
            others = self.means.new_empty(0, s.embedding_width)
            if prototypes is not None and known is not None:
                elsewhere = torch.arange(len(known), device=self.device) != number
                others = prototypes[known & elsewhere[:, None]]
            generated = self.generate(party, others)
            counts.append(generated[0])
            made.append(generated[1])
        self.counts, self.made = torch.cat(counts), made

    def generate(self, party: int, others: Tensor) -> tuple[Tensor, Tensor]:
        """How many neighbors each of a party's nodes gets, and their embeddings, from a generator trained here."""
        s, graph = self.settings, self.one(party)
        (order,) = self.own_draws(party, "hidden").orders(graph.sizes)
        hidden = hide(graph, s.hidden_share, order)
        first, last = self.graph.blocks.ranges[party]
        targets = self.means[party][self.cluster[first:last][hidden.neighbors]]
        net = EmbeddingGenerator(s, self.schema, self.own_draws(party, "first")).to(self.device)
        optimizer = optim.Adam(net, s.generator_lr, s.generator_weight_decay)
        draws, of_noise = self.own_draws(party, "training"), self.own_draws(party, "noise")
        for _ in range(s.generator_epochs):
            noise = of_noise.normal(graph.num_nodes, s.generator_latent)[0]
            optim.descend(optimizer, generator_loss(net, hidden, targets, others, noise, self.task, draws))
        with torch.no_grad():
            latents = net.encode(graph)
            made = net.make(latents, net.numbers(latents), of_noise.normal(graph.num_nodes, s.generator_latent)[0])
        return made.counts, made.features

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, then local training; n_k·w_k and n_k."""
        return super().fit(model)

    @verb(takes={"model": optional(MODEL)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the server's model at each party; without one, of the model that each party keeps."""
        return super().evaluate(model)

    @verb(takes={"model": MODEL}, gives={})
    def finetune(self, model: Fields) -> None:
        """Keep the server's model after local training with a fresh optimizer, to be judged next."""
        super().finetune(model)

    def load(self, model: Fields | None = None) -> None:
        """w_k ← w, which takes all generated neighbors, or none where nodes are judged on the real graph."""
        super().load(model)
        if self.settings.generated_neighbors:
            rows = torch.cat(self.made)
            mended = self.settings.judged_on == "mended"
            self.model.given = mean_embeddings(
                self.counts if mended else torch.zeros_like(self.counts), rows if mended else rows[:0]
            )

    def objective(self, batch: Graph, draws: Draws, model: Fields) -> Tensor:
        """The task's loss, with some of the generated neighbors of each node."""
        if self.settings.generated_neighbors:
            self.model.given = self.drawn(draws, batch.active if isinstance(batch, MiniBatch) else None)
        return super().objective(batch, draws, model)

    def drawn(self, draws: Draws, active: Tensor | None = None) -> Tensor:
        """(N, z) the mean of some of each node's generated neighbors, each party that takes the step drawing its own."""
        rows, share, kept = torch.cat(self.made), self.settings.generated_share, None
        if share < 1:
            sizes = torch.tensor([len(part) for part in self.made])
            own = torch.ones(len(sizes), dtype=torch.bool) if active is None else active.cpu()
            masks, _ = draws.kept_values(share, (sizes * own).tolist())
            kept = torch.repeat_interleave(own, sizes)
            kept[kept.clone()] = torch.cat([torch.from_numpy(mask) for mask in masks])
            kept = kept.to(self.device)
        return mean_embeddings(self.counts, rows, kept)

    def trained(self) -> Fields:
        """Without generated neighbors where nodes are judged on the real graph."""
        left_out = {"counts", "made"} if self.settings.judged_on == "real" else set()
        return {name: value for name, value in super().trained().items() if name not in left_out}

    def one(self, party: int) -> Graph:
        """A party's graph."""
        return self.graph.select([party])

    def own_draws(self, party: int, word: str) -> Draws:
        """A party's draws before the first round, the same in every call."""
        return Draws(self.seed, [self.parties[party]], "feddep", word, device=self.device)


def start(federation: Federation, settings: Settings) -> State:
    """Prototypes are shared and neighbors generated; a first model."""
    if settings.generated_neighbors:
        federation.tell("prepare")
        federation.tell("mend", **(pooled(federation, settings) if settings.help == "prototypes" else {}))
    model = network(settings, federation.schema, 1, Draws(federation.seed, [SERVER], "model"))
    return {"model": {name: value.detach()[0] for name, value in model.named_parameters()}}


def pooled(federation: Federation, settings: Settings) -> Fields:
    """All parties' prototypes, (P, K, z) and which there are (P, K); none of a party that did not answer."""
    shape = federation.schema.parties, settings.num_prototypes
    prototypes, known = torch.zeros(*shape, settings.embedding_width), torch.zeros(shape, dtype=torch.bool)
    replies = federation.ask("offer")
    prototypes[replies.index], known[replies.index] = replies.stack("prototypes"), replies.stack("known")
    return {"prototypes": prototypes, "known": known}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"])
