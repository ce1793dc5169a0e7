"""How a whole graph is partitioned: by communities, classes, at random, overlapping, vertical, node level, or by a file.

Every partition gives one block-diagonal `Graph`: party p's nodes are the rows ptr[p]:ptr[p + 1], `ids` are their numbers in the
whole graph, and labels and splits travel with the nodes.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.balanced import FillRule, communities, louvain_balanced
from atoll.data.builder import Ints
from atoll.data.named_partitions import NamedPartition, named_partitions, with_roles
from atoll.data.node_lists import dirichlet, louvain_largest, metis, overlap, read_node_lists, sampled_parts
from atoll.data.partition_settings import PartitionSettings
from atoll.data.presets import PRESETS
from atoll.data.skewed import by_label_histogram, label_skew, power_law_shares, power_law_sizes
from atoll.data.subgraphs import induced_subgraphs, vertical
from atoll.errors import AtollError, AtollWarning, suggest
from atoll.graphs.graph import Graph
from atoll.random import seed_of

SCENARIO_OF = {  # of each kind of partition
    "louvain_largest": "horizontal",
    "louvain_balanced": "horizontal",
    "metis": "horizontal",
    "metis_overlap": "overlapping",
    "louvain_plus": "horizontal",
    "metis_plus": "horizontal",
    "dirichlet": "horizontal",
    "label_skew": "horizontal",
    "random": "horizontal",
    "whole": "horizontal",
    "overlap": "overlapping",
    "vertical": "vertical",
    "node": "node",
}
SCENARIO_OF |= {name: SCENARIO_OF[preset.kind] for name, preset in PRESETS.items()}

RENAMED = {"louvain": "louvain_largest"}  # earlier name → present name: it did not say that it drops nodes


def present_kind(kind: str, *, warn: bool = True) -> str:
    """The present name of a kind of partition; an earlier one gets a warning that names the new one."""
    if kind in RENAMED and warn:
        sentence = (
            f"The partition {kind} is called {RENAMED[kind]} now: it keeps the largest communities and drops the other nodes "
            "(metis and louvain_balanced keep all)."
        )
        warnings.warn(sentence, AtollWarning, stacklevel=3)
    return RENAMED.get(kind, kind)


def first_kind(kind: str) -> str:
    """The name that a kind of partition had first: results recorded under it are found by it."""
    return next((old for old, new in RENAMED.items() if new == kind), kind)


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
    kind = present_kind(kind)
    if named := named_partitions().get(kind):
        return _named(graph, named, parties, settings)
    kind = PRESETS[kind].kind if kind in PRESETS else kind
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
    return _checked_blocks(graph, _cut(graph, kind, parties, settings, seed), settings, kind)


def _cut(graph: Graph, kind: str, parties: int, settings: PartitionSettings, seed: int) -> list[Ints]:
    """The nodes of each party, of the kinds that cut a graph into as many parties as are wanted."""
    if parties > graph.num_nodes:
        raise AtollError(f"{parties} parties cannot share {graph.num_nodes} nodes; use at most {graph.num_nodes} parties.")
    if settings.size_exponent and kind not in ("random", "metis"):
        raise AtollError(f"size_exponent is for the partitions random and metis, not for {kind}; leave it out.")
    if kind == "random":
        return _random(graph.num_nodes, parties, settings.size_exponent, _rng(seed, kind))
    if kind == "louvain_largest":
        return louvain_largest(graph, parties, settings.resolution, seed_of(seed, "louvain"))
    if kind == "louvain_balanced":
        return louvain_balanced(graph, parties, seed, FillRule(settings.slack, settings.slack), settings.louvain_program)
    if kind == "metis":
        shares = power_law_shares(parties, settings.size_exponent) if settings.size_exponent else None
        return _metis(graph, parties, settings, seed, shares)
    if kind == "metis_overlap":
        whole_parts = _metis(graph, _parts_to_sample(parties, settings.copies), settings, seed)
        return sampled_parts(whole_parts, settings.copies, settings.copy_share, _rng(seed, kind))
    labels = graph.y.numpy()
    if kind in ("louvain_plus", "metis_plus"):
        pieces = (
            communities(graph, seed, settings.louvain_program)
            if kind == "louvain_plus"
            else _metis(graph, min(settings.metis_parts, graph.num_nodes), settings, seed)
        )
        return by_label_histogram(pieces, labels, graph.num_classes, parties, seed_of(seed, kind))
    deal = label_skew if kind == "label_skew" else dirichlet
    return deal(labels, parties, settings.concentration, settings.min_nodes, _rng(seed, kind))


def _random(nodes: int, parties: int, exponent: float, rng: np.random.Generator) -> list[Ints]:
    shuffled = rng.permutation(nodes)
    cuts = power_law_sizes(nodes, parties, exponent).cumsum()[:-1] if exponent else parties
    return [np.sort(part) for part in np.array_split(shuffled, cuts)]


def _metis(
    graph: Graph, parts: int, settings: PartitionSettings, seed: int, shares: NDArray[np.float64] | None = None
) -> list[Ints]:
    own_seed = seed_of(seed, "metis") % 2**31 if settings.metis_seed is None else settings.metis_seed
    return metis(graph, parts, own_seed, settings.metis_method, shares)


def _parts_to_sample(parties: int, copies: int) -> int:
    if parties % copies:
        above = parties + copies - parties % copies
        raise AtollError(
            f"{parties} overlapping METIS parties cannot be {copies} per part; "
            f"use a multiple, for instance --parties {above}, or other `copies`."
        )
    return parties // copies


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
