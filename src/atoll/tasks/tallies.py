"""Counts per party and cell, written out or, where parties are many, as the list of cells that items fall into."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll.deferred import Deferred
from atoll.device import precise
from atoll.graphs.segments import occurrences

MAX_DENSE = 1 << 22  # numbers that are written out
MAX_SUMS = 1 << 24  # sums that are written out
MAX_ITEMS_AT_ONCE = 1 << 20  # items whose columns are added up at once


def tally(party: Tensor, cells: Tensor, parties: int, shape: tuple[int, ...]) -> Tensor | Deferred:
    """(parties, *shape) int64: how many items (rows of `cells`, (n, k)) of each party fall into each cell."""
    counted = Tally(party, cells, parties, shape)
    return counted if parties * math.prod(shape) > MAX_DENSE else counted.dense()


class Tally(Deferred):
    """Counts by their items: cheap for a million parties with one item each."""

    dtype = torch.int64

    def __init__(self, party: Tensor, cells: Tensor, parties: int, shape: tuple[int, ...]) -> None:
        self.party, self.cells, self.parties, self.inner = party, cells, parties, shape

    @property
    def shape(self) -> tuple[int, ...]:
        """(parties, *shape)."""
        return (self.parties, *self.inner)

    def dense(self) -> Tensor:
        """The counts themselves."""
        return self._counted(self.party, self.parties).view(self.shape)

    def take(self, index: Tensor) -> Tally:
        """The counts of some parties."""
        position = torch.full((self.parties,), -1, device=index.device)
        position[index] = torch.arange(len(index), device=index.device)
        kept = position[self.party] >= 0
        return Tally(position[self.party][kept], self.cells[kept], len(index), self.inner)

    def total(self) -> Tensor:
        """The sum over the parties."""
        return self._counted(torch.zeros_like(self.party), 1).view(self.inner)

    def probe(self) -> Tensor:
        """Counts are finite."""
        return torch.zeros(())

    def _counted(self, party: Tensor, parties: int) -> Tensor:
        size = math.prod(self.inner)
        first, *others = (party * size + column for column in self.cells.unbind(1))
        counts = occurrences(first, parties * size)
        for column in others:
            counts += occurrences(column, parties * size)
        return counts


class Sums(Deferred):
    """Sums by their items: cheap for ten million parties with one item each."""

    dtype = torch.float64

    def __init__(self, group: Tensor, columns: Tensor, first: int, parties: int) -> None:
        """`columns` (n, k) of items; an item of party p has `first` + p in `group` (n,)."""
        self.group, self.columns, self.first, self.parties = group, columns, first, parties

    @property
    def shape(self) -> tuple[int, ...]:
        """(parties, k)."""
        return (self.parties, self.columns.shape[1])

    def dense(self) -> Tensor:
        """The sums themselves."""
        columns = precise(self.columns)
        return columns.new_zeros(self.shape).index_add_(0, self.group - self.first, columns)

    def take(self, index: Tensor) -> Sums:
        """The sums of some parties."""
        position = torch.full((self.parties,), -1, device=index.device)
        position[index] = torch.arange(len(index), device=index.device)
        moved = position[self.group - self.first]
        kept = moved >= 0
        return Sums(moved[kept], self.columns[kept], 0, len(index))

    def total(self) -> Tensor:
        """The sum over the parties."""
        added = precise(self.columns.new_zeros(self.columns.shape[1]))
        for piece in torch.split(self.columns, MAX_ITEMS_AT_ONCE):
            added += precise(piece).sum(0)
        return added

    def probe(self) -> Tensor:
        """Finite if and only if all columns are."""
        return self.columns.sum()
