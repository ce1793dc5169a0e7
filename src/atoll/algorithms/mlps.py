"""MLPs: every party trains an MLP of its own on mini-batches of its own vectors, GFL-APPNP's baseline without a federation.

Bytes a round and party: 0 up, 0 down. The server sees nothing of training.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import local
from atoll.algorithms.fedmlp import SCENARIOS
from atoll.algorithms.local import evaluate, start, step
from atoll.federation.cohort import verb
from atoll.models import optim
from atoll.models.losses import batch, cross_entropy
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(local.Settings):
    """Local's settings, with steps in the place of epochs."""

    model: str = setting("mlp", "Model of the parties; an MLP has no use for edges.", choices=("mlp",))
    bias: bool = setting(False, "Whether the layers have biases.")
    optimizer: str = setting("sgd", "Optimiser of the parties.", choices=("adam", "sgd"))
    local_steps: int = setting(1, "Steps a round; `epochs` does nothing here.", low=1, high=10**5)
    batch_size: int = setting(0, "Training vectors of a step, drawn anew for each; 0 takes all of a party's.", low=0, high=10**9)


class Cohort(local.Cohort):
    """Personal models that never leave their parties."""

    settings: Settings

    @verb(takes={}, gives={})
    def fit(self) -> None:
        """θ⁽ᵏ⁾ ← θ⁽ᵏ⁾ − η∇L⁽ᵏ⁾ on a batch, I times."""
        s, draws = self.settings, self.draws()
        for _ in range(s.local_steps):
            mask = batch(self.graph, s.batch_size, draws)
            optim.descend(self.optimizer, cross_entropy(self.model(self.graph, draws), self.graph, mask))


__all__ = ["SCENARIOS", "Cohort", "Settings", "evaluate", "start", "step"]
