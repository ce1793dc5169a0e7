"""The parties' data for link prediction: their graphs with split edges, beside the graph of all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.data.data_config import DataConfig
from atoll.data.federated_data import FederatedData, always, check_scenario
from atoll.data.links import label_holder, require_edges, split_links, whole_links
from atoll.data.party_graphs import pooled
from atoll.data.unions import union
from atoll.graphs.graph import Graph
from atoll.graphs.pairs import without_pairs


def linked(config: DataConfig, parts: Graph, graph: Graph | None, scenario: str, scenarios: Sequence[str]) -> FederatedData:
    """The data of link prediction: the parties' edges split, of the whole `graph` or of all parties' graphs."""
    check_scenario(config, scenarios, config.algorithm, scenario)
    holder = label_holder(config, parts.parties, scenario)
    divided = require_edges(split_links(parts, config.split, config.seed, holder=holder), holder)
    merged = graph is None or scenario == "overlapping"
    bare = without_pairs(divided)
    if graph is None and scenario == "vertical":
        from atoll.data import vertical_files  # pandas takes a while to import

        joined = vertical_files.joined(bare)
    else:
        joined = union(bare, pooled(bare) if graph is None else graph, merged=merged)
    own = None if merged or config.split.split == "random" else joined.edge_split  # the data's own split of these edges
    whole = whole_links(divided, replace(joined, edge_split=own), config.seed, disjoint=config.split.disjoint > 0)
    if scenarios == ("whole",):
        return FederatedData("whole", whole, always(whole), always(whole))
    return FederatedData(scenario, divided, always(whole), always(whole))
