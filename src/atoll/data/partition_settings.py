"""The settings of a partition."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.data.balanced import PROGRAMS
from atoll.settings import setting


@dataclass(frozen=True)
class PartitionSettings:
    """How the graph is cut."""

    partition_seed: int = setting(-1, "Seed of the partition alone; negative uses the run's seed.")
    largest_component: bool = setting(
        False, "Drop all nodes outside the largest connected component before the graph is cut.", since="0.2"
    )
    resolution: float = setting(1.0, "Louvain: higher gives more and smaller communities.", low=0)
    slack: int = setting(20, "Balanced Louvain: how many nodes a party may differ from the mean.", low=0, high=10**9, since="0.2")
    louvain_program: str = setting(
        "python-louvain", "Balanced Louvain: the program that finds the communities.", choices=PROGRAMS, since="0.2"
    )
    metis_method: str = setting(
        "auto",
        "METIS: kway, recursive (bisection), or auto: recursive up to 8 parts, kway above.",
        choices=("auto", "kway", "recursive"),
        since="0.2",
    )
    metis_seed: int | None = setting(
        None,
        "METIS: its own seed; -1 is METIS's default, none derives it from the partition's seed.",
        low=-1,
        high=2**31 - 1,
        since="0.2",
    )
    metis_parts: int = setting(
        100, "metis_plus: the number of METIS parts that are clustered to parties.", low=1, high=10**6, since="0.2"
    )
    copies: int = setting(5, "Overlapping METIS: the number of parties that each part gives.", low=1, high=10**6, since="0.2")
    copy_share: float = setting(
        0.5, "Overlapping METIS: the share of its part's nodes that each party holds.", above=0, high=1, since="0.2"
    )
    concentration: float = setting(1.0, "Dirichlet and label skew: lower gives parties with fewer classes.", above=0)
    size_exponent: float = setting(
        0.0, "Random and METIS: sizes of parties in proportion to 1, 2^-a, 3^-a, …; 0 is even.", low=0, high=100, since="0.2"
    )
    proportions: str = setting(
        "0.3,0.4,0.5,0.5,0.6,0.7", "Overlap: the share of all nodes that each party holds, or one for all."
    )
    overlap: float = setting(
        -1.0, "Overlap: the exact share of nodes that every party holds; negative draws the parties' nodes independently.", high=1
    )
    edge_fraction: float = setting(0.8, "Vertical: the share of the undirected edges that each party keeps.", above=0, high=1)
    scenario: str = setting(
        "auto",
        "Files: how the parties' nodes are related; auto goes by the algorithm and the nodes' ids.",
        choices=("auto", "horizontal", "overlapping", "vertical"),
        since="0.2",
    )
    min_nodes: int = setting(
        1, "Minimum number of nodes per party; Dirichlet and label skew redraw until every party has them.", low=0, high=10**9
    )
