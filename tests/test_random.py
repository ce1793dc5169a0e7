"""Counter-based randomness: the published generator, keyed by party and call, the same wherever a party lives."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from atoll import random
from atoll.random import SERVER, Draws, Streams, philox, seed_of

KNOWN = [  # Random123's known answers for philox4x32-10: counter, key, words
    ((0, 0), 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ((2**64 - 1, 2**64 - 1), 2**64 - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ((0x85A308D3243F6A88, 0x0370734413198A2E), 0x299F31D0A4093822, "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN)
def test_philox_gives_the_published_words(counter: tuple[int, int], key: int, words: str) -> None:
    """The generator is Philox4x32-10 to the bit."""
    low, high = (np.array([half], np.uint64) for half in counter)
    assert " ".join(f"{word:08x}" for word in philox(low, high, key)[0]) == words


def test_a_partys_numbers_do_not_depend_on_the_cohort() -> None:
    """A party alone draws what it draws among others, whatever was drawn before, in any order of the parties."""
    together, alone, turned = (Streams(7, parties, "fit", 3) for parties in ([4, 9, SERVER, 2], [9], [2, 9]))
    for shape in ((3, 5), (), (4,), (2, 1, 6)):
        drawn = together.uniform(*shape)
        assert torch.equal(drawn[1], alone.uniform(*shape)[0])
        assert torch.equal(drawn[[3, 1]], turned.uniform(*shape))
        drawn = together.normal(*shape)
        assert drawn.shape == (4, *shape)
        assert torch.equal(drawn[1], alone.normal(*shape)[0])
        turned.normal(*shape)


def test_seed_party_call_and_turn_all_matter() -> None:
    """No two of them give the same numbers, and neither does drawing twice."""
    streams = Streams(1, [0, 1], "fit")
    draws = [*streams.uniform(8), *streams.uniform(8), Streams(2, [0], "fit").uniform(8)[0], Streams(1, [0], "see").uniform(8)[0]]
    assert len({tuple(draw.tolist()) for draw in draws}) == 6


@pytest.mark.parametrize("width", [1, 4, 6, 16])
def test_rows_can_be_drawn_without_the_others(width: int) -> None:
    """Row r of party p is what the whole draw holds there; nothing is used up."""
    streams = Streams(5, [3, 8, 11], "weights")
    places, rows = torch.tensor([0, 2, 2, 1]), torch.tensor([6, 0, 9, 3])
    some = streams.rows(places, rows, width, low=-2.0, high=3.0)
    whole = streams.uniform(10, width, low=-2.0, high=3.0)
    assert torch.equal(some, whole[places, rows])


def test_more_than_a_chunk_is_drawn_alike() -> None:
    """Chunks are joined without a seam."""
    many = Streams(1, range(5000), "x").uniform(7, 3)
    assert torch.equal(many[4321], Streams(1, [4321], "x").uniform(7, 3)[0])


def test_uniform_numbers_are_uniform() -> None:
    """Mean, variance, a χ² over 64 bins and the correlation of neighbors are as they should be (fixed seed)."""
    drawn = Streams(11, range(1000), "u").uniform(200).double()
    count = drawn.numel()
    assert float(drawn.min()) >= 0
    assert float(drawn.max()) < 1
    assert abs(float(drawn.mean()) - 0.5) < 4 / math.sqrt(12 * count)
    expected = count / 64
    chi = float(((torch.histc(drawn, 64, 0, 1) - expected) ** 2 / expected).sum())
    assert 63 - 4 * math.sqrt(126) < chi < 63 + 4 * math.sqrt(126)
    centered = drawn - 0.5
    for one, other in ((centered[:, 1:], centered[:, :-1]), (centered[1:], centered[:-1])):  # within a party, between parties
        assert abs(float((one * other).mean()) * 12) < 4 / math.sqrt(one.numel())


def test_normal_numbers_are_normal() -> None:
    """Mean, variance, kurtosis and the share beyond 2 are the normal distribution's (fixed seed)."""
    drawn = Streams(13, range(1000), "n").normal(203).double()
    count = drawn.numel()
    assert abs(float(drawn.mean())) < 4 / math.sqrt(count)
    assert abs(float(drawn.var()) - 1) < 4 * math.sqrt(2 / count)
    assert abs(float((drawn**4).mean()) - 3) < 4 * math.sqrt(96 / count)
    beyond = math.erfc(math.sqrt(2))
    assert abs(float((drawn.abs() > 2).double().mean()) - beyond) < 4 * math.sqrt(beyond / count)


def test_seeds_are_stable() -> None:
    """A seed of words is the same in every version: old runs can be repeated."""
    assert seed_of(0, "participants", 1) == seed_of(0, "participants", 1)
    assert seed_of(0, "a") != seed_of("0", "a")


def test_masks_are_the_partys_own() -> None:
    """A party alone masks its rows as it does among others, and differently each time."""
    sizes = [5, 3, 7]
    together, alone = Draws(3, [2, 0, 9], "fit"), Draws(3, [9], "fit")
    first, second = together.keep(0.5, sizes, 3), together.keep(0.5, sizes, 3)
    assert torch.equal(first[8:], alone.keep(0.5, [7], 3))
    assert torch.equal(second[8:], alone.keep(0.5, [7], 3))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("probability", [0.1, 0.4, 0.5, 1.0])
def test_masks_keep_the_mean(probability: float) -> None:
    """Kept with the probability asked for, and scaled so that the mean stays 1."""
    kept = Draws(1, [0, 1], "fit").keep(probability, [40_000, 60_001], 3)
    assert abs(float((kept > 0).float().mean()) - probability) < 5 / math.sqrt(kept.numel())
    assert abs(float(kept.mean()) - 1) < 5 / math.sqrt(kept.numel() * probability)
    assert len(kept.unique()) == (1 if probability == 1 else 2)


@pytest.mark.parametrize("probability", [0.5, 0.7, 1.0])
def test_masks_in_pieces_are_those_drawn_whole(probability: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same entries, and the same numbers afterwards; parties may have no rows."""
    monkeypatch.setattr(random, "MASK_NUMBERS_AT_ONCE", 8)
    sizes = [5, 0, 9]
    whole, cut = Draws(1, range(3), "fit"), Draws(1, range(3), "fit")
    for _ in range(2):
        pieces, scale = cut.masks(probability, sizes, 3)
        expected, same = whole.scaled_mask(probability, sizes, 3)
        assert scale == same
        assert torch.equal(torch.cat([piece.clone() for piece in pieces]).view(-1, 3), expected)


def test_repeated_parties_go_on_with_their_numbers() -> None:
    """What stands twice draws twice from the same source, one after the other."""
    twice = Draws(4, [5, 6], "fit").repeated(2).keep(0.5, [4, 4, 4, 4], 2)
    once = Draws(4, [5, 6], "fit")
    first, second = once.keep(0.5, [4, 4], 2), once.keep(0.5, [4, 4], 2)
    assert torch.equal(twice, torch.cat([first[:4], second[:4], first[4:], second[4:]]))
