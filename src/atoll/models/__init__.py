"""What has gradients: backbones and their registry, layers, split models, losses and optimizers."""

from __future__ import annotations

import importlib
import warnings
from typing import Any

from atoll.errors import AtollWarning

_MOVED = {  # the names of the module atoll.models of 0.1
    "read": "parameters:get_parameters",
    "load": "parameters:set_parameters",
    "build": "registry:build",
    "MODELS": "registry:MODELS",
    "Model": "backbone:Backbone",
    "Chain": "backbone:Chain",
    "Dense": "layers:Dense",
}


def __getattr__(name: str) -> Any:
    """A name of 0.1 from where it is now, with a warning."""
    if name not in _MOVED:
        raise AttributeError(f"module 'atoll.models' has no attribute {name!r}")
    module, _, now = _MOVED[name].partition(":")
    warnings.warn(f"atoll.models.{name} is atoll.models.{module}.{now} now.", AtollWarning, stacklevel=2)
    return getattr(importlib.import_module(f"atoll.models.{module}"), now)
