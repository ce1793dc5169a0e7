"""FedGL: a round against plain PyG, time and memory of the s nearest rows of H·Hᵀ, and a round on a large synthetic graph.

The plain round is what one writes first: dense features, GCNConv on edge_index with weights, torch's Adam, one party after the
other, H·Hᵀ as a whole. Both start from the same values; that they do the same is checked without dropout; they are timed with
it, taking turns in one process, and a figure is the fastest turn (needs the graph under ATOLL_DATA).

Three ways to the nearest rows, in turns in one process: the product as a whole (N² numbers), blocks of rows sorted as they are,
and atoll's blocks whose columns are grouped first; faiss beside them if installed. The round runs in a process of its own
and tells that process's peak memory: python -m benchmarks.fedgl round NODES exact|approximate. A round against plain PyG alone:
python -m benchmarks.fedgl plain DATASET.
"""

from __future__ import annotations

import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.algorithms import fedgl
from atoll.graphs import knn
from atoll.graphs.graph import Graph
from atoll.runs import config, runner
from benchmarks import Ours, peak

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv
    from torch_geometric.utils import coalesce


class PlainGCN(nn.Module):
    def __init__(self, model: dict[str, Tensor], dropout: float) -> None:
        super().__init__()
        widths = [model["layers.0.weight"].shape[0], *model["layers.1.weight"].shape]
        self.layers = nn.ModuleList(GCNConv(*pair, bias=False) for pair in pairwise(widths))
        self.dropout = dropout

    def forward(self, x: Tensor, edges: Tensor, weights: Tensor) -> Tensor:
        first, second = self.layers
        hidden = first(F.dropout(x, self.dropout, self.training), edges, weights).relu()
        return second(F.dropout(hidden, self.dropout, self.training), edges, weights)  # type: ignore[no-any-return]

    def load(self, model: dict[str, Tensor]) -> PlainGCN:
        for place, layer in enumerate(self.layers):
            layer.lin.weight.data.copy_(model[f"layers.{place}.weight"].t())
        return self

    def read(self) -> dict[str, Tensor]:
        return {f"layers.{place}.weight": layer.lin.weight.detach().t() for place, layer in enumerate(self.layers)}


class PlainParty:
    def __init__(self, graph: Graph, model: dict[str, Tensor], settings: Any) -> None:
        self.x = torch.from_numpy(graph.x.toarray()).float()
        self.graph, self.s, self.ones = graph, settings, torch.ones(graph.edge_index.shape[1])
        self.gcn = PlainGCN(model, settings.dropout)
        self.adam = torch.optim.Adam(self.gcn.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)

    def fit(self, model: dict[str, Tensor], labels: Tensor | None, graph: tuple[Tensor, Tensor] | None) -> Tensor:
        y, train, ids = self.graph.y, self.graph.train, self.graph.ids
        edges, weights = self.graph.edge_index, self.ones
        if graph is not None:  # Ā⁽ᵏ⁾, both ways, beside the party's own edges
            place = torch.full((int(graph[0].max()) + 1,), -1)
            place[ids] = torch.arange(len(ids))
            pseudo = place[graph[0]]
            kept = (pseudo >= 0).all(0) & (pseudo[0] != pseudo[1])
            pseudo, half = pseudo[:, kept], self.s.pseudo_graph_weight * graph[1][kept] / 2
            both = torch.cat([edges, pseudo, pseudo.flip(0)], 1)
            edges, weights = coalesce(both, torch.cat([weights, half, half]), len(ids))
        guessed = None if labels is None else torch.where(train, -1, labels[ids])
        self.gcn.load(model).train()
        for _ in range(self.s.epochs):
            logits = self.gcn(self.x, edges, weights)
            loss = F.cross_entropy(logits[train], y[train])
            if guessed is not None and bool((guessed >= 0).any()):
                loss = loss + self.s.pseudo_label_weight * F.cross_entropy(logits[guessed >= 0], guessed[guessed >= 0])
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
        with torch.no_grad():
            return self.gcn.eval()(self.x, edges, weights)  # type: ignore[no-any-return]

    @torch.no_grad()
    def hits(self, model: dict[str, Tensor]) -> tuple[int, float]:
        logits = self.gcn.load(model).eval()(self.x, self.graph.edge_index, self.ones)
        val, test = self.graph.val, self.graph.test
        loss = F.cross_entropy(logits[val], self.graph.y[val])
        return int((logits[test].argmax(1) == self.graph.y[test]).sum()), float(loss)


class Plain:
    def __init__(self, experiment: runner.Experiment, state: dict[str, Any]) -> None:
        parts, whole = experiment.party_data.parts, experiment.party_data.whole
        assert whole is not None
        self.s, self.model, self.nodes = experiment.config.settings, state["model"], int(state["nodes"])
        self.parties = [PlainParty(parts.select([p]), self.model, self.s) for p in range(parts.parties)]
        self.union = PlainParty(whole, self.model, self.s)
        self.labels: Tensor | None = None
        self.graph: tuple[Tensor, Tensor] | None = None

    def round(self) -> float:
        embeddings, predictions, held = torch.zeros(2), torch.zeros(2), torch.zeros(self.nodes)
        sizes = [len(party.x) for party in self.parties]
        for party, size in zip(self.parties, sizes, strict=True):
            told, ids = party.fit(self.model, self.labels, self.graph), party.graph.ids
            if party is self.parties[0]:
                embeddings, predictions = torch.zeros(2, self.nodes, told.shape[1])
            embeddings[ids] += size * told
            predictions[ids] += size * told.softmax(1)
            held[ids] += size
        models = [party.gcn.read() for party in self.parties]
        self.model = {name: sum(n * own[name] for n, own in zip(sizes, models, strict=True)) / sum(sizes) for name in self.model}
        confidence, classes = (predictions / held.clamp(min=1)[:, None]).max(1)
        self.labels = torch.where(confidence > self.s.pseudo_label_threshold, classes, -1)
        rows = F.normalize(embeddings / held.clamp(min=1)[:, None], dim=1)
        scores, columns = (rows @ rows.t()).relu().topk(self.s.neighbors, dim=1)
        weights = scores / scores.sum(1, keepdim=True).clamp(min=1e-12)
        source = torch.arange(self.nodes).repeat_interleave(self.s.neighbors)
        self.graph = torch.stack([source, columns.flatten()]), weights.flatten()
        for party in self.parties:
            party.hits(self.model)
        return self.union.hits(self.model)[0] / int(self.union.graph.test.sum())


def contestants(dataset: str, **values: Any) -> dict[str, Plain | Ours]:
    experiment = runner.prepare(config.resolve("fedgl", dataset=dataset, values=values))
    experiment.federation.begin(0)
    state = fedgl.start(experiment.federation, experiment.config.settings)
    return {"plain PyG": Plain(experiment, state), "atoll": Ours(experiment, state)}


def against_plain(dataset: str, turns: int) -> None:
    same = contestants(dataset, dropout=0, input_dropout=0)
    for _ in range(4):
        accuracies = [run.round() for run in same.values()]
        assert max(accuracies) - min(accuracies) < 5e-3, f"they do not do the same: {accuracies}"
    runs = contestants(dataset)
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(turns + 3):
        for name, run in runs.items():
            began = time.perf_counter()
            run.round()
            if turn >= 3:
                seconds[name].append(time.perf_counter() - began)
    best = {name: 1000 * min(times) for name, times in seconds.items()}
    words = ", ".join(f"{name} {time:.0f} ms" for name, time in best.items())
    print(f"a round on {dataset}, evaluation included: {words} ({best['plain PyG'] / best['atoll']:.1f} x)")


def whole(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    scores, columns = (embeddings @ embeddings.t()).topk(count, dim=1)
    return scores, columns


def blocks(embeddings: Tensor, count: int) -> tuple[Tensor, Tensor]:
    step = max(1, knn.MAX_SIMILARITIES // len(embeddings))
    parts = [(rows @ embeddings.t()).topk(count, dim=1) for rows in embeddings.split(step)]
    return torch.cat([part.values for part in parts]), torch.cat([part.indices for part in parts])


def clustered(nodes: int, width: int = 7) -> Tensor:
    source = torch.Generator().manual_seed(0)
    centers = 3 * torch.randn(width, width, generator=source)
    return centers[torch.randint(width, (nodes,), generator=source)] + torch.randn(nodes, width, generator=source)


def nearest(nodes: int, count: int = 100, turns: int = 3) -> None:
    embeddings = clustered(nodes)
    ways: dict[str, Callable[[Tensor, int], tuple[Tensor, Tensor]]] = {"blocks": blocks, "grouped": knn.exact_search}
    if nodes <= 10_000:
        ways["whole"] = whole
    try:
        knn.approximate_search(embeddings[:100], 5)
        ways["faiss"] = knn.approximate_search
    except Exception:
        print("faiss is not installed")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    found = {}
    for _ in range(turns):
        for name, way in ways.items():
            began = time.process_time()
            found[name] = way(embeddings, count)
            seconds[name].append(time.process_time() - began)
    for name, times in seconds.items():
        kept = found[name][0].sum() / found["grouped"][0].sum()
        print(f"N = {nodes:6d}, s = {count}: {name:8s} {min(times):7.3f} s, {100 * float(kept):.2f} % of the similarity found")


def one_round(nodes: int, search: str) -> None:
    """Two rounds: the second one has a pseudo graph to train on."""
    values = {
        "data.nodes": nodes,
        "rounds": 2,
        "neighbor_search": search,
        "neighbors": 100,
        "split": "random",
        "train": 0.05,
        "val": 0.05,
    }
    experiment = runner.prepare(config.resolve("fedgl", dataset="csbm", values=values))
    ready = peak()
    result = runner.rounds(experiment)
    held = peak()
    rows = experiment.party_data.parts.num_nodes
    times = [row["seconds"] for row in result.rows]
    print(f"{nodes} nodes in 6 parties ({rows} rows), {search}: first round {times[0]:.0f} s, second {times[1] - times[0]:.0f} s")
    print(f"peak memory of the process {held:.2f} GB, {ready:.2f} GB of it with the parties standing and before the first round")


def main() -> None:
    for dataset, turns in (("cora", 10), ("wiki", 4)):
        against_plain(dataset, turns)
    for nodes in (2708, 20_000):
        nearest(nodes)
    for search in ("exact", "approximate"):
        subprocess.run([sys.executable, "-m", "benchmarks.fedgl", "round", "200000", search], check=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1:2] == ["round"]:
        one_round(int(sys.argv[2]), sys.argv[3])
    elif sys.argv[1:2] == ["plain"]:
        against_plain(sys.argv[2], 10)
    else:
        main()
