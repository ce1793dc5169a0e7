"""How near rounds come to what this machine could do: bytes and FLOPs by the shapes, against bandwidths measured in the same run.

Three kinds of work: rows that are gathered (sparse products: a row of the dense factor per stored value), memory that is streamed
(weights, moments, activations, and the indices and values of sparse matrices), and dense products. A round's limit is the sum of
each divided by its measured rate: the time of the same arithmetic if every kernel ran at the rate of the best one. Activations
that stay in the cache can be faster than that. Run it when nothing else runs: the rates are of the machine as it is.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from atoll.graphs.graph import Graph
from atoll.graphs.sparse import multiply
from atoll.runs import config, runner
from benchmarks import Ours

warnings.filterwarnings("ignore")

TURNS = 7
FLOAT = 4
ADAM = 7  # numbers that a fused step reads and writes per weight: w, g, m, v; w, m, v


@dataclass
class Work:
    """What a round has to do, in bytes and operations."""

    gathered: float = 0
    streamed: float = 0
    flops: float = 0

    def product(self, stored: int, width: int, rows: int) -> None:
        """Sparse times dense: a row per stored value, with its index and value; the result is written."""
        self.gathered += FLOAT * stored * width
        self.streamed += 2 * FLOAT * stored + FLOAT * rows * width

    def dense(self, rows: int, fan_in: int, fan_out: int) -> None:
        """Rows times a matrix: both are read, the result is written."""
        self.flops += 2 * rows * fan_in * fan_out
        self.streamed += FLOAT * rows * (fan_in + fan_out)


@dataclass
class Rates:
    """This machine's, in bytes and operations per second."""

    gather: float
    stream: float
    flop: float

    @classmethod
    def measured(cls, width: int, rows: int, stored: int) -> Rates:
        """Gathers of rows of that width from a table of so many rows in random order; a copy of 256 MB; a product of 1024³."""
        columns = torch.randint(rows, (stored,), dtype=torch.int32)
        indptr = torch.arange(0, stored + 1, max(1, stored // rows), dtype=torch.int32)
        count = int(indptr[-1])
        size = (len(indptr) - 1, rows)
        matrix = torch.sparse_csr_tensor(indptr, columns[:count], torch.ones(count), size=size, check_invariants=False)
        table, big, square = torch.randn(rows, width), torch.randn(1 << 25), torch.randn(1024, 1024)
        other, out = torch.empty_like(big), torch.empty_like(square)
        gather = FLOAT * count * width / fastest(lambda: multiply(matrix, table))
        stream = 2 * FLOAT * len(big) / fastest(lambda: other.copy_(big))
        return cls(gather, stream, 2 * 1024**3 / fastest(lambda: torch.mm(square, square, out=out)))

    def limit(self, work: Work) -> dict[str, float]:
        """The seconds of each kind of work."""
        return {
            "gathers": work.gathered / self.gather,
            "streams": work.streamed / self.stream,
            "products": work.flops / self.flop,
        }


def fastest(function: Callable[[], Any], turns: int = TURNS) -> float:
    """The seconds of the fastest turn, after one to warm up."""
    function()
    taken = []
    for _ in range(turns):
        began = time.perf_counter()
        function()
        taken.append(time.perf_counter() - began)
    return min(taken)


def fedavg_work(graph: Graph, settings: Any) -> Work:
    """FedAvg with a GCN of two layers and sparse features: epochs, the optimizer, an evaluation, models sent and returned."""
    work, nodes, hidden, classes = Work(), graph.num_nodes, settings.hidden, graph.num_classes
    features, edges = graph.nonzero_features.nnz, graph.edge_index.shape[1] + nodes
    weights = graph.parties * (graph.num_features * hidden + hidden * classes + hidden + classes)
    for _ in range(settings.epochs + 1):  # forward; once to evaluate
        work.product(features, hidden, nodes)  # X·W
        work.product(edges, hidden, nodes)  # Â·(X·W)
        work.dense(nodes, hidden, classes)
        work.product(edges, classes, nodes)
    for _ in range(settings.epochs):  # backward
        work.product(edges, classes, nodes)
        work.dense(nodes, hidden, classes)  # the gradient of the second weight
        work.dense(nodes, classes, hidden)
        work.streamed += 3 * FLOAT * nodes * hidden  # the rectifier's
        work.product(edges, hidden, nodes)
        work.product(features, hidden, graph.parties * graph.num_features)
        work.streamed += ADAM * FLOAT * weights
    work.streamed += 6 * FLOAT * weights  # loaded twice, multiplied and added up once
    return work


def nfedgnn_work(graph: Graph, settings: Any, edges: int) -> Work:
    """nFedGNN: x·W and a step for every kept weight, and the server's two layers with the Laplacian, forward and back."""
    work, users, width, classes = Work(), graph.num_nodes, settings.width, graph.num_classes
    kept = graph.nonzero_features.nnz
    work.streamed += FLOAT * (kept * width + 2 * kept + users * width)  # embed, once for the evaluation and the next round
    moments = ADAM - 1 if settings.moments == "weight" else 2
    work.streamed += FLOAT * (moments * kept * width + 2 * kept + 5 * users * width)
    for width_of in (width, classes):
        for _ in range(3):  # forward, back, and forward to evaluate
            work.product(edges + users, width_of, users)
    work.product(edges + users, width, users)  # L·X̄
    work.streamed += 14 * FLOAT * users * width  # rectifier, dropout, penalty and their gradients, the message's checks
    for _ in range(4):
        work.dense(users, width, classes)
    return work


def case(name: str, experiment: Any, work: Work, rates: Rates) -> dict[str, object]:
    """One row: the limit, what binds, the fastest round and the fraction."""
    federation = experiment.federation
    federation.begin(0)
    ours = Ours(experiment, experiment.algorithm.start(federation, experiment.config.settings))
    taken, parts = fastest(ours.round), rates.limit(work)
    limit, binding = sum(parts.values()), max(parts, key=lambda part: parts[part])
    row: dict[str, object] = {"round of": name, "gathered MB": work.gathered / 1e6, "streamed MB": work.streamed / 1e6}
    row |= {"MFLOP": work.flops / 1e6, "gather GB/s": rates.gather / 1e9, "stream GB/s": rates.stream / 1e9}
    row |= {"GFLOP/s": rates.flop / 1e9, "limit ms": limit * 1e3, "of it": f"{parts[binding] / limit:.0%} {binding}"}
    return row | {"round ms": taken * 1e3, "fraction": limit / taken}


def fedavg(dataset: str, partition: str) -> dict[str, object]:
    """FedAvg with GCN-64, five epochs."""
    experiment = runner.prepare(config.resolve("fedavg", dataset=dataset, partition=partition))
    graph, settings = experiment.party_data.parts, experiment.config.settings
    stored = graph.nonzero_features.nnz
    rates = Rates.measured(settings.hidden, graph.parties * graph.num_features, stored)
    return case(f"FedAvg, {dataset}", experiment, fedavg_work(graph, settings), rates)


def nfedgnn(users: int) -> dict[str, object]:
    """nFedGNN, ten of 500 features per user."""
    from benchmarks.nfedgnn import synthetic

    graph = synthetic(users)
    experiment = runner.prepare(config.resolve("nfedgnn", dataset="given", partition="node"), graph)
    settings, edges = experiment.config.settings, graph.edge_index.shape[1]
    work = nfedgnn_work(experiment.party_data.parts, settings, edges)
    return case(f"nFedGNN, {users:,} users", experiment, work, Rates.measured(settings.width, users, edges))


def main(users: int = 1_000_000) -> list[dict[str, object]]:
    """All rows; the graphs of papers where they are."""
    return [
        fedavg("pubmed", "fedspray_pubmed"),
        fedavg("physics", "fedspray_physics"),
        nfedgnn(users),
    ]
