"""What can be set for GLASU and its special cases."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.models.link_level import DECODERS
from atoll.models.split import SPLITS
from atoll.settings import setting


@dataclass(frozen=True)
class SplitTraining:
    """What GLASU and its special cases have in common."""

    model: str = setting("gcnii", "Backbone of the parties; mlp does not use the edges.", choices=tuple(SPLITS))
    hidden: int = setting(192, "Width of the hidden layers.", low=1, high=10**6)
    layers: int = setting(4, "Number of graph layers, L.", low=1, high=1000)
    dropout: float = setting(0.0, "Dropout rate of the hidden units.", low=0, high=0.99)
    heads: int = setting(8, "GAT: number of attention heads, each of width hidden / heads.", low=1, high=1000)
    teleport: float = setting(0.1, "GCNII: share of the initial representation in every layer, α.", low=0, high=1)
    theta: float = setting(0.5, "GCNII: how slowly the layers' weights fade with depth, θ.", low=0)
    lr: float = setting(0.1, "Learning rate.", low=0)
    lr_decay: float = setting(1.0, "Factor by which the learning rate is multiplied every `lr_every` rounds.", low=0, high=1)
    lr_every: int = setting(0, "Rounds between two decays of the learning rate; 0 never decays.", low=0, high=10**9)
    weight_decay: float = setting(0.0, "L2 penalty on the weights.", low=0)
    optimizer: str = setting("sgd", "Optimizer of the parties.", choices=("adam", "adamw", "sgd"))
    momentum: float = setting(0.0, "Momentum of SGD.", low=0, high=1)
    batch_size: int = setting(
        16,
        "Training nodes (link prediction: edges) per batch, S; 0 trains on the whole graph without sampling.",
        low=0,
        high=10**9,
    )
    fan_out: int = setting(3, "Average number of neighbors sampled per node and layer; 0 takes all.", low=0, high=10**6)
    evaluation_neighbors: str = setting(
        "full", "Evaluate on the whole graph or on sampled neighbors.", choices=("full", "sampled"), was="evaluation"
    )
    unit_features: bool = setting(
        False, "Divide the features that a party has of a node by their length: SGD then learns from short ones too.", since="0.2"
    )
    label_holder: int = setting(
        -1, "Link prediction: the party whose edges are predicted, which alone knows the pairs.", low=-1, high=10**7, since="0.2"
    )
    decoder: str = setting(
        "dot", "Link prediction: how two nodes' representations become a score.", choices=DECODERS, since="0.2"
    )


@dataclass(frozen=True)
class Settings(SplitTraining):
    """K, Q, and what is sent."""

    shared_layers: int = setting(
        2, "Number of layers after which the server aggregates, K: evenly spaced, including the last.", low=0, high=1000
    )
    local_steps: int = setting(4, "Steps per batch with stale representations of the other parties, Q.", low=1, high=10**5)
    aggregation: str = setting("mean", "How the server combines the parties' representations.", choices=("mean", "concatenation"))
    backward: str = setting(
        "local",
        "Local gradients (Algorithm 4) or, with Q = 1, exact ones sent back through the server.",
        choices=("local", "server"),
    )
    label_holder: int = setting(-1, "The only party that holds labels; -1 if all do.", low=-1, high=10**7)
    lr_parties: int = setting(
        0,
        "Parties for which `lr` was chosen: as Algorithm 4's gradients shrink with M, the rate is lr·M / lr_parties; 0: lr.",
        low=0,
        high=10**7,
        since="0.2.0",
    )
    theory: int = setting(
        0,
        "Measure the quantities of Theorem 1 each time after this many rounds, all parties in one process; 0 never does.",
        low=0,
        high=10**9,
        since="0.2.0",
    )


def shared(settings: Settings) -> list[int]:
    """𝓘: the layers whose output the server aggregates."""
    count, layers = settings.shared_layers, settings.layers
    return [-(-layers * k // count) - 1 for k in range(1, count + 1)]


def rate(settings: Settings, round: int, parties: int) -> float:
    """η of a round: decayed and, with local gradients, which are 1/M per shared layer, scaled with the number of parties."""
    decayed = settings.lr * settings.lr_decay ** ((round - 1) // settings.lr_every if settings.lr_every else 0)
    scaled = settings.lr_parties and settings.backward == "local" and shared(settings)
    return decayed * parties / settings.lr_parties if scaled else decayed


def sampled(settings: SplitTraining, training: bool) -> bool:
    """Whether there are index sets at all."""
    return settings.batch_size > 0 if training else settings.evaluation_neighbors == "sampled"
