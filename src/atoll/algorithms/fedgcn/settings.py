"""FedGCN's settings."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.algorithms import fedavg
from atoll.settings import setting


@dataclass(frozen=True)
class Settings(fedavg.Settings):
    """FedAvg's settings and the exchange's."""

    model: str = setting(
        "gcn", "Backbone: one whose first layer takes the sums over neighbors as they are.", choices=("gcn", "gcn_head")
    )
    variant: str = setting(
        "paper",
        "The paper's normalization, or the default of the authors' library fedgraph, which sets normalization=none.",
        choices=("paper", "authors"),
    )
    hops: int = setting(
        2, "What is exchanged: 0 nothing (FedAvg), 1 the sums of own nodes, 2 those of their neighbors, too.", low=0, high=2
    )
    normalization: str = setting(
        "sym", "The sums: normalized by the degrees of the whole graph as GCN's, or raw.", choices=("sym", "none")
    )
    min_contributors: int = setting(
        2,
        "Parties other than the one that receives it which must have fed a row; 1 sends every row (the paper), and with it "
        "single nodes' features.",
        low=1,
        high=10**6,
    )
    lone_rows: str = setting(
        "suppress", "What becomes of rows that fewer parties fed: left out, or sent with noise.", choices=("suppress", "noise")
    )
    row_noise: float = setting(1.0, "Standard deviation of lone_rows=noise on every number of a row.", low=0)
