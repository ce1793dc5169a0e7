"""FedProx: Li et al., MLSys 2020. FedAvg whose parties are held near the server's model by a proximal term.

Payload bytes a round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; all with `weighting=nodes`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import SCENARIOS, evaluate, start, step
from atoll.federation.cohort import MODEL, Fields, verb
from atoll.federation.declarations import WEIGHT
from atoll.models import optim
from atoll.models.backbones import set_parameters
from atoll.models.losses import cross_entropy
from atoll.models.parameters import weighted
from atoll.settings import setting

__all__ = ["SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the weight of the proximal term."""

    proximal: float = setting(0.01, "Weight μ of the proximal term μ/2·‖w_k − w‖²; 0 is FedAvg.", low=0)


class Cohort(fedavg.Cohort):
    """FedAvg's parties with another local objective."""

    settings: Settings

    @verb(takes={"model": MODEL}, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields) -> Fields:
        """w_k ← argmin F_k(w_k) + μ/2·‖w_k − w‖², inexactly: E epochs (Algorithm 2, line 5)."""
        s = self.settings
        set_parameters(self.model, model)
        if not s.keep_optimizer:
            self.optimizer.reset()
        draws = self.draws()
        for _ in range(s.epochs):
            loss = cross_entropy(self.model(self.graph, draws), self.graph, "train")  # F_k
            optim.descend(self.optimizer, loss + s.proximal / 2 * squared_distance(self.model, model))  # h_k(w_k; w)
        return {"model": weighted(self.model, self.weights), "n": self.weights}


def squared_distance(model: nn.Module, anchor: Mapping[str, Tensor]) -> Tensor:
    """Σ_k ‖w_k − w‖²: all parties' distances from the server's model, each with its own gradient."""
    return torch.stack([(p - anchor[name]).square().sum() for name, p in model.named_parameters()]).sum()
