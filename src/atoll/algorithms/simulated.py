"""Simulated centralized training (Ni et al., 2021): GLASU with all layers shared (K = L, Q = 1) and all edges at every party.

Payload bytes per round and party, n_l the nodes of level l: up and down Σ_l 4·h·n_l over all L layers, for the index sets up at
most and down Σ_l 4·n_l over all but the last, and as much as for the representations again for the gradients
(`backward=server`). The server sees what GLASU's does. By default (`edge_fraction` = 1) every party holds the whole graph.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.algorithms.glasu import LEVELS, SCENARIOS, TASKS, YARDSTICKS, Cohort, evaluate, start, step
from atoll.algorithms.glasu.settings import SplitTraining
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(SplitTraining):
    """GLASU's, with everything shared."""

    backward: str = setting(
        "server", "Exact gradients through the server, or the local ones of Algorithm 4.", choices=("local", "server")
    )
    local_steps: ClassVar[int] = 1
    aggregation: ClassVar[str] = "mean"
    lr_parties: ClassVar[int] = 0
    theory: ClassVar[int] = 0

    @property
    def shared_layers(self) -> int:
        """K = L."""
        return self.layers


__all__ = ["LEVELS", "SCENARIOS", "TASKS", "YARDSTICKS", "Cohort", "Settings", "evaluate", "start", "step"]
