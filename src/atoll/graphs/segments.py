"""Maxima over consecutive rows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def segment_max(rows: Tensor, ptr: Tensor) -> Tensor:
    """(N, h), (G + 1,) → (G, h): the maximum of each segment ptr[g]:ptr[g + 1], none of which is empty.

    The gradient goes to the first row that has the maximum.
    """
    result: Tensor = _SegmentMax.apply(rows, ptr)  # type: ignore[no-untyped-call]
    return result


class _SegmentMax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, ptr: Tensor) -> Tensor:
        count, width = len(ptr) - 1, rows.shape[1]
        segment = torch.repeat_interleave(torch.arange(count), ptr.diff())
        index = segment[:, None].expand(-1, width)
        highest = rows.new_full((count, width), -torch.inf).scatter_reduce_(0, index, rows, "amax")
        row = torch.arange(len(rows))[:, None].expand(-1, width)
        candidates = torch.where(rows == highest[segment], row, len(rows))
        winner = torch.full((count, width), len(rows)).scatter_reduce_(0, index, candidates, "amin")
        ctx.save_for_backward(winner)
        ctx.shape = rows.shape
        return highest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        return torch.zeros(ctx.shape).scatter_(0, winner, gradients[0]), None
