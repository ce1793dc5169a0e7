"""The ε of several replies, from the cost of one."""

from __future__ import annotations

from atoll.privacy.noise_settings import NoiseSettings
from atoll.privacy.releases import epsilon_of


def epsilon_after(settings: NoiseSettings, replies: int) -> float:
    """ε after this many replies of the verb."""
    return epsilon_of(replies * settings.cost if replies else 0.0, settings.delta)
