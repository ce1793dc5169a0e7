"""Sparse matrices on a device other than the CPU: compressed rows as three arrays, and products by kernels that devices have."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

MAX_GATHERED = 1 << 26  # numbers of gathered rows that are held at once


class Compressed:
    """A matrix in CSR on a device. torch's own CSR tensors do not exist on every device; these arrays do."""

    def __init__(self, indptr: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> None:
        self.indptr, self.columns, self._values = indptr, columns, values
        self.shape = tuple(shape)
        self.kernel = KERNELS.get(values.device.type, gathered)

    @property
    def device(self) -> torch.device:
        """Where the arrays are."""
        return self._values.device

    def crow_indices(self) -> Tensor:
        """(rows + 1,) where each row begins, as in torch's CSR tensors."""
        return self.indptr

    def col_indices(self) -> Tensor:
        """(nnz,) the columns."""
        return self.columns

    def values(self) -> Tensor:
        """(nnz,) the values."""
        return self._values

    @cached_property
    def rows(self) -> Tensor:
        """(nnz,) the row of each value."""
        every = torch.arange(self.shape[0], device=self.device, dtype=self.indptr.dtype)
        return torch.repeat_interleave(every, self.indptr.diff(), output_size=len(self._values))

    def with_values(self, values: Tensor) -> Compressed:
        """The same pattern with other values."""
        other = Compressed(self.indptr, self.columns, values, self.shape)
        if "rows" in self.__dict__:
            other.__dict__["rows"] = self.rows
        return other

    def __matmul__(self, dense: Tensor) -> Tensor:
        return self.product(dense)

    def product(self, dense: Tensor) -> Tensor:
        """M·X, without gradients."""
        if not len(self._values):
            return dense.new_zeros(self.shape[0], dense.shape[1])
        return self.kernel(self, dense)


def gathered(matrix: Compressed, dense: Tensor) -> Tensor:
    """M·X from gathered rows of X, which are added up where they belong: operations that every device has."""
    result = dense.new_zeros(matrix.shape[0], dense.shape[1])
    step = max(1, MAX_GATHERED // max(dense.shape[1], 1))
    for start in range(0, len(matrix.values()), step):
        some = slice(start, start + step)
        result.index_add_(0, matrix.rows[some], dense.index_select(0, matrix.columns[some]) * matrix.values()[some, None])
    return result


def bags(matrix: Compressed, dense: Tensor) -> Tensor:
    """M·X by the embedding-bag kernel, as on the CPU: one sum per row, always in the same order, and nothing is gathered."""
    sums: tuple[Tensor, ...] = torch.ops.aten._embedding_bag_forward_only(
        dense.contiguous(), matrix.columns, matrix.indptr, False, 0, False, matrix.values(), True
    )
    return sums[0]


Kernel = Callable[[Compressed, Tensor], Tensor]
KERNELS: dict[str, Kernel] = {"cuda": bags}  # by the device's type; `gathered` elsewhere
