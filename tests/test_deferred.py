"""Tensors that are described rather than stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atoll import wire
from atoll.deferred import Deferred
from atoll.federation.federation import _sizes, _unfit


class Given:
    """A description that holds the tensor after all, and notes when it is asked for it."""

    def __init__(self, tensor: Tensor, asked: list[str] | None = None) -> None:
        self.tensor = tensor
        self.asked = [] if asked is None else asked

    @property
    def shape(self) -> tuple[int, ...]:
        """The tensor's shape."""
        return tuple(self.tensor.shape)

    def dense(self) -> Tensor:
        """The tensor."""
        self.asked.append("dense")
        return self.tensor

    def take(self, index: Tensor) -> Given:
        """Some parties."""
        return Given(self.tensor[index], self.asked)

    def total(self) -> Tensor:
        """The sum over parties."""
        self.asked.append("total")
        return self.tensor.sum(0)

    def probe(self) -> Tensor:
        """The sum."""
        self.asked.append("probe")
        return self.tensor.sum()


@pytest.fixture
def tensor() -> Tensor:
    """Four parties' matrices."""
    return torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))


def test_what_the_shape_says_makes_nothing(tensor: Tensor) -> None:
    """Shape, type, size, the bill, the sum and a choice of parties never make the numbers."""
    description = Given(tensor)
    lazy = Deferred(description)
    assert isinstance(lazy, Tensor)
    assert (lazy.shape, lazy.dtype, lazy.numel(), lazy.ndim, len(lazy)) == (tensor.shape, torch.float32, 24, 3, 4)
    assert lazy.is_floating_point()
    assert _sizes({}, {"a": lazy}, {}) == _sizes({}, {"a": tensor}, {})
    assert wire.payload_size({"a": lazy}) == 96
    assert torch.equal(lazy.sum(0), tensor.sum(0))
    assert torch.isfinite(lazy.sum())
    chosen = lazy[torch.tensor([2, 0])]
    assert isinstance(chosen, Deferred)
    assert torch.equal(chosen.sum(0), tensor[[2, 0]].sum(0))
    assert "dense" not in description.asked
    assert repr(chosen) == "Lazy(Given, shape=(2, 3, 2))"


def test_everything_else_makes_them(tensor: Tensor) -> None:
    """Arithmetic, joining, rows and bytes are those of the tensor itself."""
    lazy = Deferred(Given(tensor))
    assert torch.equal(lazy * 2 + 1, tensor * 2 + 1)
    assert torch.equal(1 - lazy, 1 - tensor)
    assert torch.equal(torch.cat([lazy, tensor]), torch.cat([tensor, tensor]))
    assert torch.equal(lazy[1], tensor[1])
    assert torch.equal(lazy[:, 0], tensor[:, 0])
    assert torch.equal(lazy.sum(1), tensor.sum(1))
    assert torch.equal(lazy.sum(0, keepdim=True), tensor.sum(0, keepdim=True))
    assert torch.equal(torch.einsum("pij,pij->p", lazy, tensor), torch.einsum("pij,pij->p", tensor, tensor))
    assert wire.encode({"a": lazy}) == wire.encode({"a": tensor})
    assert type(lazy.detach()) is Tensor


def test_the_federation_finds_what_is_not_finite(tensor: Tensor) -> None:
    """A description is probed like a tensor; the party behind a NaN is named."""
    assert _unfit({"a": Deferred(Given(tensor))}, 4) == {}
    tensor[2, 1, 0] = torch.nan
    assert _unfit({"a": Deferred(Given(tensor))}, 4) == {2: "field 'a' is not finite"}
