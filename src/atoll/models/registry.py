"""Backbones by name: atoll's own, those of other packages (entry points in the group `atoll.models`) and registered ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from atoll.errors import AtollError
from atoll.models import user
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.normalization import NORMS
from atoll.random import Draws
from atoll.registry import Registry
from atoll.settings import build as build_settings

MODELS: Registry[type[Backbone]] = Registry(
    "model",
    {
        "appnp": "atoll.models.appnp:APPNP",
        "cheb": "atoll.models.cheb:Cheb",
        "disen": "atoll.models.disen:Disen",
        "gamlp": "atoll.models.gamlp:GAMLP",
        "gat": "atoll.models.gat:GAT",
        "gcn": "atoll.models.gcn:GCN",
        "gcn_head": "atoll.models.gcn_head:GCNHead",
        "gcnii": "atoll.models.gcnii:GCNII",
        "gin": "atoll.models.gin:GIN",
        "mlp": "atoll.models.mlp:MLP",
        "sage": "atoll.models.sage:GraphSAGE",
        "sgc": "atoll.models.sgc:SGC",
    },
)

ANY = ModelShape(1, 1, 2, 3)  # a shape whose widths differ


def find_model(name: str) -> type[Backbone]:
    """The backbone of that name: from the registry, or one that the user gave (see `atoll.models.user`)."""
    return user.find_loaded(name) if user.is_user_model(name) else MODELS.find(name)


def build(
    name: str,
    *,
    parties: int,
    features: int,
    classes: int,
    hidden: int = 64,
    layers: int = 2,
    dropout: float = 0.0,
    input_dropout: float = 0.0,
    bias: bool = True,
    norm: str = "none",
    propagate_first: bool = False,
    settings: Any = None,
    draws: Draws | None = None,
) -> Backbone:
    """The backbone of that name for P parties; initial values have PyG's distributions, drawn separately for each party.

    `settings` are the backbone's own, as an instance of its `settings_type` or a mapping; defaults without.
    """
    kind = find_model(name)
    if layers < 1 or hidden < 1:
        raise AtollError(f"A model needs at least one layer and one hidden unit, not layers={layers}, hidden={hidden}.")
    if isinstance(settings, Mapping):
        settings = build_settings(kind.settings_type, settings, f"model {name}")
    shape = ModelShape(parties, features, classes, hidden, layers, dropout, input_dropout, bias, norm, propagate_first)
    check_norm(name, shape)
    check_propagation(name, shape)
    return kind(shape, draws, settings)


def check_propagation(name: str, shape: Any) -> None:
    """Refuse (Â·X)·W where a model has no such layer, or X changes in every step; `shape` is one, or settings."""
    if not getattr(shape, "propagate_first", False):
        return
    if not find_model(name).propagates_first:
        able = [other for other in MODELS.names() if find_model(other).propagates_first]
        raise AtollError(f"propagate_first is for {', '.join(able)}, not for {user.short_name(name)}; leave it out.")
    if shape.input_dropout or getattr(shape, "batch_size", 0):
        name = "input_dropout" if shape.input_dropout else "batch_size"
        raise AtollError(f"propagate_first makes Â·X once, but with {name} X is another one in every step; leave one out.")


def check_norm(name: str, shape: Any) -> None:
    """Refuse batch norm where a model cannot have it; `shape` has `norm` and `layers`, as settings do."""
    norm, kind = getattr(shape, "norm", "none"), find_model(name)
    if norm not in NORMS:
        raise AtollError(f"norm is {norm!r} but must be one of {', '.join(NORMS)}.")
    if norm == "none":
        return
    if not kind.takes_norm:
        able = [other for other in MODELS.names() if find_model(other).takes_norm]
        raise AtollError(f"{user.short_name(name)} cannot have batch norm; leave norm out, or choose {', '.join(able)}.")
    if shape.layers == 1 and kind.embedding_width(replace(ANY, layers=1)) != ANY.hidden:
        raise AtollError(f"norm={norm} stands after hidden layers, and {user.short_name(name)} with layers=1 has none.")
