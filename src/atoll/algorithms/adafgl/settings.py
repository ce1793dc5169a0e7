"""AdaFGL's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.settings import BatchedTraining, setting


@dataclass(frozen=True)
class Settings(fedavg.Averaging, BatchedTraining):
    """FedAvg's settings, mini-batches of the shared stage, where the personal one begins, its relations and branches."""

    variant: str = setting(
        "authors", "The authors' code, or the paper, which sets combine=mixture.", choices=("authors", "paper")
    )
    personal_stage: bool = setting(True, "Whether there is a personal stage; without it this is FedAvg.")
    shared_rounds: int = setting(100, "Rounds of FedAvg, after which every party trains alone.", low=1, high=10**6)
    shared_model: str = setting(
        "best",
        "The model that the personal stage begins from: of the round with the best validation accuracy, or the last (OpenFGL).",
        choices=("best", "last"),
    )
    personal_epochs: int = setting(10, "Epochs per round of the personal stage (the authors: 200 in all).", low=1, high=10**5)
    edge_share: float = setting(0.05, "Share α of the party's own edges beside the relations.", low=0, high=1)
    relation_share: float = setting(0.2, "Share β of the relations in the learned similarities.", low=0, high=1)
    relation_threshold: float = setting(0.999, "Cosine of two nodes' predictions above which they are related.", low=0, high=1)
    combine: str = setting(
        "choice",
        "How the branches are combined: the homophilous one alone from `homophily_threshold` on, else the other (the authors' "
        "code), or both, mixed by the homophily (the paper).",
        choices=("choice", "mixture"),
    )
    homophily_threshold: float = setting(0.9, "Homophily from which on the homophilous branch is taken.", low=0, high=1)
    negative: str = setting(
        "authors",
        "What similarities below the mean m become: −M/m as coded, by which the least similar pair counts as 0, or (M − m)/m.",
        choices=("authors", "linear"),
    )
    largest_party: int = setting(
        5000, "Nodes of a party beyond which it is refused: all its pairs of nodes are compared.", low=1, high=10**5
    )
