"""A FedSpray round on PubMed in 7 parties (GCN), evaluation included: atoll against the same algorithm in plain PyG, in one run.

The plain loop is what one writes first: dense features, GCNConv on edge_index, torch's Adam, one party after the other, the
encoder on all nodes of a party as in lines 16-18 of Algorithm 1; a second one embeds only the labeled nodes there.
All start from the same values, that they do the same is checked; they take turns in one process; a figure is the fastest turn.
"""

from __future__ import annotations

import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.algorithms import fedspray
from atoll.runs import config, runner
from benchmarks import Ours

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv


class PlainGCN(nn.Module):
    def __init__(self, features: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.first, self.second = GCNConv(features, hidden), GCNConv(hidden, classes)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.second(self.first(x, edge_index).relu(), edge_index)


class PlainEncoder(nn.Module):
    def __init__(self, features: int, width: int, classes: int) -> None:
        super().__init__()
        self.embedding = nn.Linear(features, width)
        self.classifier = nn.Linear(width, classes)
        self.projector = nn.Linear(width, classes)


class PlainParty:
    def __init__(self, graph: Any, params: dict[str, Tensor], settings: Any, labeled: bool) -> None:
        self.x = graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray()).float()
        self.edges, self.y = graph.edge_index, graph.y
        self.train, self.val, self.test = (mask.nonzero()[:, 0] for mask in (graph.train, graph.val, graph.test))
        self.s, self.recipe = settings, fedspray.recipe(settings)
        self.rows = self.train if labeled else torch.arange(len(self.y))  # whom phase 2 embeds
        self.within = torch.arange(len(self.train)) if labeled else self.train
        self.gnn = PlainGCN(self.x.shape[1], settings.hidden, graph.num_classes)
        for place, layer in enumerate((self.gnn.first, self.gnn.second)):
            layer.lin.weight.data = params[f"layers.{place}.weight"].t().contiguous()
            layer.bias.data = params[f"layers.{place}.bias"].clone()
        self.encoder = PlainEncoder(self.x.shape[1], settings.proxy_dim, graph.num_classes)
        self.proxies = nn.Parameter(torch.full((len(self.train), settings.proxy_dim), self.recipe.initial_proxy_value))
        self.gnn_adam = torch.optim.Adam(self.gnn.parameters(), lr=settings.lr)
        self.encoder_adam = torch.optim.Adam(self.encoder.parameters(), lr=settings.lr)
        self.proxy_adam = torch.optim.Adam([self.proxies], lr=settings.proxy_lr)

    def update(self, encoder: dict[str, Tensor], proxies: Tensor) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        self.encoder.load_state_dict(encoder)
        labels = self.y[self.train]
        with torch.no_grad():
            if self.recipe.refresh_proxies:
                self.proxies.copy_(proxies[labels])
            embedded = self.encoder.embedding(self.x).relu()
            projected = self.encoder.projector(embedded).softmax(1)
            structure = projected @ proxies
            structure[self.train] = self.proxies
            targets = self.encoder.classifier(embedded + structure).softmax(1)
            counted = projected.max(1).values > self.recipe.confidence
            counted[self.train] = True
        for _ in range(self.s.epochs):
            logits = self.gnn(self.x, self.edges)
            loss = F.cross_entropy(logits[self.train], labels)
            loss = loss + self.s.soft_target_weight * F.kl_div(
                logits[counted].log_softmax(1), targets[counted], reduction="batchmean"
            )
            self.gnn_adam.zero_grad()
            loss.backward()
            self.gnn_adam.step()
        with torch.no_grad():
            beliefs = self.gnn(self.x, self.edges)[self.train].softmax(1)
        if self.recipe.tie_projector:
            self.encoder.projector.load_state_dict(self.encoder.classifier.state_dict())
        for _ in range(self.s.epochs):
            embedded = self.encoder.embedding(self.x[self.rows] if len(self.rows) < len(self.x) else self.x).relu()[self.within]
            loss = F.cross_entropy(self.encoder.projector(embedded), labels)
            fused = self.encoder.classifier(embedded + self.proxies)
            loss = loss + self.s.belief_weight * F.kl_div(fused.log_softmax(1), beliefs, reduction="batchmean")
            self.encoder_adam.zero_grad()
            self.proxy_adam.zero_grad()
            loss.backward()
            self.encoder_adam.step()
            self.proxy_adam.step()
        share = torch.bincount(labels, minlength=len(proxies)) / len(labels)
        sums = torch.zeros_like(proxies).index_add_(0, labels, self.proxies.detach())
        return self.encoder.state_dict(), sums / len(labels), share

    @torch.no_grad()
    def evaluate(self) -> tuple[float, int]:
        logits = self.gnn(self.x, self.edges)
        loss = F.cross_entropy(logits[self.val], self.y[self.val])
        hits = (logits[self.test].argmax(1) == self.y[self.test]).sum()
        return float(loss) * len(self.val), int(hits)


class Plain:
    def __init__(self, experiment: runner.Experiment, state: dict[str, Any], labeled: bool) -> None:
        settings, parts = experiment.config.settings, experiment.party_data.parts
        first = experiment.engine.state()["0"]["gnn"]
        self.parties = [
            PlainParty(parts.select([p]), {name: value[p].clone() for name, value in first.items()}, settings, labeled)
            for p in range(parts.parties)
        ]
        self.encoder = {name: (v.t() if v.ndim == 2 else v).contiguous() for name, v in state["encoder"].items()}
        self.proxies = state["proxies"].clone()

    def round(self) -> float:
        replies = [party.update(self.encoder, self.proxies) for party in self.parties]
        counts = [len(party.train) for party in self.parties]
        self.encoder = {
            name: sum(n * reply[0][name] for n, reply in zip(counts, replies, strict=True)) / sum(counts) for name in self.encoder
        }
        self.proxies = sum(reply[1] for reply in replies) / sum(reply[2] for reply in replies)[:, None]
        scores = [party.evaluate() for party in self.parties]
        return sum(hits for _, hits in scores) / sum(len(party.test) for party in self.parties)


def main(turns: int = 10, variant: str = "default") -> list[dict[str, object]]:
    values = {"variant": variant, "model": "gcn"}
    experiment = runner.prepare(config.resolve("fedspray", dataset="pubmed", partition="fedspray_pubmed", values=values))
    state = fedspray.start(experiment.federation, experiment.config.settings)
    runs = {
        "plain PyG": Plain(experiment, state, labeled=False),
        "plain PyG, phase 2 on labeled nodes": Plain(experiment, state, labeled=True),
        "atoll": Ours(experiment, state),
    }
    for _ in range(2):
        accuracies = [run.round() for run in runs.values()]
        assert max(accuracies) - min(accuracies) < 2e-3, f"they do not do the same: {accuracies}"
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(turns):
        for name, run in runs.items():
            began = time.perf_counter()
            run.round()
            seconds[name].append(time.perf_counter() - began)
    best = {name: min(times) for name, times in seconds.items()}
    return [{"round": name, "ms": 1000 * time, "x atoll": time / best["atoll"]} for name, time in best.items()]


if __name__ == "__main__":
    for row in main():
        print(*(f"{value:.4g}" if isinstance(value, float) else value for value in row.values()), sep="\t")
