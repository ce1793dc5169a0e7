"""The parties' data of a run, and whether an algorithm is made for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from atoll.data.builder import Ints
from atoll.data.data_config import DataConfig
from atoll.data.encoding import Encoding
from atoll.data.partition import SCENARIO_OF
from atoll.errors import AtollError
from atoll.graphs.borders import Borders
from atoll.graphs.graph import Graph


@dataclass(frozen=True)
class FederatedData:
    """A graph distributed over parties. What only some runs need, the whole graph and its source, is made on first use."""

    scenario: str  # horizontal, overlapping, vertical or node
    parts: Graph  # the parties' graphs, block-diagonal
    load_whole: Callable[[], Graph]
    load_source: Callable[[], Graph]
    public: Mapping[str, Any] = field(default_factory=dict)  # what the server may see in this scenario
    names: tuple[str, ...] = ()  # of the parties, where they have names
    encoding: Encoding | None = None  # of the columns, where they had to be encoded
    party_encodings: tuple[Encoding | None, ...] = ()  # vertical folders: each party's own
    party_columns: tuple[tuple[str, ...] | None, ...] = ()  # vertical folders: the names of each party's columns
    node_lists: tuple[Ints, ...] | None = None  # the rows that each party holds, where a script gave the partition
    extent: Mapping[str, int] | None = None  # the size and digest of all parties' data, where `parts` is not all of it

    @cached_property
    def whole(self) -> Graph:
        """The union of the parties' nodes, with the edges between parties (overlapping: only those that some party holds)."""
        return self.load_whole()

    @property
    def borders(self) -> Borders | None:
        """The edges between parties, as both ends' owners know them; None unless the algorithm wants them."""
        return self.parts.borders

    @property
    def named(self) -> Graph:
        """A graph with the names of the columns and classes: the original one, unless that would have to be read from shards."""
        return self.source if self.extent is None or self.scenario == "vertical" else self.parts

    @cached_property
    def source(self) -> Graph:
        """The original graph, including nodes that no party holds."""
        return self.load_source()


def always(graph: Graph) -> Callable[[], Graph]:
    """A graph that is already here, where one may be made on first use."""
    return lambda: graph


def public_edges(parts: Graph, whole: Graph) -> dict[str, Any]:
    """Node scenario: what the server sees, the edges between parties and the labels of training nodes."""
    labels = torch.where(whole.train, whole.y, -1)[parts.ptr[:-1]]
    single = parts.parties == parts.num_nodes  # the nodes are the parties
    return {"edge_index": whole.edge_index if single else parts.party[whole.edge_index], "y_train": labels}


def check_scenario(config: DataConfig, scenarios: Sequence[str], algorithm: str, scenario: str | None = None) -> None:
    """Refuse a partition that the algorithm is not made for; that of a file is known only after reading it, as `scenario`."""
    scenario = scenario or SCENARIO_OF.get(config.partition)
    if scenarios != ("whole",) and scenario is not None and scenario not in scenarios:
        raise AtollError(
            f"{algorithm} is for {' or '.join(scenarios)} parties, but the partition {config.partition!r} is {scenario}; "
            "choose another --partition or another algorithm."
        )
