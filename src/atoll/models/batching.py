"""What the settings of mini-batches mean for a backbone, and which of them do not fit together."""

from __future__ import annotations

from typing import Any

from atoll.errors import AtollError
from atoll.models.user import short_name
from atoll.settings import BatchedTraining


def fan_outs(settings: BatchedTraining, hops: int | None) -> list[int]:
    """Neighbors per node for each hop of a network, from the training nodes outwards."""
    if settings.sampler == "clusters":
        return []
    if hops is None:
        raise AtollError(
            f"{short_name(settings.model)} cannot be trained on sampled neighbors here: it does not say over how many edges it "
            "reads; use sampler=clusters, another model, or batch_size=0."
        )
    given = settings.fan_out
    if len(given) not in (1, hops):
        raise AtollError(
            f"fan_out has {len(given)} numbers, but the network reads over {hops} edges; give one number for all, or {hops}."
        )
    return list(given * hops if len(given) == 1 else given)


def check(settings: Any) -> None:
    """Refuse settings of mini-batches that would have no effect or do not fit together."""
    if not isinstance(settings, BatchedTraining):
        return
    defaults = BatchedTraining()
    if not settings.batch_size:
        for name in ("fan_out", "sampler"):
            if getattr(settings, name) != getattr(defaults, name):
                raise AtollError(f"{name} is for mini-batches, but batch_size is 0; set batch_size, or leave {name} out.")
        return
    if not settings.fan_out or min(settings.fan_out) < 0:
        raise AtollError("fan_out must be one number of neighbors for all layers, or one per layer, each at least 0 (all).")
    if settings.sampler == "clusters" and settings.fan_out != defaults.fan_out:
        raise AtollError("sampler=clusters takes all edges inside its clusters and has no fan_out; leave fan_out out.")
    if getattr(settings, "evaluation_dropout", False):
        raise AtollError("With a batch_size nodes are evaluated in blocks, without dropout; leave evaluation_dropout out.")
