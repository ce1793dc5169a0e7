"""FedGTA: Li et al., PVLDB 17(1), 2023. Parties whose propagated predictions are alike share a model, the confident ones more.

After local training a party propagates its predictions over its graph and sends moments of them, from which the server tells who
is alike, and how confident they are around its nodes, which is how much the party counts.

Payload bytes per round and party, w parameters, C classes, K moments: down 4·w, up 4·(w + M + 1) with M = K·C (2·K·C with
`moments=hybrid`). Evaluation sends 4·w down, unless it judges trained models.
The server sees *each party's* model after training, the moments of its predictions (the first are its shares of classes,
softened) and its confidence: pairs are compared, which is why `fit` cannot be asked under secure aggregation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from atoll.algorithms import State
from atoll.algorithms.fedavg import SCENARIOS
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, first_model, verb
from atoll.federation.declarations import COUNTS, Case, optional, real
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.graphs.masks import node_weights
from atoll.models.parameters import Parameters, get_parameters, scale, weighted
from atoll.settings import BatchedTraining, setting

__all__ = ["EVALUATIONS", "SCENARIOS", "TASKS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal", "trained")
TASKS = ("node-classification",)
STATE_AXES = {"model": PARTY}
TINY = 1e-8  # added to a probability before its logarithm is taken


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings, the propagation, the moments and the similarities."""

    variant: str = setting(
        "authors",
        "The authors' code, or the paper, which sets boost_training=false and softened=false.",
        choices=("authors", "paper"),
    )
    propagation_steps: int = setting(5, "Propagation steps κ of the predictions.", low=0, high=1000)
    propagation_share: float = setting(0.5, "Share α of the neighbors in each step; the rest is the beginning.", low=0, high=1)
    boost_training: bool = setting(True, "Add the labels of training nodes again in every step (the authors' code).")
    softened: bool = setting(True, "Take the softmax of what was propagated, with `temperature` for the confidence.")
    temperature: float = setting(20.0, "Temperature T of the softmax for the confidence.", above=0)
    moments: str = setting(
        "hybrid", "Moments that are compared: raw ones, central ones, or both.", choices=("raw", "central", "hybrid")
    )
    moment_order: int = setting(6, "Moments K of each kind.", low=1, high=1000)
    similarity_threshold: float = setting(
        0.5, "Cosine ε of two parties' moments above which they share; −1 is one model for all, 1 each alone.", low=-1
    )
    confidence: bool = setting(True, "Weigh parties by their confidence; otherwise all count alike.")
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")


def moment_count(case: Case) -> int:
    """M."""
    s = case.settings
    return int(s.moment_order * case.schema.classes * (2 if s.moments == "hybrid" else 1))


class Cohort(LocalTraining):
    """Parties that train their own aggregate and describe their predictions by moments."""

    settings: Settings

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "moments": real(moment_count), "confidence": real(low=0)})
    def fit(self, model: Fields) -> Fields:
        """Local training, then the moments and the confidence of the propagated predictions."""
        self.load(model)
        self.train(model=model)
        sharp, soft = self.propagated()
        return {
            "model": get_parameters(self.model, copy=True),
            "moments": self.moments_of(sharp),
            "confidence": self.confidence_of(soft),
        }

    @verb(takes={"model": optional(MODEL)}, gives=COUNTS)
    def evaluate(self, model: Fields | None = None) -> Fields:
        """Counts of each party's aggregate; without one, of the model that it keeps."""
        return self.task.counts(self.predict(model), self.graph)

    @torch.no_grad()
    def propagated(self) -> tuple[Tensor, Tensor]:
        """(N, C) Y and Z: predictions after κ steps, for the moments and for the confidence; training nodes have their labels.

        Deviation: a node that has no role begins with its prediction; in the authors' code it has its true label.
        """
        s, graph = self.settings, self.graph
        labeled = graph.train & (graph.y >= 0)
        own = torch.nn.functional.one_hot(graph.y.clamp(min=0), graph.num_classes).float()
        first = torch.where(labeled[:, None], own, torch.softmax(self.predict(), 1))  # F⁰
        rows = first
        for _ in range(s.propagation_steps):
            rows = torch.lerp(first, graph.normalized_adjacency @ rows, s.propagation_share)
            if s.boost_training:
                rows = rows + first * labeled[:, None]
        if not s.softened:
            return rows, rows
        sharp, soft = torch.softmax(rows, 1), torch.softmax(rows / s.temperature, 1)
        return torch.where(labeled[:, None], own, sharp), torch.where(labeled[:, None], own, soft)

    def moments_of(self, rows: Tensor) -> Tensor:
        """(P, M) the means over each party's nodes of Y, …, Yᴷ, of the powers of Y − Ȳ, or of both."""
        graph, weights = self.graph, node_weights(self.graph)[:, None]
        central = rows - graph.blocks.broadcast(graph.blocks.sum(rows * weights))
        kinds = {"raw": [rows], "central": [central], "hybrid": [rows, central]}[self.settings.moments]
        powers = [base**order for base in kinds for order in range(1, self.settings.moment_order + 1)]
        return torch.cat([graph.blocks.sum(power * weights) for power in powers], 1)

    def confidence_of(self, rows: Tensor) -> Tensor:
        """(P,) Σ_i d_i·(C/e + Σ_c Z_ic·ln Z_ic), d_i the number of a node's neighbors."""
        graph = self.graph
        degree = torch.bincount(graph.edge_index[1], minlength=graph.num_nodes).to(rows)
        certainty = graph.num_classes / math.e + (rows * (rows + TINY).log()).sum(1)
        return graph.blocks.sum(degree * certainty).clamp(min=0)


def start(federation: Federation, settings: Settings) -> State:
    """The same first model for everybody."""
    parties = len(federation.parties)
    model = first_model(settings, federation.schema, federation.seed)
    return {"model": {name: value.expand(parties, *value.shape).clone() for name, value in model.items()}}  # (P, …)


def step(federation: Federation, state: State, settings: Settings) -> State:
    """θ_k ← Σ_{j ∈ I_k} H_j·θ_j / Σ_{j ∈ I_k} H_j, I_k: k and the parties with cos(m_k, m_j) > ε; who is away keeps its model."""
    replies = federation.ask("fit", each={"model": state["model"]})
    alike = similar(replies.stack("moments"), settings.similarity_threshold)
    confidence = replies.stack("confidence")
    if not settings.confidence:
        confidence = torch.ones_like(confidence)
    models = {name: value.clone() for name, value in state["model"].items()}
    sets, kind = torch.unique(alike, dim=0, return_inverse=True)
    for number, members in enumerate(sets):
        mean = mixture(replies.stack("model"), confidence, members)
        index = replies.index[kind == number]
        for name, value in mean.items():
            models[name][index] = value
    return {"model": models}


def similar(moments: Tensor, threshold: float) -> Tensor:
    """(K, K) who shares with whom: rows whose cosine is above the threshold, and everybody with itself."""
    unit = moments.double() / moments.double().norm(dim=1, keepdim=True).clamp(min=1e-12)
    cosines = (unit @ unit.t()).clamp(-1, 1)
    alike: Tensor = cosines > threshold
    return alike | torch.eye(len(moments), dtype=torch.bool)


def mixture(models: Parameters, confidence: Tensor, members: Tensor) -> Parameters:
    """The members' mean, weighted by their confidence, or plain where nobody has any; of one member its model as it is."""
    index = members.nonzero()[:, 0]
    if len(index) == 1:
        return {name: value[index[0]] for name, value in models.items()}
    weights = confidence[index]
    if not bool(weights.sum() > 0):
        weights = torch.ones_like(weights)
    shares = weighted({name: value[index] for name, value in models.items()}, weights)
    return scale({name: value.sum(0) for name, value in shares.items()}, 1 / weights.sum())


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of each party's aggregate, pooled over the parties' nodes."""
    return metrics.evaluate(federation, each={"model": state["model"]})
