"""What the server sent the parties in this round: GLASU's round memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor


class Inbox:
    """United index sets by level; aggregates and gradients by layer. One tensor per party, empty until something is stored."""

    def __init__(self, shared: Sequence[int], parties: int) -> None:
        """`shared` are the layers that the server aggregates; the index set of layer l is that of level l + 1."""
        names = [f"nodes.{layer + 1}" for layer in shared]
        names += [f"{kind}.{layer}" for kind in ("aggregate", "share") for layer in shared]
        self.values: dict[str, list[Tensor]] = {name: [torch.empty(0)] * parties for name in names}
        self.parties = parties

    def store(self, kind: str, index: int, value: Tensor | None, *, each: bool = False) -> None:
        """Store what arrived, if anything: the same for every party, or with `each` one row per party."""
        if value is not None:
            self.values[f"{kind}.{index}"] = list(value) if each else [value] * self.parties

    def stored(self, kind: str, index: int) -> Tensor | None:
        """(P, …) what is stored; None where nothing is."""
        values = self.values.get(f"{kind}.{index}")
        if values is None or values[0].numel() == 0:
            return None
        same = all(value is values[0] for value in values)
        return values[0].expand(len(values), *values[0].shape) if same else torch.stack(values)

    def required(self, kind: str, index: int) -> Tensor:
        """(P, …) what must have been stored by now."""
        value = self.stored(kind, index)
        assert value is not None
        return value

    def state(self) -> dict[str, list[Tensor]]:
        """All of it, for the memory."""
        return self.values

    def restore(self, state: Mapping[str, Any]) -> None:
        """Return to what `state` gave."""
        self.values = dict(state)
