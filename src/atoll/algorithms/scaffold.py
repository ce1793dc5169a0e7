"""SCAFFOLD: Karimireddy et al., ICML 2020. FedAvg whose parties correct their drift by control variates c and c_k.

Payload bytes per round and party, w parameters: down 8·w (the model and c), up 8·w + 8 (model, change of c_k, weight).
The server sees the sum of the parties' models and of the changes of their c_k, weighted, and the sum of the weights. A change
seen alone is, with `control=1`, a full-batch gradient: use secure totals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, answered_share, evaluate
from atoll.device import precise
from atoll.errors import AtollError
from atoll.federation.cohort import MODEL, PARTY, Fields, verb
from atoll.federation.declarations import WEIGHT
from atoll.federation.federation import Federation
from atoll.federation.memory import FRESH, SHARED
from atoll.models import optim
from atoll.models.parameters import Parameters, choose, difference, interpolate, scale, weighted, zeros_of
from atoll.models.pull import Pull
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

STATE_AXES = {"model": SHARED, "control": FRESH}
NO_NORM = "controls are gradients, and running statistics have none"


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings, how controls are renewed, and the server's step."""

    control: int = setting(
        2,
        "New c_k: 1 is the full-batch gradient at the server's model, 2 the mean step of this round (plain SGD only).",
        low=1,
        high=2,
    )
    server_lr: float = setting(1.0, "The fraction η_g of the way to the parties' mean that the server goes.", low=0)
    freeze_controls: bool = setting(False, "Leave all controls zero, which is FedAvg.")

    def __post_init__(self) -> None:
        """Refuse what option II is not defined for."""
        if self.control == 2 and (self.optimizer != "sgd" or self.momentum):
            given = f"momentum={self.momentum}" if self.optimizer == "sgd" else f"optimizer={self.optimizer}"
            raise AtollError(f"scaffold: control=2 takes steps for gradients, which needs plain SGD, not {given}; set control=1.")
        if self.control == 1 and self.batch_size:
            raise AtollError("scaffold: control=1 takes the gradient over the whole graph; set control=2, or batch_size=0.")
        if self.control == 2 and not self.lr:
            raise AtollError("scaffold: control=2 divides by the learning rate, which is 0; set control=1, or lr.")


class Cohort(fedavg.Cohort):
    """FedAvg's parties, each with a control c_k."""

    memory = {"optimizer": PARTY, "control": PARTY}
    training_memory = frozenset({"control"})
    settings: Settings

    def setup(self) -> None:
        """c_k ← 0."""
        super().setup()
        self.control = zeros_of(self.shared())

    @verb(
        takes={"model": MODEL, "control": MODEL},
        gives={"model": MODEL, "change": MODEL, "n": WEIGHT},
        averaged={"model": "n", "change": "n"},
    )
    def fit(self, model: Fields, control: Fields) -> Fields:  # type: ignore[override]
        """Lines 6 to 14 of Algorithm 1: local training with the correction c − c_k, then the new c_k."""
        self.load(model)
        before = self.control
        correction = {name: value - before[name] for name, value in control.items()}  # c − c_k
        if self.settings.freeze_controls:
            self.train(model=model)
        elif self.settings.control == 1:
            self.control = self.gradient()  # option I
            self.train(model=model, correction=correction)
        else:
            steps = self.train(model=model, correction=correction)  # (P,) K
            moved = weighted(difference(self.shared(), model), (-1 / (precise(steps).clamp(min=1) * self.settings.lr)).float())
            renewed = difference(moved, correction)  # option II: c_k − c + (θ − θ_k) / (K·η)
            self.control = choose(steps > 0, renewed, before)
        change = weighted(difference(self.control, before), self.weights)
        return {"model": weighted(self.shared(), self.weights), "change": change, "n": self.weights}

    def pulls(self, model: Fields, correction: Fields | None = None) -> Sequence[Pull]:
        """c − c_k beside g_k (line 10)."""
        return [] if correction is None else [Pull(direction=correction)]

    def gradient(self) -> Parameters:
        """∇F_k at the model as it stands, over all training items, without dropout."""
        computed = optim.gradients(self.optimizer, self.task.loss(self.output(self.graph.trained), self.graph.trained))
        by_name = dict(zip(self.optimizer.params, computed, strict=True))
        return {name: by_name[name] for name in self.control}


def start(federation: Federation, settings: Settings) -> State:
    """A first model; c ← 0."""
    first = fedavg.start(federation, settings)
    return first | {"control": zeros_of(first["model"])}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """θ ← θ + η_g·(mean θ_k − θ); c ← c + |S|/N · mean (c_k⁺ − c_k) (line 17), S those who answered.

    The paper's means are plain ones (`weighting=parties`); with other weights both are weighted alike.
    """
    total = federation.total("fit", model=state["model"], control=state["control"])
    mean, change = (scale(total[name], 1 / total["n"]) for name in ("model", "change"))
    share = answered_share(federation)
    control = {name: value + share * change[name] for name, value in state["control"].items()}
    return {"model": interpolate(state["model"], mean, settings.server_lr), "control": control}
