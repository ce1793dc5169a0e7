"""Rows that belong to parties: each party's rows times weights of its own."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll.device import CPU
from atoll.graphs.dense import product_into

NARROW_COLUMNS = 16  # below this width a product is computed with its narrow factor transposed
MAX_LOOPED_PARTIES = 64  # with more parties one indexed operation is faster than a loop over them
MIN_BATCHED = 400  # multiplications per party: with fewer, torch's batched product rounds differently from its single one
MAX_GATHERED = 1024  # numbers of a party's weight: a larger one takes longer to copy than to use
MIN_PER_SIZE = 4  # parties per size, on average, for which parties of one size are multiplied together


class Blocks:
    """How N rows are divided into the blocks of P parties; plain arithmetic, without gradients."""

    def __init__(self, sizes: Sequence[int], device: torch.device = CPU) -> None:
        self.sizes, self.device = list(sizes), device
        ends = np.cumsum([0, *sizes]).tolist()
        self.ranges = list(pairwise(ends))
        self.rows: int = ends[-1]
        self.equal = len(set(self.sizes)) == 1 and len(self.sizes) > 1

    @cached_property
    def present(self) -> list[tuple[int, int, int]]:
        """The parties that have rows, and where these begin and end."""
        return [(party, start, end) for party, (start, end) in enumerate(self.ranges) if start < end]

    @cached_property
    def party(self) -> Tensor:
        """(N,) which party each row belongs to."""
        return torch.repeat_interleave(torch.arange(len(self.sizes)), torch.tensor(self.sizes)).to(self.device)

    @cached_property
    def by_size(self) -> list[tuple[Tensor, Tensor]]:
        """Of many parties of a few sizes: the parties of each size, and (parties, size) their rows; else nothing."""
        sizes = torch.tensor(self.sizes)
        distinct = sorted(set(self.sizes))
        if len(self.sizes) <= MAX_LOOPED_PARTIES or len(self.sizes) < MIN_PER_SIZE * len(distinct):
            return []
        starts = sizes.cumsum(0) - sizes
        groups = [(sizes == size).nonzero()[:, 0] for size in distinct]
        rows = [starts[some, None] + torch.arange(size) for some, size in zip(groups, distinct, strict=True)]
        return [(some.to(self.device), index.to(self.device)) for some, index in zip(groups, rows, strict=True)]

    def _batches(self, work: int) -> tuple[list[tuple[Tensor, Tensor]], list[tuple[int, int, int]]]:
        """Parties to multiply together, by size, and those to go one by one, at `work` multiplications per row; same bits."""
        if not self.by_size:
            return [], self.present
        together = [group for group in self.by_size if group[1].shape[1] * work >= MIN_BATCHED]
        alone = [span for span in self.present if (span[2] - span[1]) * work < MIN_BATCHED]
        return together, alone

    def product(self, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        """(N, i), (P, i, o), (P, o) → (N, o): each party's rows times its own weight, plus its bias."""
        parties, fan_in, fan_out = weight.shape
        if fan_out < NARROW_COLUMNS <= fan_in:  # MKL is two to three times faster when the narrow factor is stored transposed
            weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
        if self.equal:
            blocks = rows.view(parties, -1, fan_in)
            result = torch.bmm(blocks, weight) if bias is None else torch.baddbmm(bias[:, None], blocks, weight)
            return result.view(self.rows, fan_out)
        result = rows.new_empty(self.rows, fan_out)
        small = fan_in * fan_out <= MAX_GATHERED
        together, alone = self._batches(fan_in * fan_out) if small else ([], self.present)
        for some, index in together:
            blocks, weights = rows.index_select(0, index.flatten()).view(*index.shape, fan_in), weight[some]
            made = torch.bmm(blocks, weights) if bias is None else torch.baddbmm(bias[some, None], blocks, weights)
            result.index_copy_(0, index.flatten(), made.view(-1, fan_out))
        for p, start, end in alone:
            product_into(result[start:end], rows[start:end], weight[p], None if bias is None else bias[p])
        return result

    def gram(self, rows: Tensor, gradient: Tensor) -> Tensor:
        """(N, i), (N, o) → (P, i, o): each party's rowsᵀ · gradient."""
        if gradient.shape[1] < NARROW_COLUMNS <= rows.shape[1]:
            return self.gram(gradient, rows).transpose(1, 2).contiguous()
        if self.equal:
            left, right = (side.view(len(self.sizes), -1, side.shape[1]) for side in (rows, gradient))
            return torch.bmm(left.transpose(1, 2), right)
        make = rows.new_empty if len(self.present) == len(self.sizes) else rows.new_zeros
        result = make(len(self.sizes), rows.shape[1], gradient.shape[1])
        together, alone = self._batches(rows.shape[1] * gradient.shape[1])
        for some, index in together:
            left, right = (side.index_select(0, index.flatten()).view(*index.shape, -1) for side in (rows, gradient))
            result.index_copy_(0, some, torch.bmm(left.transpose(1, 2), right))
        for p, start, end in alone:
            torch.mm(rows[start:end].t(), gradient[start:end], out=result[p])
        return result

    def sum(self, rows: Tensor) -> Tensor:
        """(N, …) → (P, …): each party's sum over its rows."""
        if len(self.sizes) > MAX_LOOPED_PARTIES:
            return rows.new_zeros(len(self.sizes), *rows.shape[1:]).index_add_(0, self.party, rows)
        if len(self.present) in (0, len(self.sizes)):
            return torch.stack([rows[start:end].sum(0) for start, end in self.ranges])
        sums = [rows[start:end].sum(0) for _, start, end in self.present]
        result = sums[0].new_zeros(len(self.sizes), *sums[0].shape)
        for (p, _, _), each in zip(self.present, sums, strict=True):
            result[p] = each
        return result

    def broadcast(self, values: Tensor) -> Tensor:
        """(P, …) → (N, …): every row gets its party's values."""
        return values.index_select(0, self.party)

    def add_(self, rows: Tensor, values: Tensor) -> Tensor:
        """Add its party's values (P, o) to every row (N, o), in place."""
        if len(self.sizes) > MAX_LOOPED_PARTIES:
            return rows.add_(self.broadcast(values))
        for p, start, end in self.present:
            rows[start:end].add_(values[p])
        return rows


def spans(starts: Tensor, ends: Tensor) -> Tensor:
    """starts[0], …, ends[0] − 1, starts[1], …: ranges one after the other."""
    sizes = ends - starts
    before = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    return torch.arange(int(before[-1]), device=sizes.device) + torch.repeat_interleave(starts - before[:-1], sizes)


def row_pieces(run: slice, rows: int, multiple: int) -> list[slice]:
    """A run of rows in pieces of about `rows`, each a `multiple` of rows; the last is longer than that unless the run is not."""
    rows = max(rows // multiple, 2) * multiple
    starts = list(range(run.start, max(run.stop - multiple, run.start + 1), rows))
    return [slice(start, end) for start, end in pairwise([*starts, run.stop])]


def broadcast_to_rows(values: Tensor, blocks: Blocks) -> Tensor:
    """(P, …) → (N, …): every row gets its party's values."""
    result: Tensor = _BroadcastToRows.apply(values, blocks)  # type: ignore[no-untyped-call]
    return result


class _BroadcastToRows(torch.autograd.Function):
    """Repeat by party, and sum by party on the way back."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, blocks: Blocks) -> Tensor:
        ctx.blocks = blocks
        return blocks.broadcast(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.blocks.sum(gradients[0]), None
