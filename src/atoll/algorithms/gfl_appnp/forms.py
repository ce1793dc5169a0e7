"""What GFL-APPNP's parties and server send each other, as declarations."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from atoll.algorithms.gfl_appnp.settings import Settings
from atoll.federation.cohort import Schema
from atoll.federation.declarations import Case, Forms, flag, optional, real, whole
from atoll.federation.declarations import Model as ModelForm
from atoll.models.backbone import ModelShape


def shape_of(settings: Settings, schema: Schema) -> ModelShape:
    """The MLP: `layers` linear layers without biases."""
    return ModelShape(1, schema.features, schema.classes, settings.hidden, settings.layers, bias=False)


def perceptron(settings: Settings, schema: Schema) -> dict[str, Tensor]:
    """W₁, W₂, … of one party."""
    sizes = pairwise(shape_of(settings, schema).widths)
    return {f"layers.{index}.weight": torch.zeros(1, *size) for index, size in enumerate(sizes)}


MODEL = ModelForm(perceptron)
SUMS = real(2, low=0, double=True)  # training vectors and their loss
VOTES = real(2, low=0, high=1, double=True)
PLACE: Forms = {"model": MODEL, "weight": real(), "context": real("classes")}  # W̄, Ã_kk, C_k


def place(case: Case) -> Forms:
    """What a training party is sent: also ∇C_k and, where γ is learned, what arrives by walks of each length."""
    steps = case.settings.steps + 1
    learned: Forms = {"loops": real(steps), "arrived": real(steps, "classes")} if case.settings.propagation == "gpr" else {}
    return {**PLACE, "gradient": optional(gradients(case)["gradient"]), **learned}


def trained_model(case: Case) -> Forms:
    """What a training party replies."""
    learned: Forms = {"slopes": real(case.settings.steps + 1)} if case.settings.propagation == "gpr" else {}
    return {"model": MODEL, "n": whole(low=1, high=1), **learned}


def gradients(case: Case) -> Forms:
    """∇ĥ_j or ∇C_k."""
    schema, settings = case.schema, case.settings
    if settings.encoding == "factored":
        return {"gradient": real(schema.features + 1, settings.hidden)}
    size = sum(fan_in * fan_out for fan_in, fan_out in pairwise(shape_of(settings, schema).widths))
    return {"gradient": real(schema.classes, size)}


def representation(case: Case) -> Forms:
    """What `represent` replies: with the gradient if that was asked for."""
    forms: Forms = {"hidden": real("classes"), "trains": flag(), "labeled": flag()}
    return {**forms, **gradients(case)} if case.arguments["gradient"] else forms
