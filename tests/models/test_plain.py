"""A user's own torch.nn.Module as a backbone: a set of parameters per party, computed party by party."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.errors import AtollError, AtollWarning
from atoll.graphs.graph import Graph, stack
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.optim import Adam, descend
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.plain import plain_backbone
from atoll.models.registry import build
from atoll.random import Draws
from atoll.tasks.node_classification import TASK

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import GCNConv

FEATURES, CLASSES, HIDDEN = 6, 3, 8


class Net(nn.Module):
    """Two convolutions, as in PyG's introduction."""

    def __init__(
        self, in_channels: int, hidden_channels: int, out_channels: int, dropout: float = 0.0, act: str = "relu"
    ) -> None:
        super().__init__()
        self.conv1 = GCNConv(in_channels, hidden_channels)
        self.conv2 = GCNConv(hidden_channels, out_channels)
        self.dropout, self.act = nn.Dropout(dropout), getattr(torch, act)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The hidden representation."""
        return self.act(self.conv1(x, edge_index))

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.conv2(self.dropout(self.embed(x, edge_index)), edge_index)


def make_graph(nodes: int, seed: int) -> Graph:
    """A random graph."""
    rng = np.random.default_rng(seed)
    edges = rng.integers(0, nodes, (2, 2 * nodes))
    edges = edges[:, edges[0] != edges[1]]
    split = torch.from_numpy(rng.integers(0, 3, nodes))
    return Graph(
        x=torch.from_numpy(rng.normal(size=(nodes, FEATURES)).astype(np.float32)),
        edge_index=torch.from_numpy(np.unique(np.concatenate([edges, edges[::-1]], 1), axis=1)),
        y=torch.from_numpy(rng.integers(0, CLASSES, nodes)),
        train=split == 0,
        val=split == 1,
        test=split == 2,
        num_classes=CLASSES,
        ids=torch.arange(nodes),
        ptr=torch.tensor([0, nodes]),
    )


GRAPHS = [make_graph(size, seed) for seed, size in enumerate((20, 11, 33))]


def make(
    kind: type[nn.Module], parties: list[int], dropout: float = 0.0, input_dropout: float = 0.0, **settings: Any
) -> Backbone:
    """A module as the backbone of some parties."""
    backbone = plain_backbone(kind, kind.__name__)
    shape = ModelShape(len(parties), FEATURES, CLASSES, HIDDEN, 2, dropout, input_dropout)
    return backbone(shape, Draws(0, parties, "first"), backbone.settings_type(**settings))


def test_logits_and_gradients_are_the_modules() -> None:
    """Party p's rows are the module with party p's parameters on party p's graph; so are the gradients."""
    model, graph = make(Net, [0, 1, 2]), stack(GRAPHS)
    logits = model(graph)
    loss = TASK.loss(logits, graph)
    gradients = dict(zip(get_parameters(model), torch.autograd.grad(loss, list(model.parameters())), strict=True))
    for party, part in enumerate(GRAPHS):
        net = Net(FEATURES, HIDDEN, CLASSES)
        net.load_state_dict({name: value[party] for name, value in get_parameters(model).items()})
        expected = net(part.x, part.edge_index)
        torch.testing.assert_close(logits[graph.party == party], expected)
        TASK.loss(expected, part).backward()
        for name, parameter in net.named_parameters():
            torch.testing.assert_close(gradients[name][party], parameter.grad)


class WeightedNet(Net):
    """A network that takes weights of edges."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor | None = None) -> Tensor:
        """Logits."""
        return self.conv2(self.conv1(x, edge_index, edge_weight).relu(), edge_index, edge_weight)


class NeedsWeights(WeightedNet):
    """A network that cannot do without."""

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight: Tensor) -> Tensor:
        """Logits."""
        return super().forward(x, edge_index, edge_weight)


def test_edge_weights_are_given_to_a_module_that_takes_them() -> None:
    """Each party's own, in the order of its edges; one that does not take them says so, once."""
    weighted = [replace(graph, edge_weight=torch.rand(graph.edge_index.shape[1])) for graph in GRAPHS]
    graph, model = stack(weighted), make(WeightedNet, [0, 1, 2])
    logits = model(graph)
    for party, part in enumerate(weighted):
        net = WeightedNet(FEATURES, HIDDEN, CLASSES)
        net.load_state_dict({name: value[party] for name, value in get_parameters(model).items()})
        torch.testing.assert_close(logits[graph.party == party], net(part.x, part.edge_index, part.edge_weight))
    plain = make(Net, [0, 1, 2])
    with pytest.warns(AtollWarning, match="Edge weights are not used: forward of Net does not take `edge_weight`"):
        unweighted = plain(graph)
    assert torch.equal(plain(graph), unweighted)
    assert torch.equal(unweighted, plain(stack(GRAPHS)))
    assert torch.equal(make(NeedsWeights, [0, 1, 2])(stack(GRAPHS)), make(WeightedNet, [0, 1, 2])(stack(GRAPHS)))


def test_it_equals_our_gcn() -> None:
    """The same parameters give the same logits and embeddings as atoll's gcn."""
    graph, plain = stack(GRAPHS), make(Net, [0, 1, 2])
    gcn = build("gcn", parties=3, features=FEATURES, classes=CLASSES, hidden=HIDDEN)
    values = get_parameters(plain)
    set_parameters(
        gcn,
        {f"layers.{i}.weight": values[f"conv{i + 1}.lin.weight"].transpose(1, 2) for i in range(2)}
        | {f"layers.{i}.bias": values[f"conv{i + 1}.bias"] for i in range(2)},
    )
    torch.testing.assert_close(plain(graph), gcn(graph), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(plain.embed(graph), gcn.embed(graph), atol=1e-5, rtol=1e-5)


def test_placement_does_not_matter() -> None:
    """A party trained in a block of three and alone, with dropout, ends with the same parameters, bit for bit."""

    def train(parties: list[int], graph: Graph) -> dict[str, Tensor]:
        model = make(Net, parties, dropout=0.4, input_dropout=0.2)
        optimizer, draws = Adam(model, 0.01), Draws(0, parties, "train")
        for _ in range(3):
            descend(optimizer, TASK.loss(model(graph, draws), graph))
        return get_parameters(model)

    together = train([0, 1, 2], stack(GRAPHS))
    for party, graph in enumerate(GRAPHS):
        for name, value in train([party], graph).items():
            assert torch.equal(together[name][party], value[0]), name
    assert not torch.equal(together["conv1.lin.weight"][0], together["conv1.lin.weight"][1])


class Projected(Net):
    """Multiplies the hidden representation by a random buffer and a random attribute, neither of which is trained."""

    def __init__(self, in_channels: int, hidden_channels: int, out_channels: int, _private: int = 1) -> None:
        super().__init__(in_channels, hidden_channels, out_channels)
        self.register_buffer("mask", torch.randn(hidden_channels))
        self.scale = torch.randn(hidden_channels)

    def embed(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """The hidden representation."""
        return super().embed(x, edge_index) * self.mask * self.scale


@pytest.mark.parametrize("options", [{"placement": "apart"}, {"amnesia": True}])
def test_what_is_not_trained_is_the_same_wherever_a_party_lives(options: dict[str, Any]) -> None:
    """Random buffers and attributes are those of every party, whichever parties share a process and whenever they are made."""

    def losses(**more: Any) -> list[float]:
        result = atoll.run("local", dataset="csbm", nodes=200, parties=3, rounds=2, hidden=8, model=Projected, **more)
        return [row["loss"] for row in result.rows if "loss" in row]

    assert losses() == losses(**options)
    models = [
        make(Projected, [0]),
        make(Projected, [2, 1]),
        plain_backbone(Projected, "P")(ModelShape(1, FEATURES, CLASSES, HIDDEN)),
    ]
    for model in models[1:]:
        for name in ("mask", "scale"):
            assert torch.equal(getattr(models[0].module, name), getattr(model.module, name))


def test_private_arguments_are_not_settings() -> None:
    """A folder's config.toml cannot hold a name that begins with an underscore: such an argument keeps its default."""
    assert not hasattr(plain_backbone(Projected, "P").settings_type(), "_private")
    with pytest.raises(AtollError, match="_private"):
        atoll.run("local", dataset="csbm", model=Projected, rounds=1, **{"model._private": 2})


def test_recurrent_layers_work() -> None:
    """Torch's recurrent layers keep references to their weights, which change in a call."""

    class Recurrent(nn.Module):
        def __init__(self, in_channels: int, out_channels: int) -> None:
            super().__init__()
            self.lstm = nn.LSTM(in_channels, out_channels)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.lstm(x)[0]

    model, graph = make(Recurrent, [0, 1, 2]), stack(GRAPHS)
    logits = model(graph)
    for party, part in enumerate(GRAPHS):
        plain = Recurrent(FEATURES, CLASSES)
        plain.load_state_dict({name: value[party] for name, value in get_parameters(model).items()})
        torch.testing.assert_close(logits[graph.party == party], plain(part.x, part.edge_index))


def test_dropout_is_a_function_of_the_draws() -> None:
    """The same draws give the same logits, later calls of the same draws others; torch's global generator is left alone."""
    model, graph = make(Net, [0], dropout=0.5), GRAPHS[0]
    draws = Draws(0, [0], "a")
    state = torch.get_rng_state()
    once, later = model(graph, draws), model(graph, draws)
    torch.testing.assert_close(torch.get_rng_state(), state)
    torch.rand(3)
    assert torch.equal(once, model(graph, Draws(0, [0], "a")))
    assert not torch.equal(once, later)
    assert torch.equal(model(graph), model(graph))


def test_other_arguments_become_settings() -> None:
    """An argument of the constructor that atoll does not give is a setting with the constructor's default."""
    usual, other = make(Net, [0]), make(Net, [0], act="tanh")
    assert plain_backbone(Net, "Net").settings_type().act == "relu"
    assert not torch.equal(usual(GRAPHS[0]), other(GRAPHS[0]))


def test_without_draws_parameters_are_zero_and_nothing_is_drawn() -> None:
    """A blank model has the same names and shapes; on the meta device it has no storage."""
    backbone = plain_backbone(Net, "Net")
    shape = ModelShape(3, FEATURES, CLASSES, HIDDEN)
    state = torch.get_rng_state()
    blank = get_parameters(backbone(shape))
    with torch.device("meta"):
        meta = get_parameters(backbone(shape))
    torch.testing.assert_close(torch.get_rng_state(), state)
    drawn = get_parameters(make(Net, [0, 1, 2]))
    assert [(name, value.shape) for name, value in drawn.items()] == [(name, value.shape) for name, value in blank.items()]
    assert [(name, value.shape) for name, value in drawn.items()] == [(name, value.shape) for name, value in meta.items()]
    assert not any(value.any() for value in blank.values())


class Tied(nn.Module):
    """Uses one layer twice."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, in_channels)
        self.second = self.first
        self.head = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.second(self.first(x)))


def test_shared_layers_stay_shared() -> None:
    """A layer that is used twice has one set of parameters, and both uses count in its gradient."""
    model = make(Tied, [0, 1])
    assert set(get_parameters(model)) == {"first.weight", "first.bias", "head.weight", "head.bias"}
    graph = stack(GRAPHS[:2])
    layers = [nn.Linear(FEATURES, FEATURES), nn.Linear(FEATURES, CLASSES)]
    for name, layer in zip(("first", "head"), layers, strict=True):
        layer.load_state_dict({key: get_parameters(model)[f"{name}.{key}"][1] for key in ("weight", "bias")})
    expected = layers[1](layers[0](layers[0](GRAPHS[1].x)))
    for _ in range(2):  # the first use leaves the parameters where they were
        torch.testing.assert_close(model(graph)[graph.party == 1], expected)
        assert get_parameters(model)["first.weight"].shape == (2, FEATURES, FEATURES)
    model(graph).sum().backward()
    gradients = {name: value.grad for name, value in model.named_parameters()}
    layers[1](layers[0](layers[0](GRAPHS[1].x))).sum().backward()
    assert gradients["first.weight"] is not None
    torch.testing.assert_close(gradients["first.weight"][1], layers[0].weight.grad)


class TiedWeight(nn.Module):
    """Two layers with one weight, and one buffer in two places."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(in_channels, in_channels), nn.Linear(in_channels, in_channels)
        self.second.weight = self.first.weight
        self.head = nn.Linear(in_channels, out_channels)
        self.register_buffer("shift", torch.ones(in_channels))
        self.head.register_buffer("shift", self.shift)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        assert self.head.shift is self.shift
        return self.head(self.second(self.first(x + self.shift)))


def test_a_weight_in_two_layers() -> None:
    """It is one parameter, in both layers and at every use."""
    model, graph = make(TiedWeight, [0, 1]), stack(GRAPHS[:2])
    assert "second.weight" not in get_parameters(model)
    alone = TiedWeight(FEATURES, CLASSES)
    with torch.no_grad():
        for name, value in alone.named_parameters():
            value.copy_(get_parameters(model)[name][1])
    for _ in range(2):
        torch.testing.assert_close(model(graph)[graph.party == 1], alone(GRAPHS[1].x, GRAPHS[1].edge_index))


class Wrong(nn.Module):
    """Everything a module can do that a federation cannot use, chosen by an argument."""

    def __init__(self, in_channels: int, out_channels: int, how: str = "") -> None:
        super().__init__()
        self.how = how
        if how != "empty":
            self.linear = nn.LazyLinear(out_channels) if how == "lazy" else nn.Linear(in_channels, out_channels + (how == "wide"))
        if how == "frozen":
            self.linear.weight.requires_grad_(False)
        if how == "cached":
            self.conv = GCNConv(in_channels, out_channels, cached=True)
        self.norm = nn.BatchNorm1d(in_channels, affine=how != "empty") if how in ("norm", "empty") else None
        self.register_buffer("mean", torch.zeros(in_channels))
        self.calls, self.seen, self.scale = 0, [1], torch.ones(())
        if how == "broken":
            raise ValueError("no such luck")
        if how == "leaves":
            sys.exit(0)

    def forward(self, x: Tensor, edge_index: Tensor) -> Any:
        """Logits, or something else."""
        if self.how == "tuple":
            return x, x
        if self.how == "pooled":
            return self.linear(x).mean(0, keepdim=True)
        if self.how == "raises":
            raise KeyError("edge_weight")
        if self.how == "exits":
            sys.exit(0)
        if self.how == "replaces":
            self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        if self.how == "reparametrizes":
            self.linear.weight = nn.Parameter(self.linear.weight.clamp(0, 1))
        if self.how == "counts":
            self.calls += 1
        if self.how == "collects":
            self.seen.append(len(x))
        if self.how == "scales":
            self.scale *= 0.9
        if self.how == "adds":
            self.last = x
        return self.linear(x if self.norm is None else self.norm(x))


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ("empty", "Wrong has no parameters"),
        ("lazy", "does not say the size of 'linear.weight'"),
        ("frozen", "'linear.weight' of Wrong must be float32 and trainable"),
        ("cached", "'conv' of Wrong caches the graph"),
        ("norm", "Wrong changes its buffer 'norm.num_batches_tracked' in training"),
        ("wide", "Wrong gives 4 columns for each node, but there are 3 classes"),
        ("broken", r"Wrong cannot be made \(ValueError: no such luck\)"),
        ("tuple", "Wrong gives a tuple for 20 nodes"),
        ("pooled", r"Wrong gives shape \(1, 3\) for 20 nodes"),
        ("leaves", r"Wrong cannot be made \(SystemExit: 0\)"),
        ("exits", r"Wrong fails on a graph of 20 nodes \(SystemExit: 0\)"),
        ("replaces", "Wrong changes its buffer 'mean' in training"),
        ("reparametrizes", "Wrong changes its parameter 'linear.weight' in training"),
        ("counts", "Wrong changes its attribute 'calls' when it is called"),
        ("collects", "Wrong changes its attribute 'seen' when it is called"),
        ("scales", "Wrong changes its attribute 'scale' when it is called"),
        ("adds", "Wrong changes its attribute 'last' when it is called"),
        ("raises", r"Wrong fails on a graph of 20 nodes \(KeyError: 'edge_weight'\)"),
    ],
)
def test_what_cannot_work_is_one_sentence(how: str, sentence: str) -> None:
    """Each is refused when the model is made or first used."""
    with pytest.raises(AtollError, match=sentence):
        make(Wrong, [0], how=how)(GRAPHS[0], Draws(0, [0], "train"))


def test_embed_and_arguments_that_are_missing() -> None:
    """A module without `embed` cannot embed; an argument without a default cannot be given."""
    with pytest.raises(AtollError, match=r"Tied has no method embed\(x, edge_index\)"):
        make(Tied, [0]).embed(GRAPHS[0])

    class Needy(nn.Module):
        def __init__(self, in_channels: int, edge_dim: int) -> None:
            super().__init__()

    with pytest.raises(AtollError, match="Needy needs 'edge_dim', which has no default"):
        plain_backbone(Needy, "Needy")
