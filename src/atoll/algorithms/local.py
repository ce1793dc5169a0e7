"""Local: every party trains its own model on its own graph; nothing is shared.

Bytes per round and party: 0 up, 0 down. The server sees nothing of training.
"""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import State
from atoll.federation import metrics
from atoll.federation.cohort import PARTY, Fields, first_model, verb
from atoll.federation.declarations import COUNTS
from atoll.federation.federation import Federation
from atoll.federation.local_training import DECAY_LAYERS, EVALUATION_DROPOUT, PROPAGATE_FIRST, LocalTraining
from atoll.models.normalization import NORM, NORMS
from atoll.models.parameters import set_parameters
from atoll.settings import BatchedTraining, Training, setting

SCENARIOS = ("horizontal", "overlapping")
LEVELS = ("node", "graph", "link")
TARGETS = ("class", "labels", "values")
EVALUATIONS = ("personal", "trained")


@dataclass(frozen=True)
class Personal(Training):
    """The shared training settings, and where the parties' models begin."""

    start: str = setting(
        "own",
        "First values of the parties' models: drawn by each party, or the same for all, those of FedAvg's first model.",
        choices=("own", "shared"),
        since="0.2",
    )
    evaluation_dropout: bool = setting(False, EVALUATION_DROPOUT, since="0.2")
    decay_layers: str = setting("all", DECAY_LAYERS, choices=("all", "first"), since="0.2")
    norm: str = setting("none", NORM, choices=NORMS, since="0.2")


@dataclass(frozen=True)
class Settings(Personal, BatchedTraining):
    """Those settings, mini-batches, and Â·X made once."""

    propagate_first: bool = setting(False, PROPAGATE_FIRST, since="0.2")


class Cohort(LocalTraining):
    """Personal models that never leave their parties."""

    memory = {"model": PARTY, "optimizer": PARTY}
    settings: Personal

    @property
    def share(self) -> str:
        """Nothing travels."""
        return "none"

    def setup(self) -> None:
        """Every party's model and optimizer."""
        super().setup()
        if self.settings.start == "shared" and not self.blank:
            set_parameters(self.model, first_model(self.settings, self.schema, self.seed))

    @verb(takes={}, gives={})
    def fit(self) -> None:  # type: ignore[override]  # nothing arrives
        """θ⁽ᵏ⁾ ← θ⁽ᵏ⁾ − η∇L⁽ᵏ⁾, E times."""
        self.train()

    @verb(takes={}, gives=COUNTS)
    def evaluate(self) -> Fields:  # type: ignore[override]
        """Counts of each party's own model."""
        return self.task.counts(self.predict(), self.graph)


def start(federation: Federation, settings: Settings) -> State:
    """The server has nothing to keep."""
    return {}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """Every party trains."""
    federation.tell("fit")
    return state


def evaluate(federation: Federation, state: State, settings: Settings) -> dict[str, object]:
    """Pooled over the parties' nodes."""
    return metrics.evaluate(federation)
