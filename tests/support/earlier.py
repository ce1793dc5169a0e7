"""Comparing with runs that were written by an earlier version, perhaps on a machine that rounds otherwise than this one."""

from __future__ import annotations

import functools
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from atoll import wire
from atoll.runs import config as configuration
from atoll.runs import runner
from atoll.runs.folder import Folder

CLOSE = 1e-5


@functools.cache
def tolerance(folder: Path) -> float:
    """0 where this machine gives the bits of the folder's checkpoint: processors sum in different orders."""
    config, saved = Folder.open(folder)[1], Folder(folder).look()
    assert saved is not None
    values = {"rounds": saved["progress"]["round"]}
    with tempfile.TemporaryDirectory() as scratch:
        runner.run(configuration.from_dict(config.to_dict(), "config", values, warn=False), out=Path(scratch) / "run")
        here = Folder(Path(scratch) / "run").look()
    assert here is not None
    return 0.0 if all(agree(here[part], saved[part], 0.0) for part in ("state", "memory")) else CLOSE


def agree(one: Any, other: Any, tolerance: float) -> bool:
    """Whether numbers, tensors, and what is made of them, are the same to within the tolerance; 0: to the last bit."""
    if isinstance(one, Mapping):
        mine, theirs = dict(wire.leaves(one)), dict(wire.leaves(other))
        return mine.keys() == theirs.keys() and all(agree(value, theirs[name], tolerance) for name, value in mine.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(agree(*pair, tolerance) for pair in zip(one, other, strict=True))
    if isinstance(one, torch.Tensor) and one.is_floating_point() and tolerance:
        return torch.allclose(one, other, rtol=tolerance, atol=tolerance)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, float) and isinstance(other, float) and tolerance:
        return math.isclose(one, other, rel_tol=tolerance, abs_tol=tolerance)
    return bool(one == other)
