"""What a report computes anew from a configuration and a checkpoint: how the graph was spread, what the model made of it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from atoll import config as configurations
from atoll import metrics, runner
from atoll.config import Config
from atoll.data.facts import Facts, facts, node_homophily
from atoll.data.spread import SETTINGS, spread
from atoll.errors import AtollError
from atoll.graph import Graph
from atoll.models import Model
from atoll.report.runs import Row, Run, mean

LARGEST = 300_000_000  # bytes of a checkpoint that embeddings are still made from


@dataclass(frozen=True, eq=False)
class Partition:
    """How a graph was spread."""

    setting: str
    facts: Facts
    homophily: list[float | None]  # of each party's nodes, the mean share of neighbours of their own class
    flows: NDArray[np.float64] | None  # (P, P + 1) edges from party p's nodes to q's, last column: to nodes of no party
    class_names: list[str]
    tested: int  # labelled test nodes
    minority: int  # those of another class than their party's most frequent training class


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
        data = spread(config, None, SETTINGS)
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
        setting=data.setting,
        facts=facts(graph, data.source),
        homophily=share,
        flows=_flows(graph, data.source) if data.setting == "horizontal" else None,
        class_names=list(graph.class_names or map(str, range(graph.num_classes))),
        tested=int(tested.sum()),
        minority=int((tested & (graph.y != metrics.majority(graph))).sum()),
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
        if isinstance(told, str) or told.setting != "horizontal" or told.tested == told.minority:
            return None
        if accuracy is None or minority is None:
            return None
        found.append((accuracy * told.tested - minority * told.minority) / (told.tested - told.minority))
    return mean(found)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Nodes in two dimensions."""

    points: NDArray[np.float64]  # (n, 2)
    label: NDArray[np.int64]  # class, −1 where unlabelled
    party: NDArray[np.int64]
    of: int  # nodes in all


def embedding(run: Run, method: str, most: int) -> Embedding | str:
    """The hidden representations of the checkpoint's model, of at most so many nodes, or why there are none."""
    checkpoint = run.path / "checkpoint.safetensors"
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
        return f"{run.config.algorithm} has no single model of its nodes"
    hidden, graph = found
    chosen = np.sort(np.random.default_rng(0).permutation(graph.num_nodes)[:most])
    points = _plane(hidden[chosen].astype(np.float64), method)
    return Embedding(points, graph.y.numpy()[chosen], graph.party.numpy()[chosen], graph.num_nodes)


def _hidden(config: Config, document: dict[str, Any]) -> tuple[NDArray[np.float32], Graph] | None:
    """Evaluate the checkpoint once more and take what lies below the last layer of the model that does it."""
    experiment = runner.prepare(config)
    experiment.engine.remember(document.get("memory", {}))
    seen: dict[int, torch.Tensor] = {}  # by the graph's nodes: a graph that was pooled or renormalised keeps them

    def look(module: nn.Module, arguments: tuple[Any, ...], _: Any) -> None:
        if isinstance(module, Model) and arguments and isinstance(arguments[0], Graph):
            seen[id(arguments[0].ids)] = module.embed(arguments[0]).detach()

    hook = nn.modules.module.register_module_forward_hook(look)
    try:
        with torch.no_grad(), experiment.federation.evaluating():
            experiment.algorithm.evaluate(experiment.federation, document.get("state", {}), config.settings)
    finally:
        hook.remove()
    cohorts = [cohort.graph for cohort in getattr(experiment.engine, "cohorts", [])]
    if cohorts and all(id(graph.ids) in seen for graph in cohorts) and experiment.spread.setting != "node":
        return torch.cat([seen[id(graph.ids)] for graph in cohorts]).numpy(), experiment.spread.parts
    whole = experiment.spread.whole
    return (seen[id(whole.ids)].numpy(), whole) if id(whole.ids) in seen else None


def _plane(hidden: NDArray[np.float64], method: str) -> NDArray[np.float64]:
    """Two dimensions by PCA, or by t-SNE of the first fifty principal components."""
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE

    hidden = hidden + 1e-9 * np.random.default_rng(0).standard_normal(hidden.shape)  # equal rows apart
    nodes, width = hidden.shape
    if width < 2 or nodes < 3:
        return np.pad(hidden, ((0, 0), (0, max(0, 2 - width))))[:, :2]
    if method == "pca" or nodes < 10:
        return np.asarray(PCA(2, random_state=0).fit_transform(hidden))
    first = PCA(min(50, width, nodes), random_state=0).fit_transform(hidden)
    return np.asarray(
        TSNE(init="pca", perplexity=min(30, (nodes - 1) / 3), max_iter=500, random_state=0).fit_transform(first), dtype=np.float64
    )
