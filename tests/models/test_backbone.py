"""The backbones against PyG's layers, and the party axis against separate models."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.graphs.attention import elu
from atoll.graphs.graph import Graph, stack
from atoll.models.backbone import Backbone
from atoll.models.optim import Adam, descend
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.registry import MODELS, build
from atoll.random import Draws
from atoll.tasks.node_classification import TASK

with warnings.catch_warnings():  # torch deprecates what PyG still uses
    warnings.simplefilter("ignore")
    from torch_geometric.nn import APPNP, GATConv, GCN2Conv, GCNConv, GINConv, SAGEConv, SGConv

FEATURES, CLASSES, HIDDEN = 12, 4, 16
CASES = [
    ("gcn", 2),
    ("gcn", 1),
    ("gcn", 3),
    ("sgc", 2),
    ("gin", 2),
    ("gin", 3),
    ("sage", 2),
    ("sage", 3),
    ("gat", 2),
    ("gat", 3),
    ("gcn_head", 2),
    ("gcn_head", 1),
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


def make_model(name: str, parties: list[int], layers: int, **options: float) -> Backbone:
    """A model with values everywhere, biases too."""
    sizes = {"features": FEATURES, "classes": CLASSES, "hidden": HIDDEN, "layers": layers}
    model = build(name, parties=len(parties), draws=Draws(0, parties, "first"), settings=four_heads(name), **sizes, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * Draws(0, parties, "more").normal(*parameter.shape[1:])
    return model


def four_heads(name: str) -> dict[str, int]:
    """The settings of a model, with fewer heads than the default."""
    return {"heads": 4} if name == "gat" else {}


def dense(graph: Graph) -> Tensor:
    """The features as PyG wants them."""
    return graph.x if isinstance(graph.x, Tensor) else torch.from_numpy(graph.x.toarray())


class Reference(nn.Module):
    """The same network of PyG's layers with the parameters of one party."""

    def __init__(self, name: str, model: Backbone, party: int, layers: int) -> None:
        super().__init__()
        self.name = name
        values = {key: value[party] for key, value in get_parameters(model, copy=True).items()}
        widths = [FEATURES, *[HIDDEN] * (layers - 1), CLASSES]
        self.pairs: list[tuple[str, nn.Parameter]] = []  # our name, PyG's parameter
        self.convs = nn.ModuleList()
        if name == "gcn_head":
            widths = [FEATURES, *[HIDDEN] * layers]
            self.convs.extend(self.conv("gcn", f"layers.{i}", widths, i, False, values) for i in range(layers))
            self.final = self.linear("output", values)
            return
        if name == "gcnii":
            self.first = self.linear("input", values)
            for index in range(layers):
                conv = GCN2Conv(HIDDEN, alpha=0.1, theta=0.5, layer=index + 1)
                self.tie(f"layers.{index}.weight", conv.weight1, values)
                self.convs.append(conv)
            self.final = self.linear("output", values)
            return
        for index in range(1 if name == "sgc" else layers):
            key = f"layers.{index}"
            self.convs.append(self.conv(name, key, widths, index, index == layers - 1, values))

    def conv(self, name: str, key: str, widths: list[int], index: int, last: bool, values: dict[str, Tensor]) -> nn.Module:
        """One of PyG's layers with our values in it."""
        fan_in, fan_out = widths[index], widths[index + 1]
        if name == "gcn":
            conv = GCNConv(fan_in, fan_out)
            self.tie(f"{key}.weight", conv.lin.weight, values)
        elif name == "sgc":
            conv = SGConv(FEATURES, CLASSES, K=2)
            self.tie(f"{key}.weight", conv.lin.weight, values)
            self.tie(f"{key}.bias", conv.lin.bias, values)
            return conv
        elif name == "gin":
            conv = GINConv(nn.Sequential(nn.Linear(fan_in, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, fan_out)))
            for part, layer in (("first", conv.nn[0]), ("second", conv.nn[2])):
                self.tie(f"{key}.{part}.weight", layer.weight, values)
                self.tie(f"{key}.{part}.bias", layer.bias, values)
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
        weights = {} if graph.edge_weight is None else {"edge_weight": graph.edge_weight}
        if self.name == "gcnii":
            first = x = self.first(x).relu()
            for conv in self.convs:
                x = conv(x, first, edges, **weights).relu()
            return self.final(x)
        if self.name == "gcn_head":
            for conv in self.convs:
                x = conv(x, edges, **weights).relu()
            return self.final(x)
        for index, conv in enumerate(self.convs):
            x = conv(x) if self.name in ("mlp", "appnp") else conv(x, edges, **weights)
            if index < len(self.convs) - 1:
                x = F.elu(x) if self.name == "gat" else x.relu()
        return APPNP(K=10, alpha=0.1)(x, edges, **weights) if self.name == "appnp" else x


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


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_models_equal_pyg_on_directed_graphs(name: str, layers: int) -> None:
    """Messages go from source to target, and their gradients back."""
    compare(name, layers, [make_graph(25, 5, directed=True)])


def with_weights(graph: Graph, seed: int = 0) -> Graph:
    """The graph with weights between 0 and 3, some of them 0, the same in both directions."""
    rng = np.random.default_rng(seed)
    low, high = graph.edge_index.min(0).values.numpy(), graph.edge_index.max(0).values.numpy()
    _, pair = np.unique(low * graph.num_nodes + high, return_inverse=True)
    drawn = (rng.random(pair.max() + 1) * 3 * (rng.random(pair.max() + 1) > 0.1)).astype(np.float32)
    return replace(graph, edge_weight=torch.from_numpy(drawn[pair]))


@pytest.mark.parametrize("directed", [False, True])
@pytest.mark.parametrize(("name", "layers"), [("gcn", 2), ("gcn", 3), ("gcn_head", 2), ("sgc", 2), ("gcnii", 4), ("appnp", 2)])
def test_models_equal_pyg_with_edge_weights(name: str, layers: int, directed: bool) -> None:
    """PyG's layers with `edge_weight`; a party without weights in the same block has weights of 1."""
    weighted = [with_weights(make_graph(size, seed, directed=directed), seed) for seed, size in enumerate((30, 17))]
    if directed:
        weighted[0].edge_weight[:] = torch.rand(len(weighted[0].edge_weight), generator=torch.Generator().manual_seed(0))
    compare(name, layers, [*weighted, make_graph(20, 5, directed=directed)])


def test_sage_takes_the_weighted_mean() -> None:
    """Σ w_ij·h_j / Σ w_ij over the neighbors, by a plain loop; 0 where all weights are 0."""
    graph = with_weights(make_graph(20, 3, sparse=False))
    graph.edge_weight[graph.edge_index[1] == 4] = 0
    model = make_model("sage", [0], 1)
    near, bias, own = (get_parameters(model)[f"layers.0.{name}"][0] for name in ("near.weight", "near.bias", "own.weight"))
    expected = []
    for node in range(graph.num_nodes):
        edges = (graph.edge_index[1] == node).nonzero()[:, 0]
        weights = graph.edge_weight[edges]
        total = sum((w * graph.x[graph.edge_index[0, e]] for w, e in zip(weights, edges, strict=True)), torch.zeros(FEATURES))
        mean = total / weights.sum() if weights.sum() > 0 else total
        expected.append(mean @ near + bias + graph.x[node] @ own)
    torch.testing.assert_close(model(graph), torch.stack(expected), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_weights_of_one_change_no_bit(name: str, layers: int) -> None:
    """A graph whose weights are all 1 is the graph without weights."""
    graph = make_graph(30, 1)
    ones = replace(graph, edge_weight=torch.ones(graph.edge_index.shape[1]))
    assert torch.equal(make_model(name, [0], layers)(graph), make_model(name, [0], layers)(ones))


def test_some_models_have_no_use_for_weights() -> None:
    """gat and disen find their own and say so; an MLP does not use edges at all."""
    graph = make_graph(30, 1)
    for name in ("disen", "gat", "mlp"):
        assert torch.equal(make_model(name, [0], 2)(graph), make_model(name, [0], 2)(with_weights(graph)))
    assert [name for name in MODELS if MODELS.find(name).ignores_edge_weight] == ["disen", "gat"]


@pytest.mark.parametrize("sparse", [True, False], ids=["sparse", "dense"])
@pytest.mark.parametrize(("name", "layers"), CASES)
def test_placement_does_not_matter(name: str, layers: int, sparse: bool) -> None:
    """A party trained in a block of three and alone, with dropout everywhere, ends with the same parameters, bit for bit."""
    graphs = [make_graph(size, seed, sparse=sparse) for seed, size in enumerate((30, 17, 51))]

    def train(parties: list[int], graph: Graph) -> dict[str, Tensor]:
        model = make_model(name, parties, layers, dropout=0.4, input_dropout=0.2)
        optimizer, draws = Adam(model, 0.01), Draws(0, parties, "train")
        for _ in range(3):
            descend(optimizer, TASK.loss(model(graph, draws), graph, "train"))
        return get_parameters(model)

    together = train([0, 1, 2], stack(graphs))
    for party, graph in enumerate(graphs):
        for key, value in train([party], graph).items():
            assert torch.equal(together[key][party], value[0]), key


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_dropout_is_for_training_only(name: str, layers: int) -> None:
    """Without draws there is no dropout; with draws the same draws give the same logits, and others do not."""
    graph = make_graph(40, 0)
    model = make_model(name, [0], layers, dropout=0.5, input_dropout=0.5)
    plain = make_model(name, [0], layers)
    assert torch.equal(model(graph), plain(graph))
    assert torch.equal(plain(graph, Draws(0, [0], "a")), plain(graph))
    once, again, other = (model(graph, Draws(0, [0], call)) for call in ("a", "a", "b"))
    assert torch.equal(once, again)
    assert not torch.equal(once, other)
    assert not torch.equal(once, model(graph))


@pytest.mark.parametrize(("name", "layers"), CASES)
def test_embedding_is_the_last_hidden_layer(name: str, layers: int) -> None:
    """A representation as wide as the hidden layers, or the logits where there are none."""
    graph = make_graph(20, 0)
    model = make_model(name, [0], layers)
    hidden = model.embed(graph)
    if name == "sgc" or (name == "gcn" and layers == 1):
        assert torch.equal(hidden, model(graph))
    else:
        assert hidden.shape == (20, HIDDEN)
    assert hidden.shape[1] == model.embedding_width(model.shape)


def test_gcn_head_on_its_embedding_gives_the_logits() -> None:
    """The last layer over `embed` is the model: Â·(H·W) + b."""
    graph = make_graph(20, 0)
    model = make_model("gcn", [0], 2)
    values = get_parameters(model)
    logits = (
        graph.normalized_adjacency.forward.to_dense() @ model.embed(graph) @ values["layers.1.weight"][0]
        + values["layers.1.bias"][0]
    )
    torch.testing.assert_close(model(graph), logits)


FIRST = {
    "gcn": {"layers.0.weight": (6 / (12 + 256)) ** 0.5, "layers.0.bias": 0},
    "sgc": {"layers.0.weight": 12**-0.5, "layers.0.bias": 12**-0.5},
    "sage": {"layers.0.near.weight": 12**-0.5, "layers.1.near.bias": 256**-0.5, "layers.1.own.weight": 256**-0.5},
    "gin": {"layers.0.first.weight": 12**-0.5, "layers.1.second.bias": 256**-0.5},
    "gat": {"layers.0.weight": (6 / (12 + 256)) ** 0.5, "layers.0.source": (6 / (4 + 64)) ** 0.5, "layers.0.bias": 0},
    "gcn_head": {
        "layers.0.weight": (6 / (12 + 256)) ** 0.5,
        "layers.1.bias": 0,
        "output.weight": 256**-0.5,
        "output.bias": 256**-0.5,
    },
    "gcnii": {"input.weight": 12**-0.5, "layers.1.weight": (6 / 512) ** 0.5, "output.bias": 256**-0.5},
    "appnp": {"layers.0.weight": 12**-0.5, "layers.1.weight": 256**-0.5},
    "mlp": {"layers.0.bias": 12**-0.5, "layers.1.weight": 256**-0.5},
}


@pytest.mark.parametrize("name", FIRST)
def test_first_values_have_pygs_distributions(name: str) -> None:
    """Uniform between ± the bound that PyG's reset_parameters uses; zero where it uses zeros."""
    model = build(name, parties=2, features=12, classes=4, hidden=256, settings=four_heads(name), draws=Draws(0, [0, 1], "first"))
    values = get_parameters(model)
    for key, bound in FIRST[name].items():
        top = values[key].abs().max().item()
        assert top <= bound
        assert top >= 0.7 * bound


@pytest.mark.parametrize("name", list(MODELS))
def test_first_values_are_the_partys_own(name: str) -> None:
    """Party 7's first values are the same in any company, and differ from party 3's."""
    options = {"features": FEATURES, "classes": CLASSES, "hidden": HIDDEN}
    together = get_parameters(build(name, parties=2, draws=Draws(1, [3, 7], "first"), **options))
    alone = get_parameters(build(name, parties=1, draws=Draws(1, [7], "first"), **options))
    for key, value in together.items():
        assert torch.equal(value[1], alone[key][0])
    weights = [value for key, value in together.items() if key.endswith("weight")]
    assert not any(torch.equal(value[0], value[1]) for value in weights)


@pytest.mark.parametrize("name", list(MODELS))
def test_read_and_load(name: str) -> None:
    """What is read can be loaded: with the party axis as it is, without it to every party; reading copies only when asked."""
    source, target = (
        make_model(name, [0, 1], 2),
        build(name, parties=2, features=FEATURES, classes=CLASSES, hidden=HIDDEN, settings=four_heads(name)),
    )
    assert not any(value.any() for value in get_parameters(target).values())
    copied = get_parameters(source, copy=True)
    set_parameters(target, get_parameters(source))
    assert all(torch.equal(value, copied[key]) for key, value in get_parameters(target).items())
    set_parameters(target, {key: value[1] for key, value in copied.items()})
    for key, value in get_parameters(target).items():
        assert torch.equal(value[0], copied[key][1])
        assert torch.equal(value[1], copied[key][1])
    live = get_parameters(target)
    set_parameters(target, copied)
    assert all(torch.equal(value, copied[key]) for key, value in live.items())
    assert not any(value.requires_grad for value in live.values())


def test_load_refuses_what_does_not_fit() -> None:
    """Another name or another shape is refused before anything is written."""
    model = make_model("gcn", [0, 1], 2)
    before = get_parameters(model, copy=True)
    with pytest.raises(AtollError, match=r"layers\.1\.bias"):
        set_parameters(model, {key: value + 1 for key, value in before.items() if key != "layers.1.bias"})
    with pytest.raises(AtollError, match=r"'layers\.1\.weight' has shape \(3, 16, 4\)"):
        set_parameters(
            model, {key: torch.zeros(3, *v.shape[1:]) if key == "layers.1.weight" else v + 1 for key, v in before.items()}
        )
    assert all(torch.equal(value, before[key]) for key, value in get_parameters(model).items())


def test_parameters_belong_to_layers() -> None:
    """From bottom to top; the last one turns the last representation into logits."""
    layers = {
        name: list(dict.fromkeys(model.layer_of(key) for key, _ in model.named_parameters()))
        for name in ("gcn", "gcnii", "sage")
        for model in [make_model(name, [0], 2)]
    }
    assert layers["gcn"] == layers["sage"] == ["layers.0", "layers.1"]
    assert layers["gcnii"] == ["input", "layers.0", "layers.1", "output"]


@pytest.mark.parametrize(("features", "classes", "kib"), [(1433, 7, 785.0), (3703, 6, 1919.5), (500, 3, 316.5)])
def test_gcn_head_has_the_published_size(features: int, classes: int, kib: float) -> None:
    """w = d·h + h + h² + h + h·C + C: with h = 128 what TopFGL's Table V prints for Cora, CiteSeer and PubMed, in KiB."""
    model = build("gcn_head", parties=1, features=features, classes=classes, hidden=128)
    count = sum(value.numel() for value in model.parameters())
    assert count == features * 128 + 128 + 128**2 + 128 + 128 * classes + classes
    assert round(4 * count / 1024, 1) == kib


def test_models_without_bias() -> None:
    """`bias=False` leaves no bias anywhere, and the model still runs."""
    for name in MODELS:
        model = build(name, parties=1, features=FEATURES, classes=CLASSES, hidden=HIDDEN, bias=False, draws=Draws(0, [0]))
        assert not any(key.endswith("bias") for key in get_parameters(model))
        assert model(make_graph(12, 0)).shape == (12, CLASSES)


def test_bad_models_are_errors_with_advice() -> None:
    """A mistyped name gets a suggestion; heads must divide_evenly the hidden width."""
    with pytest.raises(AtollError, match="did you mean 'sage'"):
        build("sagee", parties=1, features=2, classes=2)
    with pytest.raises(AtollError, match=r"hidden \(20\) to be a multiple of model.heads \(8\)"):
        build("gat", parties=1, features=2, classes=2, hidden=20)
    with pytest.raises(AtollError, match="layers"):
        build("gcn", parties=1, features=2, classes=2, layers=0)


def test_elu_is_the_same_wherever_a_number_stands() -> None:
    """Values and gradients of a piece are those of the whole, bit for bit, and torch's to rounding; at 0 the slope is 1."""
    x = torch.cat([torch.zeros(1), torch.randn(203, generator=torch.Generator().manual_seed(0))]).requires_grad_()

    def both(rows: Tensor) -> tuple[Tensor, Tensor]:
        out = elu(rows)
        return out, torch.autograd.grad(out.sum(), rows)[0]

    out, slope = both(x)
    torch.testing.assert_close(out, torch.nn.functional.elu(x))
    torch.testing.assert_close(slope, torch.autograd.grad(torch.nn.functional.elu(x).sum(), x)[0])
    assert slope[0] == 1
    for start, end in ((0, 3), (5, 36), (17, 18), (100, 204)):
        piece = both(x[start:end].detach().clone().requires_grad_())
        assert torch.equal(piece[0], out[start:end])
        assert torch.equal(piece[1], slope[start:end])
