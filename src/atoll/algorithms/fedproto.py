"""FedProto: Tan et al., AAAI 2022. Every party trains its own model; what is shared is the mean representation of each class.

Payload bytes per round and party, C classes, h columns of the representation: down 4·C·h + C (prototypes and which there are), up
4·C·h + 8·C (prototypes times their weights, and the weights; 8·C more with `prototype_weights=literal`). With `predict=nearest`
evaluation sends the prototypes again.
The server sees, of each class, the sum of the parties' weighted prototypes and of the weights. Seen alone, a prototype of one
node is that node's representation: use secure totals, or `min_count`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from atoll.algorithms import State, local
from atoll.algorithms.local import LEVELS, SCENARIOS
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, verb
from atoll.federation.declarations import COUNTS, Case, Forms, flag, real, whole
from atoll.federation.federation import Federation
from atoll.federation.first_model import embedding_width
from atoll.graphs.graph import Graph
from atoll.graphs.inference import Stage, in_blocks
from atoll.graphs.masks import party_shares
from atoll.graphs.segments import occurrences
from atoll.models.backbone import Backbone
from atoll.random import Draws
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal",)
FAR = 1e4  # how much lower the score of a class without a prototype is than the lowest of the others


@dataclass(frozen=True)
class Settings(local.Settings):
    """Local's settings and the prototypes'."""

    prototype_weight: float = setting(1.0, "Weight λ of the distance to the shared prototypes; 0 is Local.", low=0)
    prototype_weights: str = setting(
        "parties",
        "How the parties' prototypes of a class are averaged: those that have it alike (the authors), by training nodes, or "
        "these divided by the number of parties once more, as the paper's equation is printed.",
        choices=("parties", "counts", "literal"),
    )
    regularize: str = setting(
        "embedding",
        "What is held near a prototype: each node's representation (the authors), or the party's mean of the class (the paper).",
        choices=("embedding", "prototype"),
    )
    predict: str = setting(
        "head", "What predicts: the party's classifier, or the nearest shared prototype (the paper).", choices=("head", "nearest")
    )
    collect: str = setting(
        "after",
        "Representations that are averaged to prototypes: of the trained model, without dropout (the paper), or those that the "
        "last epoch of training passes, with it (the authors' code).",
        choices=("after", "training"),
        since="0.2",
    )
    min_count: int = setting(1, "Training nodes of a class from which on a party sends its prototype.", low=1, high=10**6)
    variant: str = setting(
        "authors",
        "The authors' code, or the paper, which sets regularize=prototype, predict=nearest and prototype_weights=counts.",
        choices=("authors", "paper"),
    )
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")


def width(case: Case) -> int:
    """h."""
    return embedding_width(case.settings, case.schema)


def given(case: Case) -> Forms:
    """What `fit` gives: prototypes times their weights, the weights and, where it is needed, which classes the party sends."""
    weights = whole("classes", high="max_weight")
    forms: Forms = {"prototypes": real("classes", width), "weights": weights}
    return {**forms, "holders": whole("classes", high=1)} if case.settings.prototype_weights == "literal" else forms


PROTOTYPES: Forms = {"prototypes": real("classes", width), "known": flag("classes")}


def judged_with(case: Case) -> Forms:
    """What evaluation brings: the prototypes where they predict."""
    return PROTOTYPES if case.settings.predict == "nearest" else {}


class Cohort(local.Cohort):
    """Personal models that are held near the prototypes of their classes."""

    memory = {"model": PARTY, "optimizer": PARTY}
    settings: Settings
    passed: tuple[Tensor, Tensor] | None = None  # (P, C) items and (P, C, h) sums of the representations of the last epoch
    judges: tuple[Tensor, Tensor] | None = None  # the prototypes that predict, and which there are

    def setup(self) -> None:
        """Every party's model and optimizer; classes must mean the same everywhere."""
        if not self.schema.alike:
            raise AtollError(
                "fedproto shares a prototype of each class, but the parties' classes are not the same; choose another algorithm."
            )
        super().setup()

    @verb(
        takes=PROTOTYPES,
        gives=given,
        averaged={"prototypes": "weights"},
    )
    def fit(self, prototypes: Tensor, known: Tensor) -> Fields:  # type: ignore[override]
        """Local training, then the party's own prototypes, computed without dropout."""
        held = bool(self.settings.prototype_weight) and bool(known.any())
        self.passed = None
        self.train(prototypes=prototypes, known=known, held=held)
        counts, sums = self.collected()
        sent = counts >= self.settings.min_count
        weights = torch.where(sent, 1 if self.settings.prototype_weights == "parties" else counts, 0)  # (P, C)
        reply: Fields = {"prototypes": sums / counts.clamp(min=1)[..., None] * weights[..., None], "weights": weights}
        return reply | ({"holders": sent.long()} if self.settings.prototype_weights == "literal" else {})

    @verb(takes=judged_with, gives=COUNTS)
    def evaluate(self, prototypes: Tensor | None = None, known: Tensor | None = None) -> Fields:  # type: ignore[override]
        """Counts of each party's own model, or of the shared prototypes under its representations."""
        return self.task.counts(self.predict(prototypes, known), self.graph)

    def load(self, prototypes: Tensor | None = None, known: Tensor | None = None) -> None:  # type: ignore[override]
        """Remember until the next call what predicts."""
        self.judges = None if prototypes is None or known is None else (prototypes, known)

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """(N, C) logits, or −‖z_i − p_c‖² (Eq. 7); classes without a prototype are never the nearest."""
        if self.judges is None:
            return super().output(graph, draws)
        prototypes, known = self.judges
        scores = -torch.cdist(self.represented(graph), prototypes).square()
        return torch.where(known, scores, scores.amin(1, keepdim=True) - FAR)

    def represented(self, graph: Graph) -> Tensor:
        """(N, h) what the model makes of a whole graph; with mini-batches, in blocks of rows."""
        stages = self.model.stages(embed=True) if self.batched else None
        return self.model.embed(graph) if stages is None else in_blocks(stages, graph)

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """The model's; none of logits where prototypes predict."""
        return self.model.stages(embed=embed) if embed or self.judges is None else None

    def party_models(self, *args: Any, **arguments: Any) -> Backbone:
        """The party's own model."""
        if self.settings.predict == "nearest":
            raise AtollError(
                "With predict=nearest a party predicts with prototypes, not with a network; train with predict=head."
            )
        return super().party_models(*args, **arguments)

    def objective(self, batch: Graph, draws: Draws, prototypes: Tensor, known: Tensor, held: bool) -> Tensor:
        """L_S + λ·L_R (Eq. 8), the second where representations are `held` near prototypes."""
        collecting = self.settings.collect == "training"
        if not held and not collecting:
            return self.task.loss(self.model(batch, draws), batch)
        embedded, out = self.model.embed_and_output(batch, draws)
        if collecting:
            counts, sums = self.counts(batch), self.sums(batch, embedded.detach())
            self.passed = (counts, sums) if self.passed is None else (self.passed[0] + counts, self.passed[1] + sums)
        if not held:
            return self.task.loss(out, batch)
        distance = self.from_nodes if self.settings.regularize == "embedding" else self.from_means
        return self.task.loss(out, batch) + self.settings.prototype_weight * distance(batch, embedded, prototypes, known)

    def epoch(self, draws: Draws) -> Any:
        """One pass over the training items, whose representations replace those of the pass before."""
        self.passed = None
        return super().epoch(draws)

    def collected(self) -> tuple[Tensor, Tensor]:
        """(P, C) items and (P, C, h) sums of their representations: of the trained model, or what the last epoch passed."""
        if self.passed is not None and self.settings.collect == "training":
            return self.passed
        graph = self.graph.trained
        return self.counts(graph), self.sums(graph, self.represented(graph).detach())

    def from_nodes(self, batch: Graph, embedded: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
        """Σ_k mean_i ‖z_i − p_{y_i}‖² / h over training nodes whose class has a prototype."""
        classes = batch.y.clamp(min=0)
        weights = party_shares(batch, batch.train & (batch.y >= 0) & known[classes])
        return weights @ (embedded - prototypes[classes]).square().mean(1)

    def from_means(self, batch: Graph, embedded: Tensor, prototypes: Tensor, known: Tensor) -> Tensor:
        """Σ_k mean_c ‖p_kc − p_c‖² / h over the party's classes that have a shared prototype."""
        counts = self.counts(batch)
        both = (counts > 0) & known
        distances = (self.sums(batch, embedded) / counts.clamp(min=1)[..., None] - prototypes).square().mean(2)
        return (torch.where(both, distances, 0).sum(1) / both.sum(1).clamp(min=1)).sum()

    def counts(self, graph: Graph) -> Tensor:
        """(P, C) labeled training nodes of each class."""
        cells = self.cells(graph)
        return occurrences(cells[cells >= 0], graph.parties * graph.num_classes).view(graph.parties, -1)

    def sums(self, graph: Graph, rows: Tensor) -> Tensor:
        """(P, C, h) rows added up over the training nodes of each class."""
        cells, size = self.cells(graph), graph.parties * graph.num_classes
        total = rows.new_zeros(size, rows.shape[1]).index_add(0, cells[cells >= 0], rows[cells >= 0])
        return total.view(graph.parties, graph.num_classes, -1)

    @staticmethod
    def cells(graph: Graph) -> Tensor:
        """(I,) party · C + class of labeled training items, −1 elsewhere."""
        return torch.where(graph.train & (graph.y >= 0), graph.owner * graph.num_classes + graph.y, -1)


def start(federation: Federation, settings: Settings) -> State:
    """No prototypes yet."""
    classes = federation.schema.classes
    zeros = torch.zeros(classes, embedding_width(settings, federation.schema))
    return {"prototypes": zeros, "known": torch.zeros(classes, dtype=torch.bool)}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """p_c ← Σ_k a_kc p_kc / Σ_k a_kc (Eq. 6, `literal`: divided by |N_c| again); a class that nobody sends keeps its last one."""
    total = federation.total("fit", prototypes=state["prototypes"], known=state["known"])
    sent = total["weights"] > 0
    mean = total["prototypes"] / total["weights"].clamp(min=1)[:, None]
    if "holders" in total:
        mean = mean / total["holders"].clamp(min=1)[:, None]
    return {"prototypes": torch.where(sent[:, None], mean, state["prototypes"]), "known": state["known"] | sent}


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation, **(state if settings.predict == "nearest" else {}))
