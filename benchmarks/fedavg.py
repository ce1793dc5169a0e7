"""A FedAvg round, evaluation included: atoll against a bare hand-written loop and against plain PyG, in one run.

The bare loop does the same arithmetic (block-diagonal, atoll's sparse product, stored transposes, hand-written backward, fused
Adam, counts at the parties) with nothing around it. The plain loop is what one writes with PyG: dense features, GCNConv on
edge_index, one model after the other. All three take turns in one process; a figure is the fastest turn.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from atoll.federation.cohort import first_model
from atoll.graphs.graph import Graph
from atoll.graphs.sparse import csr, multiply
from atoll.runs import config, runner

warnings.filterwarnings("ignore")

EPOCHS, LR, HIDDEN = 5, 0.003, 64


class Bare:
    """Two GCN layers for all parties at once, forward and backward by hand."""

    def __init__(self, graph: Graph, model: dict[str, torch.Tensor]) -> None:
        self.sizes, self.parties, self.classes = graph.sizes, graph.parties, graph.num_classes
        source, target = graph.edge_index.numpy()
        n = graph.num_nodes
        looped = sp.csr_array((np.ones(len(source)), (target, source)), shape=(n, n)) + sp.eye_array(n, format="csr")
        scale = sp.diags_array(np.asarray(looped.sum(1)) ** -0.5)
        self.a = csr(scale @ looped @ scale)  # symmetric: its own transpose
        x, d = sp.csr_array(graph.x), graph.num_features
        shift = np.repeat(graph.party.numpy() * d, np.diff(x.indptr))
        shifted = sp.csr_array((x.data, x.indices + shift, x.indptr), shape=(n, d * self.parties))
        self.x, self.xt = csr(shifted), csr(sp.csr_array(shifted.T.tocsr()))
        train = graph.train.nonzero().squeeze(1)
        self.train, self.y = train, graph.y[train]
        counts = torch.bincount(graph.party[train], minlength=self.parties)
        self.weight = (1 / counts.float())[graph.party[train]]
        self.share = (counts / counts.sum()).float()
        self.party = graph.party
        names = [f"layers.{layer}.{part}" for layer in (0, 1) for part in ("weight", "bias")]
        self.shared = [model[name].clone() for name in names]
        self.w = [value.unsqueeze(0).repeat(self.parties, *[1] * value.ndim) for value in self.shared]
        self.m, self.v = [torch.zeros_like(w) for w in self.w], [torch.zeros_like(w) for w in self.w]
        self.step = torch.zeros(())
        val, test = graph.val.nonzero().squeeze(1), graph.test.nonzero().squeeze(1)
        self.rows = torch.cat([val, test])
        self.group = graph.party[self.rows] + torch.cat([torch.zeros_like(val), torch.ones_like(test)]) * self.parties
        self.eval_y = graph.y[self.rows]

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        w1, b1, w2, b2 = self.w
        hidden = multiply(self.a, multiply(self.x, w1.view(-1, HIDDEN)))
        for rows, bias in zip(hidden.split(self.sizes), b1, strict=True):
            rows.add_(bias)
        hidden.relu_()
        out = torch.empty(hidden.shape[0], self.classes)
        for rows, weight, into in zip(hidden.split(self.sizes), w2, out.split(self.sizes), strict=True):
            torch.mm(rows, weight, out=into)
        logits = multiply(self.a, out)
        for rows, bias in zip(logits.split(self.sizes), b2, strict=True):
            rows.add_(bias)
        return hidden, logits

    def round(self) -> None:
        for own, shared in zip(self.w, self.shared, strict=True):
            own.copy_(shared)
        for _ in range(EPOCHS):
            hidden, logits = self.forward()
            delta = torch.zeros_like(logits)
            p = logits[self.train].softmax(1)
            p[torch.arange(len(self.y)), self.y] -= 1
            delta[self.train] = p * self.weight[:, None]
            back = multiply(self.a, delta)
            blocks = zip(hidden.split(self.sizes), back.split(self.sizes), delta.split(self.sizes), self.w[2], strict=True)
            g2, gb2, dh = [], [], torch.empty_like(hidden)
            for (h, g, dl, w2), into in zip(blocks, dh.split(self.sizes), strict=True):
                g2.append(h.T @ g)
                gb2.append(dl.sum(0))
                torch.mm(g, w2.T, out=into)
            dh.mul_(hidden > 0)
            gb1 = torch.stack([rows.sum(0) for rows in dh.split(self.sizes)])
            g1 = multiply(self.xt, multiply(self.a, dh)).view_as(self.w[0])
            self.step += 1
            torch._fused_adam_(
                self.w, [g1, gb1, torch.stack(g2), torch.stack(gb2)], self.m, self.v, [], [self.step] * 4,
                lr=LR, beta1=0.9, beta2=0.999, weight_decay=0.0, eps=1e-8, amsgrad=False, maximize=False,
            )  # fmt: skip
        self.shared = [torch.tensordot(self.share, w, 1) for w in self.w]
        for own, shared in zip(self.w, self.shared, strict=True):
            own.copy_(shared)
        logits = self.forward()[1][self.rows]
        losses = F.cross_entropy(logits, self.eval_y, reduction="none")
        right = (logits.argmax(1) == self.eval_y).float()
        torch.zeros(2 * self.parties, 2).index_add_(0, self.group, torch.stack([right, losses], 1))


class Plain:
    """One PyG model per party, dense features, one after the other."""

    def __init__(self, graph: Graph) -> None:
        from torch_geometric.nn import GCNConv

        class Net(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.one, self.two = GCNConv(graph.num_features, HIDDEN), GCNConv(HIDDEN, graph.num_classes)

            def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
                return self.two(self.one(x, edge_index).relu(), edge_index)

        self.parties = [graph.select([p]) for p in range(graph.parties)]
        self.x = [torch.from_numpy(part.x.toarray()) for part in self.parties]
        self.nets = [Net() for _ in self.parties]
        self.adams = [torch.optim.Adam(net.parameters(), lr=LR) for net in self.nets]
        self.shared = {name: value.clone() for name, value in self.nets[0].state_dict().items()}
        counts = torch.tensor([int(part.train.sum()) for part in self.parties])
        self.share = (counts / counts.sum()).tolist()

    def round(self) -> None:
        for part, x, net, adam in zip(self.parties, self.x, self.nets, self.adams, strict=True):
            net.load_state_dict(self.shared)
            for _ in range(EPOCHS):
                adam.zero_grad()
                F.cross_entropy(net(x, part.edge_index)[part.train], part.y[part.train]).backward()
                adam.step()
        states = [net.state_dict() for net in self.nets]
        self.shared = {
            name: sum(share * state[name] for share, state in zip(self.share, states, strict=True)) for name in self.shared
        }
        with torch.no_grad():
            for part, x, net in zip(self.parties, self.x, self.nets, strict=True):
                net.load_state_dict(self.shared)
                logits = net(x, part.edge_index)
                for mask in (part.val, part.test):
                    F.cross_entropy(logits[mask], part.y[mask]).item()
                    (logits[mask].argmax(1) == part.y[mask]).sum().item()


def turns(contestants: dict[str, Callable[[], float]], count: int) -> dict[str, float]:
    """The fastest turn of each, in milliseconds."""
    best = dict.fromkeys(contestants, float("inf"))
    for _ in range(count):
        for name, turn in contestants.items():
            best[name] = min(best[name], turn())
    return best


def clock(step: Callable[[], None], rounds: int) -> Callable[[], float]:
    def turn() -> float:
        began = time.perf_counter()
        for _ in range(rounds):
            step()
        return (time.perf_counter() - began) / rounds * 1e3

    return turn


def main(
    dataset: str = "pubmed", partition: str = "fedspray_pubmed", rounds: int = 10, count: int = 7
) -> list[dict[str, object]]:
    chosen = config.resolve("fedavg", dataset=dataset, partition=partition, values={"rounds": rounds})
    experiment = runner.prepare(chosen)
    graph = experiment.party_data.parts
    bare = Bare(graph, first_model(chosen.settings, experiment.federation.schema, 0))
    plain = Plain(graph)
    best = turns(
        {
            "atoll": lambda: clock(lambda: runner.rounds(experiment), 1)() / rounds,
            "bare loop": clock(bare.round, rounds),
            "plain PyG": clock(plain.round, max(1, rounds // 5)),
        },
        count,
    )
    return [
        {"what": f"fedavg round on {dataset}: {name}", "ms": best[name], "atoll is": f"{best['atoll'] / best[name]:.2f} ×"}
        for name in best
    ]


if __name__ == "__main__":
    import sys

    for row in main(*sys.argv[1:3]):
        print(row)
