"""What each kernel is worth: alternatives alternated in one process, as ratios to the one atoll uses.

python benchmarks/kernels.py [pubmed|physics|made]      (made: of PubMed's size, needs no data; the others need ATOLL_DATA)
"""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
import torch.nn.functional as F

from atoll.graphs.features import Features
from atoll.graphs.graph import Graph, stack
from atoll.graphs.masks import node_weights
from atoll.graphs.sparse import SparseMatrix, multiply
from atoll.models import optim
from atoll.models.backbone import Backbone
from atoll.models.registry import build
from atoll.random import Draws
from atoll.tasks.node_classification import TASK, _targets

warnings.simplefilter("ignore")
Run = Callable[[], object]


def race(runs: dict[str, Run], budget: float = 3.0) -> dict[str, float]:
    """The least milliseconds of each, run in turns; the second of two runs counts, so that nobody inherits a cache."""
    best = dict.fromkeys(runs, float("inf"))
    for run in runs.values():
        run()
    end = time.perf_counter() + budget * len(runs) ** 0.5
    while time.perf_counter() < end:
        for name, run in runs.items():
            run()
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: seconds * 1e3 for name, seconds in best.items()}


def table(title: str, runs: dict[str, Run]) -> None:
    """Print a race; the first line is what atoll does."""
    print(f"\n{title}")
    found = race(runs)
    base = next(iter(found.values()))
    for name, milliseconds in found.items():
        print(f"  {name:<52} {milliseconds:9.3f} ms {milliseconds / base:7.2f} x")


def made(parties: int = 7, nodes: int = 1600, width: int = 500) -> Graph:
    """A graph of PubMed's size and density."""
    rng = np.random.default_rng(0)
    graphs = []
    for _ in range(parties):
        edges = rng.integers(0, nodes, (2, int(2.2 * nodes)))
        edges = np.unique(np.concatenate([edges, edges[::-1]], 1)[:, np.tile(edges[0] != edges[1], 2)], axis=1)
        role = torch.from_numpy(rng.integers(0, 10, nodes))
        x = sp.random_array((nodes, width), density=0.1, format="csr", dtype=np.float32, rng=rng)
        masks = (role < 4, (role >= 4) & (role < 7), role >= 7)
        y = torch.from_numpy(rng.integers(0, 3, nodes))
        graphs.append(
            Graph(sp.csr_array(x), torch.from_numpy(edges), y, *masks, 3, torch.arange(nodes), torch.tensor([0, nodes]))
        )
    return stack(graphs)


def known(name: str) -> Graph:
    """A real graph in the parties of FedSpray's paper."""
    from atoll import data

    root = Path(os.environ["ATOLL_DATA"]) / "partitions"
    parts = data.partition(data.load(name), str(root / f"fedspray_{name}.npz"), None, data.PartitionSettings(), 0)
    return data.split(parts, data.SplitSettings(split="random"), 0)


def sparse_products(graph: Graph) -> None:
    """The products of one epoch, forward and backward."""
    weight = torch.randn(graph.parties, graph.num_features, 64)
    hidden = torch.randn(graph.num_nodes, 64)
    values = graph.features.values
    assert isinstance(values, SparseMatrix)
    flat = weight.view(-1, 64)
    for title, matrix, dense in (
        ("X·W, all parties", values.forward, flat),
        ("Xᵀ·G, all parties", values.transposed, hidden),
        ("Â·H", graph.normalized_adjacency.forward, hidden),
    ):
        table(
            title, {"embedding bag": lambda m=matrix, d=dense: multiply(m, d), "torch CSR (MKL)": lambda m=matrix, d=dense: m @ d}
        )
    own = values.forward
    live = flat.clone().requires_grad_()
    table(
        "X·W with its gradient",
        {
            "stored transpose": lambda: torch.autograd.grad((values @ live).sum(), live),
            "torch's own CSR backward": lambda: torch.autograd.grad((own @ live).sum(), live),
        },
    )


def party_products(graph: Graph) -> None:
    """Rows times the parties' own weights."""
    blocks = graph.blocks
    for fan_in, fan_out in ((64, graph.num_classes), (64, 64)):
        rows, gradient = torch.randn(graph.num_nodes, fan_in), torch.randn(graph.num_nodes, fan_out)
        weight = torch.randn(graph.parties, fan_in, fan_out)
        longest = max(graph.sizes)

        def padded(rows: torch.Tensor = rows, weight: torch.Tensor = weight, longest: int = longest) -> torch.Tensor:
            blocks_ = torch.nn.utils.rnn.pad_sequence(rows.split(graph.sizes), batch_first=True)
            out = torch.bmm(blocks_, weight)
            return torch.cat([block[:size] for block, size in zip(out, graph.sizes, strict=True)])

        def plain(rows: torch.Tensor = rows, weight: torch.Tensor = weight) -> torch.Tensor:
            return torch.cat([block @ own for block, own in zip(rows.split(graph.sizes), weight, strict=True)])

        table(
            f"rows times a party's weight, {fan_in} → {fan_out}",
            {"blocks.product": lambda r=rows, w=weight: blocks.product(r, w), "loop and cat": plain, "padded bmm": padded},
        )
        table(
            f"gradient of that weight, {fan_in} → {fan_out}",
            {
                "blocks.gram": lambda r=rows, g=gradient: blocks.gram(r, g),
                "loop": lambda r=rows, g=gradient: [
                    a.t() @ b for a, b in zip(r.split(graph.sizes), g.split(graph.sizes), strict=True)
                ],
            },
        )


def loss_and_step(graph: Graph, model: Backbone) -> None:
    """Cross entropy and Adam."""
    logits = torch.randn(graph.num_nodes, graph.num_classes, requires_grad=True)
    chosen = graph.train
    weights, targets = node_weights(graph, "train"), graph.y.masked_fill(~chosen, -100)
    table(
        "cross entropy, mean by party, with its gradient",
        {
            "task.loss": lambda: torch.autograd.grad(TASK.loss(logits, graph, "train"), logits),
            "torch's, ignoring the others": lambda: torch.autograd.grad(
                F.cross_entropy(logits, targets, reduction="none") @ weights, logits
            ),
        },
    )
    params = [p.detach().clone().requires_grad_() for p in model.parameters()]
    gradients = [torch.randn_like(p) for p in params]
    for parameter, gradient in zip(params, gradients, strict=True):
        parameter.grad = gradient
    ours, late = optim.Adam(params, 1e-3), optim.Adam(params, 1e-3)
    late.restore({n: t + torch.arange(graph.parties) if n == "steps" else t for n, t in late.state().items()})
    fused = torch.optim.Adam(params, 1e-3, fused=True)
    each, plain = (torch.optim.Adam(params, 1e-3, foreach=on) for on in (True, False))
    table(
        "Adam",
        {
            "optim.Adam": lambda: ours.step(gradients),
            "optim.Adam, every party at its own step": lambda: late.step(gradients),
            "torch fused": fused.step,
            "torch foreach": each.step,
            "torch loop": plain.step,
        },
    )


def epoch_of(graph: Graph, seed: int = 0) -> Run:
    """One epoch as an algorithm writes it."""
    parties = graph.parties
    sizes = {"features": graph.num_features, "classes": graph.num_classes}
    model = build("gcn", parties=parties, draws=Draws(seed, range(parties), "first"), **sizes)
    optimizer = optim.Adam(model, 0.003)
    return lambda: optim.descend(optimizer, TASK.loss(model(graph), graph, "train"))


def by_hand(graph: Graph) -> Run:
    """The same epoch without autograd: the least there is to do with these kernels."""
    parties = graph.parties
    sizes = {"features": graph.num_features, "classes": graph.num_classes}
    model = build("gcn", parties=parties, draws=Draws(0, range(parties), "first"), **sizes)
    w1, b1, w2, b2 = (p.detach() for p in model.parameters())
    optimizer, blocks, features = optim.Adam(model, 0.003), graph.blocks, graph.features
    forward, backward = graph.normalized_adjacency.forward, graph.normalized_adjacency.transposed
    targets, weights = _targets(graph, "train", False)

    @torch.no_grad()
    def run() -> None:
        hidden = blocks.add_(multiply(forward, features.product(w1)), b1).relu_()
        logits = blocks.add_(multiply(forward, blocks.product(hidden, w2)), b2)
        shares = (logits - logits.amax(1, keepdim=True)).exp_()
        gradient = shares.mul_(weights[:, None] / shares.sum(1, keepdim=True)).sub_(targets)
        of_b2, below = blocks.sum(gradient), multiply(backward, gradient)
        of_w2 = blocks.gram(hidden, below)
        below = torch.ops.aten.threshold_backward(blocks.product(below, w2.transpose(1, 2)), hidden, 0)
        optimizer.step([features.gram(multiply(backward, below)), blocks.sum(below), of_w2, of_b2])

    return run


def pyg(graph: Graph) -> Run:
    """PyG's GCNConv on edge_index with dense features, party by party."""
    from torch_geometric.nn import GCNConv

    members = []
    for party in range(graph.parties):
        own = graph.select([party])
        layers = torch.nn.ModuleList([GCNConv(own.num_features, 64), GCNConv(64, own.num_classes)])
        members.append((own, torch.from_numpy(own.x.toarray()), layers, torch.optim.Adam(layers.parameters(), 0.003)))

    def run() -> None:
        for own, x, (first, second), adam in members:
            adam.zero_grad()
            logits = second(first(x, own.edge_index).relu(), own.edge_index)
            F.cross_entropy(logits[own.train], own.y[own.train]).backward()
            adam.step()

    return run


def main(name: str = "made") -> None:
    """All tables, for a made graph or a known one."""
    graph = made() if name == "made" else known(name)
    print(f"{name}: {graph.num_nodes} nodes, {graph.parties} parties, {graph.num_features} features")
    runs: dict[str, Run] = {"atoll": epoch_of(graph), "by hand, no autograd": by_hand(graph)}
    alone = [epoch_of(graph.select([party])) for party in range(graph.parties)]
    runs["atoll, one party after the other"] = lambda: [run() for run in alone]
    if graph.num_features < 2000:
        dense = stack([graph])
        dense.__dict__["features"] = Features.of(torch.from_numpy(graph.x.toarray()), graph.blocks)
        runs["atoll, dense features"] = epoch_of(dense)
        runs["PyG, one party after the other, dense features"] = pyg(graph)
    table("one epoch of every party: GCN, 64 hidden, cross entropy, Adam", runs)
    sparse_products(graph)
    party_products(graph)
    sizes = {"features": graph.num_features, "classes": graph.num_classes}
    loss_and_step(graph, build("gcn", parties=graph.parties, draws=Draws(0, range(graph.parties)), **sizes))


if __name__ == "__main__":
    main(*sys.argv[1:2])
