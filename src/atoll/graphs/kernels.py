"""The few products everything runs on: constant sparse matrices, and rows that belong to parties with weights of their own."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from copy import copy
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.random import Draws

warnings.filterwarnings("ignore", message="Sparse CSR tensor support is in beta")


NARROW = 16  # columns


class Sparse:
    """A constant sparse matrix kept in CSR together with its transpose; `matrix @ dense` is differentiable in `dense`.

    torch's own CSR backward rebuilds the transpose in every call; holding both makes the backward pass one product.
    """

    def __init__(self, matrix: sp.csr_array, *, symmetric: bool = False) -> None:
        self.shape: tuple[int, int] = matrix.shape
        self.forward = csr(matrix)
        self.symmetric = symmetric

    @cached_property
    def transposed(self) -> Tensor:
        """Mᵀ; M itself where M is symmetric."""
        return self.forward if self.symmetric else csr(self._flipped(self.forward.values().numpy()))

    @cached_property
    def order(self) -> Tensor:
        """(nnz,) which stored value of M stands at each place of Mᵀ."""
        return torch.from_numpy(self._flipped(np.arange(self.forward.values().numel(), dtype=np.int32)).data)

    def _flipped(self, values: np.ndarray) -> sp.csr_array:
        columns, starts = self.forward.col_indices().numpy(), self.forward.crow_indices().numpy()
        return sp.csr_array(sp.csr_array((values, columns, starts), shape=self.shape).T.tocsr())

    @cached_property
    def turned(self) -> sp.csc_array:
        """Mᵀ column by column: the rows of M as they are stored."""
        forward = self.forward
        arrays = (forward.values().numpy(), forward.col_indices().numpy(), forward.crow_indices().numpy())
        return sp.csc_array(arrays, shape=self.shape[::-1])

    def masked(self, kept: Iterable[NDArray[np.bool_]], scale: float) -> Masked:
        """The stored values that are kept, times `scale`; the others are gone. `kept` says it of all of them, part by part."""
        return Masked(self, kept, scale)

    def back(self, dense: Tensor) -> Tensor:
        """Mᵀ·X, without gradients."""
        return multiply(self.transposed, dense)

    def __matmul__(self, dense: Tensor) -> Tensor:
        result: Tensor = _Product.apply(self, dense)  # type: ignore[no-untyped-call]
        return result


class Masked(Sparse):
    """Some of the values of a sparse matrix, scaled, for a single step.

    Mᵀ·X goes through the rows of M as they are: to bring every value to its place in Mᵀ would take longer than the product.
    """

    def __init__(self, whole: Sparse, kept: Iterable[NDArray[np.bool_]], scale: float) -> None:
        self.shape, self.symmetric = whole.shape, False
        before = whole.turned
        starts, columns, values = (np.empty_like(array) for array in (before.indptr, before.indices, before.data))
        row = first = count = 0
        for part in kept:  # one after the other: what is made on the way stays in the cache
            last = first + len(part)
            places = np.flatnonzero(part)
            rows = slice(row, int(np.searchsorted(before.indptr, last, side="right")))
            starts[rows] = np.searchsorted(places, before.indptr[rows].astype(np.int64) - first) + count
            end = count + len(places)
            np.take(before.indices[first:last], places, out=columns[count:end], mode="clip")
            np.take(before.data[first:last], places, out=values[count:end], mode="clip")
            row, first, count = rows.stop, last, end
        values = values[:count]
        values *= np.float32(scale)
        self.turned = copy(before)  # sp.csc_array(…) would look at every index
        self.turned.indptr, self.turned.indices, self.turned.data = starts, columns[:count], values
        arrays = [torch.from_numpy(array) for array in (starts, columns[:count], values)]
        self.forward = torch.sparse_csr_tensor(arrays[0], arrays[1], arrays[2], size=self.shape, check_invariants=False)

    def back(self, dense: Tensor) -> Tensor:
        """Mᵀ·X, without gradients."""
        return torch.from_numpy(self.turned @ dense.numpy())


class _Product(torch.autograd.Function):
    """Y = M·X and its gradient Mᵀ·G."""

    @staticmethod
    def forward(ctx: Any, matrix: Sparse, dense: Tensor) -> Tensor:
        ctx.matrix = matrix
        return multiply(matrix.forward, dense)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, ctx.matrix.back(gradients[0])


def multiply(matrix: Tensor, dense: Tensor) -> Tensor:
    """CSR · dense without gradients: for every row of the matrix a weighted bag of rows of the dense one.

    The embedding-bag kernel does just this and takes half the time of torch's own CSR product (benchmarks/kernels.py).
    """
    starts, columns, values = matrix.crow_indices(), matrix.col_indices(), matrix.values()
    if not columns.numel():
        return dense.new_zeros(matrix.shape[0], dense.shape[1])
    bags: tuple[Tensor, ...] = torch.ops.aten._embedding_bag_forward_only(
        dense.contiguous(), columns, starts, False, 0, False, values, True
    )
    return bags[0]


def csr(matrix: sp.csr_array) -> Tensor:
    """A torch CSR tensor with 32-bit indices."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int32)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data.astype(np.float32)),
        size=matrix.shape,
        check_invariants=False,
    )


def like(pattern: Tensor, values: Tensor) -> Tensor:
    """Other values at the places of a CSR tensor."""
    return torch.sparse_csr_tensor(
        pattern.crow_indices(), pattern.col_indices(), values, size=pattern.shape, check_invariants=False
    )


class Blocks:
    """How N rows fall into the blocks of P parties; plain arithmetic, without gradients."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.sizes = list(sizes)
        ends = np.cumsum([0, *sizes]).tolist()
        self.ranges = list(pairwise(ends))
        self.rows: int = ends[-1]
        self.equal = len(set(self.sizes)) == 1 and len(self.sizes) > 1

    @cached_property
    def party(self) -> Tensor:
        """(N,) which party each row belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes))

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(N, i), (P, i, o), (P, o) → (N, o): each party's rows times its own weight, plus its bias."""
        parties, fan_in, fan_out = weight.shape
        if fan_out < NARROW <= fan_in:  # MKL is two to three times faster when the narrow factor is stored transposed
            weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
        if self.equal:
            blocks = rows.view(parties, -1, fan_in)
            result = torch.bmm(blocks, weight) if bias is None else torch.baddbmm(bias[:, None], blocks, weight)
            return result.view(self.rows, fan_out)
        result = rows.new_empty(self.rows, fan_out)
        for p, (start, end) in enumerate(self.ranges):
            if bias is None:
                torch.mm(rows[start:end], weight[p], out=result[start:end])
            else:
                torch.addmm(bias[p], rows[start:end], weight[p], out=result[start:end])
        return result

    def gram(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """(N, i), (N, o) → (P, i, o): each party's rowsᵀ · gradient."""
        if gradient.shape[1] < NARROW <= rows.shape[1]:
            return self.gram(gradient, rows).transpose(1, 2).contiguous()
        if self.equal:
            left, right = (side.view(len(self.sizes), -1, side.shape[1]) for side in (rows, gradient))
            return torch.bmm(left.transpose(1, 2), right)
        result = rows.new_empty(len(self.sizes), rows.shape[1], gradient.shape[1])
        for p, (start, end) in enumerate(self.ranges):
            torch.mm(rows[start:end].t(), gradient[start:end], out=result[p])
        return result

    def sum(self, rows: Tensor) -> Tensor:
        """(N, …) → (P, …): each party's sum over its rows."""
        if len(self.sizes) > 64:
            return rows.new_zeros(len(self.sizes), *rows.shape[1:]).index_add_(0, self.party, rows)
        return torch.stack([rows[start:end].sum(0) for start, end in self.ranges])

    def spread(self, values: Tensor) -> Tensor:
        """(P, …) → (N, …): every row gets its party's values."""
        return values.index_select(0, self.party)

    def add_(self, rows: Tensor, values: Tensor) -> Tensor:
        """Add its party's values (P, o) to every row (N, o), in place."""
        if len(self.sizes) > 64:
            return rows.add_(self.spread(values))
        for p, (start, end) in enumerate(self.ranges):
            rows[start:end].add_(values[p])
        return rows


class Features:
    """The constant features of P parties: `features @ weight` with weight (P, d, h), differentiable in the weight.

    Sparse features are one product for all parties: party p's columns are shifted by p·d, the weight is seen as (P·d, h).
    """

    def __init__(self, values: Sparse | Tensor, blocks: Blocks) -> None:
        self.values, self.blocks = values, blocks

    @classmethod
    def of(cls, x: sp.csr_array | Tensor, blocks: Blocks) -> Features:
        """The operator for features as a graph holds them."""
        return cls(x if isinstance(x, Tensor) else Sparse(_shifted(x, blocks)), blocks)

    def product(self, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(P, d, h), (P, h) → (N, h): each party's features times its weight, plus its bias."""
        if isinstance(self.values, Tensor):
            return self.blocks.product(self.values, weight, bias)
        result = multiply(self.values.forward, weight.reshape(-1, weight.shape[2]))
        return result if bias is None else self.blocks.add_(result, bias)

    def gram(self, gradient: Tensor) -> Tensor:
        """(N, h) → (P, d, h): the gradient of the weight."""
        if isinstance(self.values, Tensor):
            return self.blocks.gram(self.values, gradient)
        return self.values.back(gradient).view(len(self.blocks.sizes), -1, gradient.shape[1])

    def dropped(self, probability: float, draws: Draws) -> Features:
        """The features after dropout: each party draws for its own values, stored ones only where they are sparse."""
        if isinstance(self.values, Tensor):
            return Features(self.values * draws.keep(1 - probability, self.blocks.sizes, self.values.shape[1]), self.blocks)
        starts = self.values.forward.crow_indices()[[0, *(end for _, end in self.blocks.ranges)]]
        kept, scale = draws.parts(1 - probability, starts.diff().tolist())
        return Features(self.values.masked(kept, scale), self.blocks)

    def __matmul__(self, weight: Tensor) -> Tensor:
        return transform(self, weight, self.blocks)


def _shifted(x: sp.csr_array, blocks: Blocks) -> sp.csr_array:
    parties, width = len(blocks.sizes), x.shape[1]
    shift = np.repeat(np.arange(parties) * width, blocks.sizes)
    columns = x.indices + np.repeat(shift, np.diff(x.indptr))
    return sp.csr_array((x.data, columns, x.indptr), shape=(x.shape[0], parties * width))


def transform(
    inputs: Features | Tensor,
    weight: Tensor,
    blocks: Blocks,
    bias: Tensor | None = None,
    *,
    through: Sparse | None = None,
    hops: int = 1,
    relu: bool = False,
) -> Tensor:
    """relu(Mʰ·(X_p·W_p) + b_p): one layer of every party at once; without `through` M is the identity."""
    rows = None if isinstance(inputs, Features) else inputs
    features = inputs if isinstance(inputs, Features) else None
    result: Tensor = _Layer.apply(rows, weight, bias, features, through, blocks, hops, relu)  # type: ignore[no-untyped-call]
    return result


class _Layer(torch.autograd.Function):
    """Y = relu(Mʰ·(X_p·W_p) + b_p) and the gradients of X (unless constant), W and b."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Any,
        weight: Tensor,
        bias: Tensor | None,
        features: Features | None,
        through: Sparse | None,
        blocks: Blocks,
        hops: int,
        relu: bool,
    ) -> Tensor:
        early = bias if through is None else None
        result = features.product(weight, early) if features is not None else blocks.product(rows, weight, early)
        if through is not None:
            for _ in range(hops):
                result = multiply(through.forward, result)
            if bias is not None:
                blocks.add_(result, bias)
        if relu:
            result.relu_()
        ctx.save_for_backward(rows, weight, result if relu else None)
        ctx.constants = features, through, blocks, hops
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, result = ctx.saved_tensors
        features, through, blocks, hops = ctx.constants
        need_rows, need_weight, need_bias = ctx.needs_input_grad[:3]
        gradient = gradients[0].contiguous()
        if result is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, result, 0)
        of_bias = blocks.sum(gradient) if need_bias else None
        if through is not None:
            for _ in range(hops):
                gradient = through.back(gradient)
        of_rows = blocks.product(gradient, weight.transpose(1, 2)) if need_rows else None
        of_weight = None
        if need_weight:
            of_weight = blocks.gram(rows, gradient) if features is None else features.gram(gradient)
        return of_rows, of_weight, of_bias, None, None, None, None, None


def spread(values: Tensor, blocks: Blocks) -> Tensor:
    """(P, …) → (N, …): every row gets its party's values."""
    result: Tensor = _Spread.apply(values, blocks)  # type: ignore[no-untyped-call]
    return result


class _Spread(torch.autograd.Function):
    """Repeat by party, and sum by party on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks = blocks
        return blocks.spread(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.sum(gradients[0]), None


def diffuse(matrix: Sparse, start: Tensor, steps: int, teleport: float) -> Tensor:
    """Zᴷ of Zᵏ⁺¹ = (1−α)·M·Zᵏ + α·Z⁰."""
    result: Tensor = _Diffusion.apply(start, matrix, steps, teleport)  # type: ignore[no-untyped-call]
    return result


class _Diffusion(torch.autograd.Function):
    """A polynomial of M times Z⁰; its gradient is the same polynomial of Mᵀ times G."""

    @staticmethod
    def forward(ctx: Any, start: Tensor, matrix: Sparse, steps: int, teleport: float) -> Tensor:
        ctx.constants = matrix, steps, teleport
        return _diffused(matrix.forward, start, steps, teleport)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        matrix, steps, teleport = ctx.constants
        return _diffused(matrix.transposed, gradients[0], steps, teleport), None, None, None


def _diffused(matrix: Tensor, start: Tensor, steps: int, teleport: float) -> Tensor:
    result = start
    for _ in range(steps):
        result = multiply(matrix, result).lerp_(start, teleport)
    return result
