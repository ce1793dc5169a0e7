"""Tensors between the CPU, where messages, replies and memory are, and the device that a cohort computes on.

Whatever a party receives passes `to_device` before a verb sees it, whatever it replies or keeps passes `to_cpu`. So messages and
checkpoints do not depend on a device, and engines, ledgers, checks, noise and masks see tensors of the CPU only.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll.deferred import Deferred
from atoll.device import CPU, holdable
from atoll.wire import rows_are_shared

if TYPE_CHECKING:
    from atoll.federation.declarations import Leaf


def to_cpu(value: Any, device: torch.device) -> Any:
    """What leaves a device: tensors of the CPU. A description stays where it was made, and its numbers come from there."""
    return value if device == CPU else _moved(value, CPU, device)


def to_device(value: Any, device: torch.device) -> Any:
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
        return holdable(value[:1], target).to(target).expand_as(value)
    return holdable(value.detach(), target).to(target)


def widened(fields: dict[str, Any], leaves: Mapping[str, Leaf]) -> dict[str, Any]:
    """A reply that has left a device without double precision, in the types that it is declared in."""
    return {name: _widened(value, name, leaves) for name, value in fields.items()}


def _widened(value: Any, name: str, leaves: Mapping[str, Leaf]) -> Any:
    if isinstance(value, Mapping):
        return {key: _widened(item, f"{name}/{key}", leaves) for key, item in value.items()}
    double = name in leaves and leaves[name].dtype == torch.float64
    return value.double() if double and isinstance(value, Tensor) and value.dtype == torch.float32 else value


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
        return self.value.dense().to(CPU).to(self.dtype)

    def take(self, index: Tensor) -> Distant:
        """The rows of some parties."""
        return Distant(self.value.take(index.to(self.device)), self.device)

    def total(self) -> Tensor:
        """The sum over the parties."""
        total = self.value.total().to(CPU)
        return total.double() if self.dtype == torch.float64 else total

    def probe(self) -> Tensor:
        """Finite if and only if all numbers are."""
        return self.value.probe().to(CPU)


def near(value: Any) -> Any:
    """A deferred tensor as it was made, for a server that calculates where its numbers are; anything else as it is."""
    return value.value if isinstance(value, Distant) else value
