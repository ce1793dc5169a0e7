"""FedSpray: Fu et al., KDD 2024, Algorithm 1. Personal GNNs, a shared feature-structure encoder, aligned class proxies.

Payload bytes a round and party, for d features, C classes and width h (`proxy_dim`): the encoder has w = d·h + h + 2·(h·C + C)
numbers (h·C more with `combine=concat`), the proxies C·h. Down 4·(w + C·h); up 4·(w + C·h + C) + 8 (each class's share and the
number of training nodes).
The server sees sums over the parties alone: their encoders weighted by their training nodes, those nodes, their class proxies
weighted by the classes' shares, those shares. The GNNs never leave their parties, so that each party may have another backbone
(`models`). A party without training nodes trains its GNN on the soft targets and adds nothing to the sums.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.fedspray.encoder import Encoder
from atoll.algorithms.fedspray.settings import RECIPES, Recipe, Settings, recipe
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, TRAIN_ITEM, Fields, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT, Forms, real, share
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.federation import Federation
from atoll.graphs import minibatch
from atoll.graphs.graph import Graph
from atoll.graphs.inference import in_blocks
from atoll.models import optim
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.batching import fan_outs
from atoll.models.losses import kl
from atoll.models.mixed_backbones import MixedBackbone, check_kinds, draw_uniform
from atoll.models.parameters import get_parameters, scale, set_parameters, weighted
from atoll.random import SERVER, Draws

SCENARIOS = ("horizontal", "overlapping")
EVALUATIONS = ("personal",)
TASKS = ("node-classification",)
UNLABELED_PARTIES = True  # a party without training nodes learns from the soft targets

__all__ = [
    "RECIPES",
    "SCENARIOS",
    "TASKS",
    "UNLABELED_PARTIES",
    "Cohort",
    "Recipe",
    "Settings",
    "evaluate",
    "recipe",
    "start",
    "step",
]

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
        self.gnn = self.make_gnn().to(self.device)
        self.encoder = Encoder(s, self.schema, parties, None).to(self.device)
        first = torch.full((self.labeled.num_nodes, s.proxy_dim), self.recipe.initial_proxy_value, device=self.device)
        self.proxies = nn.ParameterDict({"own": first})  # s_i, i ∈ V_L
        self.gnn_optimizer = optim.of_settings(s, self.gnn)
        self.encoder_optimizer = optim.of_settings(s, self.encoder)
        self.proxy_optimizer = optim.make(s.optimizer, self.proxies, s.proxy_lr if s.proxies else 0.0, momentum=s.momentum)

    def make_gnn(self) -> Backbone:
        """θ⁽ᵏ⁾, of one backbone or of one after the other of `models`."""
        s, schema = self.settings, self.schema
        if not s.models:
            gnn = backbone(s, schema, self.graph.parties, self.first_draws("model"))
            if self.recipe.uniform_weights and (draws := self.first_draws("uniform")):
                draw_uniform(gnn, draws)
            return gnn
        check_kinds(s.models)
        names = [s.models[party % len(s.models)] for party in self.parties]
        shape = ModelShape(len(names), schema.features, schema.classes, s.hidden, s.layers, s.dropout, s.input_dropout, s.bias)
        mixed = MixedBackbone(s.models, names, shape, lambda: self.first_draws("model"))
        if self.recipe.uniform_weights and not self.blank:
            mixed.draw_uniform(lambda: Draws(self.seed, self.parties, "setup", "uniform"))
        return mixed

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
        self.train_encoder(self.predict().softmax(1).detach()[self.rows])
        return self.report()

    @torch.no_grad()
    def soft_targets(self, proxies: Tensor) -> tuple[Tensor, Tensor]:
        """Lines 2-5: p for all nodes; and which of them count: labeled ones and those the projector is sure of."""
        graph = self.graph
        embedded = self.encoder.embed(graph.features, graph.blocks)  # e
        projected = self.encoder.projector(embedded, graph.blocks).softmax(1)  # q, Eq. 10
        structure = projected @ proxies  # s_i = ⟨q_i, S⟩
        structure[self.rows] = self.proxies["own"]
        targets = self.encoder.classify(embedded, structure, graph.blocks).softmax(1)  # p, Eq. 9
        return targets, graph.train | (projected.amax(1) > self.recipe.confidence)

    def train_gnn(self, targets: Tensor, counted: Tensor) -> None:
        """Phase 1, lines 7-11."""
        s, graph, draws = self.settings, self.graph, self.draws()
        if s.batch_size:
            self.train_gnn_in_batches(targets, counted, draws)
            return
        for _ in range(s.epochs):
            logits = self.gnn(graph, draws)
            loss = self.task.loss(logits, graph)  # Eq. 5
            if s.soft_target_weight:
                loss = loss + s.soft_target_weight * kl(targets, logits, graph, counted)  # Eqs. 6, 7
            optim.descend(self.gnn_optimizer, loss)

    def train_gnn_in_batches(self, targets: Tensor, counted: Tensor, draws: Draws) -> None:
        """The same in mini-batches of the nodes that count; those without soft targets are the labeled ones."""
        s, graph, sampling = self.settings, self.graph, self.draws("batches")
        items = counted if s.soft_target_weight else graph.train
        numbers = fan_outs(s, self.gnn.hops)
        for _ in range(s.epochs):
            for batch in minibatch.epoch(graph, s.batch_size, numbers, s.sampler, sampling, items):
                logits = self.gnn(batch, draws)
                loss = self.task.loss(logits, batch)
                if s.soft_target_weight:
                    loss = loss + s.soft_target_weight * kl(targets[batch.index], logits, batch, counted[batch.index])
                optim.descend(self.gnn_optimizer, loss, batch.active)

    def train_encoder(self, beliefs: Tensor) -> None:
        """Phase 2, lines 15-22, with the GNN's beliefs ŷ of the labeled nodes."""
        labeled, blocks, proxies = self.labeled, self.labeled.blocks, self.proxies["own"]
        if self.recipe.tie_projector:
            self.encoder.tie()
        for _ in range(self.settings.epochs):
            embedded = self.encoder.embed(labeled.features, blocks)
            loss = self.task.loss(self.encoder.projector(embedded, blocks), labeled)  # Eq. 12
            guesses = self.encoder.classify(embedded, proxies, blocks)
            loss = loss + self.settings.belief_weight * kl(beliefs, guesses, labeled)  # Eqs. 11, 13
            optim.descend([self.encoder_optimizer, self.proxy_optimizer], loss)

    def report(self) -> Fields:
        """What the server adds up: n_k·ω⁽ᵏ⁾ and n_k; π_j·s_j and π_j for every class j, s_j the mean of its s_i (line 23).

        All of it is zero for a party without labeled nodes.
        """
        labeled, classes = self.labeled, self.schema.classes
        of_class = nn.functional.one_hot(labeled.y, classes).float()  # (n, C)
        n = labeled.num_train.clamp(min=1)
        shares = labeled.blocks.sum(of_class) / n[:, None]  # π_j⁽ᵏ⁾
        sums = labeled.blocks.gram(of_class, self.proxies["own"].detach())  # (P, C, d_s)
        return {
            "encoder": weighted(self.encoder, labeled.num_train),
            "n": labeled.num_train,
            "proxies": sums / n[:, None, None],
            "share": shares,
        }

    @verb(takes={}, gives=COUNTS)
    def evaluate(self) -> Fields:
        """Counts of each party's own GNN."""
        return self.task.counts(self.predict(), self.graph)

    def predict(self) -> Tensor:
        """(N, C) logits of each party's own GNN."""
        if self.settings.batch_size and (stages := self.gnn.stages()) is not None:
            return in_blocks(stages, self.graph)
        logits: Tensor = self.gnn(self.graph)
        return logits

    def embeddings(self) -> Tensor | None:
        """(N, h) the last hidden layer of each party's own GNN; None where parties have different ones."""
        if self.settings.batch_size and (stages := self.gnn.stages(embed=True)) is not None:
            return in_blocks(stages, self.graph)
        return None if self.settings.models else self.gnn.embed(self.graph)

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
    if not bool(total["n"] > 0):  # nobody who answered has labels
        return state
    share = total["share"][:, None]  # π_j
    return {
        "encoder": scale(total["encoder"], 1 / total["n"]),  # Eq. 14
        "proxies": torch.where(share > 0, total["proxies"] / share.clamp(min=1e-12), state["proxies"]),  # Eq. 15
    }


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation)
