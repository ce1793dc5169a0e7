"""A GIN layer of every party in one function: relu(relu((A + I)·(H·W) + b)·V + c), and dropout.

The same numbers as two layers of `transform`, with half of what autograd does around them, and gradients written into existing
buffers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks
from atoll.graphs.features import Kept
from atoll.graphs.sparse import SparseMatrix, multiply


def gin(
    rows: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    through: SparseMatrix,
    blocks: Blocks,
    kept: Kept | None,
) -> Tensor:
    """(N, h) → (N, h'): weights and biases of the first and of the second layer, the matrix A + I, and what dropout keeps."""
    result: Tensor = _Gin.apply(rows, *first, *second, through, blocks, kept)  # type: ignore[no-untyped-call]
    return result


class _Gin(torch.autograd.Function):
    """Both layers forward, and both backward."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        weight: Tensor,
        bias: Tensor,
        weight_2: Tensor,
        bias_2: Tensor,
        through: SparseMatrix,
        blocks: Blocks,
        kept: Kept | None,
    ) -> Tensor:
        inner = blocks.add_(multiply(through.forward, blocks.product(rows, weight)), bias).relu_()
        result = blocks.product(inner, weight_2, bias_2).relu_()
        if kept is not None:
            kept.drop_(result)
        ctx.save_for_backward(rows, weight, weight_2, inner, result)
        ctx.constants = through, blocks, 1.0 if kept is None else kept.scale
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        rows, weight, weight_2, inner, result = ctx.saved_tensors
        through, blocks, scale = ctx.constants
        gradient = torch.ops.aten.threshold_backward(gradients[0].contiguous(), result, 0)
        if scale != 1.0:
            gradient.mul_(scale)
        of_inner = blocks.product(gradient, weight_2.transpose(1, 2))
        torch.ops.aten.threshold_backward.grad_input(of_inner, inner, 0, grad_input=of_inner)
        of_summed = through.transposed_matmul(of_inner)
        of_second = blocks.gram(inner, gradient), blocks.sum(gradient)
        of_first = blocks.gram(rows, of_summed), blocks.sum(of_inner)
        of_rows = blocks.product(of_summed, weight.transpose(1, 2)) if ctx.needs_input_grad[0] else None
        return of_rows, *of_first, *of_second, None, None, None
