"""How near rounds come to what this machine could do: bytes and FLOPs by the shapes, against rates measured in the same run.

Three kinds of work: rows that are gathered (sparse products: a row of the dense factor per stored value), memory that is streamed
(weights, moments, activations, and the indices and values of sparse matrices), and dense products. A round's limit is the sum of
each divided by its measured rate: the time of the same arithmetic if every kernel ran at the rate of the best one. How fast rows
are gathered depends on how large the table is that they come from, so every product counts at the rate of a random gather from a
table of its own size (a party's, which follow each other). Activations that stay in the cache can be faster than the streams that
are measured. One thread; all seconds are
the processor's. Run it when nothing else runs: caches and memory are shared.
"""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from atoll.algorithms import fedgl
from atoll.graphs import knn
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import multiply
from atoll.runs import config, runner
from benchmarks import Ours

warnings.filterwarnings("ignore")

TURNS = 7
FLOAT = 4
ADAM = 7  # numbers that a fused step reads and writes per weight: w, g, m, v; w, m, v
ROW_VALUES, MAX_VALUES = 16, 1 << 22  # of the matrix that gathers are measured with: values per row, and in all


@dataclass
class Work:
    """What a round has to do, in bytes and operations."""

    gathered: dict[int, float] = field(default_factory=lambda: defaultdict(float))  # rows of the table → bytes
    streamed: float = 0
    flops: float = 0

    def product(self, stored: int, width: int, rows: int, table: int) -> None:
        """Sparse times dense: per stored value a row of a table of so many, an index and a value; the result is written."""
        self.gathered[table] += FLOAT * stored * width
        self.streamed += 2 * FLOAT * stored + FLOAT * rows * width

    def dense(self, rows: int, fan_in: int, fan_out: int) -> None:
        """Rows times a matrix: both are read, the result is written."""
        self.flops += 2 * rows * fan_in * fan_out
        self.streamed += FLOAT * rows * (fan_in + fan_out)


@dataclass
class Network:
    """A GCN of two layers with sparse features, of all parties at once; tables are those of the average party."""

    nodes: int
    parties: int
    features: int
    stored: int
    edges: int
    hidden: int
    classes: int
    keep: float = 1  # share of the stored features that an epoch keeps

    @classmethod
    def of(cls, graph: Graph, settings: Any, edges: int | None = None) -> Network:
        """That of a graph, or of one with other edges (the diagonal included)."""
        stored, keep = graph.nonzero_features.nnz, 1 - settings.input_dropout
        count = graph.edge_index.shape[1] + graph.num_nodes if edges is None else edges
        sizes = (graph.num_nodes, graph.parties, graph.num_features, stored, count, settings.hidden, graph.num_classes)
        return cls(*sizes, keep)

    @property
    def weights(self) -> int:
        """Of all parties."""
        return self.parties * (self.features * self.hidden + self.hidden * self.classes + self.hidden + self.classes)

    def epoch(self, work: Work) -> None:
        """Input dropout, forward and backward."""
        kept = round(self.stored * self.keep)
        if self.keep < 1:  # 16 random bits and a mask are written and read, then values and columns, and those kept written
            work.streamed += self.stored * (2 * 2 + 2 * 1 + 2 * FLOAT) + 2 * FLOAT * kept
        self.forward(work, kept)
        self.backward(work, kept)

    def forward(self, work: Work, stored: int | None = None) -> None:
        """X·W, Â·(X·W), the second layer."""
        held = self.nodes // self.parties
        work.product(self.stored if stored is None else stored, self.hidden, self.nodes, self.features)
        work.product(self.edges, self.hidden, self.nodes, held)
        work.dense(self.nodes, self.hidden, self.classes)
        work.product(self.edges, self.classes, self.nodes, held)

    def backward(self, work: Work, stored: int) -> None:
        """The gradients of both weights and of the hidden rows, and a step of Adam."""
        held = self.nodes // self.parties
        work.product(self.edges, self.classes, self.nodes, held)
        work.dense(self.nodes, self.hidden, self.classes)
        work.dense(self.nodes, self.classes, self.hidden)
        work.streamed += 3 * FLOAT * self.nodes * self.hidden  # the rectifier's
        work.product(self.edges, self.hidden, self.nodes, held)
        work.product(stored, self.hidden, self.parties * self.features, held)
        work.streamed += ADAM * FLOAT * self.weights


@dataclass
class Rates:
    """This machine's, in bytes and operations per second."""

    stream: float
    flop: float
    width: int
    gathers: dict[int, float] = field(default_factory=dict)  # rows of the table → bytes per second

    @classmethod
    def measured(cls, width: int) -> Rates:
        """A copy of 128 MB, read and written; a product of 1024³."""
        big, square = torch.randn(1 << 25), torch.randn(1024, 1024)
        other, out = torch.empty_like(big), torch.empty_like(square)
        stream = 2 * FLOAT * len(big) / fastest(lambda: other.copy_(big))
        return cls(stream, 2 * 1024**3 / fastest(lambda: torch.mm(square, square, out=out)), width)

    def gather(self, rows: int) -> float:
        """Of random rows of a table of so many."""
        if rows not in self.gathers:
            count = min(MAX_VALUES, max(1 << 18, ROW_VALUES * rows)) // ROW_VALUES * ROW_VALUES
            columns = torch.randint(rows, (count,), dtype=torch.int32)
            indptr = torch.arange(0, count + 1, ROW_VALUES, dtype=torch.int32)
            size = (len(indptr) - 1, rows)
            matrix = torch.sparse_csr_tensor(indptr, columns, torch.ones(count), size=size, check_invariants=False)
            table = torch.randn(rows, self.width)
            self.gathers[rows] = FLOAT * count * self.width / fastest(lambda: multiply(matrix, table))
        return self.gathers[rows]

    def limit(self, work: Work) -> dict[str, float]:
        """The seconds of each kind of work."""
        return {
            "gathers": sum(size / self.gather(table) for table, size in work.gathered.items()),
            "streams": work.streamed / self.stream,
            "products": work.flops / self.flop,
        }


def fastest(function: Callable[[], Any], turns: int = TURNS) -> float:
    """The seconds of the fastest turn, after one to warm up."""
    function()
    taken = []
    for _ in range(turns):
        began = time.process_time()
        function()
        taken.append(time.process_time() - began)
    return min(taken)


def fedavg_work(graph: Graph, settings: Any) -> Work:
    """FedAvg: epochs, the optimizer, an evaluation, models sent and returned."""
    work, network = Work(), Network.of(graph, settings)
    for _ in range(settings.epochs):
        network.epoch(work)
    network.forward(work)
    work.streamed += 6 * FLOAT * network.weights  # loaded twice, multiplied and added up once
    return work


def fedgl_work(graph: Graph, whole: Graph, settings: Any, edges: int) -> Work:
    """FedGL: epochs over graphs with the pseudo graph (`edges`), what is sent, both evaluations, and the next pseudo graph."""
    work, classes, nodes = Work(), graph.num_classes, whole.num_nodes
    network = Network.of(graph, settings, edges)
    for _ in range(settings.epochs):
        network.epoch(work)
    network.forward(work)  # H_k
    Network.of(graph, settings).forward(work)  # the local goal
    Network.of(whole, settings).forward(work)  # the global one
    work.streamed += 6 * FLOAT * network.weights
    work.streamed += 4 * FLOAT * (2 * graph.parties * nodes * classes)  # predictions and embeddings: made, weighed, added up
    work.flops += 2 * nodes * nodes * classes  # H·Hᵀ
    work.streamed += 2 * FLOAT * nodes * nodes  # written, and read once to find the largest
    work.streamed += 6 * 2 * FLOAT * edges  # projected, made symmetric, added, normalized
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
            work.product(edges + users, width_of, users, users)
    work.product(edges + users, width, users, users)  # L·X̄
    work.streamed += 14 * FLOAT * users * width  # rectifier, dropout, penalty and their gradients, the message's checks
    for _ in range(4):
        work.dense(users, width, classes)
    return work


def case(name: str, ours: Ours, work: Work, rates: Rates) -> dict[str, object]:
    """One row: the limit, what binds, the fastest round and the fraction."""
    taken, parts = fastest(ours.round), rates.limit(work)
    limit, binding = sum(parts.values()), max(parts, key=lambda part: parts[part])
    gathered = sum(work.gathered.values())
    row: dict[str, object] = {"round of": name, "gathered MB": gathered / 1e6, "streamed MB": work.streamed / 1e6}
    row |= {"MFLOP": work.flops / 1e6, "gather GB/s": gathered / parts["gathers"] / 1e9, "stream GB/s": rates.stream / 1e9}
    row |= {"GFLOP/s": rates.flop / 1e9, "limit ms": limit * 1e3, "of it": f"{parts[binding] / limit:.0%} {binding}"}
    return row | {"round ms": taken * 1e3, "fraction": limit / taken}


def begun(experiment: Any) -> Ours:
    """Its rounds, one by one."""
    experiment.federation.begin(0)
    return Ours(experiment, experiment.algorithm.start(experiment.federation, experiment.config.settings))


def of_fedavg(dataset: str, partition: str) -> dict[str, object]:
    """FedAvg with GCN-64, five epochs."""
    experiment = runner.prepare(config.resolve("fedavg", dataset=dataset, partition=partition))
    settings = experiment.config.settings
    work = fedavg_work(experiment.party_data.parts, settings)
    return case(f"FedAvg, {dataset}", begun(experiment), work, Rates.measured(settings.hidden))


def of_fedgl(dataset: str) -> dict[str, object]:
    """FedGL with its defaults, six overlapping parties."""
    experiment = runner.prepare(config.resolve("fedgl", dataset=dataset))
    settings, parts, whole = experiment.config.settings, experiment.party_data.parts, experiment.party_data.whole
    assert whole is not None
    ours = begun(experiment)
    for _ in range(3):  # until there is a pseudo graph
        ours.round()
    pseudo = fedgl.pseudo_graph(ours.state["embeddings"], settings)
    edges = knn.complement(parts, **pseudo, beta=settings.pseudo_graph_weight, form=settings.pseudo_graph)
    stored = edges.normalized_adjacency.forward.values().numel()
    return case(f"FedGL, {dataset}", ours, fedgl_work(parts, whole, settings, stored), Rates.measured(settings.hidden))


def of_nfedgnn(users: int) -> dict[str, object]:
    """nFedGNN, ten of 500 features per user."""
    from benchmarks.nfedgnn import synthetic

    graph = synthetic(users)
    experiment = runner.prepare(config.resolve("nfedgnn", dataset="given", partition="node"), graph)
    settings, edges = experiment.config.settings, graph.edge_index.shape[1]
    work = nfedgnn_work(experiment.party_data.parts, settings, edges)
    return case(f"nFedGNN, {users:,} users", begun(experiment), work, Rates.measured(settings.width))


CASES: dict[str, Callable[[], dict[str, object]]] = {
    "pubmed": lambda: of_fedavg("pubmed", "fedspray_pubmed"),
    "physics": lambda: of_fedavg("physics", "fedspray_physics"),
    "wiki": lambda: of_fedgl("wiki"),
    "nfedgnn": lambda: of_nfedgnn(1_000_000),
}


def main(*names: str) -> list[dict[str, object]]:
    """All rows, or those that are named; the graphs of papers where they are."""
    return [CASES[name]() for name in names or CASES]


if __name__ == "__main__":
    for row in main(*sys.argv[1:]):
        print(*(f"{name}={value:.3g}" if isinstance(value, float) else f"{name}={value}" for name, value in row.items()))
