"""FGGP's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(fedavg.Averaging):
    """FedAvg's settings, the second view, and the prototypes."""

    variant: str = setting(
        "paper",
        "The paper's method, or the authors' code, which sets keyed_by and min_count.",
        choices=("paper", "authors"),
    )
    view_weight: float = setting(1.0, "Weight of the loss on the second view.", low=0)
    edge_weight: float = setting(1.0, "Weight of the prediction of the second view's edges.", low=0)
    contrast_weight: float = setting(1.0, "Weight of the contrast of both views' prototypes; without all three: one view.", low=0)
    contrast_temperature: float = setting(0.5, "Temperature of the contrast, and of the vote.", low=1e-3)
    neighbors: int = setting(3, "Nearest nodes that each is joined to in the second view.", low=0, high=1000)
    knn_every: int = setting(10, "Rounds after which nearest nodes are found again.", low=1, high=10**6)
    sample_temperature: float = setting(0.5, "Temperature of the sampled edges of the second view.", low=1e-3)
    edge_gradient: bool = setting(
        True,
        "Whether sampled edges and their prediction train the representations; without, as in OpenFGL, they do not.",
    )
    negatives: int = setting(1, "Pairs that are not edges, drawn for each edge of the second view.", low=1, high=1000)
    pseudo_labels: bool = setting(
        True, "Whether nodes without a training label are in the prototypes of the classes predicted for them."
    )
    predict: str = setting(
        "nearest", "What predicts: a vote of the nearest shared prototypes, or the classifier.", choices=("nearest", "classifier")
    )
    vote: int = setting(20, "Nearest prototypes that vote.", low=1, high=10**6)
    queue_size: int = setting(10, "Shared prototypes that are kept of each class, the latest ones.", low=1, high=10**4)
    clusters: str = setting(
        "last",
        "Shared prototypes of a class: means of FINCH's last clusters of the parties' prototypes, of its first ones, or one mean "
        "of all, for which the server needs sums only.",
        choices=("last", "first", "mean"),
    )
    keyed_by: str = setting(
        "class",
        "What a prototype is filed under: its class, or its place among the party's classes (the authors' code), which is wrong "
        "where a party lacks one.",
        choices=("class", "position"),
    )
    min_count: int = setting(5, "Fewest nodes of a class for which a party sends a prototype.", low=1, high=10**6)
