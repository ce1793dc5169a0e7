"""FedMLP: FedAvg (McMahan et al., AISTATS 2017) of an MLP with I local steps on mini-batches: GFL-APPNP's baseline without edges.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training vectors).
The server sees the sum of the parties' models, weighted by their training vectors, and the sum of those.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.algorithms.fedavg import EVALUATIONS, Cohort, evaluate, start, step
from atoll.settings import setting

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]

SCENARIOS = ("node", "horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(fedavg.Averaging):
    """FedAvg's settings, with steps in the place of epochs."""

    model: str = setting("mlp", "Model of the parties; an MLP does not use the edges.", choices=("mlp",))
    bias: bool = setting(False, "Whether the layers have biases.")
    optimizer: str = setting("sgd", "Optimizer of the parties.", choices=("adam", "adamw", "sgd"))
    local_steps: int = setting(10, "Steps between two rounds, I; `epochs` has no effect here.", low=1, high=10**5)
    batch_size: int = setting(0, "Training vectors per step, redrawn at every step; 0 uses all of a party's.", low=0, high=10**9)
