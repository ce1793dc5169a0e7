"""What can be set for GLASU and its special cases."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.models.split import SPLITS
from atoll.settings import setting


@dataclass(frozen=True)
class SplitTraining:
    """What GLASU and its special cases have in common."""

    model: str = setting("gcnii", "Backbone of the parties; mlp looks at no edges.", choices=tuple(SPLITS))
    hidden: int = setting(192, "Width of the hidden layers.", low=1, high=10**6)
    layers: int = setting(4, "Number of graph layers, L.", low=1, high=1000)
    dropout: float = setting(0.0, "Share of hidden units dropped while training.", low=0, high=0.99)
    heads: int = setting(8, "GAT: attention heads, side by side in the hidden width.", low=1, high=1000)
    teleport: float = setting(0.1, "GCNII: share of the first representation in every layer, α.", low=0, high=1)
    theta: float = setting(0.5, "GCNII: how fast the layers' weights fade, θ.", low=0)
    lr: float = setting(0.1, "Learning rate.", low=0)
    lr_decay: float = setting(1.0, "Factor on the learning rate after every `lr_every` rounds.", low=0, high=1)
    lr_every: int = setting(0, "Rounds between two decays of the learning rate; 0 never decays.", low=0, high=10**9)
    weight_decay: float = setting(0.0, "L2 penalty on the weights.", low=0)
    optimizer: str = setting("sgd", "Optimiser of the parties.", choices=("adam", "sgd"))
    momentum: float = setting(0.0, "Momentum of SGD.", low=0, high=1)
    batch_size: int = setting(
        16, "Training nodes of a batch, S; 0 trains on the whole graph without sampling.", low=0, high=10**9
    )
    fan_out: int = setting(3, "Neighbours sampled for a node of a layer, on average; 0 takes all.", low=0, high=10**6)
    evaluation: str = setting("full", "Evaluate on the whole graph or on sampled neighbours.", choices=("full", "sampled"))


@dataclass(frozen=True)
class Settings(SplitTraining):
    """K, Q, and what is sent."""

    shared_layers: int = setting(
        2, "Layers after which the server aggregates, K: evenly spread, the last among them.", low=0, high=1000
    )
    local_steps: int = setting(4, "Steps on one batch, the other parties' representations stale, Q.", low=1, high=10**5)
    aggregation: str = setting("mean", "How the server joins the parties' representations.", choices=("mean", "concatenation"))
    backward: str = setting(
        "local", "Gradients of Algorithm 4, or (Q = 1) exact ones, sent back through the server.", choices=("local", "server")
    )
    label_holder: int = setting(-1, "The only party that holds labels; -1 where all do.", low=-1, high=10**7)


def shared(settings: Settings) -> list[int]:
    """𝓘: the layers whose output the server aggregates."""
    count, layers = settings.shared_layers, settings.layers
    return [-(-layers * k // count) - 1 for k in range(1, count + 1)]


def sampled(settings: SplitTraining, training: bool) -> bool:
    """Whether there are index sets at all."""
    return settings.batch_size > 0 if training else settings.evaluation == "sampled"
