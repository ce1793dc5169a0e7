"""MOON: Li, He & Song, CVPR 2021. FedAvg whose parties keep representations near the shared model's, away from their last.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, evaluate, start, step
from atoll.errors import AtollError
from atoll.federation.cohort import MODEL, NODE, PARTY, Fields, backbone, verb
from atoll.federation.declarations import WEIGHT
from atoll.federation.first_model import embedding_width
from atoll.graphs.graph import Graph
from atoll.graphs.masks import node_weights
from atoll.models.backbone import Backbone
from atoll.models.parameters import get_parameters, set_parameters, weighted, zeros_of
from atoll.random import Draws
from atoll.settings import setting

Anchors = Callable[[Graph], tuple[Tensor, Tensor]]
__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the contrast's."""

    contrast_weight: float = setting(1.0, "Weight μ of the contrast of representations; 0 is FedAvg.", low=0)
    temperature: float = setting(0.5, "Temperature τ of the contrast.", low=1e-3)
    contrast_on: str = setting(
        "train", "The nodes of the contrast: training nodes, or all nodes of the party (OpenFGL).", choices=("train", "all")
    )
    stored: str = setting(
        "model",
        "What a party remembers of its last model: its parameters, or what it makes of the party's nodes (OpenFGL): N·h numbers "
        "instead of w, with the same results.",
        choices=("model", "embedding"),
        since="0.2",
    )
    projection: int = setting(
        0,
        "Columns of a two-layer projection between backbone and classifier, which is contrasted; 0 for none, the authors: 256.",
        low=0,
        high=10**5,
        since="0.2",
    )


class Cohort(fedavg.Cohort):
    """FedAvg's parties, which remember the model that their last training left."""

    memory = {"optimizer": PARTY, "previous": PARTY, "trained_before": PARTY}
    training_memory = frozenset({"previous", "embedded", "trained_before"})
    graph_memory = frozenset({"embedded"})
    settings: Settings

    def setup(self) -> None:
        """No earlier model, and a network that is not trained, for the representations of others."""
        super().setup()
        if self.batched and self.settings.contrast_on == "all":
            raise AtollError("contrast_on=all contrasts all nodes of a party in every step; leave it or batch_size out.")
        if self.settings.projection and self.schema.level != "node":
            raise AtollError(f"projection is for nodes; a network for {self.schema.level}s has a head of its own. Leave it out.")
        self.previous = zeros_of(self.shared())  # w_k of the party's last round
        if self.settings.stored == "embedding":
            if self.batched or not self.graph.of_nodes:
                raise AtollError("stored=embedding is for nodes and whole graphs, whose rows stay the same; leave it out.")
            self.memory = {"optimizer": PARTY, "embedded": NODE, "trained_before": PARTY}  # type: ignore[misc]
            width = embedding_width(self.settings, self.schema)
            self.embedded = torch.zeros(self.graph.num_nodes, width, device=self.device)
        self.trained_before = torch.zeros(self.graph.parties, dtype=torch.bool, device=self.device)
        self.frozen = backbone(self.settings, self.schema, self.graph.parties, None, device=self.device)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """Local training with the contrast (Algorithm 1, lines 14 to 24); the model is kept for the next round."""
        self.load(model)
        contrasting = bool(self.settings.contrast_weight) and bool(self.trained_before.any())
        self.train(model=model, anchors=self.anchors() if contrasting else None)
        if self.settings.stored == "embedding":
            with torch.no_grad():
                self.embedded = self.model.embed_and_output(self.graph)[0]
        else:
            self.previous = {name: value.clone() for name, value in self.shared().items()}
        self.trained_before = torch.ones_like(self.trained_before)
        return {"model": weighted(self.shared(), self.weights), "n": self.weights}

    def objective(self, batch: Graph, draws: Draws, model: Fields, anchors: Anchors | None = None) -> Tensor:
        """ℓ_sup + μ·ℓ_con (Eq. 4); ℓ_sup alone in a party's first round."""
        if anchors is None:
            return self.task.loss(self.output(batch, draws), batch)
        hidden, out = self.model.embed_and_output(batch, draws)
        return self.task.loss(out, batch) + self.settings.contrast_weight * self.contrast(hidden, *anchors(batch), batch)

    def anchors(self) -> Anchors:
        """What gives the representations (I, h) by the model as it was received and by the party's last one, without dropout."""
        received = get_parameters(self.model, copy=True)

        @torch.no_grad()
        def represent(batch: Graph) -> tuple[Tensor, Tensor]:
            set_parameters(self.frozen, received)
            shared, _ = self.frozen.embed_and_output(batch)
            if self.settings.stored == "embedding":
                return shared, self.embedded
            set_parameters(self.frozen, received | self.previous)
            return shared, self.frozen.embed_and_output(batch)[0]

        if not self.graph.of_nodes or self.batched:
            return represent
        once = represent(self.graph)  # without mini-batches, all nodes are in every step
        return lambda _: once

    def party_models(self, *args: Any, **arguments: Any) -> Backbone:
        """The server's model."""
        if self.settings.projection:
            raise AtollError("A network with a projection has no form outside atoll; train with projection=0 to export it.")
        return super().party_models(*args, **arguments)

    def contrast(self, hidden: Tensor, shared: Tensor, previous: Tensor, graph: Graph) -> Tensor:
        """Σ_k mean_i −log[e^{s/τ} / (e^{s/τ} + e^{s′/τ})]; s, s′: cosines with the shared and the last representation (Eq. 3)."""
        near, far = F.cosine_similarity(hidden, shared), F.cosine_similarity(hidden, previous)
        weights = node_weights(graph, "train" if self.settings.contrast_on == "train" else None)
        return (F.softplus((far - near) / self.settings.temperature) * weights * self.trained_before[graph.owner]).sum()
