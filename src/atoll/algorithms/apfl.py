"""APFL: Deng et al., 2020, Algorithm 1. A personal model mixed with the shared one, v̄ = α·v + (1−α)·w, α learned by each party.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes).
The server sees the sum of the parties' versions of the shared model, weighted by their training nodes, and the sum of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

from atoll.algorithms import State
from atoll.algorithms.fedavg import LEVELS, SCENARIOS, SHARED_PARAMETERS, SHARES, TARGETS, start, step
from atoll.errors import AtollError
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, backbone
from atoll.federation.federation import Federation
from atoll.federation.local_training import LocalTraining
from atoll.graphs.graph import Graph
from atoll.graphs.inference import Stage, in_blocks
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.optim import Optimizer
from atoll.models.parameters import get_parameters, set_parameters
from atoll.random import Draws
from atoll.settings import BatchedTraining, setting

__all__ = ["LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

EVALUATIONS = ("personal",)


@dataclass(frozen=True)
class Settings(BatchedTraining):
    """The shared training settings and the mixture's."""

    mixture: float = setting(0.5, "Initial share α of the personal model; 0 is FedAvg, 1 is Local.", low=0, high=1)
    mixture_lr: float = setting(0.003, "Learning rate of the mixture α; 0 keeps it fixed.", low=0)
    keep_optimizer: bool = setting(True, "Keep the parties' optimizer state from round to round instead of resetting it.")
    mix: str = setting(
        "parameters",
        "What is mixed: the models' parameters (the paper), or their outputs (the authors' code).",
        choices=("parameters", "logits"),
        since="0.2",
    )
    mixture_decay: float = setting(
        0.0, "Decay of the mixture: this times α is added to α's slope; the authors' code has 0.02.", low=0, since="0.2"
    )
    share: str = setting("all", SHARED_PARAMETERS, choices=SHARES, since="0.2")


class Cohort(LocalTraining):
    """Parties that train the shared model, a personal one through the mixture of both, and the mixture."""

    memory = {"personal": PARTY, "personal_optimizer": PARTY, "mixture": PARTY, "optimizer": PARTY}  # w arrives each time
    settings: Settings

    def setup(self) -> None:
        """v, α, a model for w, and an optimizer for each model."""
        super().setup()  # w_k
        s = self.settings
        own = self.first_draws("model")
        self.personal = backbone(s, self.schema, self.graph.parties, own, self.graph, device=self.device)  # v_k
        self.mixture = torch.full((self.graph.parties,), s.mixture, device=self.device)  # α_k
        self.personal_optimizer = optim.of_settings(s, self.personal)

    def train(self, model: Fields) -> Tensor:
        """α_k once per round (Section 4.3), then E epochs."""
        self.adapt()
        return super().train(same_draws=self.draws())  # both gradients are taken on the same sample ξ

    def objective(self, batch: Graph, draws: Draws, same_draws: Draws) -> Tensor:
        """f(v̄_k), down which v_k goes, and f(w_k), down which w_k goes."""
        personal = self.task.loss(self.mixed(self.mixture, batch, draws), batch)  # ∇_v f(v̄)
        return personal + self.task.loss(self.model(batch, same_draws), batch)  # ∇f(w)

    @property
    def optimizers(self) -> list[Optimizer]:
        """Those of v_k and w_k."""
        return [self.personal_optimizer, self.optimizer]

    def adapt(self) -> None:
        """α_k ← α_k − η_α·⟨v_k − w_k, ∇f(v̄_k)⟩, within [0, 1]."""
        if not self.settings.mixture_lr:
            return
        mixture = self.mixture.clone().requires_grad_()
        graph = next(self.epoch(self.draws("mixture"))) if self.batched else self.graph  # ∇f(v̄_k; ξ)
        (slope,) = torch.autograd.grad(self.task.loss(self.mixed(mixture, graph), graph), mixture)
        slope = slope + self.settings.mixture_decay * self.mixture
        self.mixture = (self.mixture - self.settings.mixture_lr * slope).clamp(0, 1)

    def output(self, graph: Graph, draws: Draws | None = None) -> Tensor:
        """Each party's mixture with the server's model: what is evaluated."""
        return self.mixed(self.mixture, graph, draws)

    def hidden(self, graph: Graph) -> Tensor | None:
        """The hidden representation of v̄_k; none where outputs are mixed."""
        return self.mixed_models().embed(graph) if self.settings.mix == "parameters" else None

    def party_models(self, model: Fields) -> Backbone:
        """v̄_k."""
        if self.settings.mix == "logits":
            raise AtollError("With mix=logits a party predicts with two models, not with one; train with mix=parameters.")
        self.load(model)
        return self.mixed_models()

    def stages(self, *, embed: bool = False) -> list[Stage] | None:
        """Those of v̄_k; none where the outputs of two models are mixed."""
        return self.mixed_models().stages(embed=embed) if self.settings.mix == "parameters" else None

    def predict(self, model: Fields) -> Tensor:
        """(N, C) the output of each party's mixture with the server's model."""
        both = self.personal.stages(), self.model.stages()
        if self.settings.mix == "parameters" or not self.batched or both[0] is None or both[1] is None:
            return super().predict(model)
        self.load(model)
        share = self.mixture[self.graph.party][:, None]
        return share * in_blocks(both[0], self.graph) + (1 - share) * in_blocks(both[1], self.graph)

    def mixed_models(self) -> Backbone:
        """v̄_k as a model."""
        model = backbone(self.settings, self.schema, self.graph.parties, None, device=self.device)
        set_parameters(model, mix(self.mixture, get_parameters(self.personal), self.shared()))
        return model

    def mixed(self, mixture: Tensor, graph: Graph, draws: Draws | None = None) -> Tensor:
        """The output of v̄_k, differentiable in v_k and α_k."""
        if self.settings.mix == "logits":
            share = mixture[graph.owner][:, None]
            both: Tensor = share * self.personal(graph, draws) + (1 - share) * self.model(graph).detach()
            return both
        mixed = mix(mixture, dict(self.personal.named_parameters()), self.shared())
        out: Tensor = functional_call(self.model, mixed, (graph, draws))
        return out


def mix(mixture: Tensor, personal: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """α·v + (1−α)·w for every parameter (P, …) that is shared and each party's α; v for the others."""
    mixed = dict(personal)
    for name, value in shared.items():
        share = mixture.view(-1, *[1] * (value.ndim - 1))
        mixed[name] = share * personal[name] + (1 - share) * value.detach()
    return mixed


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of the mixtures, pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"])
