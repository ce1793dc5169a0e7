"""Tensors that are described rather than stored: shape and type are known, the numbers are computed when they are needed.

Parties of one process may answer without writing their replies out: what would be gigabytes passes through the federation as a
`Deferred`, is billed by its shape like any tensor, and becomes numbers where it is encoded or joined with another site's reply.
It is not a tensor: whoever wants to calculate with it calls `dense`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor


class Deferred(ABC):
    """A tensor, float32 unless it says otherwise, by its description; the first axis is the party."""

    dtype = torch.float32

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The tensor itself."""

    @abstractmethod
    def take(self, index: Tensor) -> Deferred:
        """The rows of some parties."""

    @abstractmethod
    def total(self) -> Tensor:
        """The sum over the parties."""

    @abstractmethod
    def probe(self) -> Tensor:
        """The sum of all numbers, or another one that is finite if and only if all of them are."""

    def __len__(self) -> int:
        return self.shape[0]


def dense(value: Any) -> Any:
    """A payload, or any part of it, with every deferred tensor computed."""
    if isinstance(value, dict):
        return {name: dense(item) for name, item in value.items()}
    return value.dense() if isinstance(value, Deferred) else value
