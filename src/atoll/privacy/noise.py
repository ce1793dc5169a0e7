"""Gaussian noise at the party: replies are clipped and noised before they leave, and what they cost is counted.

Two neighbouring relations, named for what they are:

- `party`: two federations that differ in everything one party holds. A party's reply as a whole is clipped to norm C.
- `row`: two federations that differ in one row of the reply (one node's representation, in all noised fields together),
  whatever it was computed from. It says nothing of nodes whose neighbours' rows change with theirs.

Parties are always there, so neighbours are by substitution: a reply can move by 2·C, and noise of standard deviation σ·C is a
Gaussian mechanism of multiplier σ/2. It counts on the party's own noise alone, whoever else adds some under secure aggregation.

With a clip, what leaves is a point of a grid of step σ·C/2²⁰, the same grid for all data: the clipped reply is rounded towards
zero (which makes no norm longer) and discrete Gaussian noise is added to the whole number of steps. What is done to it then,
adding the model the server sent and multiplying with the weight `n` that leaves in clear, depends on nothing else.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from atoll import wire
from atoll.deferred import Deferred, dense
from atoll.errors import AtollError
from atoll.parties import Parties
from atoll.privacy.discrete import SIGMA, Lanes, discrete_gaussian, seeded_words, shrinking, system_words, to_grid
from atoll.privacy.masking import SECURE_STEPS, stream
from atoll.privacy.releases import Releases, epsilon_of
from atoll.random import Draws
from atoll.settings import setting

EVALUATE = "evaluate"  # the verb that replies counts
WEIGHTS = ("n", "nodes")  # the number of training nodes: it leaves in clear
MAX_MEAN_LOSS = 3.0  # a party's mean loss, where counts are noised: a larger one would crowd the other counts out
MIN_NOISE = 2.0**-10  # below, whole numbers of steps would not fit 64 bits when squared; ε is above a million by then
MIN_CLIP = 1e-30  # below, squares would vanish in double precision
CHUNK = 1 << 21  # numbers noised at once


class Request(Protocol):
    """What noise needs to know of the message that is answered."""

    @property
    def verb(self) -> str:
        """The verb that was called."""
        ...

    @property
    def round(self) -> int:
        """The round of the call."""
        ...

    @property
    def parties(self) -> Parties:
        """The parties that answer."""
        ...

    @property
    def common(self) -> Mapping[str, Any]:
        """Arguments that went to every party."""
        ...

    @property
    def each(self) -> Mapping[str, Any]:
        """Arguments with a leading party axis."""
        ...


@dataclass(frozen=True)
class NoiseSettings:
    """What is noised, and how much; without a verb nothing is."""

    verb: str = setting("", "The verb whose replies are clipped and noised; empty means none.")
    fields: tuple[str, ...] = setting(
        (), "The fields of the reply, by their first name; empty means all that are not whole numbers."
    )
    clip: float = setting(
        1.0, "The norm C that a reply (or, by row, each row) is cut to; 0 cuts nothing and promises nothing.", low=0, high=1e30
    )
    noise: float = setting(
        1.0, "Standard deviation of the noise in units of the clip, or as it is without one.", low=0, high=1e12
    )
    unit: str = setting("party", "What is protected: everything of a party, or one row of the reply.", choices=("party", "row"))
    delta: float = setting(1e-5, "The δ of the (ε, δ) in the history.", low=1e-15, high=0.5)
    source: str = setting(
        "seed",
        "Where noise comes from: the run's seed (repeatable, but whoever knows the seed knows the noise) or the system.",
        choices=("seed", "system"),
    )
    evaluation: float = setting(
        0.0, "Noise on each party's evaluation counts, in units of evaluation_clip; 0 leaves them as they are.", low=0, high=1e12
    )
    evaluation_clip: float = setting(1.0, "The norm that each party's evaluation counts are scaled down to.", low=1e-6, high=1e12)

    def __post_init__(self) -> None:
        for name, value in (("noise", self.noise if self.clip else 0.0), ("evaluation", self.evaluation)):
            if 0 < value < MIN_NOISE:
                raise AtollError(f"dp.{name} is {value:g}, which hides nothing; use at least {MIN_NOISE:g}, or 0 for none.")
        if 0 < self.clip < MIN_CLIP:
            raise AtollError(f"dp.clip is {self.clip:g}, which leaves nothing; use at least {MIN_CLIP:g}, or 0 for no clip.")
        if self.evaluation and self.verb == EVALUATE:
            raise AtollError("dp.evaluation noises the replies of 'evaluate' already; let dp.verb name another verb.")

    @property
    def active(self) -> bool:
        """Whether anything is noised."""
        return bool(self.verb or self.evaluation)

    @property
    def cost(self) -> float:
        """ρ of one reply of the verb; infinite without a clip or noise."""
        return _cost(self.noise) if self.clip else math.inf


class Noise:
    """A guard: clips and noises the named fields of one verb's replies, and the counts of `evaluate` where that is asked for.

    Of a model (a dict of parameters) that the server sent under the same name, what is clipped is how far the reply moved from
    it, for each unit of the weight `n` it was multiplied by: the update, as in DP-FedAvg (McMahan et al., ICLR 2018).
    `strict` lets nothing leave that is not noised, but for the weight and the steps of a secure total.
    """

    def __init__(self, settings: NoiseSettings, releases: Releases | None = None, *, strict: bool = False) -> None:
        self.settings = settings
        self.releases = releases if releases is not None else Releases()
        self.strict = strict

    def __call__(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """The fields as they may leave the party."""
        if message.verb == self.settings.verb:
            return self._verb(message, fields, draws)
        if message.verb == EVALUATE and self.settings.evaluation:
            return self._counts(message, fields, draws)
        if self.strict and fields and message.verb not in SECURE_STEPS:
            raise AtollError(f"this site lets nothing leave without noise, and the replies to {message.verb!r} have none.")
        return fields

    def _verb(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        flat = dict(wire.leaves(fields))
        chosen = self._chosen(message, flat)
        if clear := [name for name in flat.keys() - chosen.keys() if self.strict and not _is_weight(name, flat[name])]:
            raise AtollError(
                f"this site lets nothing leave without noise, and {min(clear)!r} in the replies to {message.verb!r} has none."
            )
        if not chosen:
            return fields
        self.releases.spend(message.parties, self.settings.cost, message.verb, message.round)
        sent = {name: value for name, value in wire.leaves({**message.common, **message.each}) if "/" in name}
        weight = _weight(flat)
        moved = {name: self._moved(value.detach(), sent.get(name), weight) for name, value in chosen.items()}
        for name, value in moved.items():
            if value.shape != chosen[name].shape:  # each row would be clipped and noised for itself: many replies for one
                raise AtollError(f"{name!r} was sent in another shape than it is replied in.")
        if not self.settings.clip:
            noised = {name: self._unbounded(name, value, draws) for name, value in moved.items()}
        elif self.settings.unit == "party":
            noised = self._parties(moved, draws, self.settings.clip, self.settings.noise)
        else:
            noised = self._rows(moved, draws)
        back = {name: self._back(value, sent.get(name), weight) for name, value in noised.items()}
        return wire.nest({**flat, **back})

    def _counts(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """A party's counts, scaled down together to the clip (ratios stay as they are) and noised: fractions from here on."""
        self.releases.spend(message.parties, _cost(self.settings.evaluation), message.verb, message.round)
        flat = {name: value.detach().double() for name, value in wire.leaves(fields)}
        for name in flat.keys() & {"validation", "test"}:
            nodes, right, loss = flat[name].unbind(1)[:3]
            capped = torch.minimum(loss, MAX_MEAN_LOSS * nodes)
            flat[name] = torch.cat([torch.stack([nodes, right, capped], 1), flat[name][:, 3:]], 1)
        return wire.nest(self._parties(flat, draws, self.settings.evaluation_clip, self.settings.evaluation))

    def _chosen(self, message: Request, flat: Mapping[str, Any]) -> dict[str, Tensor]:
        """The fields that are meant; one that is not there is a mistake, unless the message does without it: `gradient=False`."""
        meant = self.settings.fields
        able = {name: value for name, value in flat.items() if isinstance(value, Deferred) or value.is_floating_point()}
        there = list(dict.fromkeys(_first(name) for name in able))
        unasked = [name for name, value in message.common.items() if value is False]
        wrong = [name for name in meant if name not in there and name not in unasked]
        if wrong:
            told = ", ".join(there) or "nothing that noise can be put on"
            raise AtollError(f"dp.fields names {', '.join(wrong)}, but {message.verb!r} replies {told}.")
        if not meant and not able:
            raise AtollError(f"dp.verb is {message.verb!r}, which replies nothing that noise can be put on; name another verb.")
        return {name: dense(value) for name, value in able.items() if not meant or _first(name) in meant}

    def _moved(self, value: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.unit == "row":
            return value
        return (value / _axis(weight.clamp(min=1), value) if weight is not None else value) - sent

    def _back(self, moved: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.unit == "row":
            return moved
        return (moved + sent) * _axis(weight, moved) if weight is not None else moved + sent

    def _parties(self, moved: Mapping[str, Tensor], draws: Draws, clip: float, noise: float) -> dict[str, Tensor]:
        """By party: everything of a party is one vector."""
        if any(name.endswith("]") for name in moved):
            raise AtollError("dp.unit=party cannot clip replies whose shape differs by party; use dp.unit=row.")
        return self._joined({name: value.reshape(len(value), 1, -1) for name, value in moved.items()}, moved, draws, clip, noise)

    def _rows(self, moved: Mapping[str, Tensor], draws: Draws) -> dict[str, Tensor]:
        """By row: row i of all fields of a party is one vector. Fields are all (P, …), or all have a tensor for each party."""
        groups: dict[str, dict[str, Tensor]] = {}  # the place of a party, or nothing for all of them → its fields
        for name, value in moved.items():
            place = name.rsplit("[", 1)[1][:-1] if name.endswith("]") else ""
            groups.setdefault(place, {})[name] = value
        result: dict[str, Tensor] = {}
        for place, fields in groups.items():
            shaped = {name: _own_rows(value) if place else _as_rows(value) for name, value in fields.items()}
            rows = {name: value.shape[1] for name, value in shaped.items()}
            if len(set(rows.values())) > 1 or ("" in groups and len(groups) > 1):
                told = ", ".join(f"{name}: {count}" for name, count in list(rows.items())[:4])
                raise AtollError(
                    f"dp.unit=row clips row i of all fields together, but they have different numbers of rows ({told}); "
                    "name those that belong together in dp.fields, or use dp.unit=party."
                )
            own = _one(draws, int(place)) if place else draws
            result |= self._joined(shaped, fields, own, self.settings.clip, self.settings.noise)
        return {name: result[name] for name in moved}

    def _joined(
        self, shaped: Mapping[str, Tensor], like: Mapping[str, Tensor], draws: Draws, clip: float, noise: float
    ) -> dict[str, Tensor]:
        """(P, rows, w) fields side by side, every row of them clipped and noised as one vector; whole parties at a time."""
        parties, rows, _ = next(iter(shaped.values())).shape
        widths = [value.shape[2] for value in shaped.values()]
        pieces: list[list[Tensor]] = [[] for _ in shaped]
        step = max(1, CHUNK // max(1, rows * sum(widths)))
        for start in range(0, parties, step):
            chunk = [value[start : start + step].to(torch.float64) for value in shaped.values()]
            vectors = torch.cat(chunk, 2).reshape(-1, sum(widths)).numpy()
            vectors = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)  # whether training diverged must not show
            if noise:
                steps = to_grid(vectors, clip, noise) + self._samples(draws, start, len(chunk[0]), vectors.shape)
                vectors = steps * (noise * clip / SIGMA)
            else:
                vectors = vectors * shrinking(vectors, clip)
            for piece, part in zip(pieces, torch.split(torch.from_numpy(vectors), widths, 1), strict=True):
                piece.append(part)
        return {
            name: torch.cat(piece).reshape(value.shape).to(value.dtype)
            for piece, (name, value) in zip(pieces, like.items(), strict=True)
        }

    def _samples(self, draws: Draws, first: int, parties: int, shape: tuple[int, ...]) -> NDArray[np.int64]:
        """Noise for some parties' vectors, in steps of the grid."""
        count = math.prod(shape)
        if self.settings.source == "system":
            owners, lanes = np.zeros(count, np.int64), Lanes([system_words], count)
        else:
            owners = np.repeat(np.arange(parties), count // max(parties, 1))
            lanes = Lanes([seeded_words(bits) for bits in draws.bits[first : first + parties]], count // max(parties, 1))
        return discrete_gaussian(owners, lanes).reshape(shape)

    def _unbounded(self, name: str, value: Tensor, draws: Draws) -> Tensor:
        """The papers' noise, without a clip: it promises nothing, and is made of floating-point numbers."""
        deviation = self.settings.noise
        if self.settings.source == "system":
            return value + deviation * system_normal(value.numel()).view(value.shape).to(value)
        if name.endswith("]"):  # the tensor of one party
            own = draws.generators[int(name.rsplit("[", 1)[1][:-1])]
            return value + deviation * torch.randn(value.shape, generator=own).to(value)
        return value + deviation * draws.normal(*value.shape[1:]).to(value)


def epsilon(settings: NoiseSettings, releases: int) -> float:
    """ε of so many replies of the verb."""
    return epsilon_of(releases * settings.cost if releases else 0.0, settings.delta)


def _cost(noise: float) -> float:
    """ρ = (2·C)² / 2·(noise·C)²."""
    return 2.0 / noise**2 if noise else math.inf


def _is_weight(name: str, value: Tensor) -> bool:
    """Whether a field is the number of training nodes: one number a party."""
    return name in WEIGHTS and value.ndim == 1


def _weight(flat: Mapping[str, Any]) -> Tensor | None:
    """The weight that leaves in clear beside what it was multiplied with."""
    weight = flat.get("n")
    if weight is not None and weight.is_floating_point():
        raise AtollError(
            "dp.verb names a verb whose weight 'n' is not a whole number: what was multiplied with it cannot be noised."
        )
    return weight


def _as_rows(value: Tensor) -> Tensor:
    """(P, rows, w): the last axis is a row's, and a party's single vector or number is one row."""
    if value.ndim < 3:
        return value.reshape(len(value), 1, -1)
    return value.reshape(len(value), -1, value.shape[-1])


def _own_rows(value: Tensor) -> Tensor:
    """(1, rows, w) of one party's own tensor."""
    return value.reshape(1, -1, value.shape[-1] if value.ndim > 1 else 1)


def _one(draws: Draws, place: int) -> Draws:
    """The draws of one party alone."""
    result = object.__new__(Draws)
    result.generators, result.bits = [draws.generators[place]], [draws.bits[place]]
    return result


def _first(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _axis(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1)).to(like)


def system_normal(count: int) -> Tensor:
    """Standard normal numbers that nobody can foresee: ChaCha20 under a key of the system's, by Box and Muller's formula."""
    words = stream(os.urandom(16), "noise", 2 * -(-count // 2)).reshape(2, -1)
    unit = (torch.from_numpy((words >> np.uint64(11)).astype(np.float64)) + 1) * 2.0**-53  # (0, 1]
    radius, angle = (-2 * unit[0].log()).sqrt(), 2 * math.pi * unit[1]
    return torch.cat([radius * angle.cos(), radius * angle.sin()])[:count]
