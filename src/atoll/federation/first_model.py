"""The backbone that a run's settings name: at the parties, as a form for declarations, and as the server's first model."""

from __future__ import annotations

from torch import Tensor

from atoll.federation.declarations import Model as ModelForm
from atoll.federation.messages import Schema
from atoll.models.backbone import Backbone, ModelShape
from atoll.models.parameters import get_parameters
from atoll.models.registry import build, find_model
from atoll.random import SERVER, Draws
from atoll.settings import Training


def backbone(settings: Training, schema: Schema, parties: int, draws: Draws | None) -> Backbone:
    """The graph neural network that the settings name; its first values are drawn, or zero without draws."""
    return build(
        settings.model,
        parties=parties,
        features=schema.features,
        classes=schema.outputs or schema.classes,
        hidden=settings.hidden,
        layers=settings.layers,
        dropout=settings.dropout,
        input_dropout=settings.input_dropout,
        bias=settings.bias,
        settings=settings.architecture,
        draws=draws,
    )


def embedding_width(settings: Training, schema: Schema) -> int:
    """h: columns of what `embed` of the settings' network gives."""
    shape = ModelShape(1, schema.features, schema.outputs or schema.classes, settings.hidden, settings.layers)
    return find_model(settings.model).embedding_width(shape)


MODEL = ModelForm(lambda settings, schema: backbone(settings, schema, 1, None))  # the backbone's parameters, for declarations


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
    return {
        name: value[0] for name, value in get_parameters(backbone(settings, schema, 1, Draws(seed, [SERVER], "model"))).items()
    }
