"""Maxima over consecutive rows, and how often each of some numbers occurs."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def occurrences(numbers: Tensor, count: int) -> Tensor:
    """(count,) how often each of 0 … count − 1 occurs; a device is not waited for, as `bincount` would."""
    if numbers.is_cpu:
        return torch.bincount(numbers, minlength=count)
    ones = torch.ones(len(numbers), dtype=torch.int64, device=numbers.device)
    return ones.new_zeros(count).index_add_(0, numbers, ones)


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
        every = torch.arange(count, device=rows.device)
        segment = torch.repeat_interleave(every, ptr.diff(), output_size=len(rows))
        index = segment[:, None].expand(-1, width)
        highest = rows.new_full((count, width), -torch.inf).scatter_reduce_(0, index, rows, "amax")
        row = torch.arange(len(rows), device=rows.device)[:, None].expand(-1, width)
        candidates = torch.where(rows == highest[segment], row, len(rows))
        winner = torch.full((count, width), len(rows), device=rows.device).scatter_reduce_(0, index, candidates, "amin")
        ctx.save_for_backward(winner)
        ctx.shape = rows.shape
        return highest

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (winner,) = ctx.saved_tensors
        return gradients[0].new_zeros(ctx.shape).scatter_(0, winner, gradients[0]), None
