"""The door between what is sent and the device that a cohort computes on: messages, replies and memory are tensors of the CPU.

Whatever a party receives passes `inward` before a verb sees it, whatever it replies or keeps passes `outward`. So messages and
checkpoints do not depend on a device, and engines, ledgers, checks, noise and masks see tensors of the CPU only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from atoll.deferred import Deferred
from atoll.device import CPU
from atoll.wire import rows_are_shared


def outward(value: Any, device: torch.device) -> Any:
    """What leaves a device: tensors of the CPU. A description stays where it was made, and its numbers come from there."""
    return value if device == CPU else _moved(value, CPU, device)


def inward(value: Any, device: torch.device) -> Any:
    """What a device is given: its own tensors, and the descriptions that were made there."""
    return value if device == CPU else _moved(value, device, device)


def _moved(value: Any, target: torch.device, device: torch.device) -> Any:
    if isinstance(value, Mapping):
        return {name: _moved(item, target, device) for name, item in value.items()}
    if isinstance(value, list):
        return [_moved(item, target, device) for item in value]
    if isinstance(value, Deferred):
        return Distant(value, device) if target == CPU else near(value)
    if not isinstance(value, Tensor) or value.device == target:
        return value
    if rows_are_shared(value):  # one row, repeated
        return value[:1].to(target).expand_as(value)
    return value.detach().to(target)


class Distant(Deferred):
    """A deferred tensor whose numbers are on a device, as seen from the CPU."""

    def __init__(self, value: Deferred, device: torch.device) -> None:
        self.value, self.device = value, device
        self.dtype = value.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.value.shape

    def dense(self) -> Tensor:
        """The tensor itself."""
        return self.value.dense().to(CPU)

    def take(self, index: Tensor) -> Distant:
        """The rows of some parties."""
        return Distant(self.value.take(index.to(self.device)), self.device)

    def total(self) -> Tensor:
        """The sum over the parties."""
        return self.value.total().to(CPU)

    def probe(self) -> Tensor:
        """Finite if and only if all numbers are."""
        return self.value.probe().to(CPU)


def near(value: Any) -> Any:
    """A deferred tensor as it was made, for a server that calculates where its numbers are; anything else as it is."""
    return value.value if isinstance(value, Distant) else value
