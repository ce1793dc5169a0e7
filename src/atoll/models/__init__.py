"""What has gradients: backbones and their registry, layers, split models, losses and optimizers."""

from __future__ import annotations

from atoll.compat import old_names

__getattr__ = old_names(__name__)
