"""Small runs on labels and values of nodes."""

from __future__ import annotations

from typing import Any

from atoll.runs import config
from atoll.runs.config import Config

SMALL = {"nodes": 90, "features": 8, "communities": 3, "classes": 3, "hidden": 8, "patience": 0, "unknown": 0.3}


def small_targets(algorithm: str, target: str, *, seed: int = 3, rounds: int = 3, **values: Any) -> Config:
    """Three parties of a synthetic graph, a third of whose labels or values is not known."""
    values = {**SMALL, "rounds": rounds, "target": target, **values}
    return config.resolve(algorithm, dataset="csbm", parties=3, seed=seed, values=values)
