"""FedSage's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the neighbor generators'."""

    generator: str = setting(
        "federated",
        "Neighbor generators: trained with the other parties (FedSage+), by each party alone, or none (FedSage).",
        choices=("federated", "local", "none"),
    )
    variant: str = setting(
        "paper", "The paper's text, or the authors' code, which sets rounding and mended_from.", choices=("paper", "authors")
    )
    rounding: str = setting("round", "How a predicted number of neighbors becomes a whole one.", choices=("round", "floor"))
    mended_from: str = setting(
        "whole",
        "The graph whose nodes get neighbors: the party's own, or the impaired one that generators are trained on (authors).",
        choices=("whole", "impaired"),
    )
    mended_edges: str = setting(
        "both",
        "Edges of a generated node: in both directions, or outward, from its real neighbor only, as in OpenFGL, FedGB and "
        "FederatedScope, where it never sends a message.",
        choices=("both", "outward"),
    )
    judged_on: str = setting(
        "real", "The graph that a party's nodes are judged on: its own, or the mended one.", choices=("real", "mended")
    )
    hidden_share: float = setting(0.5, "Share of the validation nodes that is hidden to train a generator.", low=0, high=1)
    generated_neighbors: int = setting(5, "Most generated neighbors of a node.", low=1, high=1000)
    generator_epochs: int = setting(20, "Steps of each party's generator alone.", low=0, high=10**5)
    generator_rounds: int = setting(20, "Steps of each party's generator with the others' help.", low=0, high=10**5)
    generator_hidden: int = setting(32, "Width of the generator's encoder and classifier.", low=1, high=10**5)
    generator_latent: int = setting(128, "Width of a node's latent representation.", low=1, high=10**5)
    generator_widths: tuple[int, ...] = setting((256, 2048), "Widths from a latent to the features.", low=1, high=10**5)
    generator_dropout: float = setting(0.5, "Dropout rate inside the generator.", low=0, high=0.99)
    generator_lr: float = setting(0.001, "Learning rate of the generator.", low=0)
    generator_weight_decay: float = setting(0.0001, "L2 penalty on the generator's weights.", low=0)
    count_weight: float = setting(1.0, "Weight a of the error in the number of neighbors.", low=0)
    feature_weight: float = setting(1.0, "Weight b of the error in the neighbors' features.", low=0)
    label_weight: float = setting(1.0, "Weight c of the classification on the mended graph.", low=0)
    min_targets: int = setting(
        32,
        "Nodes of a party whose mean is one target of the others' generators; 1 takes single nodes (the paper), whose features "
        "can then be computed from the gradients.",
        low=1,
        high=10**6,
    )
    gradient_clip: float = setting(
        1.0, "Largest norm of a gradient that a party returns for another's generator; 0 does not clip.", low=0
    )
