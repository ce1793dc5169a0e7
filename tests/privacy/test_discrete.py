"""Discrete Gaussian noise: the exact distribution, beside a naive sampler; the grid; every party draws its own."""

from __future__ import annotations

import random
from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from atoll.privacy import discrete
from atoll.privacy.discrete import SIGMA, Lanes, discrete_gaussian, seeded_words, system_words, to_grid


def samples(count: int, seed: int = 0) -> NDArray[np.int64]:
    """A number of draws of one owner."""
    return discrete_gaussian(np.zeros(count, np.int64), Lanes([seeded_words(np.random.SFC64(seed))], count))


def naive(sigma: int, rng: random.Random) -> int:
    """Algorithms 1 to 3 of Canonne, Kamath and Steinke (2020), word for word, in fractions."""

    def bernoulli_exp(gamma: Fraction) -> bool:
        if gamma > 1:
            return all(bernoulli_exp(Fraction(1)) for _ in range(int(gamma))) and bernoulli_exp(gamma - int(gamma))
        k = 1
        while rng.randrange(gamma.denominator * k) < gamma.numerator:
            k += 1
        return k % 2 == 1

    t = sigma + 1
    while True:
        u = rng.randrange(t)
        if not bernoulli_exp(Fraction(u, t)):
            continue
        v = 0
        while bernoulli_exp(Fraction(1)):
            v += 1
        y, negative = u + t * v, rng.random() < 0.5
        if y == 0 and negative:
            continue
        if bernoulli_exp((abs(y) - Fraction(sigma**2, t)) ** 2 / (2 * sigma**2)):
            return -y if negative else y


def pmf(sigma: int, numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """The probabilities, by their definition."""
    weights = np.exp(-(np.arange(-40 * sigma, 40 * sigma + 1, dtype=np.float64) ** 2) / (2 * sigma**2))
    return np.exp(-(numbers.astype(np.float64) ** 2) / (2 * sigma**2)) / weights.sum()


def chi_square(found: NDArray[np.int64], sigma: int) -> float:
    """The p-value of samples against the exact probabilities of every number up to 4σ."""
    numbers = np.arange(-4 * sigma, 4 * sigma + 1)
    inside = found[np.abs(found) <= 4 * sigma]
    counts = np.bincount(inside + 4 * sigma, minlength=len(numbers))
    chances = pmf(sigma, numbers)
    rest = len(found) - len(inside)
    expected = np.append(chances, 1 - chances.sum()) * len(found)
    return float(stats.chisquare(np.append(counts, rest), expected).pvalue)


@pytest.mark.parametrize("sigma", [1, 2, 8])
def test_every_number_has_its_probability(sigma: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a small deviation every single number can be counted, zero among them."""
    monkeypatch.setattr(discrete, "SIGMA", sigma)
    assert chi_square(samples(400_000), sigma) > 1e-4


def test_a_wrong_distribution_would_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rounded normal number, or zero twice as often, does not pass."""
    found = np.rint(np.random.default_rng(0).normal(0, 1, 400_000)).astype(np.int64)
    assert chi_square(found, 1) < 1e-9
    monkeypatch.setattr(discrete, "SIGMA", 8)
    doubled = np.append(samples(400_000), np.zeros(20_000, np.int64))
    assert chi_square(doubled, 8) < 1e-9


def test_long_arithmetic_decides_as_the_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a margin that settles nothing every comparison goes through fractions of 512 bits: the same numbers."""
    expected = samples(400)
    monkeypatch.setattr(discrete, "MARGIN", 0.999)
    assert np.array_equal(samples(400), expected)


def test_a_bound_within_a_word_is_settled_by_the_next() -> None:
    """Where 32 bits leave open on which side of a bound a fraction lies, the next 32 bits tell."""
    bounds, leading = discrete._table()
    second = bounds[0] >> (discrete.PRECISION - 64) & 0xFFFFFFFF
    for following, expected in ((second - 1, 0), (second + 1, 1)):
        words = np.array([leading[0], following, 0, 0], np.uint32)
        lanes = Lanes([lambda count, words=words: np.resize(words, count)], 1)
        assert discrete._wholes(np.zeros(1, np.int64), lanes).tolist() == [expected]
    chances = np.exp(-(np.arange(30) ** 2) / 2)
    assert [bound / 2**discrete.PRECISION for bound in bounds] == pytest.approx((chances.cumsum() / chances.sum())[:-1])


def test_the_fast_sampler_is_the_naive_one() -> None:
    """The same distribution at the deviation that is used, and the Gaussian's quantiles; the lowest bits are evenly spread."""
    rng = random.Random(1)
    slow = np.array([naive(SIGMA, rng) for _ in range(4000)])
    fast = samples(200_000)
    assert stats.ks_2samp(slow, fast).pvalue > 1e-4
    assert stats.kstest(fast / SIGMA, "norm").pvalue > 1e-4
    assert stats.chisquare(np.bincount(fast & 63)).pvalue > 1e-4
    assert chi_square(np.array([naive(2, rng) for _ in range(20_000)]), 2) > 1e-4  # the naive one is right itself


def test_noise_of_the_system_is_never_the_same() -> None:
    """And has the distribution."""
    one, other = (discrete_gaussian(np.zeros(20_000, np.int64), Lanes([system_words], 20_000)) for _ in range(2))
    assert not np.array_equal(one, other)
    assert stats.kstest(one / SIGMA, "norm").pvalue > 1e-6


@pytest.mark.parametrize("numbers", [1, 7, 3000])
def test_a_partys_noise_is_its_own(numbers: int) -> None:
    """Whoever draws beside it, and however many numbers they draw."""
    sizes = [numbers, 5, 2 * numbers, 1]
    together = discrete_gaussian(np.repeat(np.arange(4), sizes), Lanes([seeded_words(np.random.SFC64(i)) for i in range(4)], 3))
    alone = [samples(size, seed) for seed, size in enumerate(sizes)]
    assert np.array_equal(together, np.concatenate(alone))


def test_the_grid_holds_the_norm() -> None:
    """Whole numbers of steps whose exact norm is not above the clip's; close to the vector; what is shorter stays so."""
    rng = np.random.default_rng(0)
    for clip, noise in ((1.0, 1.0), (0.7, 1.3), (1e-3, 0.01), (30.0, 7.0), (1.0, 2.0**-10)):
        step, limit = Fraction(noise) * Fraction(clip) / SIGMA, Fraction(SIGMA) / Fraction(noise)
        vectors = rng.normal(size=(50, 9)) * clip * rng.choice([1e-3, 0.3, 1.0, 1e6, 1e200], (50, 1))
        vectors[0] = 0
        vectors[1:10] = np.eye(9) * clip
        for vector, steps in zip(vectors, to_grid(vectors, clip, noise).tolist(), strict=True):
            assert sum(number**2 for number in steps) <= limit**2
            norm = np.sqrt((vector / clip) @ (vector / clip)) if np.abs(vector).max() < 1e100 else np.inf
            if np.isfinite(norm):
                cut = vector / max(1.0, norm)
                assert np.abs(np.array(steps) * float(step) - cut).max() <= 1.01 * float(step) + 1e-6 * clip
