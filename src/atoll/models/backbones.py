"""The names of this module before it was split; import them from their own modules."""

from atoll.models.backbone import Backbone as Model
from atoll.models.backbone import Chain
from atoll.models.layers import AttentionLayer, Dense
from atoll.models.parameters import get_parameters, set_parameters
from atoll.models.registry import MODELS, build

__all__ = ["MODELS", "AttentionLayer", "Chain", "Dense", "Model", "build", "get_parameters", "set_parameters"]
