"""How a whole graph is partitioned: Louvain, METIS, Dirichlet, random, overlapping, vertical, node level, or by a file.

Every partition gives one block-diagonal `Graph`: party p's nodes are the rows ptr[p]:ptr[p + 1], `ids` are their numbers in the
whole graph, and labels and splits travel with the nodes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from atoll.data.balanced import PROGRAMS, FillRule, louvain_balanced
from atoll.data.builder import Ints
from atoll.data.named import NamedPartition, named_partitions, with_roles
from atoll.data.node_lists import dirichlet, louvain, metis, overlap, read_node_lists
from atoll.data.subgraphs import induced_subgraphs, vertical
from atoll.errors import AtollError, suggest
from atoll.graphs.graph import Graph
from atoll.random import seed_of
from atoll.settings import setting

SCENARIO_OF = {  # of each kind of partition
    "louvain": "horizontal",
    "louvain_balanced": "horizontal",
    "metis": "horizontal",
    "dirichlet": "horizontal",
    "random": "horizontal",
    "whole": "horizontal",
    "overlap": "overlapping",
    "vertical": "vertical",
    "node": "node",
}


@dataclass(frozen=True)
class PartitionSettings:
    """How the graph is cut."""

    partition_seed: int = setting(-1, "Seed of the partition alone; negative uses the run's seed.")
    resolution: float = setting(1.0, "Louvain: higher gives more and smaller communities.", low=0)
    slack: int = setting(20, "Balanced Louvain: how many nodes a party may differ from the mean.", low=0, high=10**9, since="0.2")
    louvain_program: str = setting(
        "python-louvain", "Balanced Louvain: the program that finds the communities.", choices=PROGRAMS, since="0.2"
    )
    concentration: float = setting(1.0, "Dirichlet: lower gives parties with fewer classes.", low=0)
    proportions: str = setting(
        "0.3,0.4,0.5,0.5,0.6,0.7", "Overlap: the share of all nodes that each party holds, or one for all."
    )
    overlap: float = setting(
        -1.0, "Overlap: the exact share of nodes that every party holds; negative draws the parties' nodes independently.", high=1
    )
    edge_fraction: float = setting(0.8, "Vertical: the share of the undirected edges that each party keeps.", low=0, high=1)
    scenario: str = setting(
        "auto",
        "Files: how the parties' nodes are related; auto goes by the algorithm and the nodes' ids.",
        choices=("auto", "horizontal", "overlapping", "vertical"),
        since="0.2",
    )
    min_nodes: int = setting(
        1, "Minimum number of nodes per party; Dirichlet redraws until every party has them.", low=0, high=10**9
    )


def scenario_of(kind: str, graph: Graph | None = None) -> str:
    """The scenario of a partition; a file of node lists is horizontal unless its parties share nodes."""
    if kind in SCENARIO_OF:
        return SCENARIO_OF[kind]
    if graph is not None and graph.widths is not None:
        return "vertical"
    shared = graph is not None and len(torch.unique(graph.ids)) < graph.num_nodes
    return "overlapping" if shared else "horizontal"


def partition(graph: Graph, kind: str, parties: int | None, settings: PartitionSettings, seed: int) -> Graph:
    """The graph of the parties; `kind` is a key of `SCENARIO_OF` or a file of node lists.

    `parties` may be None where the kind fixes their number (whole, node, overlap, a file).
    """
    if graph.parties != 1:
        raise AtollError(f"Only a whole graph can be partitioned; this one already has {graph.parties} parties.")
    if parties is not None and parties < 1:
        raise AtollError(f"There must be at least one party, not {parties}.")
    if named := named_partitions().get(kind):
        return _named(graph, named, parties, settings)
    if kind not in SCENARIO_OF:
        return _from_file(graph, kind, parties, settings)
    if kind in ("node", "whole"):
        return _fixed(graph, kind, parties)
    if kind == "overlap":
        lists = overlap(graph.num_nodes, parties, settings.proportions, settings.overlap, _rng(seed, kind))
        return _checked_blocks(graph, lists, settings, kind)
    if parties is None:
        raise AtollError(f"The {kind} partition needs a number of parties; add --parties N.")
    if kind == "vertical":
        return vertical(graph, parties, settings.edge_fraction, seed)
    if parties > graph.num_nodes:
        raise AtollError(f"{parties} parties cannot share {graph.num_nodes} nodes; use at most {graph.num_nodes} parties.")
    if kind == "random":
        lists = [np.sort(part) for part in np.array_split(_rng(seed, kind).permutation(graph.num_nodes), parties)]
    elif kind == "louvain":
        lists = louvain(graph, parties, settings.resolution, seed_of(seed, kind))
    elif kind == "louvain_balanced":
        lists = louvain_balanced(graph, parties, seed, FillRule(settings.slack, settings.slack), settings.louvain_program)
    elif kind == "metis":
        lists = metis(graph, parties, seed_of(seed, kind))
    else:
        lists = dirichlet(graph.y.numpy(), parties, settings.concentration, settings.min_nodes, _rng(seed, kind))
    return _checked_blocks(graph, lists, settings, kind)


def _named(graph: Graph, named: NamedPartition, parties: int | None, settings: PartitionSettings) -> Graph:
    named.check(graph)
    _check_parties(parties, named.parties, f"The partition {named.name}")
    lists, roles = named.lists()
    return _checked_blocks(graph if roles is None else with_roles(graph, roles), lists, settings, named.name)


def _check_parties(asked: int | None, there: int, what: str) -> None:
    if asked not in (None, there):
        raise AtollError(f"{what} has {there} parties, not {asked}; leave --parties out or set it to {there}.")


def from_lists(graph: Graph, lists: list[Ints], parties: int | None, settings: PartitionSettings) -> Graph:
    """The graph of the parties that hold these rows."""
    if graph.parties != 1:
        raise AtollError(f"Only a whole graph can be partitioned; this one already has {graph.parties} parties.")
    if parties is not None and parties != len(lists):
        raise AtollError(f"The partition has {len(lists)} parties, not {parties}; leave `parties` out.")
    return _checked_blocks(graph, lists, settings, "given")


def _from_file(graph: Graph, kind: str, parties: int | None, settings: PartitionSettings) -> Graph:
    name = kind if kind.endswith(".npz") else f"{kind}.npz"
    candidates = [Path(name).expanduser()]
    if os.environ.get("ATOLL_DATA"):
        candidates.append(Path(os.environ["ATOLL_DATA"]).expanduser() / "partitions" / name)
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        listed = " and ".join(str(candidate) for candidate in candidates)
        raise AtollError(
            f"There is no partition {kind!r}, and no file {listed}{suggest(kind, [*SCENARIO_OF, *named_partitions()])}"
        )
    lists = read_node_lists(path, graph.num_nodes)
    _check_parties(parties, len(lists), f"The partition file {path}")
    return _checked_blocks(graph, lists, settings, kind)


def _fixed(graph: Graph, kind: str, parties: int | None) -> Graph:
    """`whole`: one party with everything. `node`: one party per node (all rows that share its id), without edges."""
    count = 1 if kind == "whole" else int((graph.ids.diff() != 0).sum()) + 1
    if parties is not None and parties != count:
        raise AtollError(
            f"The {kind} partition makes {count} part{'y' if count == 1 else 'ies'} here, not {parties}; leave --parties out."
        )
    if kind == "whole":
        return graph
    ptr = torch.cat([torch.tensor([0]), (graph.ids.diff() != 0).nonzero()[:, 0] + 1, torch.tensor([graph.num_nodes])])
    return replace(graph, edge_index=torch.empty(2, 0, dtype=torch.int64), edge_weight=None, ptr=ptr)


def _checked_blocks(graph: Graph, lists: list[Ints], settings: PartitionSettings, kind: str) -> Graph:
    sizes = [len(nodes) for nodes in lists]
    fewest = max(settings.min_nodes, 1)
    if min(sizes) < fewest:
        party = int(np.argmin(sizes))
        raise AtollError(
            f"The {kind} partition leaves party {party} with {sizes[party]} nodes, fewer than {fewest}; "
            "use fewer parties, another seed or other partition settings."
        )
    return induced_subgraphs(graph, lists)


def _rng(*words: int | str) -> np.random.Generator:
    return np.random.default_rng(seed_of("partition", *words))
