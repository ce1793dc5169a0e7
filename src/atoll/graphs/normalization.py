"""Rows brought to mean 0 and variance 1, each party's by its own rows: the arithmetic of batch norm for all parties at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.graphs.blocks import Blocks

EPSILON = 1e-5  # added to a variance before its root is taken


def standardize(rows: Tensor, scale: Tensor, shift: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
    """γ_p·(x − μ_p) / √(σ²_p + ε) + β_p for the rows (N, h) of every party p; its μ and σ² (P, h), which are not differentiable.

    σ² is the mean square, as in training; 0 for a party with one row.
    """
    result: tuple[Tensor, Tensor, Tensor] = _Standardized.apply(rows, scale, shift, blocks)  # type: ignore[no-untyped-call]
    return result


class _Standardized(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, scale: Tensor, shift: Tensor, blocks: Blocks) -> tuple[Tensor, Tensor, Tensor]:
        counts = row_counts(blocks, rows).clamp(min=1)
        mean = blocks.sum(rows) / counts
        unit = blocks.add_(rows.clone(), -mean)
        variance = blocks.sum(unit.square()) / counts
        inverse = (variance + EPSILON).rsqrt()
        unit *= blocks.broadcast(inverse)
        ctx.save_for_backward(unit, scale, inverse, counts)
        ctx.blocks = blocks
        ctx.mark_non_differentiable(mean, variance)
        return blocks.add_(unit * blocks.broadcast(scale), shift), mean, variance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        unit, scale, inverse, counts = ctx.saved_tensors
        blocks, gradient = ctx.blocks, gradients[0]
        of_scale, of_shift = blocks.sum(gradient * unit), blocks.sum(gradient)
        inner = gradient - unit * blocks.broadcast(of_scale / counts)
        of_rows = blocks.add_(inner, -of_shift / counts) * blocks.broadcast(scale * inverse)
        return of_rows, of_scale, of_shift, None


def row_counts(blocks: Blocks, rows: Tensor) -> Tensor:
    """(P, 1) the rows of each party, as numbers like `rows`."""
    return torch.tensor(blocks.sizes, dtype=rows.dtype).to(rows.device)[:, None]
