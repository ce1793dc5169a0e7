"""Counts per party and cell, written out or, where parties are many, as the list of cells that items fall into."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from atoll.deferred import Deferred

MAX_DENSE = 1 << 22  # numbers that are written out


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
        position = torch.full((self.parties,), -1)
        position[index] = torch.arange(len(index))
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
        counts = torch.zeros(parties * size, dtype=torch.int64)
        for column in self.cells.unbind(1):  # one at a time: items × columns numbers may be many
            counts += torch.bincount(party * size + column, minlength=parties * size)
        return counts
