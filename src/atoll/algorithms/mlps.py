"""MLPs: every party trains an MLP of its own on mini-batches of its own vectors, GFL-APPNP's baseline without a federation.

Bytes per round and party: 0 up, 0 down. The server sees nothing of training.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import local
from atoll.algorithms.fedmlp import SCENARIOS
from atoll.algorithms.local import EVALUATIONS, Cohort, evaluate, start, step
from atoll.settings import setting

__all__ = ["EVALUATIONS", "SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]


@dataclass(frozen=True)
class Settings(local.Personal):
    """Local's settings, with steps in the place of epochs."""

    model: str = setting("mlp", "Model of the parties; an MLP does not use the edges.", choices=("mlp",))
    bias: bool = setting(False, "Whether the layers have biases.")
    optimizer: str = setting("sgd", "Optimizer of the parties.", choices=("adam", "adamw", "sgd"))
    local_steps: int = setting(1, "Steps per round; `epochs` has no effect here.", low=1, high=10**5)
    batch_size: int = setting(0, "Training vectors per step, redrawn at every step; 0 uses all of a party's.", low=0, high=10**9)
