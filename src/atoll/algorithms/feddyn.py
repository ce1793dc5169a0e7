"""FedDyn: Acar et al., ICLR 2021, Algorithm 1. FedAvg with a dynamic regularizer that aligns local optima with the global one.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the weight). With `scale_by_size`, once 8 up (the number of
training nodes) and 4 more down per round.
The server sees the sum of the parties' models, weighted, and the sum of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, answered_share, evaluate
from atoll.federation.cohort import MODEL, PARTY, Fields, verb
from atoll.federation.declarations import WEIGHT, Case, Forms, real, whole
from atoll.federation.federation import Federation
from atoll.federation.memory import FRESH, SHARED
from atoll.models.parameters import difference, scale, weighted, zeros_of
from atoll.models.pull import Pull
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

STATE_AXES = {"model": SHARED, "drift": FRESH, "size": FRESH}
NO_NORM = "its server moves beyond the parties' mean, where a running variance may be negative"


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the regularizer's."""

    alpha: float = setting(0.1, "Weight α of the dynamic regularizer; 0 is FedAvg.", low=0)
    scale_by_size: bool = setting(
        False, "Divide a party's α by its training nodes, relative to the parties' mean, as the authors' code does."
    )
    variant: str = setting(
        "paper", "The paper's method or the authors' code, which sets scale_by_size.", choices=("paper", "authors")
    )


def taken(case: Case) -> Forms:
    """What a party takes: the model and, where α is scaled, the parties' mean number of training nodes."""
    forms: Forms = {"model": MODEL}
    return {**forms, "size": real(low=0)} if case.settings.scale_by_size else forms


class Cohort(fedavg.Cohort):
    """FedAvg's parties, each with the sum h_k of its updates so far: −α·h_k is its gradient at its last model."""

    memory = {"optimizer": PARTY, "drift": PARTY}
    training_memory = frozenset({"drift"})
    settings: Settings

    def setup(self) -> None:
        """h_k ← 0."""
        super().setup()
        self.drift = zeros_of(self.shared())

    @verb(takes={}, gives={"n": whole(high="max_weight")})
    def count(self) -> Fields:
        """The number of training nodes."""
        return {"n": self.graph.num_train}

    @verb(takes=taken, gives={"model": MODEL, "n": WEIGHT}, averaged={"model": "n"})
    def fit(self, model: Fields, size: Tensor | None = None) -> Fields:
        """Local training, then h_k ← h_k + θ_k − θ."""
        self.load(model)
        self.train(model=model, size=size)
        if self.settings.alpha:
            self.drift = {name: self.drift[name] + value for name, value in difference(self.shared(), model).items()}
        return {"model": weighted(self.shared(), self.weights), "n": self.weights}

    def pulls(self, model: Fields, size: Tensor | None = None) -> Sequence[Pull]:
        """−∇L_k(θ_k) + α·(w − θ) beside ∇L_k(w), where ∇L_k(θ_k) = −α·h_k: the pull towards θ − h_k."""
        if not self.settings.alpha:
            return []
        alpha: float | Tensor = self.settings.alpha
        if size is not None:
            alpha = alpha * size / self.graph.num_train.clamp(min=1)  # α_k = α / (n_k / mean n)
        return [Pull(alpha, {name: model[name] - value for name, value in self.drift.items()})]


def start(federation: Federation, settings: Settings) -> State:
    """A first model; h ← 0; the parties' mean number of training nodes where it is needed."""
    first = fedavg.start(federation, settings)
    size = {"size": federation.total("count")["n"] / len(federation.parties)} if settings.scale_by_size else {}
    return first | {"drift": zeros_of(first["model"])} | size


def step(federation: Federation, state: State, settings: Settings) -> State:
    """h ← h + |S|/N · (mean θ_k − θ); θ ← mean θ_k + h, S those who answered.

    The paper's h is −α times this one. Its means are plain (`weighting=parties`).
    """
    size = {"size": state["size"]} if settings.scale_by_size else {}
    total = federation.total("fit", model=state["model"], **size)
    mean = scale(total["model"], 1 / total["n"])
    if not settings.alpha:
        return state | {"model": mean}
    share = answered_share(federation)
    drift = {name: value + share * (mean[name] - state["model"][name]) for name, value in state["drift"].items()}
    return state | {"model": {name: value + drift[name] for name, value in mean.items()}, "drift": drift}
