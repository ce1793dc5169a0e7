"""FedOpt: Reddi et al., ICLR 2021, Algorithm 2. FedAdam, FedYogi and FedAdagrad: the server treats the mean update as a gradient.

Payload bytes per round and party, w parameters: down 4·w, up 4·w + 8 (the number of training nodes; of all nodes with
`weighting=nodes`; 1 with `weighting=parties`). The server's moments are never sent.
The server sees the sum of the parties' models, weighted by these nodes, and the sum of the nodes.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from atoll.algorithms import State, fedavg
from atoll.algorithms.fedavg import EVALUATIONS, LEVELS, SCENARIOS, TARGETS, Cohort, evaluate
from atoll.federation.federation import Federation
from atoll.federation.memory import FRESH, SHARED
from atoll.models.parameters import difference, interpolate, zeros_of
from atoll.settings import setting

__all__ = ["EVALUATIONS", "LEVELS", "SCENARIOS", "TARGETS", "Cohort", "Settings", "evaluate", "start", "step"]

STATE_AXES = {"model": SHARED, "first": FRESH, "second": FRESH}
NO_NORM = "its server moves beyond the parties' mean, where a running variance may be negative"


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the server's optimizer."""

    server_optimizer: str = setting(
        "adam",
        "The server's optimizer: FedAdam, FedYogi, FedAdagrad, or plain steps, which with server_momentum are FedAvgM.",
        choices=("adam", "yogi", "adagrad", "sgd"),
    )
    server_lr: float = setting(0.01, "Learning rate η of the server; 1 with server_optimizer=sgd is FedAvg.", low=0)
    server_momentum: float = setting(0.9, "Decay β₁ of the server's first moment.", low=0, high=0.999)
    server_decay: float = setting(0.99, "Decay β₂ of the second moment of adam and yogi.", low=0, high=0.99999)
    adaptivity: float = setting(0.001, "τ, added to the root of the second moment: the smaller, the more adaptive.", low=1e-12)


def start(federation: Federation, settings: Settings) -> State:
    """A first model; m ← 0, v ← τ²."""
    first = fedavg.start(federation, settings)
    zeros = zeros_of(first["model"])
    return first | {"first": zeros, "second": {name: value + settings.adaptivity**2 for name, value in zeros.items()}}


def step(federation: Federation, state: State, settings: Settings) -> State:
    """m ← β₁m + (1−β₁)Δ; v by the optimizer's rule; θ ← θ + η·m / (√v + τ), Δ the mean update.

    `sgd`: m ← β₁m + Δ; θ ← θ + η·m.
    """
    s, mean = settings, fedavg.step(federation, state, settings)["model"]
    update = difference(mean, state["model"])  # Δ
    if s.server_optimizer == "sgd":
        if not s.server_momentum:
            return state | {"model": interpolate(state["model"], mean, s.server_lr)}
        first = {name: s.server_momentum * state["first"][name] + value for name, value in update.items()}
        return state | {
            "model": {name: value + s.server_lr * first[name] for name, value in state["model"].items()},
            "first": first,
        }
    first = interpolate(update, state["first"], s.server_momentum)
    second = {name: second_moment(state["second"][name], value.square(), s) for name, value in update.items()}
    model = {
        name: value + s.server_lr * first[name] / (second[name].sqrt() + s.adaptivity) for name, value in state["model"].items()
    }
    return {"model": model, "first": first, "second": second}


def second_moment(second: Tensor, square: Tensor, settings: Settings) -> Tensor:
    """v from the last v and Δ²."""
    if settings.server_optimizer == "adagrad":
        return second + square
    if settings.server_optimizer == "adam":
        return settings.server_decay * second + (1 - settings.server_decay) * square
    return second - (1 - settings.server_decay) * square * (second - square).sign()  # yogi
