"""FedProx: Li et al., MLSys 2020. FedAvg whose parties are held near the server's model by a proximal term.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`).
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, evaluate, start, step
from atoll.federation.cohort import Fields
from atoll.models.pull import Pull
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the weight of the proximal term."""

    proximal: float = setting(0.01, "Weight μ of the proximal term μ/2·‖w_k − w‖²; 0 is FedAvg.", low=0)


class Cohort(fedavg.Cohort):
    """FedAvg's parties, which descend h_k(w_k; w) = F_k(w_k) + μ/2·‖w_k − w‖²."""

    settings: Settings

    def pulls(self, model: Fields) -> Sequence[Pull]:
        """The gradient of μ/2·‖w_k − w‖² beside F_k's (Algorithm 2, line 5)."""
        return [Pull(self.settings.proximal, model)] if self.settings.proximal else []
