"""An epoch of graph classification: atoll's local training of all parties against a plain PyG loop over parties and batches.

The data is chem (seven parties, one molecule dataset each; ATOLL_DATA), the network GIN 3×64 with the defaults of graph tasks:
dropout 0.5, Adam with weight decay, batches of 128 graphs, sum readout. The plain loop is what one writes with PyG: a model per
party with GINConv, its own torch Adam, and a DataLoader, which makes a Batch of the graphs that it has shuffled. Both have one
thread and take turns in one process; a figure is the processor time of the median turn, and the ratio the median of the
pairs'. The goal is 3.
"""

from __future__ import annotations

import statistics
import time
import warnings
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from atoll.graphs.graph import Graph
from atoll.runs import config, runner

warnings.filterwarnings("ignore")

TURNS = 5


def network(features: int, hidden: int, layers: int, classes: int, dropout: float) -> nn.Module:
    """GCFL's network as one writes it with PyG."""
    from torch_geometric.nn import GINConv, global_add_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input = nn.Linear(features, hidden)
            mlps = [nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, hidden)) for _ in range(layers)]
            self.layers = nn.ModuleList(GINConv(mlp) for mlp in mlps)
            self.post, self.output = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU()), nn.Linear(hidden, classes)

        def forward(self, batch: Any) -> torch.Tensor:
            x = self.input(batch.x)
            for layer in self.layers:
                x = F.dropout(layer(x, batch.edge_index).relu(), dropout, self.training)
            pooled = global_add_pool(x, batch.batch, batch.num_graphs)
            logits: torch.Tensor = self.output(F.dropout(self.post(pooled), dropout, self.training))
            return logits

    return Net()


class Plain:
    """One PyG model per party, one after the other."""

    def __init__(self, graph: Graph, settings: Any) -> None:
        from torch_geometric.loader import DataLoader

        self.nets, self.adams, self.loaders = [], [], []
        for party in range(graph.parties):
            part = graph.select([party])
            columns = graph.num_features if graph.widths is None else graph.widths[party]
            classes = graph.num_classes if graph.classes is None else graph.classes[party]
            data = [small(part, number, columns) for number in part.train.nonzero()[:, 0].tolist()]
            self.loaders.append(DataLoader(data, batch_size=settings.batch_size, shuffle=True))
            self.nets.append(network(columns, settings.hidden, settings.layers, classes, settings.dropout))
            adam = torch.optim.Adam(self.nets[-1].parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
            self.adams.append(adam)

    def epoch(self) -> None:
        for net, adam, loader in zip(self.nets, self.adams, self.loaders, strict=True):
            for batch in loader:
                adam.zero_grad()
                F.cross_entropy(net(batch), batch.y).backward()
                adam.step()


def small(part: Graph, number: int, columns: int) -> Any:
    """One graph of a party as PyG's Data."""
    from torch_geometric.data import Data

    assert part.graph_ptr is not None
    start, end = part.graph_ptr[number].item(), part.graph_ptr[number + 1].item()
    first, last = part.edge_ptr[number].item(), part.edge_ptr[number + 1].item()
    x = part.dense_features(torch.arange(int(start), int(end)))[:, :columns].contiguous()
    return Data(x=x, edge_index=part.edge_index[:, int(first) : int(last)] - start, y=part.y[number : number + 1])


class Rounds:
    """atoll's rounds of FedAvg, without evaluation: the epoch of all parties, messages and the mean of their convolutions."""

    def __init__(self, dataset: str, **values: Any) -> None:
        self.config = config.resolve("fedavg", dataset=dataset, values=values)
        self.experiment, self.rounds = runner.prepare(self.config), 0
        self.state = self.experiment.algorithm.start(self.experiment.federation, self.config.settings)

    def epoch(self) -> None:
        self.rounds += 1
        self.experiment.federation.begin(self.rounds)
        self.state = self.experiment.algorithm.step(self.experiment.federation, self.state, self.config.settings)


def clock(work: Any) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


def main(turns: int = TURNS) -> list[dict[str, object]]:
    torch.set_num_threads(1)
    rows = []
    for name in ("chem",):
        atoll = Rounds(name)
        plain = Plain(atoll.experiment.party_data.parts, atoll.config.settings)
        atoll.epoch()  # what is made once
        plain.epoch()
        pairs = [(clock(atoll.epoch), clock(plain.epoch)) for _ in range(turns)]
        ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        ratio = statistics.median(other / own for own, other in pairs)
        rows.append({"an epoch, one thread": name, "atoll, s": ours, "plain PyG, s": theirs, "PyG / atoll": f"{ratio:.2f} ×"})
    return rows


if __name__ == "__main__":
    for row in main():
        print(row)
