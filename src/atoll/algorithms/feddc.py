"""FedDC: Gao et al., CVPR 2022. Every party learns its drift h_k from the shared model; what is averaged is θ_k + h_k.

Payload bytes per round and party, w parameters: down 8·w (model and g), up 8·w + 8 (model, the party's share of g, weight);
4·w down and 4·w + 8 up with `correction=none`. With `scale_by_size` or `scale_control`, once 8 up and 4 more
down per round.
The server sees the weighted sums of θ_k + h_k (of θ_k with `drift_mean=all`) and of the updates or changes of controls, and the
sum of the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from atoll.algorithms import State, feddyn
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, answered_share, evaluate
from atoll.device import precise
from atoll.errors import AtollError
from atoll.federation.cohort import MODEL, PARTY, Fields, verb
from atoll.federation.declarations import WEIGHT, Case, Forms, real
from atoll.federation.federation import Federation
from atoll.federation.memory import FRESH, SHARED
from atoll.models.parameters import Parameters, difference, scale, weighted, zeros_of
from atoll.models.pull import Pull
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

STATE_AXES = {"model": SHARED, "reference": FRESH, "drift": FRESH, "size": FRESH}
NO_NORM = feddyn.NO_NORM


@dataclass(frozen=True)
class Settings(feddyn.Settings):
    """FedDyn's settings, of which the penalty is one, and the correction of gradients."""

    alpha: float = setting(0.1, "Weight α of the penalty α/2·‖θ_k − (θ − h_k)‖²; 0 leaves it out.", low=0)
    correction: str = setting(
        "last_update",
        "How gradients are corrected: by the last update's difference from the mean one (paper), by SCAFFOLD's controls, or not.",
        choices=("last_update", "control", "none"),
    )
    drift: bool = setting(True, "Learn the drift h_k; without it, alpha=0 and correction=none this is FedAvg.")
    drift_mean: str = setting(
        "answered",
        "Whose drifts enter the server's model: of the parties that answered (paper), or the mean over all (authors' code).",
        choices=("answered", "all"),
    )
    scale_control: bool = setting(
        False, "Divide what the server sends, c or g, by a party's training nodes relative to the mean, as the authors' code."
    )
    variant: str = setting(
        "paper",
        "The paper's method or the authors' code, which sets correction, drift_mean, scale_by_size and scale_control.",
        choices=("paper", "authors"),
    )

    def __post_init__(self) -> None:
        """Refuse what the correction is not defined for."""
        if self.correction == "none":
            return
        if self.optimizer != "sgd" or self.momentum or not self.lr:
            raise AtollError(
                "feddc: the correction takes steps for gradients, which needs optimizer=sgd without momentum and a learning rate "
                "above 0; set these, or correction=none."
            )


def taken(case: Case) -> Forms:
    """What a party takes: FedDyn's and, with a correction, g."""
    forms = feddyn.taken(case)
    if case.settings.scale_control:
        forms = {**forms, "size": real(low=0)}
    return forms if case.settings.correction == "none" else {**forms, "reference": MODEL}


def given(case: Case) -> Forms:
    """What a party gives: without a correction, no share of g."""
    forms: Forms = {"model": MODEL, "n": WEIGHT}
    return forms if case.settings.correction == "none" else {**forms, "change": MODEL}


class Cohort(feddyn.Cohort):
    """FedDyn's parties, which also correct their gradients: `own` is the last update, or the control."""

    memory = {"optimizer": PARTY, "drift": PARTY, "own": PARTY}
    training_memory = frozenset({"drift", "own"})
    settings: Settings

    def setup(self) -> None:
        """h_k ← 0, g_k ← 0."""
        super().setup()
        self.own = zeros_of(self.shared()) if self.settings.correction != "none" else {}

    @verb(
        takes=taken,
        gives=given,
        averaged={"model": "n", "change": "n"},
    )
    def fit(self, model: Fields, reference: Fields | None = None, size: Tensor | None = None) -> Fields:  # type: ignore[override]
        """Local training; h_k ← h_k + θ_k − θ; θ_k + h_k and the party's share of g go back."""
        self.load(model)
        if reference is not None and size is not None and self.settings.scale_control:
            reference = self.scaled(reference, size)
        steps = self.train(
            model=model,
            size=size if self.settings.scale_by_size else None,
            correction=None if reference is None else self.correction(reference),
        )
        update = difference(self.shared(), model)  # Δ_k
        if self.settings.drift:
            self.drift = {name: self.drift[name] + value for name, value in update.items()}
        sent = self.shared()
        if self.settings.drift_mean == "answered":
            sent = {name: value + self.drift[name] for name, value in sent.items()}  # θ_k + h_k
        fields: Fields = {"model": weighted(sent, self.weights), "n": self.weights}
        if reference is not None:
            fields["change"] = weighted(self.renew(update, reference, steps), self.weights)
        return fields

    def pulls(self, model: Fields, size: Tensor | None = None, correction: Fields | None = None) -> Sequence[Pull]:
        """α·(θ_k − (θ − h_k)) + q_k beside ∇L_k(θ_k)."""
        penalty = super().pulls(model, size)
        if correction is None:
            return penalty
        return [replace(one, direction=correction) for one in penalty or [Pull()]]

    def scaled(self, reference: Fields, size: Tensor) -> Parameters:
        """(P, …) c divided by n_k relative to the parties' mean."""
        whole = {name: value.expand(self.graph.parties, *value.shape) for name, value in reference.items()}
        return weighted(whole, size / self.graph.num_train.clamp(min=1))

    def correction(self, reference: Fields) -> Parameters:
        """q_k: the mean step minus the party's last one, per step and learning rate; or c − c_k."""
        last = self.settings.correction == "last_update"
        return difference(self.own, reference) if last else {name: value - self.own[name] for name, value in reference.items()}

    def renew(self, update: Parameters, reference: Fields, steps: Tensor) -> Parameters:
        """The new g_k, or c_k ← c_k − c − Δ_k / (K·η); what the server averages: the new g_k, or the change of c_k."""
        rate = (1 / (precise(steps.clamp(min=1)) * self.settings.lr)).float()
        before, mean = self.own, weighted(update, rate)  # Δ_k / (K·η)
        if self.settings.correction == "last_update":
            self.own = mean
            return mean
        self.own = {name: value - reference[name] - mean[name] for name, value in before.items()}
        return difference(self.own, before)


def start(federation: Federation, settings: Settings) -> State:
    """As FedDyn; g ← 0."""
    first = feddyn.start(federation, settings)
    if settings.scale_control and "size" not in first:
        first["size"] = federation.total("count")["n"] / len(federation.parties)
    return first if settings.correction == "none" else first | {"reference": zeros_of(first["model"])}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """θ ← mean of θ_k + h_k; g ← mean of the parties' last updates, or c ← c + |S|/N · mean change of c_k."""
    sent = {name: state[name] for name in ("reference", "size") if name in state}
    total = federation.total("fit", model=state["model"], **sent)
    mean = scale(total["model"], 1 / total["n"])
    share = answered_share(federation)
    changed: State = {}
    if settings.correction != "none":
        change = scale(total["change"], 1 / total["n"])
        control = {name: value + share * change[name] for name, value in state["reference"].items()}
        changed["reference"] = change if settings.correction == "last_update" else control
    if settings.drift and settings.drift_mean == "all":
        moved = difference(mean, state["model"])
        changed["drift"] = {name: value + share * moved[name] for name, value in state["drift"].items()}
        mean = {name: value + changed["drift"][name] for name, value in mean.items()}
    return state | {"model": mean} | changed
