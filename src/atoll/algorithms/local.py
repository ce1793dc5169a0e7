"""Local: every party trains its own model on its own graph; nothing is shared.

Bytes a round and party: 0 up, 0 down. The server sees nothing of training.
"""

from __future__ import annotations

from dataclasses import dataclass

import atoll.federation.cohort
from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, backbone, verb
from atoll.federation.declarations import COUNTS
from atoll.federation.federation import Federation
from atoll.models import optim
from atoll.models.losses import cross_entropy
from atoll.settings import Training

SCENARIOS = ("horizontal", "overlapping")


@dataclass(frozen=True)
class Settings(Training):
    """The shared training settings, nothing more."""


class Cohort(atoll.federation.cohort.Cohort):
    """Personal models that never leave their parties."""

    memory = {"model": PARTY, "optimizer": PARTY}
    settings: Settings

    def setup(self) -> None:
        """A model and its optimiser for each party."""
        s = self.settings
        self.model = backbone(s, self.schema, self.graph.parties, self.first_draws("model"))
        self.optimizer = optim.make(s.optimizer, self.model, s.lr, s.weight_decay)

    @verb(takes={}, gives={})
    def fit(self) -> None:
        """θ⁽ᵏ⁾ ← θ⁽ᵏ⁾ − η∇L⁽ᵏ⁾, E times."""
        draws = self.draws()
        for _ in range(self.settings.epochs):
            optim.descend(self.optimizer, cross_entropy(self.model(self.graph, draws), self.graph, "train"))

    @verb(takes={}, gives=COUNTS)
    def evaluate(self) -> Fields:
        """Counts of each party's own model."""
        return metrics.local_counts(self.model(self.graph), self.graph)


def start(federation: Federation, settings: Settings) -> State:
    """The server has nothing to keep."""
    return {}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Everybody trains."""
    federation.tell("fit")
    return state


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation)
