"""The ε that is told, audited: how far a reply can move, through the real guard; and what an attacker makes of the releases."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats
from torch import Tensor

from atoll import wire
from atoll.federation.cohort import Message
from atoll.parties import Parties
from atoll.privacy import sampling
from atoll.privacy.discrete import SIGMA
from atoll.privacy.noise import Noise
from atoll.privacy.noise_settings import NoiseSettings
from atoll.random import Draws
from atoll.tasks import TASKS, CountField
from privacy.accounting import epsilon_after

Fields = dict[str, Any]


def released(settings: NoiseSettings, fields: Fields, call: int = 1, verb: str = "fit", **common: Any) -> Fields:
    """What leaves the parties of these fields."""
    first = next(iter(wire.leaves(fields)))[1]
    parties = len(next(iter(fields.values()))) if isinstance(next(iter(fields.values())), list) else len(first)
    message = Message(verb, 1, call, True, Parties(range(parties)), common, {})
    seeded = range(parties) if settings.noise_source == "seed" else []
    return Noise(settings, counts=TASKS.find("node-classification").fields)(message, fields, Draws(0, seeded, "guard", call))


# How far a reply moves


@pytest.fixture
def without_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    """The guard as it is, with samples of noise that are all zero."""
    monkeypatch.setattr(sampling, "discrete_gaussian", lambda owners, lanes: np.zeros(len(owners), np.int64))


def accounted(settings: NoiseSettings) -> float:
    """The distance that the cost ρ = Δ²/2σ² of a release allows for."""
    return math.sqrt(2 * settings.cost) * settings.noise * settings.clip


def vectors(rng: np.random.Generator, size: int, clip: float) -> Tensor:
    """A vector that somebody might choose: of any length, along an axis, along all of them, or not finite at all."""
    scale = clip * rng.choice([0.0, 0.1, 0.999, 1.0, 1.001, 3.0, 1e8])
    vector = rng.normal(size=size) if rng.random() < 0.4 else np.ones(size) if rng.random() < 0.5 else np.eye(size)[0]
    vector = vector / np.linalg.norm(vector) * scale * rng.choice([-1, 1])
    if rng.random() < 0.1:
        vector[0] = rng.choice([np.nan, np.inf, -np.inf])
    return torch.from_numpy(vector).float()


def distance(one: Fields, other: Fields) -> float:
    """Between all fields together."""
    pairs = zip(wire.leaves(one), wire.leaves(other), strict=True)
    return math.sqrt(sum(float((a.double() - b.double()).square().sum()) for (_, a), (_, b) in pairs))


def search(
    make: Callable[[np.random.Generator], tuple[Fields, Fields]], settings: NoiseSettings, seen: Callable[..., Fields]
) -> float:
    """The largest distance of what is seen of two neighbors, over many of them and over opposite ones."""
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(150):
        one, other = make(rng)
        largest = max(largest, distance(seen(settings, one), seen(settings, other)))
        negated = {
            name: -value if isinstance(value, Tensor) and value.is_floating_point() else value for name, value in one.items()
        }
        largest = max(largest, distance(seen(settings, one), seen(settings, negated)))
    return largest


SETTINGS = [(1.0, 1.0), (0.7, 1.3), (5.0, 0.25)]


@pytest.mark.parametrize(("clip", "sigma"), SETTINGS)
@pytest.mark.usefixtures("without_noise")
def test_a_party_moves_by_no_more_than_is_accounted_for(clip: float, sigma: float) -> None:
    """One party's whole reply in several fields, exchanged for any other: at most 2·C, and that is reached."""
    settings = NoiseSettings(verb="fit", clip=clip, noise=sigma)

    def make(rng: np.random.Generator) -> tuple[Fields, Fields]:
        first, second = (vectors(rng, 7, clip) for _ in range(2))
        return tuple({"a": both[None, :4], "b": both[None, 4:].reshape(1, 1, 3)} for both in (first, second))  # type: ignore[return-value]

    measured = search(make, settings, released)
    assert 0.98 * accounted(settings) < measured <= accounted(settings) * (1 + 1e-6)


@pytest.mark.parametrize(("clip", "sigma"), SETTINGS)
@pytest.mark.usefixtures("without_noise")
def test_a_models_update_moves_by_no_more_than_is_accounted_for(clip: float, sigma: float) -> None:
    """The same for a model n·w of any weight n: what the server reads off it, w minus the model it sent, moves by at most 2·C."""
    settings = NoiseSettings(verb="fit", clip=clip, noise=sigma)
    sent = {"w": torch.linspace(-2, 2, 5), "b": torch.zeros(2)}

    def seen(settings: NoiseSettings, fields: Fields) -> Fields:
        n = fields["n"]
        reply = {"model": {"w": fields["w"] * n, "b": fields["b"] * n}, "n": n}
        model = released(settings, reply, model=sent)["model"]
        return {name: value.double() / n - sent[name] for name, value in model.items()}

    def make(rng: np.random.Generator) -> tuple[Fields, Fields]:
        n = torch.tensor([int(rng.choice([1, 3, 1000]))])
        moves = [vectors(rng, 7, clip) for _ in range(2)]
        return tuple({"w": (sent["w"] + m[:5])[None], "b": m[None, 5:], "n": n} for m in moves)  # type: ignore[return-value]

    measured = search(make, settings, seen)
    assert 0.98 * accounted(settings) < measured <= accounted(settings) * (1 + 1e-5)


@pytest.mark.parametrize("ragged", [False, True])
@pytest.mark.parametrize(("clip", "sigma"), SETTINGS)
@pytest.mark.usefixtures("without_noise")
def test_a_row_moves_by_no_more_than_is_accounted_for(clip: float, sigma: float, ragged: bool) -> None:
    """One node's prediction and embedding, both exchanged: together at most 2·C. (Clipped apart, they moved by √2 times that.)"""
    settings = NoiseSettings(verb="fit", clip=clip, noise=sigma, protected_unit="row")

    def make(rng: np.random.Generator) -> tuple[Fields, Fields]:
        others = [vectors(rng, 5, clip) for _ in range(3)]
        rows = [torch.stack([*others, vectors(rng, 5, clip)]) for _ in range(2)]
        if ragged:
            return tuple({"p": [r[:, :2]], "h": [r[:, 2:]]} for r in rows)  # type: ignore[return-value]
        return tuple({"p": r[None, :, :2], "h": r[None, :, 2:]} for r in rows)  # type: ignore[return-value]

    def last(settings: NoiseSettings, fields: Fields) -> Fields:
        replies = released(settings, fields)
        return {name: value[0][-1] for name, value in replies.items()}

    measured = search(make, settings, last)
    assert 0.98 * accounted(settings) < measured <= accounted(settings) * (1 + 1e-6)


@pytest.mark.usefixtures("without_noise")
def test_counts_move_by_no_more_than_is_accounted_for() -> None:
    """A party's evaluation counts, whatever its nodes: at most twice the clip, and the ratios of a party stay as they are."""
    settings = NoiseSettings(evaluation_noise=0.5, evaluation_clip=20.0)
    rng = np.random.default_rng(0)

    def counts() -> Fields:
        confusion = torch.from_numpy(rng.integers(0, rng.choice([1, 3, 1000]), (1, 3, 3)))
        nodes, right = confusion.sum(), confusion.diagonal(dim1=1, dim2=2).sum()
        loss = torch.tensor(rng.choice([0.0, 1.0, 1e9])) * nodes
        validation = torch.stack([nodes, right, loss])[None].double()
        return {"validation": validation, "test": torch.cat([validation, validation[:, :2]], 1), "confusion": confusion}

    replies = [released(settings, counts(), verb="evaluate") for _ in range(300)]
    largest = max(distance(one, other) for one in replies[:150] for other in replies[150:])
    assert largest <= 2 * 20.0
    assert max(distance(one, {name: 0 * value for name, value in one.items()}) for one in replies) > 0.99 * 20.0
    sample = counts()
    reply = released(settings, sample, verb="evaluate")
    assert float(reply["test"][0, 1] / reply["test"][0, 0]) == pytest.approx(
        float(sample["test"][0, 1] / sample["test"][0, 0]), abs=1e-3
    )


def test_counts_of_any_task_are_noised_by_their_declaration() -> None:
    """Sums are limited by the items of their own field, of either sign; fields of whole numbers or of sums alone are clipped."""
    declared = {
        "errors": CountField((3,), ("sum", "items", "sum")),
        "scores": CountField((2, 4), whole=True),
        "values": CountField((2,), "sum"),
        "unused": CountField((1,), ("items",)),
    }
    reply = {
        "errors": torch.tensor([[-1e9, 2.0, 5.0]], dtype=torch.float64),
        "scores": torch.ones(1, 2, 4, dtype=torch.int64),
        "values": torch.tensor([[3.0, -4.0]], dtype=torch.float64),
    }
    message = Message("evaluate", 1, 1, False, Parties([0]), {}, {})
    settings = NoiseSettings(evaluation_noise=2.0**-10, evaluation_clip=100.0)
    sent = Noise(settings, counts=declared)(message, reply, Draws(0, [0], "guard"))
    torch.testing.assert_close(sent["errors"], torch.tensor([[-6.0, 2.0, 5.0]], dtype=torch.float64), atol=1.0, rtol=0)
    torch.testing.assert_close(sent["scores"], torch.ones(1, 2, 4, dtype=torch.float64), atol=1.0, rtol=0)
    torch.testing.assert_close(sent["values"], reply["values"], atol=1.0, rtol=0)
    assert sent["scores"].shape == (1, 2, 4)
    assert not torch.equal(sent["scores"], sent["scores"].round())
    undeclared = Noise(settings)(message, reply, Draws(0, [0], "guard"))
    assert float(undeclared["errors"][0, 1].abs()) < 1.0  # the whole clip goes to the one sum


# What an attacker makes of it


def bound(one: NDArray[Any], other: NDArray[Any], delta: float, confidence: float = 1e-5) -> float:
    """The least ε that explains how well a threshold tells two inputs apart, with Clopper and Pearson's intervals.

    As in Jagielski et al. (NeurIPS 2020) and Nasr et al. (USENIX Security 2023): P(seen | one) ≤ e^ε·P(seen | other) + δ. The
    threshold is chosen on half of the releases and tried on the other half.
    """
    half = len(one) // 2
    levels = np.quantile(one[:half], np.linspace(0.001, 0.999, 200))
    hits = (one[:half, None] > levels).mean(0)
    errors = (other[:half, None] > levels).mean(0)
    level = levels[np.argmax(np.log(np.maximum(hits - delta, 1e-12)) - np.log(errors + 10 / half))]
    true, false, tries = (one[half:] > level).sum(), (other[half:] > level).sum(), len(one) - half
    least = stats.beta.ppf(confidence, true, tries - true + 1)
    most = stats.beta.ppf(1 - confidence, false + 1, tries - false)
    return math.log(max(least - delta, 1e-12) / most)


@pytest.mark.parametrize("unit", ["party", "row"])
@pytest.mark.parametrize("releases", [1, 5])
def test_an_attacker_does_no_better_than_epsilon(unit: str, releases: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The likelihood ratio of two farthest replies over all releases stays below the ε that is told; half the noise does not."""
    tries = 60_000
    settings = NoiseSettings(
        verb="fit", clip=0.7, noise=3.0 * math.sqrt(releases), protected_unit=unit, delta=0.01, noise_source="system"
    )
    shape = (1, tries, 2) if unit == "row" else (tries, 1, 2)  # every row, or every party, is a try of its own

    def attack() -> float:
        totals = []
        for sign in (1.0, -1.0):
            fields = {"a": torch.full(shape, sign), "b": torch.full(shape, sign)}
            seen = [released(settings, fields, call) for call in range(releases)]
            totals.append(sum((one["a"] + one["b"]).sum(-1).reshape(-1).numpy() for one in seen))
        return bound(totals[0], totals[1], settings.delta)

    told = epsilon_after(settings, releases)
    found = [attack() for _ in range(2)]  # the noise is the system's: one weak estimate is bad luck, two are a weak attack
    assert 0.3 * told < max(found) < told
    sample = sampling.discrete_gaussian
    monkeypatch.setattr(sampling, "discrete_gaussian", lambda owners, lanes: sample(owners, lanes) // 2)
    assert attack() > told


def test_the_last_digits_tell_nothing() -> None:
    """One release of floating-point noise tells a reply of zeros from one of norm C: numbers near zero are sums that lost digits.

    c + y with y ≈ −c is exact, so it is a multiple of half the unit in the last place of c; noise alone is finer there.
    """
    size = 1 << 16
    value = 1.0 / math.sqrt(size)
    unit = 2.0 ** (math.floor(math.log2(value)) - 24)

    def guess(reply: Tensor) -> bool:
        """Whether the reply is of norm C, by the numbers near zero."""
        near = reply[reply.abs() < value / 8].double().numpy() / unit
        return bool((near == np.rint(near)).all())

    for clip, sigma in ((1.0, 1.0), (0.9, 1.3)):
        settings = NoiseSettings(verb="fit", clip=clip, noise=sigma)
        right = 0
        for call in range(20):
            full = call % 2 == 0
            fields = {"a": torch.full((1, size), value * clip if full else 0.0)}
            right += guess(released(settings, fields, call)["a"] / clip) == full
        assert 5 <= right <= 15


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_leaves_is_on_one_grid_for_all_data(dtype: torch.dtype) -> None:
    """Every released number is that of a whole number of steps, whatever the reply was: also one that is not finite."""
    settings = NoiseSettings(verb="fit", clip=0.9, noise=1.3)
    step = 1.3 * 0.9 / SIGMA
    rng = np.random.default_rng(0)
    for scale in (0.0, 1e-12, 0.01, 1.0, 1e30, math.inf):
        reply = released(settings, {"a": torch.from_numpy(rng.normal(size=(2, 1000))).to(dtype) * scale})["a"]
        steps = torch.from_numpy(np.rint(reply.double().numpy() / step))
        assert torch.equal((steps * step).to(dtype), reply)
        assert float(reply.double().std()) == pytest.approx(1.3 * 0.9, rel=0.1)
