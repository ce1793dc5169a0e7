"""FedSpray: Fu et al., KDD 2024, Algorithm 1. Personal GNNs, a shared feature-structure encoder, aligned class proxies.

Payload bytes a round and party, for d features, C classes and width h (`proxy_dim`): the encoder has w = d·h + h + 2·(h·C + C)
numbers, the proxies C·h. Down 4·(w + C·h); up 4·(w + C·h + C) + 8 (each class's share and the number of training nodes).
The server sees sums over the parties alone: their encoders weighted by their training nodes, those nodes, their class proxies
weighted by the classes' shares, those shares. The GNNs never leave their parties.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, TRAIN_ITEM, Fields, Schema, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Forms, real, share
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Features
from atoll.graphs.graph import Graph
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.layers import Dense
from atoll.models.losses import kl
from atoll.models.parameters import get_parameters, scale, set_parameters, weighted
from atoll.random import SERVER, Draws
from atoll.settings import Training, setting

SCENARIOS = ("horizontal", "overlapping")
EVALUATIONS = ("personal",)
TASKS = ("node-classification",)


@dataclass(frozen=True)
class Settings(Training):
    """The paper's settings, and what its text and its authors' code do differently, all of it by `variant` or one by one."""

    soft_target_weight: float = setting(
        5.0, "Weight of the soft targets in a GNN's loss; 0 is Local.", low=0, was="lambda1"
    )  # λ₁
    belief_weight: float = setting(1.0, "Weight of a GNN's beliefs in the encoder's loss.", low=0, was="lambda2")  # λ₂
    proxy_dim: int = setting(64, "Width of the feature embeddings and of the structure proxies.", low=1, high=10**6)  # d_s
    proxy_lr: float = setting(0.02, "Learning rate of the structure proxies.", low=0)
    proxies: bool = setting(True, "Learn structure proxies; if false, they stay zero (S = 0).")
    variant: str = setting(
        "default",
        "Which recipe: the most accurate on all and minority validation nodes, Algorithm 1 to the letter, or the authors' code.",
        choices=("default", "paper", "authors"),
    )
    confidence: float | None = setting(
        None,
        "Distill on unlabeled nodes whose projected class has a higher probability than this (default: the variant's).",
        low=0,
        high=1,
    )
    refresh_proxies: bool | None = setting(
        None, "Labeled nodes take the server's proxies every round instead of keeping their own (default: the variant's)."
    )
    tie_projector: bool | None = setting(
        None, "Start the projector of every round's second phase from the classifier (default: the variant's)."
    )
    initial_proxies: str | None = setting(
        None,
        "The server's initial proxies: zero, or 0.01 times the class index (default: the variant's).",
        choices=("zero", "class"),
        was="first_proxies",
    )
    initial_proxy_value: float | None = setting(
        None, "Initial value of the proxies that labeled nodes keep (default: the variant's).", was="proxy_start"
    )
    encoder_init: str | None = setting(
        None,
        "Bound of the initial encoder weights: 1/√inputs, as in torch's linear layers, or 1/√outputs (default: the variant's).",
        choices=("inputs", "outputs"),
    )
    uniform_weights: bool | None = setting(None, "Draw a GNN's initial weights from U(0, 1) (default: the variant's).")


@dataclass(frozen=True)
class Recipe:
    """The switches of a variant; the fields are those of `Settings`."""

    confidence: float
    refresh_proxies: bool
    tie_projector: bool
    initial_proxies: str
    initial_proxy_value: float
    encoder_init: str
    uniform_weights: bool


RECIPES = {
    "paper": Recipe(0.0, True, False, "zero", 0.0, "inputs", False),  # Algorithm 1 does not say how ω, S and θ begin
    "authors": Recipe(0.7, False, True, "class", 0.1, "outputs", True),
    "default": Recipe(0.8, False, False, "class", 0.1, "outputs", True),
}


def recipe(settings: Settings) -> Recipe:
    """The variant's switches, those that were set by hand replaced."""
    own = {field.name: getattr(settings, field.name) for field in fields(Recipe)}
    chosen = replace(RECIPES[settings.variant], **{name: value for name, value in own.items() if value is not None})
    if not settings.proxies:
        chosen = replace(chosen, initial_proxies="zero", initial_proxy_value=0.0)
    return (
        chosen if settings.soft_target_weight else replace(chosen, uniform_weights=False)
    )  # λ₁ = 0 is Local: it begins as Local does


class Encoder(nn.Module):
    """The feature-structure encoder ω: e = relu(g_e(x)), p = softmax(g_p(e + s)), q = softmax(g_q(e))."""

    def __init__(self, settings: Settings, schema: Schema, parties: int, draws: Draws | None) -> None:
        super().__init__()
        width, classes = settings.proxy_dim, schema.classes
        self.embedding = Dense(parties, schema.features, width, draws)  # g_e
        self.classifier = Dense(parties, width, classes, draws)  # g_p
        self.projector = Dense(parties, width, classes, draws)  # g_q

    def embed(self, features: Features, blocks: Blocks) -> Tensor:
        """Features → e (N, d_s)."""
        embedded: Tensor = self.embedding(features, blocks, relu=True)
        return embedded

    def tie(self) -> None:
        """The projector becomes the classifier."""
        set_parameters(self.projector, get_parameters(self.classifier))


ENCODER = ModelForm(lambda settings, schema: Encoder(settings, schema, 1, None))
PROXIES = real("classes", "proxy_dim")
REPORT: Forms = {"encoder": ENCODER, "n": WEIGHT, "proxies": PROXIES, "share": share("classes")}


class Cohort(atoll.federation.cohort.Cohort):
    """Parties with a GNN of their own, θ⁽ᵏ⁾, and a copy of the shared encoder and proxies."""

    memory = {  # the encoder arrives with every message
        "gnn": PARTY,
        "gnn_optimizer": PARTY,
        "encoder_optimizer": PARTY,
        "proxies": TRAIN_ITEM,
        "proxy_optimizer": TRAIN_ITEM,
    }
    settings: Settings

    def setup(self) -> None:
        """θ⁽ᵏ⁾, a copy of ω, a proxy s_i for every labeled node, and their optimizers."""
        s, parties = self.settings, self.graph.parties
        if bool((self.labeled.y < 0).any()):
            raise AtollError(
                "A training node has no label, but FedSpray needs its class; label it or take it out of the training nodes."
            )
        self.recipe = recipe(s)
        self.gnn = backbone(s, self.schema, parties, self.first_draws("model"))
        if self.recipe.uniform_weights and (draws := self.first_draws("uniform")):
            set_parameters(self.gnn, {name: draws.uniform(*value.shape[1:]) for name, value in get_parameters(self.gnn).items()})
        self.encoder = Encoder(s, self.schema, parties, None)
        first = torch.full((self.labeled.num_nodes, s.proxy_dim), self.recipe.initial_proxy_value)
        self.proxies = nn.ParameterDict({"own": first})  # s_i, i ∈ V_L
        self.gnn_optimizer = optim.of_settings(s, self.gnn)
        self.encoder_optimizer = optim.of_settings(s, self.encoder)
        self.proxy_optimizer = optim.make(s.optimizer, self.proxies, s.proxy_lr if s.proxies else 0.0, momentum=s.momentum)

    @cached_property
    def labeled(self) -> Graph:
        """The labeled nodes V_L alone, party by party."""
        ends = self.graph.num_train.cumsum(0)
        return replace(self.graph.rows(self.rows), ptr=torch.cat([ends.new_zeros(1), ends]))

    @cached_property
    def rows(self) -> Tensor:
        """Where the labeled nodes stand among all."""
        return self.graph.train.nonzero()[:, 0]

    @verb(takes={"encoder": ENCODER, "proxies": PROXIES}, gives=REPORT, averaged={"encoder": "n", "proxies": "share"})
    def update(self, encoder: Fields, proxies: Tensor) -> Fields:
        """LocalUpdate(ω, S)."""
        set_parameters(self.encoder, encoder)
        if self.recipe.refresh_proxies:
            set_parameters(self.proxies, {"own": proxies[self.labeled.y]})  # line 4, for V_L
        self.train_gnn(*self.soft_targets(proxies))
        self.train_encoder(self.gnn(self.graph).softmax(1).detach()[self.rows])
        return self.report()

    @torch.no_grad()
    def soft_targets(self, proxies: Tensor) -> tuple[Tensor, Tensor]:
        """Lines 2-5: p for all nodes; and which of them count: labeled ones and those the projector is sure of."""
        graph = self.graph
        embedded = self.encoder.embed(graph.features, graph.blocks)  # e
        projected = self.encoder.projector(embedded, graph.blocks).softmax(1)  # q, Eq. 10
        structure = projected @ proxies  # s_i = ⟨q_i, S⟩
        structure[self.rows] = self.proxies["own"]
        targets = self.encoder.classifier(embedded + structure, graph.blocks).softmax(1)  # p, Eq. 9
        return targets, graph.train | (projected.amax(1) > self.recipe.confidence)

    def train_gnn(self, targets: Tensor, counted: Tensor) -> None:
        """Phase 1, lines 7-11."""
        s, graph, draws = self.settings, self.graph, self.draws()
        for _ in range(s.epochs):
            logits = self.gnn(graph, draws)
            loss = self.task.loss(logits, graph)  # Eq. 5
            if s.soft_target_weight:
                loss = loss + s.soft_target_weight * kl(targets, logits, graph, counted)  # Eqs. 6, 7
            optim.descend(self.gnn_optimizer, loss)

    def train_encoder(self, beliefs: Tensor) -> None:
        """Phase 2, lines 15-22, with the GNN's beliefs ŷ of the labeled nodes."""
        labeled, blocks, own = self.labeled, self.labeled.blocks, self.proxies["own"]
        if self.recipe.tie_projector:
            self.encoder.tie()
        for _ in range(self.settings.epochs):
            embedded = self.encoder.embed(labeled.features, blocks)
            loss = self.task.loss(self.encoder.projector(embedded, blocks), labeled)  # Eq. 12
            fused = self.encoder.classifier(embedded + own, blocks)
            loss = loss + self.settings.belief_weight * kl(beliefs, fused, labeled)  # Eqs. 11, 13
            optim.descend([self.encoder_optimizer, self.proxy_optimizer], loss)

    def report(self) -> Fields:
        """What the server adds up: n_k·ω⁽ᵏ⁾ and n_k; π_j·s_j and π_j for every class j, s_j the mean of its s_i (line 23)."""
        labeled, classes = self.labeled, self.schema.classes
        of_class = nn.functional.one_hot(labeled.y, classes).float()  # (n, C)
        shares = labeled.blocks.sum(of_class) / labeled.num_train[:, None]  # π_j⁽ᵏ⁾
        sums = labeled.blocks.gram(of_class, self.proxies["own"].detach())  # (P, C, d_s)
        return {
            "encoder": weighted(self.encoder, labeled.num_train),
            "n": labeled.num_train,
            "proxies": sums / labeled.num_train[:, None, None],
            "share": shares,
        }

    @verb(takes={}, gives=COUNTS)
    def evaluate(self) -> Fields:
        """Counts of each party's own GNN."""
        return self.task.counts(self.predict(), self.graph)

    def predict(self) -> Tensor:
        """(N, C) logits of each party's own GNN."""
        logits: Tensor = self.gnn(self.graph)
        return logits

    def embeddings(self) -> Tensor:
        """(N, h) the last hidden layer of each party's own GNN."""
        return self.gnn.embed(self.graph)

    def transfer(self, memory: Mapping[str, Any]) -> None:
        """The GNN is all that predicts; proxies are for training."""
        super().transfer({name: value for name, value in memory.items() if name != "proxies"})

    def party_models(self) -> Backbone:
        """θ⁽ᵏ⁾."""
        return self.gnn


def start(federation: Federation, settings: Settings) -> State:
    """ω₀ and S₀."""
    schema, chosen = federation.schema, recipe(settings)
    slope = 0.01 if chosen.initial_proxies == "class" else 0.0
    proxies = slope * torch.arange(schema.classes)[:, None].expand(-1, settings.proxy_dim)
    encoder = Encoder(settings, schema, 1, Draws(federation.seed, [SERVER], "encoder"))
    if chosen.encoder_init == "outputs":
        for layer in (encoder.embedding, encoder.classifier, encoder.projector):
            set_parameters(
                layer, scale(get_parameters(layer), math.sqrt(layer.weight.shape[1] / layer.weight.shape[2]))
            )  # ±1/√in → ±1/√out
    return {"encoder": {name: value[0] for name, value in get_parameters(encoder).items()}, "proxies": proxies}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """ω ← Σ_k (n_k / n)·ω⁽ᵏ⁾;  s_j ← Σ_k (π_j⁽ᵏ⁾ / π_j)·s_j⁽ᵏ⁾; a class that no party has keeps its proxy."""
    total = federation.total("update", **state)
    share = total["share"][:, None]  # π_j
    return {
        "encoder": scale(total["encoder"], 1 / total["n"]),  # Eq. 14
        "proxies": torch.where(share > 0, total["proxies"] / share.clamp(min=1e-12), state["proxies"]),  # Eq. 15
    }


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation)
