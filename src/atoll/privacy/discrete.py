"""Discrete Gaussian noise, sampled exactly: integers x with probability proportional to exp(−x² / 2σ²), σ = 2²⁰.

Added to integers that differ by at most Δ in norm, it is as private as the Gaussian mechanism: its Rényi divergence of order α is
at most α·Δ² / 2σ² (Canonne, Kamath and Steinke, NeurIPS 2020). Samples are integers, so no floating-point rounding can reveal
what the noise was added to. Sampling is by rejection, after Karney (ACM TOMS 42, 2016): a random fraction is compared with a
probability. If 32 bits do not decide the comparison, more bits and long arithmetic do.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

BITS = 20
SIGMA = 1 << BITS  # the standard deviation, in steps of the grid
WORD = 32  # bits of a random word
PRECISION = 512  # bits of a probability in long arithmetic
MARGIN = 1e-9  # far above the relative error of exp in double precision
MIN_REFILL = 64  # random words fetched at once from each source
MAX_REFILL = 1 << 17

Words = NDArray[np.uint32]
Source = Callable[[int], Words]  # gives that many random words of 32 bits
Index = NDArray[np.int64]
Mask = NDArray[np.bool_]


def system_words(count: int) -> Words:
    """Unpredictable random words from the operating system."""
    return np.frombuffer(os.urandom(4 * count), dtype=np.uint32)


def seeded_words(bits: np.random.BitGenerator) -> Source:
    """Repeatable random words from a seed: for simulations, where noise must not depend on where a party lives."""
    return lambda count: np.asarray(bits.random_raw(count // 2), dtype=np.uint64).view(np.uint32)


class Lanes:
    """Random words from several sources side by side: each owner consumes its own source in order, whatever the others do."""

    def __init__(self, sources: Sequence[Source], numbers: int) -> None:
        """`numbers`: roughly how many samples each owner will draw."""
        self.sources = sources
        self.refill = min(max(MIN_REFILL, 6 * numbers), MAX_REFILL) // 2 * 2
        self.buffer: Words = np.empty((len(sources), 0), np.uint32)
        self.used = np.zeros(len(sources), np.int64)  # words of each row of the buffer

    def words(self, owners: Index) -> Words:
        """One word for each owner in the list, which is in ascending order."""
        if len(self.sources) == 1:
            self._fill(int(self.used[0]) + len(owners))
            start = int(self.used[0])
            self.used[0] += len(owners)
            return self.buffer[0, start : start + len(owners)]
        counts = np.bincount(owners, minlength=len(self.sources))
        self._fill(int((self.used + counts).max()))
        first = self.used - (counts.cumsum() - counts)
        columns = first[owners] + np.arange(len(owners))
        self.used += counts
        drawn: Words = self.buffer[owners, columns]
        return drawn

    def _fill(self, end: int) -> None:
        """Fetch words until the buffer has `end` columns; columns that every owner has used are dropped."""
        if end <= self.buffer.shape[1]:
            return
        drop = int(self.used.min())
        count = -(-(end - self.buffer.shape[1]) // self.refill) * self.refill
        self.buffer = np.concatenate([self.buffer[:, drop:], np.stack([source(count) for source in self.sources])], axis=1)
        self.used -= drop


def discrete_gaussian(owners: Index, lanes: Lanes) -> Index:
    """A sample for each owner in the list, which is in ascending order."""
    result = np.zeros(len(owners), np.int64)
    pending = np.arange(len(owners))
    while len(pending):
        values, accepted = _propose(owners[pending], lanes)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
    return result


def _propose(owners: Index, lanes: Lanes) -> tuple[Index, Mask]:
    """A number for each owner, and whether to accept it: |x| = q·σ + r with q drawn ∝ exp(−q²/2), and r uniform.

    Accepted with probability exp(−q·(r/σ) − (r/σ)²/2), it is ∝ exp(−x² / 2σ²). −0 is refused: 0 would count twice.
    """
    whole = _wholes(owners, lanes)
    word = lanes.words(owners)
    rest, negative = (word & np.uint32(SIGMA - 1)).astype(np.int64), word >= np.uint32(1 << (WORD - 1))
    accepted = _accept(owners, lanes, whole, rest)
    values = whole * SIGMA + rest
    return np.where(negative, -values, values), accepted & ~(negative & (values == 0))


def _wholes(owners: Index, lanes: Lanes) -> Index:
    """q = 0, 1, 2, … with probability ∝ exp(−q²/2)."""
    bounds, leading = _table()
    words = lanes.words(owners)
    result = leading.searchsorted(words, side="right")
    for index in (leading[np.minimum(result, len(leading)) - 1] == words).nonzero()[0]:  # a bound lies within this word
        owner = owners[index : index + 1]
        fraction, bits = int(words[index]), WORD
        while bisect_right(bounds, fraction << (PRECISION - bits)) != bisect_right(
            bounds, ((fraction + 1) << (PRECISION - bits)) - 1
        ):
            fraction, bits = fraction << WORD | int(lanes.words(owner)[0]), bits + WORD
        result[index] = bisect_right(bounds, fraction << (PRECISION - bits))
    return result


@cache
def _table() -> tuple[list[int], Words]:
    """The upper ends of the probabilities of q = 0, 1, 2, … as fractions of PRECISION bits, and their leading words."""
    with localcontext(prec=PRECISION):
        weights = [(-Decimal(q * q) / 2).exp() for q in range(30)]  # exp(−30²/2) is below 2^−PRECISION
        sums = list(accumulate(weights))
        bounds = [int(part / sums[-1] * Decimal(2**PRECISION)) for part in sums[:-1]]
    return bounds, np.array([bound >> (PRECISION - WORD) for bound in bounds], np.uint32)


def _accept(owners: Index, lanes: Lanes, whole: Index, rest: Index) -> Mask:
    """True with probability exp(−q·(r/σ) − (r/σ)²/2)."""
    part = rest * (1.0 / SIGMA)
    chance = np.exp(-part * (whole + 0.5 * part)) * 2.0**WORD
    words = lanes.words(owners).astype(np.float64)
    result: Mask = words + 1 <= chance * (1 - MARGIN)
    unsettled = ~result & (words < chance * (1 + MARGIN))
    for index in unsettled.nonzero()[0]:
        owner = owners[index : index + 1]
        bound = _chance(int(whole[index]), int(rest[index]))
        fraction, bits = int(words[index]), WORD
        while fraction == bound >> (PRECISION - bits):
            fraction, bits = fraction << WORD | int(lanes.words(owner)[0]), bits + WORD
        result[index] = fraction < bound >> (PRECISION - bits)
    return result


def _chance(whole: int, rest: int) -> int:
    """exp(−q·(r/σ) − (r/σ)²/2) as a fraction of PRECISION bits."""
    with localcontext(prec=PRECISION):
        exponent = -Decimal(2 * whole * rest * SIGMA + rest * rest) / Decimal(2 * SIGMA * SIGMA)
        return int(exponent.exp() * Decimal(2**PRECISION))


def to_grid(vectors: NDArray[np.float64], clip: float, noise: float) -> NDArray[np.int64]:
    """Every row as an integer number of steps of noise·clip/2²⁰, of norm at most 2²⁰/noise, the clip's, by exact arithmetic."""
    limit = int((Fraction(SIGMA) / Fraction(noise)) ** 2)
    scaled = vectors * (shrinking(vectors, clip) * (SIGMA / (noise * clip)))
    steps = np.trunc(scaled).astype(np.int64)
    while len(over := (np.einsum("ij,ij->i", steps, steps) > limit).nonzero()[0]):  # by a rounding error
        scaled[over] *= 1 - 1e-9
        steps[over] = np.trunc(scaled[over]).astype(np.int64)
    return steps


def shrinking(vectors: NDArray[np.float64], clip: float) -> NDArray[np.float64]:
    """(N, 1) the factor by which each row is scaled down to norm at most C."""
    norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, None]
    factor: NDArray[np.float64] = np.minimum(1.0, clip / np.maximum(norms, 1e-300))
    return factor
