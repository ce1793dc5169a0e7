"""Dropout after a rectifier, in place: neither the mask nor a second copy of the rows is kept for the gradient."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from atoll.random import Draws

MAX_NUMBERS_AT_ONCE = 1 << 20  # numbers that are masked at once


def relu_dropout(rows: Tensor, probability: float, draws: Draws | None) -> Tensor:
    """relu(x) times a mask of 0 and 1 / (1 − probability), drawn by one party, in the memory of `rows`; without draws no mask."""
    if draws is None or not probability:
        return rows.relu_()
    result: Tensor = _Dropped.apply(rows, 1 - probability, draws)  # type: ignore[no-untyped-call]
    return result


class _Dropped(torch.autograd.Function):
    """What is positive afterwards was kept, so that the gradient needs nothing else."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, keep: float, draws: Draws) -> Tensor:
        ctx.mark_dirty(rows)
        flat, start = rows.relu_().view(-1), 0
        masks, ctx.scale = draws.kept_pieces(keep, flat.numel(), MAX_NUMBERS_AT_ONCE)
        for mask in masks:
            flat[start : start + len(mask)].mul_(mask.to(flat.device).float().mul_(ctx.scale))
            start += len(mask)
        ctx.save_for_backward(rows)
        return rows

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        (rows,) = ctx.saved_tensors
        return torch.ops.aten.threshold_backward(gradients[0], rows, 0).mul_(ctx.scale), None, None
