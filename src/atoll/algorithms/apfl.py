"""APFL: Deng et al., 2020, Algorithm 1. A personal model mixed with the shared one, v̄ = α·v + (1−α)·w, α learnt by each party.

Payload bytes a round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes).
The server sees the sum of the parties' versions of the shared model, weighted by their training nodes, and the sum of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import functional_call

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.algorithms.fedavg import SCENARIOS, start, step
from atoll.federation import metrics
from atoll.federation.cohort import MODEL, PARTY, Fields, backbone, verb
from atoll.federation.declarations import COUNTS, WEIGHT
from atoll.federation.federation import Federation
from atoll.models import optim
from atoll.models.backbones import set_parameters
from atoll.models.losses import cross_entropy
from atoll.models.parameters import weighted
from atoll.random import Draws
from atoll.settings import Training, setting

__all__ = ["SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(Training):
    """The shared training settings and the mixture's."""

    mixture: float = setting(0.5, "Share α of the personal model at the beginning; 0 is FedAvg, 1 is Local.", low=0, high=1)
    mixture_lr: float = setting(0.003, "Learning rate of the mixture α; 0 keeps it where it began.", low=0)
    keep_optimizer: bool = setting(True, "Keep the parties' optimiser state from round to round instead of starting afresh.")


class Cohort(atoll.federation.cohort.Cohort):
    """Parties that train the shared model, a personal one through the mixture of both, and the mixture."""

    memory = {
        "personal": PARTY,
        "personal_optimizer": PARTY,
        "mixture": PARTY,
        "optimizer": PARTY,
    }  # w arrives each time
    settings: Settings

    def setup(self) -> None:
        """v, α, a place for w, and an optimiser for each model."""
        s = self.settings
        self.personal = backbone(s, self.schema, self.graph.parties, self.first_draws("model"))  # v_k
        self.mixture = torch.full((self.graph.parties,), s.mixture)  # α_k
        self.model = backbone(s, self.schema, self.graph.parties, None)  # w_k
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay)
        self.personal_optimizer = optim.make(s.optimizer, self.personal, s.lr, s.weight_decay)

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """E epochs: w_k down its own loss, v_k down the mixture's; α_k once a round, before them (Section 4.3)."""
        s, graph = self.settings, self.graph
        set_parameters(self.model, model)
        if not s.keep_optimizer:
            self.optimizer.reset()
            self.personal_optimizer.reset()
        self.adapt()
        draws, same_draws = self.draws(), self.draws()  # both gradients are taken on the same sample ξ
        for _ in range(s.epochs):
            optim.descend(self.personal_optimizer, cross_entropy(self.mixed(self.mixture, draws), graph, "train"))  # ∇_v f(v̄)
            optim.descend(self.optimizer, cross_entropy(self.model(graph, same_draws), graph, "train"))  # ∇f(w)
        return {"model": weighted(self.model, graph.num_train), "n": graph.num_train}

    def adapt(self) -> None:
        """α_k ← α_k − η_α·⟨v_k − w_k, ∇f(v̄_k)⟩, within [0, 1]."""
        if not self.settings.mixture_lr:
            return
        mixture = self.mixture.clone().requires_grad_()
        (slope,) = torch.autograd.grad(cross_entropy(self.mixed(mixture), self.graph, "train"), mixture)
        self.mixture = (self.mixture - self.settings.mixture_lr * slope).clamp(0, 1)

    @verb(takes={"model": MODEL}, gives=COUNTS)
    def evaluate(self, model: Fields) -> Fields:
        """Counts of each party's mixture with the server's model."""
        set_parameters(self.model, model)
        return metrics.local_counts(self.mixed(self.mixture), self.graph)

    def mixed(self, mixture: Tensor, draws: Draws | None = None) -> Tensor:
        """Logits of v̄_k, differentiable in v_k and α_k."""
        personal, shared = dict(self.personal.named_parameters()), dict(self.model.named_parameters())
        logits: Tensor = functional_call(self.model, mix(mixture, personal, shared), (self.graph, draws))
        return logits


def mix(mixture: Tensor, personal: Mapping[str, Tensor], shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """α·v + (1−α)·w for every parameter (P, …) and each party's α."""
    mixed = {}
    for name, own in personal.items():
        share = mixture.view(-1, *[1] * (own.ndim - 1))
        mixed[name] = share * own + (1 - share) * shared[name].detach()
    return mixed


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Of the mixtures, pooled over the parties' nodes."""
    return metrics.evaluate(federation, model=state["model"])
