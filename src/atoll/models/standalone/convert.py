"""From a trained backbone to a module for one graph with the same parameters, and to the source of that module's class."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from atoll.errors import AtollError
from atoll.models.appnp import APPNP
from atoll.models.backbone import Backbone
from atoll.models.cheb import Cheb
from atoll.models.disen import Disen
from atoll.models.gamlp import GAMLP
from atoll.models.gat import GAT
from atoll.models.gcn import GCN
from atoll.models.gcn_head import GCNHead
from atoll.models.gcnii import GCNII
from atoll.models.gin import GIN
from atoll.models.graph_level import GraphNetwork
from atoll.models.link_level import LinkNetwork
from atoll.models.mixed_backbones import MixedBackbone
from atoll.models.mlp import MLP
from atoll.models.normalization import BatchNorm
from atoll.models.parameters import Parameters, get_parameters, set_parameters
from atoll.models.plain import PlainModule
from atoll.models.sage import GraphSAGE
from atoll.models.sgc import SGC
from atoll.models.standalone.source import pieces, source_of, text_of
from atoll.models.user import digest, file_of

AROUND = "atoll.models.standalone.item_modules"
FLAVORS = {"torch": "atoll.models.standalone.torch_modules", "pyg": "atoll.models.standalone.pyg_modules"}
PREFIX = {"torch": "Torch", "pyg": "PyG"}  # of the classes' names
STANDALONE: tuple[type[Backbone], ...] = (APPNP, Cheb, Disen, GAMLP, GAT, GCN, GCNHead, GCNII, GIN, GraphSAGE, MLP, SGC)


@dataclass(frozen=True)
class Standalone:
    """A module for one graph that needs nothing of atoll."""

    module: nn.Module  # in evaluation mode; its parameters need no gradients
    arguments: dict[str, Any]  # what its class is called with
    class_name: str
    source: bytes | None  # a Python file that defines the class; None where the user gave the class as an object


def one_party(backbone: Backbone, party: int) -> Backbone:
    """The backbone of one of P parties, alone (P = 1)."""
    if isinstance(backbone, MixedBackbone):
        return backbone.alone(party)
    shape = dataclasses.replace(backbone.shape, parties=1)
    if isinstance(backbone, LinkNetwork):
        alone: Backbone = LinkNetwork(shape, one_party(backbone.encoder, party), None, backbone.settings)
    else:
        alone = type(backbone)(shape, None, backbone.settings)
    set_parameters(alone, {name: value[party : party + 1] for name, value in get_parameters(backbone).items()})
    return alone


def standalone(backbone: Backbone, flavor: str, name: str = "") -> Standalone:
    """The network of one party (P = 1) in plain torch or of PyG's layers; a user's own module stays as it is.

    `name` is the configuration's name of the model, which for a user's own says where its file is.
    """
    if backbone.shape.parties != 1:
        raise ValueError("give the backbone of one party")
    parameters = {key: value[0] for key, value in get_parameters(backbone, copy=True).items()}
    if isinstance(backbone, PlainModule):
        return _users_own(backbone, parameters, name)
    if isinstance(backbone, (GraphNetwork, LinkNetwork)):
        return _around(backbone, parameters, flavor)
    if type(backbone) not in STANDALONE:
        raise AtollError(
            f"{type(backbone).__name__} is a Backbone of its own, which runs on atoll's graphs alone; to export it, write it as "
            "a torch.nn.Module with forward(x, edge_index)."
        )
    if backbone.shape.norm != "none":
        backbone = without_norm(backbone)
        parameters = {key: value[0] for key, value in get_parameters(backbone).items()}
    arguments = _arguments(backbone)
    kind = getattr(importlib.import_module(FLAVORS[flavor]), PREFIX[flavor] + type(backbone).__name__)
    module = kind(**arguments)
    if isinstance(backbone, Cheb):  # its layers have one linear map per polynomial
        parameters = per_polynomial(parameters)
    state: Parameters = {}
    for key, value in parameters.items():
        renamed, turned = RENAMED[type(backbone)](key, flavor)
        state[renamed] = value.t() if turned else value
    shapes = {key: value.shape for key, value in module.state_dict().items()}
    module.load_state_dict({key: value.reshape(shapes[key]).contiguous() for key, value in state.items()})
    return Standalone(module.eval().requires_grad_(False), arguments, "Model", source_of(kind).encode())


def _around(backbone: GraphNetwork | LinkNetwork, parameters: Parameters, flavor: str) -> Standalone:
    """A network whose items are graphs or pairs, around the modules of its convolutions or its encoder."""
    graphs = isinstance(backbone, GraphNetwork)
    inner: list[Any] = list(backbone.layers) if isinstance(backbone, GraphNetwork) else [backbone.encoder]
    if isinstance(inner[0], PlainModule):
        raise AtollError("A module of your own inside a network of pairs cannot be exported yet; predict with atoll.")
    parts = [standalone(one, flavor) for one in inner]
    shape, around = backbone.shape, importlib.import_module(AROUND)
    arguments: dict[str, Any] = {"hidden_channels": shape.hidden, "part": parts[0].arguments}
    if isinstance(backbone, GraphNetwork):
        arguments |= {"in_channels": shape.features, "out_channels": shape.classes, "num_layers": len(parts)}
        arguments["readout"] = backbone.settings.readout
    else:
        arguments["decoder"] = backbone.settings.decoder
    base, part = around.NetworkOfGraphs if graphs else around.NetworkOfPairs, type(parts[0].module)
    module = type("Model", (base,), {"part": part, "__module__": AROUND})(**arguments)
    state: Parameters = {}
    for index, made in enumerate(parts):
        prefix = f"layers.{index}." if graphs else "encoder."
        state |= {prefix + key: value for key, value in made.module.state_dict().items()}
    inside = "layers." if graphs else "encoder."
    for key, value in parameters.items():
        if not key.startswith(inside):
            name = key.replace("decoder.1", "decoder.2")
            state[name] = value.t().contiguous() if key.endswith("weight") else value.reshape(-1)
    module.load_state_dict(state)
    parts_of = [pieces(kind) for kind in (part, base)]
    imports = dict.fromkeys(line for lines, _ in parts_of for line in lines)
    bodies = [*(body for _, texts in parts_of for body in texts), f"class Model({base.__name__}):\n    part = {part.__name__}"]
    return Standalone(module.eval().requires_grad_(False), arguments, "Model", text_of(list(imports), bodies).encode())


def without_norm(backbone: Backbone) -> Backbone:
    """The same outputs without batch norm: in evaluation it is linear, so that the layer before it can do it."""
    if type(backbone) not in FOLDED:
        raise AtollError(
            f"A {type(backbone).__name__} with batch norm cannot be exported: its attention needs the weights as they are; "
            "predict with atoll, or train with norm=none."
        )
    plain = type(backbone)(dataclasses.replace(backbone.shape, norm="none", bias=True), None, backbone.settings)
    values = get_parameters(plain) | {key: value for key, value in get_parameters(backbone).items() if ".norm." not in key}
    for key, norm in backbone.named_modules():
        if not isinstance(norm, BatchNorm):
            continue
        scale, shift = (factor.detach() for factor in norm.folded())
        first, *others = (key.removesuffix("norm") + part for part in FOLDED[type(backbone)])
        for name in (first, *others):
            values[f"{name}weight"] = values[f"{name}weight"] * scale[:, None]
        values[f"{first}bias"] = values[f"{first}bias"] * scale + shift
    set_parameters(plain, {key: values[key] for key in get_parameters(plain)})
    return plain


def _arguments(backbone: Backbone) -> dict[str, Any]:
    shape = backbone.shape
    sizes = {
        "in_channels": shape.features,
        "hidden_channels": shape.hidden,
        "out_channels": shape.classes,
        "num_layers": shape.layers,
        "bias": shape.bias,
    }
    unused = ("hidden_channels", "num_layers") if isinstance(backbone, SGC) else ()
    return {key: value for key, value in sizes.items() if key not in unused} | dataclasses.asdict(backbone.settings)


def _linear(key: str, flavor: str) -> tuple[str, bool]:
    """`layers.0.weight` (in, out) is (out, in) in a linear layer."""
    return key, key.endswith("weight")


def _gcn(key: str, flavor: str) -> tuple[str, bool]:
    turned = key.endswith("weight")
    return (key.replace("weight", "lin.weight" if flavor == "pyg" else "linear.weight")), turned


def _gcn_head(key: str, flavor: str) -> tuple[str, bool]:
    return _linear(key, flavor) if key.startswith("output") else _gcn(key, flavor)


def _sgc(key: str, flavor: str) -> tuple[str, bool]:
    head, _, last = key.rpartition(".")
    return (f"{head}.lin.{last}" if flavor == "pyg" else _gcn(key, flavor)[0]), last == "weight"


def _sage(key: str, flavor: str) -> tuple[str, bool]:
    head, part, last = key.rsplit(".", 2)  # layers.0, near, weight
    if flavor == "pyg":
        return f"{head}.{'lin_l' if part == 'near' else 'lin_r'}.{last}", last == "weight"
    return f"{head}.{'root' if part == 'own' or last == 'bias' else 'neighbors'}.{last}", last == "weight"


def _gin(key: str, flavor: str) -> tuple[str, bool]:
    if flavor == "pyg":
        key = key.replace("first", "nn.0").replace("second", "nn.2")
    return key, key.endswith("weight")


def _gat(key: str, flavor: str) -> tuple[str, bool]:
    head, _, last = key.rpartition(".")
    names = {"weight": "lin.weight", "source": "att_src", "target": "att_dst"} if flavor == "pyg" else {"weight": "linear.weight"}
    return f"{head}.{names.get(last, last)}", last == "weight"


def per_polynomial(parameters: Mapping[str, Tensor]) -> Parameters:
    """`layers.0.weight` (K, in, out) as `layers.0.lins.0.weight` (in, out) and so on."""
    apart: Parameters = {}
    for key, value in parameters.items():
        head, _, last = key.rpartition(".")
        apart |= {f"{head}.lins.{k}.weight": each for k, each in enumerate(value)} if last == "weight" else {key: value}
    return apart


def _gamlp(key: str, flavor: str) -> tuple[str, bool]:
    name = key.removeprefix("attention.")
    return ("offset", False) if key == "attention.bias" else (name, key.startswith("layers") and key.endswith("weight"))


def _gcnii(key: str, flavor: str) -> tuple[str, bool]:
    if flavor == "pyg" and key.startswith("layers"):
        return key.replace("weight", "weight1"), False  # PyG keeps this one as (in, out)
    return _linear(key, flavor)


RENAMED: dict[type[Backbone], Callable[[str, str], tuple[str, bool]]] = {  # our name → the module's, and whether it is transposed
    APPNP: _linear,
    Cheb: _linear,
    Disen: _linear,
    GAMLP: _gamlp,
    GAT: _gat,
    GCN: _gcn,
    GCNHead: _gcn_head,
    GCNII: _gcnii,
    GIN: _gin,
    GraphSAGE: _sage,
    MLP: _linear,
    SGC: _sgc,
}


FOLDED: dict[type[Backbone], tuple[str, ...]] = {  # the linear parts whose sum a batch norm follows; the first has the bias
    APPNP: ("",),
    GCN: ("",),
    GCNHead: ("",),
    GIN: ("second.",),
    GraphSAGE: ("near.", "own."),
    MLP: ("",),
}


def _users_own(backbone: PlainModule, parameters: Mapping[str, Tensor], name: str) -> Standalone:
    """The user's module with one party's parameters; its file, unless it changed since it was imported."""
    arguments = backbone.arguments(backbone.shape, backbone.settings)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(0)  # as the backbone's: what is drawn and not trained is the same
        module = type(backbone).factory(**arguments)
    module.load_state_dict({**module.state_dict(), **_everywhere(module, parameters)})
    file = file_of(name) if name else None
    source = None
    if file is not None and inspect.isclass(type(backbone).factory):
        if digest(name) != digest(name, read=True):
            raise AtollError(f"{file} was changed after it was imported; start again.")
        source = file.read_bytes()
    return Standalone(module.eval().requires_grad_(False), arguments, type(backbone).factory.__name__, source)


def _everywhere(module: nn.Module, parameters: Mapping[str, Tensor]) -> Parameters:
    """The parameters by all of their names: a module may use one in several places."""
    first = {id(value): key for key, value in module.named_parameters()}
    return {key: parameters[first[id(value)]] for key, value in module.named_parameters(remove_duplicate=False)}
