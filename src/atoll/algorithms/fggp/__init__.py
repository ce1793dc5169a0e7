"""FGGP: Wan, Huang & Ye, AAAI 2024. FedAvg on two views of each party's graph; prototypes of the classes predict, no classifier.

For parties from different domains. The second view joins each node to those that the shared model finds nearest; its edges are
predicted and sampled, and each class is to look alike in both views. Parties send the mean representation of each class; the
server clusters them class by class, so that every domain keeps its own, and nodes are of the class of the nearest ones.

    L = CE(view 1) + CE(view 2) + BCE(z·zᵀ, view 2) + InfoNCE(prototypes of view 2, of view 1)

Payload bytes per round and party, w parameters, C classes, h columns of the representation: down 4·w, up 4·w + 8 (the number of
all nodes; of training nodes with `weighting=train`; 1 with `weighting=parties`) and 4·C·h + C for prototypes and which there are
(4·C·h + 8·C with `clusters=mean`, nothing with `predict=classifier`). Evaluation sends 4·w and, S prototypes kept of each class,
4·C·S·h + C·S.
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes; of *each party* the prototypes
of the classes that it has at least `min_count` nodes of: clustering needs them one by one, which is why they cannot be asked for
under secure aggregation. With `clusters=mean` it sees their sums only, and how many parties have each class.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.fggp.finch import cluster_means, finch
from atoll.algorithms.fggp.settings import Settings
from atoll.algorithms.fggp.views import SecondView, nearest_nodes
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, NODE, PARTY, Fields, first_model, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Case, Forms, flag, real, whole
from atoll.federation.federation import Federation
from atoll.federation.first_model import embedding_width
from atoll.federation.local_training import LocalTraining
from atoll.graphs.graph import Graph
from atoll.graphs.masks import ABSENT
from atoll.graphs.segments import occurrences
from atoll.models.parameters import scale, weighted
from atoll.models.registry import find_model
from atoll.models.user import short_name
from atoll.random import Draws

__all__ = ["SCENARIOS", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]

SCENARIOS = ("horizontal",)
TASKS = ("node-classification",)
NOTHING = 1e-12  # the least that a sum of confidences is divided by


def width(case: Case) -> int:
    """h."""
    return embedding_width(case.settings, case.schema)


def judged_with(case: Case) -> Forms:
    """What evaluation brings: the model and, where they predict, the prototypes."""
    if case.settings.predict == "classifier":
        return {"model": MODEL}
    return {"model": MODEL, "prototypes": real("classes", "queue_size", width), "known": flag("classes", "queue_size")}


class Cohort(LocalTraining):
    """FedAvg's parties, which train on two views and send prototypes."""

    memory = {"optimizer": PARTY, "neighbors": NODE}
    round_memory = {"means": PARTY, "counts": PARTY}
    training_memory = frozenset({"neighbors"})
    graph_memory = frozenset({"neighbors"})
    whole_graph = "its second view is of a whole graph, with edges that no sampled neighborhood has"
    no_backbone = "its parties predict with prototypes of the classes, which an export lacks"
    settings: Settings
    judges: tuple[Tensor, Tensor] | None = None  # the prototypes that predict, and which there are
    second: SecondView | None = None  # while the parties train

    def setup(self) -> None:
        """No nearest nodes yet."""
        super().setup()
        s = self.settings
        if s.edge_gradient and self.two_views and not find_model(s.model).weighted_edges:
            raise AtollError(
                f"fggp: {short_name(s.model)} does not use the weights of edges, through which sampled edges would be trained; "
                "choose another model, or set edge_gradient=false."
            )
        count = s.neighbors if self.two_views else 0
        self.neighbors = torch.full((self.graph.num_nodes, count), -1, device=self.device)

    def clear_round(self) -> None:
        """No prototypes yet."""
        shape = (self.graph.parties, self.schema.classes)
        columns = embedding_width(self.settings, self.schema) if self.settings.predict == "nearest" else 0
        self.means = torch.zeros(*shape, columns, device=self.device)
        self.counts = torch.zeros(shape, dtype=torch.int64, device=self.device)

    @property
    def two_views(self) -> bool:
        """Whether there is a second view at all."""
        return bool(self.settings.view_weight or self.settings.edge_weight or self.settings.contrast_weight)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← w, local training on both views, and prototypes of what comes out, which are sent when asked for."""
        self.load(model)
        self.second = self.second_view() if self.two_views else None
        self.train(model=model)
        self.second = None
        if self.settings.predict == "nearest":
            self.means, self.counts = self.class_means()
        return {"model": weighted(self.shared(), self.weights), "n": self.weights}

    @verb(takes={}, gives={"prototypes": real("classes", width), "known": flag("classes")})
    def offer(self) -> Fields:
        """The prototypes of the classes with enough nodes, and which these are."""
        known = self.counts >= self.settings.min_count
        prototypes = torch.where(known[..., None], self.means, 0)
        if self.settings.keyed_by == "position":
            order = (~known).long().argsort(dim=1, stable=True)
            known, prototypes = known.gather(1, order), prototypes.gather(1, order[..., None].expand_as(prototypes))
        return {"prototypes": prototypes, "known": known}

    @verb(
        takes={},
        gives={"prototypes": real("classes", width), "weights": whole("classes", high=1)},
        averaged={"prototypes": "weights"},
    )
    def offer_sums(self) -> Fields:
        """The same, to be added up."""
        offered = self.offer()
        return {"prototypes": offered["prototypes"], "weights": offered["known"].long()}

    @verb(takes=judged_with, gives=COUNTS)
    def evaluate(self, model: Fields, prototypes: Tensor | None = None, known: Tensor | None = None) -> Fields:  # type: ignore[override]
        """Counts of the server's prototypes, or classifier, at each party."""
        return self.task.counts(self.predict(model, prototypes, known), self.graph)

    def load(self, model: Fields | None = None, prototypes: Tensor | None = None, known: Tensor | None = None) -> None:
        """w_k ← w; remember until the next call what predicts."""
        super().load(model)
        self.judges = None if prototypes is None or known is None else (prototypes, known)

    def objective(self, batch: Graph, draws: Draws, model: Fields) -> Tensor:
        """CE of the party's graph and, on the second view, CE + BCE of its edges + the contrast; without it nothing is drawn."""
        s, second = self.settings, self.second
        if second is None:
            return self.task.loss(self.output(batch, draws), batch)
        embedded, out = self.model.embed_and_output(batch, draws)
        loss = self.task.loss(out, batch)
        with torch.set_grad_enabled(s.edge_gradient):
            rows = self.model.embed(second.graph, draws)
            logits = second.logits(rows)
        if s.edge_weight and s.edge_gradient:
            loss = loss + s.edge_weight * second.edge_loss(rows, logits, s.negatives, draws)
        if s.view_weight or s.contrast_weight:
            sampled = second.sampled(logits, s.sample_temperature, draws, learned=s.edge_gradient)
            embedded_there, out_there = self.model.embed_and_output(sampled, draws)
            if s.view_weight:
                loss = loss + s.view_weight * self.task.loss(out_there, sampled)
            if s.contrast_weight:
                cells, confidence = self.soft_classes(batch, out)
                loss = loss + s.contrast_weight * self.contrast(embedded_there, embedded, cells, confidence)
        return loss

    def second_view(self) -> SecondView:
        """The second view, with the nearest nodes under the server's model when they are due; kept with the graph."""
        graph = self.graph
        sizes, known = torch.tensor(graph.sizes), graph.blocks.sum((self.neighbors >= 0).any(1).long()).cpu() > 0
        round = 1 if self.message is None else self.message.round
        due = ~known & (sizes > 1) | ((round - 1) % self.settings.knn_every == 0)
        if self.settings.neighbors and bool(due.any()):
            with torch.no_grad():
                found = nearest_nodes(graph, self.model.embed(graph), self.settings.neighbors)
            self.neighbors = torch.where(due.to(self.device)[graph.party][:, None], found, self.neighbors)
        held = graph.__dict__.get("_second")
        if held is None or not torch.equal(held[0], self.neighbors):
            held = graph.__dict__["_second"] = self.neighbors.clone(), SecondView(graph, self.neighbors)
        view: SecondView = held[1]
        return view

    def soft_classes(self, graph: Graph, logits: Tensor) -> tuple[Tensor, Tensor]:
        """(N,) party · C + class, and how sure it is: 1 for training labels, elsewhere the largest predicted probability."""
        confidence, classes = logits.detach().softmax(1).max(1)
        labeled = graph.train & (graph.y >= 0)
        confidence = confidence if self.settings.pseudo_labels else torch.zeros_like(confidence)
        classes = torch.where(labeled, graph.y, classes)
        return graph.party * graph.num_classes + classes, torch.where(labeled, 1.0, confidence)

    def means_of(self, rows: Tensor, cells: Tensor, confidence: Tensor) -> tuple[Tensor, Tensor]:
        """(P, C, h) Σ s_i·z_i / Σ s_i over the nodes of each class, and (P, C) which classes have any."""
        shape = (self.graph.parties, self.schema.classes)
        size = shape[0] * shape[1]
        total = confidence.new_zeros(size).index_add(0, cells, confidence)
        sums = rows.new_zeros(size, rows.shape[1]).index_add(0, cells, rows * confidence[:, None])
        return (sums / total.clamp(min=NOTHING)[:, None]).view(*shape, -1), (total > 0).view(shape)

    def contrast(self, rows: Tensor, others: Tensor, cells: Tensor, confidence: Tensor) -> Tensor:
        """Σ_k mean_c −log(e^{cos(p′_c, p_c)/τ} / Σ_b e^{cos(p′_c, p_b)/τ}), p′ prototypes of the second view, p of the first."""
        (ours, present), (theirs, _) = (self.means_of(each, cells, confidence) for each in (rows, others))
        cosines = (F.normalize(ours, dim=2)[:, :, None] * F.normalize(theirs, dim=2)[:, None]).sum(3)  # (P, C, C)
        scores = (cosines / self.settings.contrast_temperature).masked_fill(~present[:, None], ABSENT)
        logs = scores.log_softmax(2).diagonal(dim1=1, dim2=2)
        return -(torch.where(present, logs, 0).sum(1) / present.sum(1).clamp(min=1)).sum()

    @torch.no_grad()
    def class_means(self) -> tuple[Tensor, Tensor]:
        """(P, C, h) the prototypes of the party's graph under the trained model, and (P, C) the nodes of each."""
        embedded, out = self.model.embed_and_output(self.graph)
        cells, confidence = self.soft_classes(self.graph, out)
        counts = occurrences(torch.where(confidence > 0, cells, self.counts.numel()), self.counts.numel() + 1)[:-1]
        return self.means_of(embedded, cells, confidence)[0], counts.view_as(self.counts)

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C) the classifier's logits, or those of the vote; the classifier's as long as there are no prototypes."""
        if self.judges is None:
            return super().output(graph, draws)
        prototypes, known = self.judges
        embedded, out = self.model.embed_and_output(graph, draws)
        return torch.where(known.any(), self.votes(embedded, prototypes, known), out)

    def votes(self, rows: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
        """(N, C) log Σ e^{cos(z_i, p)/τ} over the nearest prototypes that are of the class; −1/τ where there are none."""
        shared = F.normalize(prototypes.flatten(0, 1), dim=1)  # (C·S, h)
        cosines = self.graph.blocks.product(F.normalize(rows, dim=1), shared.t().expand(self.graph.parties, -1, -1))
        scores = (cosines / self.settings.contrast_temperature).masked_fill(~known.flatten(), ABSENT)
        best, index = scores.topk(min(self.settings.vote, len(shared)), 1)
        votes = rows.new_zeros(len(rows), len(prototypes)).scatter_add(1, index // known.shape[1], best.exp())
        return votes.log().clamp(min=-1 / self.settings.contrast_temperature)


def start(federation: Federation, settings: Settings) -> State:
    """A first model, and no prototypes."""
    schema = federation.schema
    first: State = {"model": first_model(settings, schema, federation.seed)}
    if settings.predict == "classifier":
        return first
    shape = (schema.classes, settings.queue_size)
    prototypes = torch.zeros(*shape, embedding_width(settings, schema))
    return first | {"prototypes": prototypes, "known": torch.zeros(shape, dtype=torch.bool)}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """w ← Σ_k (N_k / N) w_k; of each class the means of the clusters of the parties' prototypes come first in its queue."""
    total = federation.total("fit", model=state["model"])
    averaged: State = {"model": scale(total["model"], 1 / total["n"])}
    if settings.predict == "classifier":
        return averaged
    fresh = one_per_class(federation) if settings.clusters == "mean" else by_clusters(federation, settings)
    prototypes, known = torch.zeros_like(state["prototypes"]), torch.zeros_like(state["known"])
    for number, means in enumerate(fresh):
        queue = torch.cat([means, state["prototypes"][number][state["known"][number]]])[: settings.queue_size]
        prototypes[number, : len(queue)], known[number, : len(queue)] = queue, True
    return averaged | {"prototypes": prototypes, "known": known}


def by_clusters(federation: Federation, settings: Settings) -> list[Tensor]:
    """Of each class the means of FINCH's clusters of the parties' prototypes."""
    replies = federation.ask("offer")
    prototypes, known = replies.stack("prototypes"), replies.stack("known")  # (P, C, h), (P, C)
    made = []
    for number in range(known.shape[1]):
        rows = prototypes[known[:, number], number]
        made.append(cluster_means(rows, finch(rows, last=settings.clusters == "last")))
    return made


def one_per_class(federation: Federation) -> list[Tensor]:
    """Of each class the mean of the parties' prototypes, or nothing."""
    total = federation.total("offer_sums")
    mean = total["prototypes"] / total["weights"].clamp(min=1)[:, None]
    return [row[None][:held] for row, held in zip(mean, (total["weights"] > 0).long().tolist(), strict=True)]


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, **state)
