"""FedTAD's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.errors import AtollError
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings, the classes' reliability, and the server's distillation."""

    variant: str = setting(
        "paper",
        "The paper's method, or the authors' code, which sets topology, divergence and evaluation_dropout.",
        choices=("paper", "authors"),
    )
    topology: str = setting(
        "return",
        "What stands beside a node's features for its reliability: return probabilities of random walks, the node numbers on "
        "random walks (the authors' code), or nothing.",
        choices=("return", "authors", "none"),
    )
    walk_steps: int = setting(5, "Longest random walk for topology.", low=1, high=1000)
    reliability_over: str = setting(
        "parties",
        "What the reliability of a class sums to 1 over: the parties, or, as in OpenFGL, the classes of a party.",
        choices=("parties", "classes"),
    )
    divergence: str = setting(
        "kl",
        "How far the server's model is from a party's on generated nodes: KL divergence of the predictions, or the mean "
        "difference of the logits (the authors' code).",
        choices=("kl", "l1"),
    )
    server_steps: int = setting(
        5, "Draws of noise per round, each for generator_steps and distillation_steps; 0 is FedAvg.", low=0, high=10**5
    )
    generator_steps: int = setting(1, "Steps of the generator per draw of noise.", low=0, high=10**5)
    distillation_steps: int = setting(5, "Steps of the server's model per draw of noise.", low=0, high=10**5)
    generated_nodes: int = setting(100, "Nodes of a generated graph, the same number of every class.", low=1, high=10**5)
    noise_width: int = setting(32, "Numbers of noise per generated node.", low=1, high=10**5)
    generated_neighbors: int = setting(
        5, "Generated nodes with the largest cosines that each is joined to, itself among them.", low=1, high=10**5
    )
    semantic_weight: float = setting(1.0, "Weight λ₁ of what parties' models make of generated nodes.", low=0)
    diversity_weight: float = setting(1.0, "Weight λ₂ of the diversity of generated nodes.", low=0)
    generator_lr: float = setting(0.001, "Learning rate of the generator.", low=0)
    distillation_lr: float = setting(0.001, "Learning rate of the server's model.", low=0)
    server_weight_decay: float = setting(0.0005, "L2 penalty on the generator's and the server's weights.", low=0)

    def __post_init__(self) -> None:
        """Refuse more neighbors than there are nodes."""
        if self.generated_neighbors > self.generated_nodes:
            raise AtollError(
                f"fedtad: generated_neighbors is {self.generated_neighbors}, but generated_nodes only {self.generated_nodes}; "
                "a node cannot have more neighbors than there are nodes."
            )
