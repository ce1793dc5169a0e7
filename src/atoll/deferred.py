"""Tensors that are described rather than stored: shape and type are known, the numbers are made when somebody needs them.

Parties of one process may answer each other's messages without writing them out: a reply that would be gigabytes goes through
the federation as a description, is billed by its shape like any tensor, and becomes numbers the moment it is sent as bytes,
joined with another site's reply or calculated with.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.utils._pytree import tree_map


class Description(Protocol):
    """What stands for the numbers; the first axis is the party."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        ...

    def dense(self) -> Tensor:
        """The tensor itself."""
        ...

    def take(self, index: Tensor) -> Description:
        """The description of some parties."""
        ...

    def total(self) -> Tensor:
        """The sum over the parties."""
        ...

    def probe(self) -> Tensor:
        """The sum of all numbers, or another one that is finite if and only if all of them are."""
        ...


class Deferred(Tensor):
    """A float32 tensor behind a description. Choosing parties stays a description, their sum asks it; all else makes the numbers.

    To torch it is a tensor on the `meta` device: it has a shape and no storage.
    """

    description: Description

    @staticmethod
    def __new__(cls, description: Description) -> Deferred:
        """The tensor of that description."""
        lazy = torch.empty(description.shape, device="meta").as_subclass(Deferred)
        lazy.description = description
        return lazy

    def __init__(self, description: Description) -> None:
        super().__init__()

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"Lazy({type(self.description).__name__}, shape={tuple(self.shape)})"

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """What an operation does to a description."""
        if function in DESCRIBED:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args)
        if isinstance(args[0], Deferred) and not kwargs:
            description = args[0].description
            if function is Tensor.__getitem__ and isinstance(args[1], Tensor) and args[1].dtype == torch.int64:
                return Deferred(description.take(args[1]))
            if function is Tensor.sum and len(args) == 2 and args[1] == 0:
                return description.total()
            if function is Tensor.sum and len(args) == 1:
                return description.probe()
        made = tree_map(lambda value: value.description.dense() if isinstance(value, Deferred) else value, (args, kwargs or {}))
        return function(*made[0], **made[1])


def _getter(name: str) -> Any:
    return getattr(Tensor, name).__get__


DESCRIBED = {  # what the shape and type alone say
    *(_getter(name) for name in ("shape", "dtype", "ndim", "requires_grad", "is_leaf", "grad_fn")),
    Tensor.numel,
    Tensor.element_size,
    Tensor.is_floating_point,
    Tensor.size,
    Tensor.dim,
    Tensor.__len__,
}
