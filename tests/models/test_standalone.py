"""Backbones for one graph that run without atoll, against the backbones they come from: plain torch and PyG's layers."""

from __future__ import annotations

import ast
import io
import sys
import warnings
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import atoll
from atoll.errors import AtollError
from atoll.models import user
from atoll.models.backbone import Backbone
from atoll.models.gcn import GCN
from atoll.models.plain import plain_backbone
from atoll.models.registry import MODELS, build
from atoll.models.standalone import formats
from atoll.models.standalone.check import random_graph
from atoll.models.standalone.convert import STANDALONE, one_party, standalone
from atoll.random import Draws

CASES: list[tuple[str, dict[str, Any]]] = [
    ("gcn", {}),
    ("gcn", {"layers": 1}),
    ("gcn", {"layers": 3, "bias": False}),
    ("sgc", {}),
    ("sgc", {"bias": False}),
    ("gin", {"layers": 3, "bias": False}),
    ("gin", {}),
    ("sage", {}),
    ("sage", {"layers": 3, "bias": False}),
    ("gat", {"settings": {"heads": 4}}),
    ("gat", {"settings": {"heads": 1}, "layers": 3}),
    ("gat", {"settings": {"heads": 8}, "layers": 1, "bias": False}),
    ("gcn_head", {}),
    ("gcn_head", {"layers": 1, "bias": False}),
    ("gcnii", {"layers": 4}),
    ("gcnii", {"settings": {"teleport": 0.4, "theta": 1.5}, "bias": False}),
    ("gcnii", {"settings": {"teleport": 1.0, "theta": 0.0}}),
    ("cheb", {}),
    ("cheb", {"settings": {"order": 1}, "layers": 1}),
    ("cheb", {"settings": {"order": 3}, "bias": False}),
    ("disen", {"layers": 3}),
    ("disen", {"settings": {"factors": 2, "iterations": 1}, "layers": 1, "bias": False}),
    ("gamlp", {"layers": 3}),
    ("gamlp", {"layers": 1, "bias": False}),
    ("gamlp", {"settings": {"steps": 0}}),
    ("appnp", {}),
    ("appnp", {"settings": {"steps": 0}}),
    ("appnp", {"settings": {"steps": 3, "teleport": 0.5}, "layers": 3, "bias": False}),
    ("mlp", {"layers": 3}),
    ("mlp", {"layers": 1, "bias": False}),
]


def trained(name: str, parties: int = 3, **options: Any) -> Backbone:
    """A backbone with values everywhere, biases too."""
    every = list(range(parties))
    model = build(name, parties=parties, features=6, classes=3, draws=Draws(0, every, "first"), **{"hidden": 8, **options})
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * Draws(0, every, "more").normal(*parameter.shape[1:])
    return model


def outputs_differ(expected: Tensor, output: Tensor) -> float:
    """The largest difference."""
    assert output.shape == expected.shape
    return float((output - expected).detach().abs().max())


@pytest.mark.parametrize("flavor", ["torch", "pyg"])
@pytest.mark.parametrize(("name", "options"), CASES, ids=str)
def test_the_same_outputs_for_every_option(name: str, options: dict[str, Any], flavor: str) -> None:
    """On directed graphs with an isolated node; the source alone makes the same network."""
    model = trained(name, **options)
    graph = random_graph(model.shape, 25, seed=3)
    for party in (0, 2):
        alone = one_party(model, party)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates what PyG still uses
            made = standalone(alone, flavor)
        expected = alone(graph).detach()
        assert outputs_differ(expected, made.module(graph.x, graph.edge_index)) < 1e-5
        loops = torch.arange(10).expand(2, -1)
        assert outputs_differ(expected, made.module(graph.x, torch.cat([graph.edge_index, loops], 1))) < 1e-5
        assert made.source is not None
        names: dict[str, Any] = {}
        exec(compile(made.source, "model.py", "exec"), names)
        again = names["Model"](**made.arguments)
        again.load_state_dict(made.module.state_dict())
        assert torch.equal(again(graph.x, graph.edge_index), made.module(graph.x, graph.edge_index))
    other = one_party(model, 1)(graph)
    assert outputs_differ(other, made.module(graph.x, graph.edge_index)) > 1e-3  # each party has its own


def test_every_registered_backbone_can_be_exported() -> None:
    """Nobody adds one and forgets this."""
    names = ("appnp", "cheb", "disen", "gamlp", "gat", "gcn", "gcn_head", "gcnii", "gin", "mlp", "sage", "sgc")
    assert {MODELS.find(name) for name in names} == set(STANDALONE)
    assert {name for name, _ in CASES} == set(names)


@pytest.mark.parametrize("flavor", ["torch", "pyg"])
def test_sources_import_nothing_of_atoll(flavor: str) -> None:
    """Only torch and, for PyG, torch_geometric."""
    for kind in ("gat", "gcnii"):
        source = standalone(one_party(trained(kind), 0), flavor).source
        assert source is not None
        imported = {
            node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
            for node in ast.walk(ast.parse(source))
            if isinstance(node, (ast.Import, ast.ImportFrom))
        }
        allowed = {"__future__", "math", "torch"} | ({"torch_geometric"} if flavor == "pyg" else set())
        assert {str(name).partition(".")[0] for name in imported} <= allowed


def assert_no_paths(data: bytes, *more: str) -> None:
    """Nothing in a file, or in an archive's entries and their names, is a path of this machine."""
    everything = data
    if zipfile.is_zipfile(io.BytesIO(data)):
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            everything += b"".join(name.encode() + archive.read(name) for name in archive.namelist())
    packages = [Path(str(module.__file__)).parent for module in (atoll, torch)]
    paths = [f"{path}/" for path in (*packages, Path.cwd(), Path.home(), Path(sys.prefix))]
    for part in (*paths, *more, "site-packages", "atoll/", "atoll.models"):
        assert part.encode() not in everything, part


@pytest.mark.parametrize(
    "name", ["gcn", "gcn_head", "gin", "sgc", "sage", "cheb", "disen", "gamlp", "gat", "gcnii", "appnp", "mlp"]
)
def test_other_runtimes_take_graphs_of_any_size(name: str) -> None:
    """TorchScript, torch.export and ONNX: also without edges, and with one node; no path of this machine is in the files."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    settings = {"appnp": {"steps": 2}, "gat": {"heads": 4}}.get(name, {})
    alone = one_party(trained(name, settings=settings), 1)
    made, traced = standalone(alone, "torch").module, random_graph(alone.shape, 12, seed=0)
    files = [make(made, traced.x, traced.edge_index) for make in (formats.torchscript, formats.exported_program, formats.onnx)]
    loads = (formats.load_torchscript, formats.load_exported_program, formats.load_onnx)
    graph = random_graph(alone.shape, 40, seed=5)
    for data, load in zip(files, loads, strict=True):
        assert_no_paths(data)
        function = load(data)
        assert outputs_differ(alone(graph).detach(), function(graph.x, graph.edge_index)) < 1e-5
        for nodes in (1, 4):
            x, none = graph.x[:nodes], torch.zeros(2, 0, dtype=torch.int64)
            assert outputs_differ(made(x, none), function(x, none)) < 1e-5


class Tied(nn.Module):
    """A user's own module: one weight in two places, a buffer, and dropout."""

    def __init__(self, in_channels: int, out_channels: int, power: int = 2) -> None:
        super().__init__()
        self.first = nn.Linear(in_channels, in_channels)
        self.second = self.first
        self.last, self.dropout = nn.Linear(in_channels, out_channels), nn.Dropout(0.5)
        self.register_buffer("shift", torch.full((in_channels,), 0.5))
        self.power = power

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """Logits."""
        near = torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]])
        hidden = self.second(self.first(near + self.shift).relu() ** self.power)
        return self.last(self.dropout(hidden))


def test_a_users_own_module() -> None:
    """Its parameters in all places, in evaluation mode."""
    kind = plain_backbone(Tied, "Tied")
    shape = trained("gcn").shape
    alone = one_party(kind(shape, Draws(0, [0, 1, 2], "first")), 2)
    made, graph = standalone(alone, "torch"), random_graph(shape, 20, seed=1)
    assert made.arguments == {"in_channels": 6, "out_channels": 3, "power": 2}
    assert made.source is None  # an object, not a file
    assert outputs_differ(alone(graph).detach(), made.module(graph.x, graph.edge_index)) < 1e-6
    data = formats.torchscript(made.module, graph.x, graph.edge_index)
    assert outputs_differ(alone(graph).detach(), formats.load_torchscript(data)(graph.x, graph.edge_index)) < 1e-6


class Weighted(nn.Module):
    """A user's module as PyG's examples have it: weights of edges are optional."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor, edge_weight=None) -> Tensor:  # type: ignore[no-untyped-def]
        """One mean over the neighbors."""
        near = x.index_add(0, edge_index[1], x[edge_index[0]])
        return self.linear(near if edge_weight is None else near * edge_weight.mean())


def test_an_optional_argument_is_traced() -> None:
    """TorchScript compiles such a module but cannot save it."""
    shape = trained("gcn").shape
    module, graph = Weighted(shape.features, shape.classes).eval(), random_graph(shape, 20, seed=1)
    data = formats.torchscript(module, graph.x, graph.edge_index)
    assert outputs_differ(module(graph.x, graph.edge_index), formats.load_torchscript(data)(graph.x, graph.edge_index)) < 1e-6


OWN = """
import torch

def doubled(x: torch.Tensor) -> torch.Tensor:
    return 2 * x

class Own(torch.nn.Module):
    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.linear = torch.nn.Linear(in_channels, out_channels)

    def forward(self, x, edge_index):
        {statement}
        return doubled(self.linear(x))
"""


@pytest.mark.parametrize("statement", ["pass", "str.__doc__"], ids=["compiled", "traced"])
def test_where_a_users_file_is_stays_here(statement: str, tmp_path: Path) -> None:
    """Whether TorchScript can compile it or not; afterwards its class is what it was."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    file = tmp_path / "secret" / "own.py"
    file.parent.mkdir()
    file.write_text(OWN.format(statement=statement))
    alone = build(user.load(str(file)), parties=1, features=6, classes=3, draws=Draws(0, [0], "first"))
    made, graph = standalone(alone, "torch").module, random_graph(alone.shape, 20, seed=1)
    before = type(made).__module__
    for make, load in (
        (formats.torchscript, formats.load_torchscript),
        (formats.exported_program, formats.load_exported_program),
        (formats.onnx, formats.load_onnx),
    ):
        data = make(made, graph.x, graph.edge_index)
        assert_no_paths(data, "secret", str(tmp_path))
        assert outputs_differ(alone(graph).detach(), load(data)(graph.x, graph.edge_index)) < 1e-5
    assert type(made).__module__ == before != "model"


def test_a_backbone_of_another_kind_is_refused() -> None:
    """A subclass may compute anything."""

    class Other(GCN):
        pass

    with pytest.raises(AtollError, match=r"Other is a Backbone of its own.*write it as a torch.nn.Module"):
        standalone(Other(one_party(trained("gcn"), 0).shape), "torch")
