"""Tensors that are described rather than stored."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from atoll import wire
from atoll.deferred import Deferred, dense
from atoll.federation.checks import misfit, rows_outside
from atoll.federation.declarations import Leaf
from atoll.federation.fields import concatenate, row, sum_over_parties, take
from atoll.federation.ledger import message_sizes
from atoll.federation.replies import not_finite


class Given(Deferred):
    """A deferred tensor that holds the numbers after all, and records what it is asked for."""

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


def test_what_the_shape_says_computes_nothing(tensor: Tensor) -> None:
    """Shape, type, the bill, the sum and a choice of parties never compute the numbers."""
    given = Given(tensor)
    assert not isinstance(given, Tensor)
    assert (given.shape, given.dtype, len(given)) == ((4, 3, 2), torch.float32, 4)
    assert message_sizes({}, {"a": given}, {}) == message_sizes({}, {"a": tensor}, {})
    assert message_sizes({"a": given}, {}, {}) == message_sizes({"a": tensor}, {}, {})
    chosen = take({"a": given}, torch.tensor([2, 0]))["a"]
    assert isinstance(chosen, Deferred)
    assert torch.equal(sum_over_parties({"a": chosen})["a"], tensor[[2, 0]].sum(0))
    assert "dense" not in given.asked


def test_whoever_needs_the_numbers_gets_them(tensor: Tensor) -> None:
    """Joining sites, single rows and bytes are those of the tensor itself."""
    given = Given(tensor)
    assert torch.equal(concatenate([{"a": given}, {"a": tensor}])["a"], torch.cat([tensor, tensor]))
    assert torch.equal(row(given, 1), tensor[1])
    assert wire.encode({"a": given}) == wire.encode({"a": tensor})
    assert torch.equal(dense({"b": {"a": given}})["b"]["a"], tensor)


def test_the_federation_finds_what_is_not_finite(tensor: Tensor) -> None:
    """A deferred tensor is probed; the party behind a NaN is named."""
    given = Given(tensor)
    assert not_finite({"a": given}, 4) == {}
    assert given.asked == ["probe"]
    tensor[2, 1, 0] = torch.nan
    assert not_finite({"a": Given(tensor)}, 4) == {2: "field 'a' is not finite"}


def test_declared_bounds_probe_it(tensor: Tensor) -> None:
    """Type and shape are checked as a tensor's; where a number is not finite, all rows of the process are refused."""
    declared = {"a": Leaf((3, 2), torch.float32, -1e30, 1e30)}
    assert misfit(declared, {"a": Given(tensor)}, 0, 4) == ""
    assert "has the shape" in misfit(declared, {"a": Given(tensor[:, :2])}, 0, 4)
    assert rows_outside(Given(tensor), declared["a"], None) == []
    tensor[2, 1, 0] = torch.nan
    assert rows_outside(Given(tensor), declared["a"], None) == [0, 1, 2, 3]
