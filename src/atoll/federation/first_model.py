"""The backbone that a run's settings name: at the parties, as a form for declarations, and as the server's first model."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from atoll.device import CPU
from atoll.errors import AtollError
from atoll.federation.declarations import Model as ModelForm
from atoll.federation.messages import Schema
from atoll.graphs.graph import Graph
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.graph_level import GraphNetwork, GraphNetworkSettings, shared_names
from atoll.models.link_level import LinkNetwork, LinkNetworkSettings
from atoll.models.parameters import Parameters, get_parameters
from atoll.models.projection import ProjectedNetwork
from atoll.models.registry import build, find_model
from atoll.random import SERVER, Draws
from atoll.settings import Training

RUN = "run"  # the origin of a first model that is drawn from the run's seed
MAX_NUMBER = 10**6
FIRST_MODEL = (
    "The server's first model: drawn from the seed of the run; seed:N, from another one, so that runs differ in everything else; "
    "or pyg:N:K (model=gcn), as in a PyG script that seeds torch with N and makes K models of the same form before it."
)
LAYERS = ("layers", "layers+post")  # values of `share` with which some of the parameters stay with their party


def backbone(
    settings: Training,
    schema: Schema,
    parties: int,
    draws: Draws | None,
    graph: Graph | None = None,
    *,
    device: torch.device = CPU,
) -> Backbone:
    """The graph neural network that the settings name; its first values are drawn, or zero without draws.

    `graph` is the parties', where their numbers of columns and classes may differ. It is made on the CPU, so that its first
    values are the same on every device, and then moved to the `device`.
    """
    made = _backbone(settings, schema, parties, draws, graph)
    return made if device == CPU else made.to(device)


def _backbone(settings: Training, schema: Schema, parties: int, draws: Draws | None, graph: Graph | None) -> Backbone:
    if schema.level == "graph":
        return _graph_network(settings, schema, parties, draws, graph)
    links, width = schema.level == "link", getattr(settings, "projection", 0)
    network = build(
        settings.model,
        parties=parties,
        features=schema.features,
        classes=settings.hidden if links or width else schema.outputs or schema.classes,
        hidden=settings.hidden,
        layers=settings.layers,
        dropout=settings.dropout,
        input_dropout=settings.input_dropout,
        bias=settings.bias,
        norm=getattr(settings, "norm", "none"),
        propagate_first=getattr(settings, "propagate_first", False),
        settings=settings.architecture,
        draws=draws,
    )
    if width and not links:
        return ProjectedNetwork(replace(network.shape, classes=schema.outputs or schema.classes), network, width, draws)
    return _link_network(settings, schema, parties, draws, network) if links else network


def _link_network(settings: Training, schema: Schema, parties: int, draws: Draws | None, encoder: Backbone) -> LinkNetwork:
    """That network as an encoder, with a decoder."""
    shape = replace(encoder.shape, classes=schema.outputs or schema.classes)
    return LinkNetwork(shape, encoder, draws, LinkNetworkSettings(settings.decoder))


def embedding_width(settings: Training, schema: Schema) -> int:
    """h: columns of what `embed` of the settings' network gives."""
    projection: int = getattr(settings, "projection", 0)
    if schema.level == "node" and projection:
        return projection
    shape = ModelShape(1, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    networks: dict[str, type[Backbone]] = {"graph": GraphNetwork, "link": LinkNetwork}
    return (networks.get(schema.level) or find_model(settings.model)).embedding_width(shape)


def _graph_network(settings: Training, schema: Schema, parties: int, draws: Draws | None, graph: Graph | None) -> GraphNetwork:
    """Convolutions of that name between dense layers, with a readout."""
    if settings.architecture is not None:
        raise AtollError(f"{settings.model} has no settings of its own in graph tasks; leave model.… out.")
    if getattr(settings, "norm", "none") != "none":
        raise AtollError("Networks for graph tasks have no batch norm; leave norm out.")
    if getattr(settings, "propagate_first", False):
        raise AtollError("Networks for graph tasks have no first layer of that kind; leave propagate_first out.")
    widths, classes = (None, None) if graph is None else (graph.widths, graph.classes)
    sizes = (parties, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    shape = ModelShape(*sizes, settings.dropout, settings.input_dropout, settings.bias)
    return GraphNetwork(shape, draws, GraphNetworkSettings(settings.model, settings.readout, widths or (), classes or ()))


def shared_part(model: Backbone, settings: Training) -> Parameters:
    """The parameters that travel, by the setting `share` where an algorithm has it; live views."""
    parameters, share = get_parameters(model), getattr(settings, "share", "all")
    return {name: parameters[name] for name in shared_names(model, share)} if share in LAYERS else parameters


def require_alike(schema: Schema, share: str) -> None:
    """Refuse to share parameters whose shapes differ between parties, and to share layers that a model does not have."""
    if not schema.alike and share == "all":
        raise AtollError(
            f"The parties have different columns or classes (up to {schema.features} and {schema.classes}), so that not all "
            "parameters can be shared; use a method that can share the convolutions alone, with --set share=layers."
        )
    if share in LAYERS and schema.level != "graph":
        raise AtollError(f"share={share} is for graph tasks, whose models have dense layers around the convolutions.")


MODEL = ModelForm(lambda settings, schema: shared_part(backbone(settings, schema, 1, None), settings))  # for declarations


def first_model(settings: Training, schema: Schema, seed: int) -> dict[str, Tensor]:
    """The model the server starts with, without a party axis.

    Parameters:
        settings: The algorithm's settings, which name the backbone and its size.
        schema: The numbers of features, classes and parties (`federation.schema`).
        seed: The run's seed (`federation.seed`).

    Examples:
        >>> import atoll
        >>> from atoll.federation.cohort import Schema
        >>> model = atoll.first_model(atoll.Training(hidden=8), Schema(features=5, classes=3, parties=2), seed=0)
        >>> sorted(tuple(value.shape) for value in model.values())
        [(3,), (5, 8), (8,), (8, 3)]
    """
    origin = Origin.parse(getattr(settings, "first_model", RUN))
    model = backbone(settings, schema, 1, Draws(seed if origin.seed is None else origin.seed, [SERVER], "model"))
    first = {name: value[0] for name, value in shared_part(model, settings).items()}
    return first if origin.before is None else _as_pyg_draws(first, origin)


@dataclass(frozen=True)
class Origin:
    """What the setting `first_model` says: whose seed, and how many models a script had drawn before."""

    seed: int | None = None  # None: the run's
    before: int | None = None  # None: drawn as every first model here

    @classmethod
    def parse(cls, text: str) -> Origin:
        """`run`, `seed:7` or `pyg:2024:10`."""
        kind, *numbers = text.split(":")
        forms = ["0" if one.isascii() and one.isdecimal() else one for one in numbers]
        if [kind, *forms] not in ([RUN], ["seed", "0"], ["pyg", "0", "0"]):
            raise AtollError(f"first_model is {text!r}; give run, seed:N or pyg:N:K with whole numbers, as in pyg:2024:10.")
        seed, before = [*map(int, numbers), None, None][:2]
        if max(seed or 0, before or 0) > MAX_NUMBER:
            raise AtollError(f"first_model is {text!r}, but its numbers must be at most {MAX_NUMBER}.")
        return cls(seed, before)


def check_first_model(settings: object, level: str) -> None:
    """Refuse an origin of the first model that is not one, or that this model cannot have."""
    origin = Origin.parse(getattr(settings, "first_model", RUN))
    plain = getattr(settings, "model", "") == "gcn" and getattr(settings, "norm", "none") == "none" and level == "node"
    if origin.before is not None and not plain:
        raise AtollError("first_model=pyg:… is for model=gcn without batch norm, in tasks about nodes; leave it out.")


def _as_pyg_draws(first: dict[str, Tensor], origin: Origin) -> dict[str, Tensor]:
    """The model that a script has which seeds torch, then makes that many of the same form, then this one.

    Each of PyG's convolutions (2.0 and later) draws its weight, C × F, twice from the uniform distribution of Glorot: as its
    linear layer is made, and as it resets it. Biases are zero.
    """
    generator = torch.Generator().manual_seed(origin.seed or 0)
    made = {name: torch.zeros_like(value) for name, value in first.items()}
    for _ in range((origin.before or 0) + 1):
        for weight in (value for value in made.values() if value.dim() == 2):
            bound = math.sqrt(6 / sum(weight.shape))
            for _ in range(2):
                weight.copy_(torch.empty(weight.shape[::-1]).uniform_(-bound, bound, generator=generator).T)
    return made
