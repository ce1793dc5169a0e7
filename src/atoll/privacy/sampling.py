"""Noise samples from the run's seed (repeatable) or from the operating system (unpredictable)."""

from __future__ import annotations

import math
import os

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll.privacy.discrete import Lanes, discrete_gaussian, seeded_words, system_words
from atoll.privacy.masking import stream
from atoll.random import Draws

SYSTEM = "system"  # the source that nobody can predict; any other is the run's seed


def grid_samples(draws: Draws, source: str, first: int, parties: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
    """Discrete Gaussian noise, in steps of the grid, for the vectors of `parties` parties from number `first` on."""
    count = math.prod(shape)
    if source == SYSTEM:
        owners, lanes = np.zeros(count, np.int64), Lanes([system_words], count)
    else:
        owners = np.repeat(np.arange(parties), count // max(parties, 1))
        lanes = Lanes([seeded_words(bits) for bits in draws.bits[first : first + parties]], count // max(parties, 1))
    return discrete_gaussian(owners, lanes).reshape(shape)


def normal_samples(draws: Draws, source: str, shape: torch.Size, party: int | None) -> Tensor:
    """Standard normal numbers: of one party by its index, or (P, …) for all."""
    if source == SYSTEM:
        return system_normal(shape.numel()).view(shape)
    if party is not None:
        return torch.randn(shape, generator=draws.generators[party])
    return draws.normal(*shape[1:])


def system_normal(count: int) -> Tensor:
    """Unpredictable standard normal numbers: ChaCha20 under a key from the system, by the Box–Muller transform."""
    words = stream(os.urandom(16), "noise", 2 * -(-count // 2)).reshape(2, -1)
    unit = (torch.from_numpy((words >> np.uint64(11)).astype(np.float64)) + 1) * 2.0**-53  # (0, 1]
    radius, angle = (-2 * unit[0].log()).sqrt(), 2 * math.pi * unit[1]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]


def draws_of(draws: Draws, index: int) -> Draws:
    """The draws of one party alone."""
    result = object.__new__(Draws)
    result.generators, result.bits = [draws.generators[index]], [draws.bits[index]]
    return result
