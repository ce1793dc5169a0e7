"""Randomness as a function of (seed, party, call), never of global state, so that it does not depend on where a party lives."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.device import CPU

Word = int | str

MASK_NUMBERS_AT_ONCE = 1 << 16  # numbers of a mask that are made at once; a multiple of 4
SERVER = -1  # the party number under which the server draws


def seed_of(*words: Word) -> int:
    """A 63-bit seed from any words: the same words always give the same seed."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*words: Word) -> torch.Generator:
    """A generator seeded by these words."""
    return torch.Generator().manual_seed(seed_of(*words))


class Draws:
    """One generator per party, keyed by (seed, party, call): a party draws the same numbers whoever else is in the cohort.

    All numbers are drawn on the CPU and then moved to the `device`: they are the same on every device.
    """

    def __init__(self, seed: int, parties: Sequence[int], *call: Word, device: torch.device = CPU) -> None:
        self.generators = [generator(seed, party, *call) for party in parties]
        self.device = device

    @cached_property
    def bits(self) -> list[np.random.SFC64]:
        """One fast source of bits per party, for masks: it takes a tenth of torch's time for uniform numbers."""
        return [np.random.SFC64(g.initial_seed()) for g in self.generators]

    def repeated(self, times: int) -> Draws:
        """Each party `times` times, side by side: party p's generator is shared by p·times, p·times + 1, …"""
        result = object.__new__(Draws)
        result.device = self.device
        result.generators = [one for one in self.generators for _ in range(times)]
        result.bits = [one for one in self.bits for _ in range(times)]
        return result

    def select(self, parties: Sequence[int]) -> Draws:
        """The draws of some of the parties, which go on with them."""
        result = object.__new__(Draws)
        result.device = self.device
        result.generators = [self.generators[p] for p in parties]
        result.bits = [self.bits[p] for p in parties]
        return result

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(P, *shape) uniform numbers."""
        drawn = torch.stack([torch.rand(shape, generator=g) for g in self.generators]) * (high - low) + low
        return drawn.to(self.device)

    def normal(self, *shape: int) -> Tensor:
        """(P, *shape) standard normal numbers."""
        return torch.stack([torch.randn(shape, generator=g) for g in self.generators]).to(self.device)

    def orders(self, sizes: Sequence[int]) -> list[Tensor]:
        """A permutation of 0 … sizes[p] − 1 by each party."""
        drawn = [torch.randperm(size, generator=g) for size, g in zip(sizes, self.generators, strict=True)]
        return [order.to(self.device) for order in drawn]

    def kept_values(self, probability: float, sizes: Sequence[int]) -> tuple[Iterator[NDArray[np.bool_]], float]:
        """Which of its `sizes[p]` values each party keeps, with this probability (16 bits); and the factor to scale them by."""
        threshold = max(1, round(probability * 2**16))
        return (_below(bits, size, threshold) for size, bits in zip(sizes, self.bits, strict=True)), 2**16 / threshold

    def kept_pieces(self, probability: float, size: int, piece: int) -> tuple[Iterator[Tensor], float]:
        """The same of one party, as masks of about `piece` values each; `piece` is a multiple of 4."""
        threshold, (bits,) = max(1, round(probability * 2**16)), self.bits
        parts = (min(piece, size - start) for start in range(0, size, piece))
        return (torch.from_numpy(_below(bits, part, threshold)) for part in parts), 2**16 / threshold

    def masks(self, probability: float, sizes: Sequence[int], width: int) -> tuple[Iterator[Tensor], float]:
        """The mask of `keep`, flat and in pieces that stay in the cache, each good until the next; and what kept entries are."""
        threshold = max(1, round(probability * 2**16))
        return self._pieces(threshold, [size * width for size in sizes]), 2**16 / threshold

    def _pieces(self, threshold: int, sizes: Sequence[int]) -> Iterator[Tensor]:
        mask = torch.empty(min(MASK_NUMBERS_AT_ONCE, max(sizes, default=0)))
        for size, bits in zip(sizes, self.bits, strict=True):
            for start in range(0, size, MASK_NUMBERS_AT_ONCE):
                kept = _below(bits, min(MASK_NUMBERS_AT_ONCE, size - start), threshold).view(np.uint8)
                yield mask[: len(kept)].copy_(torch.from_numpy(kept)).mul_(2**16 / threshold)

    def keep(self, probability: float, sizes: Sequence[int], width: int) -> Tensor:
        """(N, width) dropout masks, kept entries scaled by 1 / probability; the rows of party p are drawn by party p."""
        return self.scaled_mask(probability, sizes, width)[0]

    def scaled_mask(self, probability: float, sizes: Sequence[int], width: int) -> tuple[Tensor, float]:
        """The same mask, and what its kept entries are."""
        kept, scale = self.kept_values(probability, [size * width for size in sizes])
        mask = torch.from_numpy(np.concatenate(list(kept)).view(np.uint8)).to(self.device)
        return mask.float().mul_(scale).view(-1, width), scale


def _below(bits: np.random.SFC64, size: int, threshold: int) -> NDArray[np.bool_]:
    """`size` draws of 16 bits each: whether they are below the threshold."""
    lanes: NDArray[np.uint16] = bits.random_raw(-(-size // 4)).view(np.uint16)
    return lanes[:size] < threshold if threshold < 2**16 else np.ones(size, bool)


class Streams:
    """As `Draws`, for any number of parties at once: a counter-based generator, without an object per party.

    A party's numbers are Philox4x32-10 (Salmon et al., SC 2011) of the key (seed, call) and the counter (block, party): any of
    them can be computed without those before it. In a draw of shape (…, w), each row of w numbers has its own blocks.
    """

    def __init__(self, seed: int, parties: Sequence[int] | Tensor, *call: Word) -> None:
        self.key = seed_of(seed, *call)
        self.parties = np.asarray(parties, dtype=np.int64).view(np.uint64)
        self.used = 0  # blocks per party

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(P, *shape) uniform numbers, low ≤ u < high, of 24 bits."""
        return torch.from_numpy(_unit(self._words(shape))).mul_(high - low).add_(low)

    def normal(self, *shape: int) -> Tensor:
        """(P, *shape) standard normal numbers, by Box and Muller's formula."""
        return torch.from_numpy(_normal(self._words(shape, even=True))[..., : shape[-1] if shape else 1].reshape(-1, *shape))

    def rows(self, index: Tensor, rows: Tensor, width: int, *, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(E, width): row `rows[e]` of what the party at `index[e]` would draw by `uniform(R, width)`; advances nothing."""
        each = -(-width // 4)
        out = np.empty((len(rows), width), np.float32)
        step = max(1, MAX_BLOCKS // each)
        for start in range(0, len(rows), step):
            part = slice(start, start + step)
            first = rows[part].numpy().astype(np.uint64)[:, None] * np.uint64(each)
            blocks = np.add(first, np.arange(self.used, self.used + each, dtype=np.uint64), dtype=np.uint64).ravel()
            words = philox(blocks, np.repeat(self.parties[index[part].numpy()], each), self.key)
            out[part] = _unit(words.reshape(-1, 4 * each)[:, :width])
        return torch.from_numpy(out).mul_(high - low).add_(low)

    def _words(self, shape: tuple[int, ...], *, even: bool = False) -> NDArray[np.uint32]:
        """(P, *shape) words; with `even`, (P, rows, w) with w rounded up to whole blocks."""
        width = shape[-1] if shape else 1
        rows, each = math.prod(shape[:-1]), -(-width // 4)
        kept = 4 * each if even else width
        out = np.empty((len(self.parties), rows, kept), np.uint32)
        blocks = np.arange(self.used, self.used + rows * each, dtype=np.uint64)
        step = max(1, MAX_BLOCKS // max(len(blocks), 1))
        for start in range(0, len(self.parties), step):
            parties = self.parties[start : start + step]
            words = philox(np.tile(blocks, len(parties)), np.repeat(parties, len(blocks)), self.key)
            out[start : start + step] = words.reshape(len(parties), rows, 4 * each)[..., :kept]
        self.used += len(blocks)
        return out if even else out.reshape(len(self.parties), *shape)


MAX_BLOCKS = 1 << 14  # computed at once, so that the arrays stay in the cache


def philox(low: NDArray[np.uint64], high: NDArray[np.uint64], key: int) -> NDArray[np.uint32]:
    """(M, 4) words of Philox4x32-10 for M counters of 64 + 64 bits and one key of 64 bits."""
    mask, half = np.uint64(0xFFFFFFFF), np.uint64(32)
    a, b, c, d = low & mask, low >> half, high & mask, high >> half
    first, second, upper = np.empty_like(a), np.empty_like(a), np.empty_like(a)
    left, right = key & 0xFFFFFFFF, key >> 32
    for _ in range(10):
        np.multiply(a, np.uint64(0xD2511F53), out=first)
        np.multiply(c, np.uint64(0xCD9E8D57), out=second)
        b ^= np.right_shift(second, half, out=upper)
        b ^= np.uint64(left)
        d ^= np.right_shift(first, half, out=upper)
        d ^= np.uint64(right)
        first &= mask
        second &= mask
        a, b, c, d, first, second = b, second, d, first, a, c  # the last two may be overwritten
        left, right = (left + 0x9E3779B9) & 0xFFFFFFFF, (right + 0xBB67AE85) & 0xFFFFFFFF
    words = np.empty((len(low), 4), np.uint32)
    for column, word in enumerate((a, b, c, d)):
        words[:, column] = word
    return words


def _unit(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """[0, 1) by the upper 24 bits."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2**-24)


def _normal(words: NDArray[np.uint32]) -> NDArray[np.float32]:
    """Two normal numbers from two words: √(−2·ln u)·(cos 2πv, sin 2πv), u in (0, 1]."""
    pairs = words.reshape(*words.shape[:-1], -1, 2).astype(np.float64) * 2**-32
    radius, angle = np.sqrt(-2 * np.log(pairs[..., 0] + 2**-32)), 2 * np.pi * pairs[..., 1]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).astype(np.float32).reshape(words.shape)
