"""How the graph of a run was divided: computed again from its configuration, where the data is here."""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from atoll.data.federated import SCENARIOS, federate
from atoll.data.statistics import PartitionStatistics, node_homophily, partition_statistics
from atoll.errors import AtollError, AtollWarning
from atoll.federation.averages import POOLED
from atoll.graphs.graph import Graph, majority_class
from atoll.reports.runs import Row
from atoll.runs import config as configurations
from atoll.runs.config import GIVEN, Config
from atoll.runs.metrics import mean_std

NO_GRAPH = "the data is not here"  # begins every such reason


@dataclass(frozen=True, eq=False)
class Partition:
    """How a graph was divided."""

    scenario: str
    facts: PartitionStatistics
    homophily: list[float | None]  # mean over each party's nodes: share of neighbors of their class
    flows: NDArray[np.float64] | None  # (P, P + 1) edges from party p's nodes to q's, last column: to nodes of no party
    class_names: list[str]
    tested: int  # labeled test nodes
    minority: int  # those of another class than their party's most frequent training class
    names: list[str]  # of the parties; their numbers where they have none


def partition_of(config: Config) -> Partition | str:
    """How the configuration's graph was divided, or why that is not known."""
    if config.dataset == GIVEN:
        return f"{NO_GRAPH}: it is at the sites, or was given as an object"
    if config.partition == "node":
        return "every node is a party of its own"
    parts = ("dataset", "partition", "parties", "seed", "partition_settings", "split", "data")
    document = {name: value for name, value in config.to_dict().items() if name in parts}
    document["run"] = {"task": config.run.task}
    return _partition(json.dumps(document, default=str))


@lru_cache(maxsize=64)
def _partition(document: str) -> Partition | str:
    try:
        config = configurations.from_dict(json.loads(document) | {"algorithm": "local"}, "config.toml")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", AtollWarning)  # the run has said them
            data = federate(config, None, SCENARIOS)
    except (AtollError, OSError) as error:
        return f"{NO_GRAPH}: {str(error).rstrip('.')}"
    graph = data.parts
    values, defined = node_homophily(graph)
    homophily = [
        float(values[rows][defined[rows]].mean()) if defined[rows].any() else None
        for rows in (slice(int(a), int(b)) for a, b in zip(graph.item_ptr[:-1], graph.item_ptr[1:], strict=True))
    ]
    tested = graph.test & (graph.y >= 0)
    return Partition(
        scenario=data.scenario,
        facts=partition_statistics(graph, data.source),
        homophily=homophily,
        flows=_flows(graph, data.source) if data.scenario == "horizontal" and graph.of_nodes else None,
        class_names=list(graph.class_names or map(str, range(graph.num_classes))),
        tested=int(tested.sum()),
        minority=int((tested & (graph.y != majority_class(graph))).sum()),
        names=list(data.names or map(str, range(graph.parties))),
    )


def _flows(parts: Graph, source: Graph) -> NDArray[np.float64]:
    owner = np.full(int(max(source.ids.max(), parts.ids.max())) + 1, parts.parties)
    owner[parts.ids.numpy()] = parts.party.numpy()
    ends = owner[source.ids.numpy()][source.edge_index.numpy()]
    counts = np.zeros((parts.parties + 1, parts.parties + 1))
    np.add.at(counts, (ends[0], ends[1]), 1)
    return counts[:-1]


def majority(row: Row) -> tuple[float, float | None] | None:
    """Accuracy on nodes of their party's most frequent training class, from that of all nodes and that of the minority.

    None unless both are pooled: means over parties, or the worst party's, do not add up to each other. None too with noise in
    the training labels, which moves the most frequent class.
    """
    values = []
    for run in row.runs:
        if run.config.run.average != POOLED or run.config.noise.label_noise or run.config.noise.label_sparsity:
            return None
        accuracy, minority = (run.metrics.get(name) for name in ("accuracy", "minority_accuracy"))
        divided = partition_of(run.config)
        if isinstance(divided, str) or divided.scenario != "horizontal" or divided.tested == divided.minority:
            return None
        if accuracy is None or minority is None:
            return None
        values.append((accuracy * divided.tested - minority * divided.minority) / (divided.tested - divided.minority))
    return mean_std(values)


def party_names(row: Row) -> list[str]:
    """The parties' names as the results have them or, while a run is going, as its data has them; empty where there are none."""
    if row.names:
        return list(row.names)
    divided = partition_of(row.runs[0].config)
    if isinstance(divided, str) or divided.names == list(map(str, range(len(divided.names)))):
        return []
    return (
        divided.names if row.runs[0].result.parties in (0, len(divided.names)) else []
    )  # centralized: one party, without a name
