"""A set of whole numbers that knows their order: for drawing from a sorted set that changes with every draw."""

from __future__ import annotations

import numpy as np

from atoll.data.builder import Bools


class Ranked:
    """A set of numbers below `limit` that finds its k-th smallest in logarithmic time (a Fenwick tree)."""

    def __init__(self, limit: int) -> None:
        self.size = 0
        self.held = np.zeros(limit, bool)
        self.counts = [0] * (limit + 1)
        self.top = 1 << (limit.bit_length() - 1)

    def add(self, number: int) -> None:
        """Put a number in."""
        if not self.held[number]:
            self._change(number, 1)

    def discard(self, number: int) -> None:
        """Take a number out."""
        if self.held[number]:
            self._change(number, -1)

    def members(self, mask: Bools) -> list[int]:
        """The numbers that are held and in the mask."""
        return np.flatnonzero(self.held & mask).tolist()

    def at(self, rank: int) -> int:
        """The number with that many smaller ones."""
        position, step = 0, self.top
        while step:
            after = position + step
            if after < len(self.counts) and self.counts[after] <= rank:
                position, rank = after, rank - self.counts[after]
            step >>= 1
        return position

    def _change(self, number: int, by: int) -> None:
        self.held[number] = by > 0
        self.size += by
        position = number + 1
        while position < len(self.counts):
            self.counts[position] += by
            position += position & -position
