"""AdaFGL: Li et al., ICDE 2024. FedAvg first; then every party trains networks of its own on what the shared model predicts.

With a `batch_size` the shared stage is in mini-batches; the personal one is not, as it compares all pairs of a party's nodes.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`), and 16 more with `shared_model=best` (nodes, and nodes times validation accuracy).
When the personal stage begins, once: down 8·w (4·w with `shared_model=last`), up 16 (0). In the personal stage nothing.
The server sees the sum of the parties' models, weighted, and these sums; never anything of the personal stage.
"""

from __future__ import annotations

import torch
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.adafgl.networks import PersonalNetwork, related_pairs, signed_propagation
from atoll.algorithms.adafgl.settings import Settings
from atoll.algorithms.fedavg import SCENARIOS
from atoll.device import precise
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, backbone, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Case, Forms, optional, real, whole
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.federation.memory import FRESH, SHARED
from atoll.graphs.graph import Graph
from atoll.graphs.inference import in_blocks
from atoll.graphs.masks import node_weights
from atoll.graphs.relations import smoothing_matrix
from atoll.graphs.sparse import SparseMatrix
from atoll.models import optim
from atoll.models.parameters import scale, set_parameters
from atoll.random import Draws

__all__ = ["EVALUATIONS", "SCENARIOS", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal",)
TASKS = ("node-classification",)
STATE_AXES = {"model": SHARED, "best": FRESH, "score": FRESH, "adopted": FRESH}
LABEL_STEPS = 10  # of the propagation that measures homophily
SCORE: Forms = {"score": real(low=0, high="max_weight", double=True), "size": whole(high="max_weight")}


def given(case: Case) -> Forms:
    """What `fit` gives: the model and, where the best one is to be found, how good the one that arrived was."""
    forms: Forms = {"model": MODEL, "n": WEIGHT}
    return {**forms, **SCORE} if judges(case.settings) else forms


def judges(settings: Settings) -> bool:
    """Whether parties report how good the shared model is."""
    return settings.personal_stage and settings.shared_model == "best"


class Cohort(LocalTraining):
    """FedAvg's parties, each with networks of its own for the personal stage."""

    memory = {
        "optimizer": PARTY, "kept": PARTY, "adopted": PARTY, "homophily": PARTY, "personal": PARTY, "personal_optimizer": PARTY,
    }  # fmt: skip
    no_backbone = "a party predicts with networks over all pairs of its nodes"
    settings: Settings

    def setup(self) -> None:
        """FedAvg's model, the shared one that is kept, and the personal networks."""
        super().setup()
        s, parties = self.settings, self.graph.parties
        self.kept = backbone(s, self.schema, parties, None, device=self.device)
        self.adopted = torch.zeros(parties, dtype=torch.bool, device=self.device)
        self.homophily = torch.zeros(parties, device=self.device)  # ρ_k
        sizes = (parties, self.schema.features, s.hidden, self.schema.classes)
        network = PersonalNetwork(*sizes, self.first_draws("personal") if s.personal_stage else None)
        self.personal = network.to(self.device)
        rates = (s.lr, s.weight_decay, s.momentum)
        self.personal_optimizer = optim.make(s.optimizer, self.personal, *rates, clip=s.clip)
        self._relations: tuple[object, tuple[int, ...], list[Tensor], SparseMatrix, Tensor] | None = None

    @verb(takes={"model": MODEL}, gives=given, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """Local training of the shared model, and its score as it arrived."""
        score = self.score(model) if judges(self.settings) else {}
        return super().fit(model) | score

    @verb(takes={"model": MODEL}, gives=SCORE)
    def judge(self, model: Fields) -> Fields:
        """The score of a model that is not trained on."""
        return self.score(model)

    @verb(takes={"model": MODEL}, gives={})
    def adopt(self, model: Fields) -> None:
        """Keep the shared model, and begin the personal stage: how homophilous is the party?"""
        largest = max(self.graph.sizes)
        if largest > self.settings.largest_party:
            raise AtollError(
                f"adafgl compares all pairs of a party's nodes, and a party has {largest:,}; take more parties, or raise "
                f"largest_party ({self.settings.largest_party:,})."
            )
        set_parameters(self.kept, model)
        self.homophily = self.measured_homophily()
        self.adopted = torch.ones_like(self.adopted)

    @verb(takes={}, gives={})
    def personalize(self) -> None:
        """Epochs of both branches on the party's own nodes."""
        draws = self.draws()
        for _ in range(self.settings.personal_epochs):
            optim.descend(self.personal_optimizer, self.personal_loss(self.graph, draws))

    @verb(takes={"model": optional(MODEL)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of the shared model; in the personal stage, where none arrives, of each party's own networks."""
        return self.task.counts(self.predict(model), self.graph)

    def predict(self, model: Fields | None = None) -> Tensor:
        """(N, C) logits of the shared model, or the logarithms of the shares that a party's networks give."""
        return super().predict(model) if model is not None else self.personal_output(self.graph).clamp(min=1e-12).log()

    def embeddings(self, model: Fields | None = None) -> Tensor | None:
        """The shared model's; none in the personal stage."""
        return None if model is None else super().embeddings(model)

    @torch.no_grad()
    def score(self, model: Fields) -> Fields:
        """Nodes times validation accuracy, and nodes; both 0 without validation nodes."""
        graph = self.graph
        right = super().predict(model).argmax(1) == graph.y
        validated = graph.blocks.sum(precise(graph.val))
        size = torch.where(validated > 0, graph.blocks.sum(torch.ones_like(graph.y)), 0)
        share = graph.blocks.sum(precise(right & graph.val)) / validated.clamp(min=1)
        return {"score": size * share, "size": size}

    def measured_homophily(self) -> Tensor:
        """(P,) accuracy of propagated labels: half of the training nodes keep theirs, the other half is judged."""
        graph = self.graph
        labeled = (graph.train & (graph.y >= 0)).nonzero()[:, 0]
        owners = graph.party[labeled]
        counts = torch.bincount(owners, minlength=graph.parties)
        orders = Draws(self.seed, self.parties, "homophily", device=self.device).orders(counts.tolist())
        seeds, judged = torch.zeros_like(graph.train), torch.zeros_like(graph.train)
        for rows, order in zip(torch.split(labeled, counts.tolist()), orders, strict=True):
            seeds[rows[order[: len(rows) // 2]]] = True
            judged[rows[order[len(rows) // 2 :]]] = True
        own = torch.nn.functional.one_hot(graph.y.clamp(min=0), graph.num_classes).float()
        first = torch.where(seeds[:, None], own, 1 / graph.num_classes)
        rows = first
        for _ in range(LABEL_STEPS):
            rows = (graph.normalized_adjacency @ rows + first) / 2 + first * seeds[:, None]
        right = graph.blocks.sum(precise((rows.argmax(1) == graph.y) & judged))
        return (right / graph.blocks.sum(precise(judged)).clamp(min=1)).float()

    @torch.no_grad()
    def relations(self, graph: Graph) -> tuple[list[Tensor], SparseMatrix, Tensor]:
        """R of each party, Ã, and Q (N, C): what follows from the shared model; kept while neither it nor the graph changes."""
        version = tuple(parameter._version for parameter in self.kept.parameters())
        if self._relations is None or self._relations[0] is not graph or self._relations[1] != version:
            stages = self.kept.stages() if self.batched else None
            q = torch.softmax(self.kept(graph) if stages is None else in_blocks(stages, graph), 1)
            related = [related_pairs(rows, self.settings.relation_threshold) for rows in torch.split(q, graph.sizes)]
            self._relations = graph, version, related, smoothing_matrix(graph, related, self.settings.edge_share), q
        return self._relations[2:]

    @property
    def shares(self) -> Tensor:
        """(P,) how much of a party's prediction is the homophilous branch's."""
        s = self.settings
        return (self.homophily >= s.homophily_threshold).float() if s.combine == "choice" else self.homophily

    def branches(self, graph: Graph, draws: Draws | None) -> tuple[Tensor, list[Tensor]]:
        """(N, C) logits of the homophilous branch, and of the three parts of the other; 0 of the last where it is not used."""
        s, net = self.settings, self.personal
        related, smoothing, _ = self.relations(graph)
        same = net.homophilous(graph, smoothing, draws, s.dropout)
        own, smooth, rows = (part(graph, smoothing, draws, s.dropout) for part in (net.own, net.smooth, net.signed))
        signed = []
        for party, part in enumerate(torch.split(rows, graph.sizes)):
            used = bool(self.shares[party] < 1)
            slope = net.signed.slope[party]
            made = (
                signed_propagation(part, related[party], slope, s.relation_share, s.negative) if used else torch.zeros_like(part)
            )
            signed.append(made)
        return same, [own, smooth, torch.cat(signed)]

    def personal_loss(self, graph: Graph, draws: Draws) -> Tensor:
        """Cross-entropy of every part, and the homophilous branch's distance from Q; unused branches have parameters apart."""
        same, others = self.branches(graph, draws)
        distance = (same - self.relations(graph)[2]).square().mean(1) @ node_weights(graph)
        loss = self.task.loss(same, graph) + distance
        return loss + torch.stack([self.task.loss(part, graph) for part in others]).sum()

    @torch.no_grad()
    def personal_output(self, graph: Graph) -> Tensor:
        """(N, C) ρ·½(softmax + softmax(Q)) + (1−ρ)·the mean of three softmaxes; uniform before the stage begins."""
        same, others = self.branches(graph, None)
        alike = (torch.softmax(same, 1) + torch.softmax(self.relations(graph)[2], 1)) / 2
        unlike = torch.stack([torch.softmax(part, 1) for part in others]).mean(0)
        mixed = torch.lerp(unlike, alike, graph.blocks.broadcast(self.shares)[:, None])
        return torch.where(graph.blocks.broadcast(self.adopted)[:, None], mixed, 1 / mixed.shape[1])


def start(federation: Federation, settings: Settings) -> State:
    """FedAvg's; no best model and nobody in the personal stage."""
    first: State = {"model": first_model(settings, federation.schema, federation.seed)}
    if not settings.personal_stage:
        return first
    adopted = torch.zeros(len(federation.parties), dtype=torch.bool)
    return first | {"best": first["model"], "score": torch.full((), -1.0, dtype=torch.float64), "adopted": adopted}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """A round of FedAvg, or of the personal stage."""
    if settings.personal_stage and federation.round > settings.shared_rounds:
        return personal_step(federation, state, settings)
    total = federation.total("fit", model=state["model"])
    mean = scale(total["model"], 1 / total["n"])
    return (better(state, total) if "score" in total else state) | {"model": mean}


def better(state: State, total: Fields) -> State:
    """The state with the model that was just scored as the best one, if it is; without validation nodes it is the last one."""
    score = (total["score"] / total["size"].clamp(min=1)).double()
    best = bool(score > state["score"]) or not bool(total["size"])
    return state | {"best": state["model"], "score": score} if best else state


def personal_step(federation: Federation, state: State, settings: Settings) -> State:
    """Who does not have the shared model yet gets it; then everybody of this round trains alone."""
    waiting = [party for party in federation.parties if not bool(state["adopted"][party])]
    if waiting and not bool(state["adopted"].any()) and settings.shared_model == "best":
        state = better(state, federation.total("judge", model=state["model"]))
    if waiting:
        federation.tell("adopt", to=waiting, model=state["best" if settings.shared_model == "best" else "model"])
        adopted = state["adopted"].clone()
        adopted[[party for party in waiting if party not in federation.missing]] = True
        state = state | {"adopted": adopted}
    federation.tell("personalize")
    return state


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of the shared model; in the personal stage of each party's own networks, pooled over the parties' nodes."""
    if settings.personal_stage and bool(state["adopted"].any()):
        return metrics.evaluate(federation)
    return metrics.evaluate(federation, model=state["model"])
