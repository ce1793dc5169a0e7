"""FedProx: Li et al., MLSys 2020. FedAvg whose parties are held near the server's model by a proximal term.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, evaluate, start, step
from atoll.federation.cohort import Fields
from atoll.graphs.graph import Graph
from atoll.models.parameters import squared_distance
from atoll.random import Draws
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the weight of the proximal term."""

    proximal: float = setting(0.01, "Weight μ of the proximal term μ/2·‖w_k − w‖²; 0 is FedAvg.", low=0)


class Cohort(fedavg.Cohort):
    """FedAvg's parties with another local objective."""

    settings: Settings

    def objective(self, batch: Graph, draws: Draws, model: Fields) -> Tensor:
        """h_k(w_k; w) = F_k(w_k) + μ/2·‖w_k − w‖² (Algorithm 2, line 5)."""
        loss = self.task.loss(self.output(batch, draws), batch)  # F_k
        return loss + self.settings.proximal / 2 * squared_distance(self.model, model)
