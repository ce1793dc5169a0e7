"""What a report computes anew from a configuration and a checkpoint: how the graph was spread, what the model made of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from atoll.data.federated import SCENARIOS, federate
from atoll.data.statistics import PartitionStatistics, node_homophily, partition_statistics
from atoll.errors import AtollError
from atoll.federation.cohort import Observation
from atoll.graphs.graph import Graph, majority_class
from atoll.reports.runs import Row, StoredRun
from atoll.runs import config as configurations
from atoll.runs.config import Config
from atoll.runs.experiment import prepare
from atoll.runs.folder import Folder
from atoll.runs.metrics import mean_std
from atoll.runs.predictions import observe
from atoll.tasks.node_classification import evaluated_rows

LARGEST = 300_000_000  # bytes of a checkpoint that embeddings are still made from


@dataclass(frozen=True, eq=False)
class Partition:
    """How a graph was spread."""

    scenario: str
    facts: PartitionStatistics
    homophily: list[float | None]  # of each party's nodes, the mean share of neighbors of their own class
    flows: NDArray[np.float64] | None  # (P, P + 1) edges from party p's nodes to q's, last column: to nodes of no party
    class_names: list[str]
    tested: int  # labeled test nodes
    minority: int  # those of another class than their party's most frequent training class
    names: list[str]  # of the parties; their numbers where the data says none


def partition_of(config: Config) -> Partition | str:
    """How the configuration's graph was spread, or why it cannot be told."""
    parts = ("dataset", "partition", "parties", "seed", "partition_settings", "split", "data")
    document = {name: value for name, value in config.to_dict().items() if name in parts}
    return _partition(json.dumps(document, default=str))


@lru_cache(maxsize=64)
def _partition(document: str) -> Partition | str:
    config = configurations.from_dict(json.loads(document) | {"algorithm": "local"}, "config.toml")
    if config.partition == "node":
        return "every node is a party of its own"
    try:
        data = federate(config, None, SCENARIOS)
    except (AtollError, OSError) as error:
        return f"its graph is not here: {str(error).rstrip('.')}"
    graph = data.parts
    values, defined = node_homophily(graph)
    share = [
        float(values[rows][defined[rows]].mean()) if defined[rows].any() else None
        for rows in (slice(int(a), int(b)) for a, b in zip(graph.ptr[:-1], graph.ptr[1:], strict=True))
    ]
    tested = graph.test & (graph.y >= 0)
    return Partition(
        scenario=data.scenario,
        facts=partition_statistics(graph, data.source),
        homophily=share,
        flows=_flows(graph, data.source) if data.scenario == "horizontal" else None,
        class_names=list(graph.class_names or map(str, range(graph.num_classes))),
        tested=int(tested.sum()),
        minority=int((tested & (graph.y != majority_class(graph))).sum()),
        names=list(data.names or map(str, range(graph.parties))),
    )


def _flows(parts: Graph, source: Graph) -> NDArray[np.float64]:
    owner = np.full(int(max(source.ids.max(), parts.ids.max())) + 1, parts.parties)
    owner[parts.ids.numpy()] = parts.party.numpy()
    ends = owner[source.ids.numpy()][source.edge_index.numpy()]
    table = np.zeros((parts.parties + 1, parts.parties + 1))
    np.add.at(table, (ends[0], ends[1]), 1)
    return table[:-1]


def majority(row: Row) -> tuple[float, float | None] | None:
    """Accuracy on the nodes of their party's most frequent training class: what is left of all nodes without the minority."""
    found = []
    for run in row.runs:
        accuracy, minority = (run.metrics.get(name) for name in ("accuracy", "minority_accuracy"))
        told = partition_of(run.config)
        if isinstance(told, str) or told.scenario != "horizontal" or told.tested == told.minority:
            return None
        if accuracy is None or minority is None:
            return None
        found.append((accuracy * told.tested - minority * told.minority) / (told.tested - told.minority))
    return mean_std(found)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Nodes in two dimensions."""

    points: NDArray[np.float64]  # (n, 2)
    label: NDArray[np.int64]  # class, −1 where unlabeled
    party: NDArray[np.int64]
    of: int  # nodes in all
    what: str  # what of the model lies in the plane, and of which nodes


class Hidden(NamedTuple):
    """What a model makes of nodes."""

    values: NDArray[np.float32]
    label: NDArray[np.int64]
    party: NDArray[np.int64]
    what: str


def embedding(run: StoredRun, method: str, most: int) -> Embedding | str:
    """What the checkpoint's model makes of at most so many nodes, in the plane, or why there is nothing."""
    checkpoint = Folder(run.path).checkpoint
    if not checkpoint.exists():
        return "there is no checkpoint yet"
    if checkpoint.stat().st_size > LARGEST:
        return "its checkpoint is too large"
    document = run.checkpoint()
    if document is None:
        return "its checkpoint cannot be read"
    try:
        found = _hidden(run.config, document)
    except (AtollError, OSError) as error:
        return str(error).rstrip(".")
    if found is None:
        return f"{run.config.algorithm} predicts no classes of nodes"
    nodes = len(found.values)
    chosen = np.sort(np.random.default_rng(0).permutation(nodes)[:most])
    points = in_plane(found.values[chosen].astype(np.float64), method)
    return Embedding(points, found.label[chosen], found.party[chosen], nodes, found.what)


def _hidden(config: Config, document: dict[str, Any]) -> Hidden | None:
    """Ask the parties of a checkpoint for the last hidden representation of the model that predicts.

    Where no single model does (split over parties and server, several channels), take the class scores of the judged nodes.
    """
    experiment = prepare(config)
    experiment.engine.restore(document.get("memory", {}))
    seen, parts = observe(experiment, document.get("state", {})), experiment.party_data.parts
    hidden = [one.hidden for one in seen if one.hidden is not None]
    if hidden and sum(map(len, hidden)) == parts.num_nodes and experiment.party_data.scenario != "node":
        return Hidden(torch.cat(hidden).numpy(), parts.y.numpy(), parts.party.numpy(), "the last hidden layer")
    return _judged(seen)


def _judged(seen: Sequence[Observation]) -> Hidden | None:
    """The class scores of the nodes that were judged; their parties where each holds more than one node."""
    values, labels, owners = [], [], []
    for one in seen:
        graph, rows = one.graph, evaluated_rows(one.graph)
        several = graph.num_nodes > graph.parties
        owners.append(torch.as_tensor(np.array(one.parties))[graph.party[rows]] if several else torch.zeros_like(rows))
        values.append(one.output[rows])
        labels.append(graph.y[rows])
    if not values:
        return None
    what = "the class scores of validation and test nodes"
    return Hidden(torch.cat(values).numpy(), torch.cat(labels).numpy(), torch.cat(owners).numpy(), what)


def in_plane(hidden: NDArray[np.float64], method: str, *, perplexity: float = 30.0, seed: int = 0) -> NDArray[np.float64]:
    """Two dimensions by PCA, or by t-SNE (van der Maaten and Hinton, 2008) of the first fifty principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    hidden = hidden + 1e-9 * np.random.default_rng(0).standard_normal(hidden.shape)  # equal rows apart
    nodes, width = hidden.shape
    if width < 2 or nodes < 3:
        return np.pad(hidden, ((0, 0), (0, max(0, 2 - width))))[:, :2]
    if method == "pca" or nodes < 10:
        return np.asarray(PCA(2, random_state=0).fit_transform(hidden))
    first = PCA(min(50, width, nodes), random_state=0).fit_transform(hidden)
    tsne = TSNE(init="pca", perplexity=min(perplexity, (nodes - 1) / 3), max_iter=500, random_state=seed)
    return np.asarray(tsne.fit_transform(first), dtype=np.float64)
