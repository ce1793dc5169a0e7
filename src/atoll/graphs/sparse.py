"""Constant sparse matrices: products with dense rows, kept fast in both directions, and their gradients."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.blocks import Blocks
from atoll.graphs.compressed import Compressed

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


Stored = Tensor | Compressed  # CSR: torch's on the CPU, arrays on any other device


class SparseMatrix:
    """A constant matrix M in CSR together with its transpose; `matrix @ dense` is differentiable in `dense`.

    torch's own CSR backward pass rebuilds the transpose in every call; with both stored it is one product.
    """

    learned: bool = False  # whether the values have gradients, too (`graphs.learned`)
    row_blocks: Blocks | None = None  # how the rows of a product are divided into parties, where not as the rows that it reads
    _source: sp.csr_array | None = None
    _scaled: tuple[float, Tensor] | None = None

    def __init__(self, matrix: sp.csr_array, *, symmetric: bool = False, device: torch.device = CPU) -> None:
        self.shape: tuple[int, int] = matrix.shape
        self.forward = csr(matrix, device)
        self.symmetric = symmetric
        self._source = matrix if device != CPU else None  # so that nothing has to come back from the device

    @cached_property
    def transposed(self) -> Stored:
        """Mᵀ; M itself where M is symmetric."""
        if self.symmetric:
            return self.forward
        return csr(self.transpose(self.arrays[0]), self.forward.device)

    @cached_property
    def transposed_order(self) -> Tensor:
        """(nnz,) for each stored value of Mᵀ, its index among those of M."""
        order = self.transpose(np.arange(self.forward.values().numel(), dtype=np.int32)).data
        return torch.from_numpy(order).to(self.forward.device)

    def transpose(self, values: NDArray[Any]) -> sp.csr_array:
        """Mᵀ with other values in the places of M's, in the memory of the CPU."""
        _, columns, indptr = self.arrays
        return sp.csr_array(sp.csr_array((values, columns, indptr), shape=self.shape).T.tocsr())

    @property
    def arrays(self) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
        """Values, columns and where rows begin, in the memory of the CPU."""
        if self._source is not None:
            return self._source.data, self._source.indices, self._source.indptr
        forward = self.forward
        return forward.values().numpy(), forward.col_indices().numpy(), forward.crow_indices().numpy()

    @cached_property
    def transposed_csc(self) -> sp.csc_array:
        """Mᵀ in CSC, which shares the arrays of M in CSR."""
        return sp.csc_array(self.arrays, shape=self.shape[::-1])

    def scaled_values(self, scale: float) -> Tensor:
        """(nnz,) the stored values times `scale`; kept for the next step."""
        if self._scaled is None or self._scaled[0] != scale:
            values = self.forward.values()
            self._scaled = scale, values if scale == 1 else values * scale
        return self._scaled[1]

    def masked(self, kept: Iterable[NDArray[np.bool_]], scale: float) -> SparseMatrix:
        """The stored values that are kept, times `scale`, without the others; `kept` are masks of consecutive values."""
        return MaskedMatrix(self, kept, scale) if self.forward.device == CPU else ZeroedMatrix(self, kept, scale)

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Mᵀ·X, without gradients."""
        return multiply(self.transposed, dense)

    def __matmul__(self, dense: Tensor) -> Tensor:
        result: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result


class MaskedMatrix(SparseMatrix):
    """Some of the values of a sparse matrix, scaled, for a single step.

    Mᵀ·X reads the rows of M as they are stored: sorting the values into Mᵀ would take longer than the product.
    """

    def __init__(self, whole: SparseMatrix, kept: Iterable[NDArray[np.bool_]], scale: float) -> None:
        self.shape, self.symmetric = whole.shape, False
        before, scaled = whole.transposed_csc, whole.scaled_values(scale)
        every_column, ends = whole.forward.col_indices(), before.indptr
        indptr, columns, values = np.empty_like(ends), torch.empty_like(every_column), torch.empty_like(scaled)
        row = first = count = 0
        for mask in kept:  # one at a time, so that intermediate arrays stay in the cache
            last = first + len(mask)
            index = np.flatnonzero(mask)
            rows = slice(row, int(np.searchsorted(ends, last, side="right")))
            indptr[rows] = np.searchsorted(index, ends[rows].astype(np.int64) - first) + count
            end, chosen = count + len(index), torch.from_numpy(index)
            torch.index_select(every_column[first:last], 0, chosen, out=columns[count:end])
            torch.index_select(scaled[first:last], 0, chosen, out=values[count:end])
            row, first, count = rows.stop, last, end
        columns, values = columns[:count], values[:count]
        self.transposed_csc = copy(before)  # sp.csc_array(…) would check every index
        self.transposed_csc.indptr = indptr
        self.transposed_csc.indices, self.transposed_csc.data = columns.numpy(), values.numpy()
        self.forward = torch.sparse_csr_tensor(torch.from_numpy(indptr), columns, values, size=self.shape, check_invariants=False)

    def transposed_matmul(self, dense: Tensor) -> Tensor:
        """Mᵀ·X, without gradients."""
        return torch.from_numpy(self.transposed_csc @ dense.numpy())


class ZeroedMatrix(SparseMatrix):
    """The same for a device: the values that are not kept are zero, so that nothing is cut out or sorted there."""

    def __init__(self, whole: SparseMatrix, kept: Iterable[NDArray[np.bool_]], scale: float) -> None:
        self.shape, self.symmetric, self._whole = whole.shape, False, whole
        factor = np.concatenate([mask * np.float32(scale) for mask in kept])
        self.forward = with_values(whole.forward, whole.forward.values() * torch.from_numpy(factor).to(whole.forward.device))

    @cached_property
    def transposed(self) -> Stored:
        """Mᵀ, its values in the order of the whole matrix's."""
        return with_values(self._whole.transposed, self.forward.values().index_select(0, self._whole.transposed_order))


class _Product(torch.autograd.Function):
    """Y = M·X and its gradient Mᵀ·G."""

    @staticmethod
    def forward(ctx: Any, matrix: SparseMatrix, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return multiply(matrix.forward, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.transposed_matmul(gradients[0])


def multiply(matrix: Stored, dense: Tensor) -> Tensor:
    """CSR · dense without gradients: each row of the result is a weighted sum of rows of `dense`.

    On the CPU the embedding-bag kernel computes that in half the time of torch's own CSR product (benchmarks/kernels.py).
    """
    if isinstance(matrix, Compressed):
        return matrix.product(dense)
    indptr, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    if not columns.numel():
        return dense.new_zeros(matrix.shape[0], dense.shape[1])
    bags: tuple[Tensor, ...] = torch.ops.aten._embedding_bag_forward_only(
        dense.contiguous(), columns, indptr, False, 0, False, values, True
    )
    return bags[0]


def csr(matrix: sp.csr_array, device: torch.device = CPU) -> Stored:
    """The matrix with 32-bit indices, on the CPU as a torch CSR tensor; arrays that have the right type are not copied."""
    arrays = (
        matrix.indptr.astype(np.int32),
        matrix.indices.astype(np.int32, copy=False),
        matrix.data.astype(np.float32, copy=False),
    )
    indptr, columns, values = (torch.from_numpy(array if array.flags.writeable else array.copy()) for array in arrays)
    return stored(indptr.to(device), columns.to(device), values.to(device), matrix.shape)


def stored(indptr: Tensor, columns: Tensor, values: Tensor, shape: tuple[int, ...]) -> Stored:
    """The matrix of these arrays, on their device."""
    if values.device == CPU:
        return torch.sparse_csr_tensor(indptr, columns, values, size=shape, check_invariants=False)
    return Compressed(indptr, columns, values, shape)


def with_values(pattern: Stored, values: Tensor) -> Stored:
    """The same pattern with other values."""
    if isinstance(pattern, Compressed):
        return pattern.with_values(values)
    return torch.sparse_csr_tensor(
        pattern.crow_indices(), pattern.col_indices(), values, size=pattern.shape, check_invariants=False
    )


def diffuse(matrix: SparseMatrix, start: Tensor, steps: int, teleport: float) -> Tensor:
    """Zᴷ of Zᵏ⁺¹ = (1−α)·M·Zᵏ + α·Z⁰."""
    if matrix.learned:
        made = start
        for _ in range(steps):
            made = torch.lerp(matrix @ made, start, teleport)
        return made
    result: Tensor = _Diffusion.apply(start, matrix, steps, teleport)  # type: ignore[no-untyped-call]
    return result


class _Diffusion(torch.autograd.Function):
    """A polynomial of M times Z⁰; its gradient is the same polynomial of Mᵀ times G."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, matrix: SparseMatrix, steps: int, teleport: float) -> Tensor:
        ctx.constants = matrix, steps, teleport
        return _diffused(matrix.forward, start, steps, teleport)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        matrix, steps, teleport = ctx.constants
        return _diffused(matrix.transposed, gradients[0], steps, teleport), None, None, None


def _diffused(matrix: Stored, start: Tensor, steps: int, teleport: float) -> Tensor:
    result = start
    for _ in range(steps):
        result = multiply(matrix, result).lerp_(start, teleport)
    return result
