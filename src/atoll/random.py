"""Randomness as a function of (seed, party, call), never of global state: so it does not matter where a party lives."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import torch
from torch import Tensor

Word = int | str

SERVER = -1  # the server draws as this party


def seed_of(*words: Word) -> int:
    """A 63-bit seed from any words: the same words always give the same seed."""
    digest = hashlib.blake2b(repr(words).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*words: Word) -> torch.Generator:
    """A generator of its own for these words."""
    return torch.Generator().manual_seed(seed_of(*words))


class Draws:
    """One generator a party, each keyed by (seed, party, call): what a party draws does not depend on who else is in the cohort."""

    def __init__(self, seed: int, parties: Sequence[int], *call: Word) -> None:
        self.generators = [generator(seed, party, *call) for party in parties]

    def uniform(self, *shape: int, low: float = 0.0, high: float = 1.0) -> Tensor:
        """(P, *shape) uniform numbers."""
        return torch.stack([torch.rand(shape, generator=g) for g in self.generators]) * (high - low) + low

    def normal(self, *shape: int) -> Tensor:
        """(P, *shape) standard normal numbers."""
        return torch.stack([torch.randn(shape, generator=g) for g in self.generators])

    def keep(self, probability: float, sizes: Sequence[int], width: int) -> Tensor:
        """(N, width) dropout masks, kept entries scaled by 1 / probability; the rows of party p are drawn by party p."""
        mask = torch.empty(sum(sizes), width)
        for block, g in zip(mask.split(list(sizes)), self.generators, strict=True):
            block.bernoulli_(probability, generator=g)
        return mask.div_(probability)
