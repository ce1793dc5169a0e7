"""The backbones against PyG's layers, and the party axis against separate models."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll import models
from atoll.errors import AtollError
from atoll.graph import Graph, stack
from atoll.random import Draws

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import APPNP, GATConv, GCN2Conv, GCNConv, SAGEConv, SGConv

FEATURES, CLASSES, HIDDEN = 12, 4, 16
CASES = [
    ("gcn", 2),
    ("gcn", 1),
    ("gcn", 3),
    ("sgc", 2),
    ("sage", 2),
    ("sage", 3),
    ("gat", 2),
    ("gat", 3),
    ("gcnii", 4),
    ("appnp", 2),
    ("mlp", 3),
]


def make_graph(nodes: int, seed: int, *, sparse: bool = True, directed: bool = False) -> Graph:
    """A random graph whose last two nodes are isolated."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, nodes - 2, (2, 3 * nodes))
    edges = edges[:, edges[0] != edges[1]]
    if not directed:
        edges = np.concatenate([edges, edges[::-1]], 1)
    x = rng.normal(size=(nodes, FEATURES)).astype(np.float32) * (rng.random((nodes, FEATURES)) < 0.4)
    split = torch.from_numpy(rng.integers(0, 3, nodes))
    return Graph(
        x=sp.csr_array(x) if sparse else torch.from_numpy(x),
        edge_index=torch.from_numpy(np.unique(edges, axis=1)),
        y=torch.from_numpy(rng.integers(0, CLASSES, nodes)),
        train=split == 0,
        val=split == 1,
        test=split == 2,
        num_classes=CLASSES,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, nodes]),
    )


def make_model(name: str, parties: list[int], layers: int, **options: float) -> models.Model:
    """A model with values everywhere, biases too."""
    sizes = {"features": FEATURES, "classes": CLASSES, "hidden": HIDDEN, "layers": layers, "heads": 4}
    model = models.build(name, parties=len(parties), draws=Draws(0, parties, "first"), **sizes, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * Draws(0, parties, "more").normal(*parameter.shape[1:])
    return model


def dense(graph: Graph) -> Tensor:
    """The features as PyG wants them."""
    return graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())


class Reference(nn.Module):
    """The same network of PyG's layers with the parameters of one party."""

    def __init__(self, name: str, model: models.Model, party: int, layers: int) -> None:
        super().__init__()
        self.name = name
        values = {key: value[party] for key, value in models.read(model, copy=True).items()}
        widths = [FEATURES, *[HIDDEN] * (layers - 1), CLASSES]
        self.pairs: list[tuple[str, nn.Parameter]] = []  # our name, PyG's parameter
        self.convs = nn.ModuleList()
        if name == "gcnii":
            self.first = self.linear("input", values)
            for place in range(layers):
                conv = GCN2Conv(HIDDEN, alpha=0.1, theta=0.5, layer=place + 1)
                self.tie(f"layers.{place}.weight", conv.weight1, values)
                self.convs.append(conv)
            self.final = self.linear("output", values)
            return
        for place in range(1 if name == "sgc" else layers):
            key = f"layers.{place}"
            self.convs.append(self.conv(name, key, widths, place, place == layers - 1, values))

    def conv(self, name: str, key: str, widths: list[int], place: int, last: bool, values: dict[str, Tensor]) -> nn.Module:
        """One of PyG's layers with our values in it."""
        fan_in, fan_out = widths[place], widths[place + 1]
        if name == "gcn":
            conv = GCNConv(fan_in, fan_out)
            self.tie(f"{key}.weight", conv.lin.weight, values)
        elif name == "sgc":
            conv = SGConv(FEATURES, CLASSES, K=2)
            self.tie(f"{key}.weight", conv.lin.weight, values)
            self.tie(f"{key}.bias", conv.lin.bias, values)
            return conv
        elif name == "sage":
            conv = SAGEConv(fan_in, fan_out)
            self.tie(f"{key}.near.weight", conv.lin_l.weight, values)
            self.tie(f"{key}.near.bias", conv.lin_l.bias, values)
            self.tie(f"{key}.own.weight", conv.lin_r.weight, values)
            return conv
        elif name == "gat":
            heads = 1 if last else 4
            conv = GATConv(fan_in, fan_out // heads, heads=heads)
            self.tie(f"{key}.weight", conv.lin.weight, values)
            self.tie(f"{key}.source", conv.att_src, values)
            self.tie(f"{key}.target", conv.att_dst, values)
        else:
            return self.linear(key, values)
        self.tie(f"{key}.bias", conv.bias, values)
        return conv

    def linear(self, key: str, values: dict[str, Tensor]) -> nn.Linear:
        """A linear layer with our values in it."""
        layer = nn.Linear(*values[f"{key}.weight"].shape)
        self.tie(f"{key}.weight", layer.weight, values)
        self.tie(f"{key}.bias", layer.bias, values)
        return layer

    def tie(self, key: str, parameter: nn.Parameter, values: dict[str, Tensor]) -> None:
        """Give PyG's parameter our value; PyG keeps the weights of linear maps as (out, in)."""
        parameter.data.copy_(self.turned(key, values[key]).reshape(parameter.shape))
        self.pairs.append((key, parameter))

    def turned(self, key: str, value: Tensor) -> Tensor:
        """Between our (in, out) and PyG's (out, in)."""
        turn = key.endswith("weight") and not (self.name == "gcnii" and key.startswith("layers"))
        return value.t() if turn else value

    def forward(self, graph: Graph) -> Tensor:
        """Logits."""
        x, edges = dense(graph), graph.edge_index
        if self.name == "gcnii":
            first = x = self.first(x).relu()
            for conv in self.convs:
                x = conv(x, first, edges).relu()
            return self.final(x)
        for place, conv in enumerate(self.convs):
            x = conv(x) if self.name in ("mlp", "appnp") else conv(x, edges)
            if place < len(self.convs) - 1:
                x = F.elu(x) if self.name == "gat" else x.relu()
        return APPNP(K=10, alpha=0.1)(x, edges) if self.name == "appnp" else x


def compare(name: str, layers: int, graphs: list[Graph]) -> None:
    """Logits and parameter gradients of one cohort against one PyG network a party."""
    model = make_model(name, list(range(len(graphs))), layers)
    graph = stack(graphs)
    logits = model(graph)
    torch.manual_seed(1)
    direction = torch.randn_like(logits)
    (logits * direction).sum().backward()
    for party, own in enumerate(graphs):
        reference = Reference(name, model, party, layers)
        rows = slice(*graph.ptr[party : party + 2].tolist())
        expected = reference(own)
        torch.testing.assert_close(logits[rows], expected, atol=1e-5, rtol=1e-5)
        (expected * direction[rows]).sum().backward()
        ours = dict(model.named_parameters())
        assert {key for key, _ in reference.pairs} == ours.keys()
        for key, parameter in reference.pairs:
            gradient = ours[key].grad[party]
            wanted = reference.turned(key, parameter.grad.reshape(reference.turned(key, gradient).shape))
            torch.testing.assert_close(gradient, wanted, atol=1e-4, rtol=1e-5, msg=lambda m, key=key: f"{key}: {m}")


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize("sizes", [[40], [30, 17, 51], [20, 20]], ids=str)
@pytest.mark.parametrize(("name", "layers"), CASES)
def test_models_equal_pyg(name: str, layers: int, sizes: list[int], sparse: bool) -> None:
    """Every model gives PyG's logits and PyG's gradients, for one party and for several in one block."""
    compare(name, layers, [make_graph(size, seed, sparse=sparse) for seed, size in enumerate(sizes)])
