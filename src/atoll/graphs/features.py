"""One linear layer of every party at once: constant features, or rows with gradients, times each party's own weight."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks, broadcast_to_rows
from atoll.graphs.sparse import SparseMatrix, multiply
from atoll.random import Draws


class Features:
    """The constant features of P parties: `features @ weight` with weight (P, d, h), differentiable in the weight.

    Sparse features take one product for all parties: party p's columns are shifted by p·d, the weight is viewed as (P·d, h).
    """

    def __init__(self, values: SparseMatrix | Tensor, blocks: Blocks) -> None:
        self.values, self.blocks = values, blocks

    @classmethod
    def of(cls, x: sp.csr_array | Tensor, blocks: Blocks) -> Features:
        """The operator for features as a graph holds them."""
        return cls(x if isinstance(x, Tensor) else SparseMatrix(_shifted(x, blocks), device=blocks.device), blocks)

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
        return self.values.transposed_matmul(gradient).view(len(self.blocks.sizes), -1, gradient.shape[1])

    def dropped(self, probability: float, draws: Draws) -> Features:
        """The features after dropout: each party draws for its own values; where they are sparse, for the stored ones only."""
        if isinstance(self.values, Tensor):
            return Features(self.values * draws.keep(1 - probability, self.blocks.sizes, self.values.shape[1]), self.blocks)
        kept, scale = draws.kept_values(1 - probability, self._stored_per_party)
        return Features(self.values.masked(kept, scale), self.blocks)

    def take(self, index: Tensor, blocks: Blocks) -> Features:
        """Some of the rows, ascending, divided into parties by `blocks`."""
        if isinstance(self.values, Tensor):
            return Features(self.values.index_select(0, index), blocks)
        rows = sp.csr_array(self.values.arrays, shape=self.values.shape)[index.cpu().numpy()]
        return Features(SparseMatrix(sp.csr_array(rows), device=self.blocks.device), blocks)

    @cached_property
    def _stored_per_party(self) -> list[int]:
        """How many values are stored of each party's sparse features."""
        assert not isinstance(self.values, Tensor)
        counts: list[int] = np.diff(self.values.arrays[2][[0, *(end for _, end in self.blocks.ranges)]]).tolist()
        return counts

    def __matmul__(self, weight: Tensor) -> Tensor:
        return transform(self, weight, self.blocks)


def nonzero_values(x: Tensor) -> sp.csr_array:
    """(N, d) dense features as CSR without zeros; where there are none, the values are not copied."""
    rows, columns = x.shape
    if not columns or not bool(x.all()):
        return sp.csr_array(x.numpy())
    kind = np.int32 if x.numel() < 2**31 else np.int64
    indices, ends = np.tile(np.arange(columns, dtype=kind), rows), np.arange(rows + 1, dtype=kind) * columns
    return sp.csr_array((x.contiguous().view(-1).numpy(), indices, ends), shape=(rows, columns))


def _shifted(x: sp.csr_array, blocks: Blocks) -> sp.csr_array:
    parties, width = len(blocks.sizes), x.shape[1]
    shift = np.repeat(np.arange(parties) * width, blocks.sizes)
    columns = x.indices + np.repeat(shift, np.diff(x.indptr))
    return sp.csr_array((x.data, columns, x.indptr), shape=(x.shape[0], parties * width))


class Kept(NamedTuple):
    """Dropout of rows, party after party: pieces of a mask, drawn as they are applied, and what kept entries are scaled by."""

    pieces: Iterator[Tensor]
    scale: float

    def drop_(self, rows: Tensor) -> None:
        """Times the mask, in place, once."""
        flat, start = rows.view(-1), 0
        for piece in self.pieces:
            end = start + len(piece)
            flat[start:end].mul_(piece.to(flat.device))
            start = end


def transform(
    inputs: Features | Tensor,
    weight: Tensor,
    blocks: Blocks,
    bias: Tensor | None = None,
    *,
    through: SparseMatrix | None = None,
    hops: int = 1,
    relu: bool = False,
    kept: Kept | None = None,
) -> Tensor:
    """relu(Mʰ·(X_p·W_p) + b_p): one layer of every party at once; without `through` M is the identity.

    With `kept`, which is for a layer with relu on all rows, what the mask drops is zero and the rest is scaled: the result alone
    tells the backward pass which entries were positive and kept.
    """
    if through is not None and through.learned:
        return _through_learned(inputs, weight, blocks, bias, through, hops, relu, kept)
    if through is not None and through.row_blocks is not None:
        return _to_fewer_rows(inputs, weight, blocks, bias, through, through.row_blocks, relu)
    rows = None if isinstance(inputs, Features) else inputs
    features = inputs if isinstance(inputs, Features) else None
    arguments = rows, weight, bias, features, through, blocks, hops, relu, kept
    result: Tensor = _Layer.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _through_learned(
    inputs: Features | Tensor,
    weight: Tensor,
    blocks: Blocks,
    bias: Tensor | None,
    through: SparseMatrix,
    hops: int,
    relu: bool,
    kept: Kept | None,
) -> Tensor:
    """The same layer where M has gradients, too."""
    out = transform(inputs, weight, blocks)
    for _ in range(hops):
        out = through @ out
    out = out if bias is None else out + broadcast_to_rows(bias, blocks)
    out = out.relu() if relu else out
    if kept is None:
        return out
    mask = torch.ones_like(out)
    kept.drop_(mask)
    return out * mask


def _to_fewer_rows(
    inputs: Features | Tensor,
    weight: Tensor,
    blocks: Blocks,
    bias: Tensor | None,
    through: SparseMatrix,
    out_blocks: Blocks,
    relu: bool,
) -> Tensor:
    """The same layer where M has fewer rows than columns: (M·X_p)·W_p, so that only those rows meet the weights."""
    dense = inputs.values if isinstance(inputs, Features) else inputs
    if isinstance(dense, Tensor):
        return transform(through @ dense, weight, out_blocks, bias, relu=relu)
    out = through @ transform(inputs, weight, blocks)
    out = out if bias is None else out + broadcast_to_rows(bias, out_blocks)
    return out.relu() if relu else out


class _Layer(torch.autograd.Function):
    """Y = relu(Mʰ·(X_p·W_p) + b_p) and the gradients of X (unless constant), W and b."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Any,
        weight: Tensor,
        bias: Tensor | None,
        features: Features | None,
        through: SparseMatrix | None,
        blocks: Blocks,
        hops: int,
        relu: bool,
        kept: Kept | None,
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
        if kept is not None:
            kept.drop_(result)
        ctx.save_for_backward(rows, weight, result if relu else None)
        ctx.constants = features, through, blocks, hops, 1.0 if kept is None else kept.scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, result = ctx.saved_tensors
        features, through, blocks, hops, scale = ctx.constants
        need_rows, need_weight, need_bias = ctx.needs_input_grad[:3]
        gradient = gradients[0].contiguous()
        if result is not None:
            gradient = torch.ops.aten.threshold_backward(gradient, result, 0)
        if scale != 1.0:
            gradient.mul_(scale)
        of_bias = blocks.sum(gradient) if need_bias else None
        if through is not None:
            for _ in range(hops):
                gradient = through.transposed_matmul(gradient)
        of_rows = blocks.product(gradient, weight.transpose(1, 2)) if need_rows else None
        of_weight = None
        if need_weight:
            of_weight = blocks.gram(rows, gradient) if features is None else features.gram(gradient)
        return of_rows, of_weight, of_bias, None, None, None, None, None, None


def unit_rows(x: sp.csr_array | Tensor) -> sp.csr_array | Tensor:
    """Rows divided by their length; rows of zeros stay zero."""
    if isinstance(x, Tensor):
        length = torch.linalg.vector_norm(x, dim=1, keepdim=True)
        return x / torch.where(length > 0, length, 1)
    length = np.sqrt(x.multiply(x).sum(1))
    scaled = x.copy()
    scaled.data = (scaled.data / np.repeat(np.where(length > 0, length, 1), np.diff(scaled.indptr))).astype(np.float32)
    return scaled
