"""Gaussian noise at the party: replies are clipped and noised before they leave, and the privacy spent is counted.

Two neighbouring relations, named for what they are:

- `party`: two federations that differ in everything one party holds. A party's reply as a whole is clipped to norm C.
- `row`: two federations that differ in one row of the reply (one node's representation), whatever it was computed from.
  It says nothing of nodes whose neighbours' rows change with theirs.

Parties are always there, so neighbours are by substitution: a reply can move by 2·C, and noise of standard deviation σ·C is a
Gaussian mechanism of multiplier σ/2. Under secure aggregation the server sees only the sum of k noised replies: by row, σ·√k/2.
By party it stays σ/2: replies are weighted, their noise with them, and beside the heaviest the others' noise may be nothing.
Composition over the rounds is by Opacus' Rényi accountant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError
from atoll.privacy.secure import stream
from atoll.random import Draws
from atoll.settings import setting

if TYPE_CHECKING:
    from atoll.cohort import Message
    from atoll.ledger import Ledger


@dataclass(frozen=True)
class NoiseSettings:
    """What is noised, and how much; without a verb nothing is."""

    verb: str = setting("", "The verb whose replies are clipped and noised; empty means none.")
    fields: tuple[str, ...] = setting(
        (), "The fields of the reply, by their first name; empty means all that are not whole numbers."
    )
    clip: float = setting(
        1.0, "The norm C that a reply (or, by row, each row) is cut to; 0 cuts nothing and promises nothing.", low=0
    )
    noise: float = setting(1.0, "Standard deviation of the noise in units of the clip, or as it is without one.", low=0)
    unit: str = setting("party", "What is protected: everything of a party, or one row of the reply.", choices=("party", "row"))
    delta: float = setting(1e-5, "The δ of the (ε, δ) in the history.", low=1e-15, high=0.5)
    source: str = setting(
        "seed",
        "Where noise comes from: the run's seed (repeatable, but whoever knows the seed knows the noise) or the system.",
        choices=("seed", "system"),
    )


class Noise:
    """A guard: clips and noises the named fields of one verb's replies.

    Of a model (a dict of parameters) that the server sent under the same name, what is clipped is how far the reply moved from
    it, for each unit of the weight `n` it was multiplied by: the update, as in DP-FedAvg (McMahan et al., ICLR 2018).
    """

    def __init__(self, settings: NoiseSettings) -> None:
        self.settings = settings

    def __call__(self, message: Message, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """The fields as they may leave the party."""
        if message.verb != self.settings.verb:
            return fields
        flat = dict(wire.leaves(fields))
        chosen = self._chosen(message, flat)
        if not chosen:
            return fields
        sent = {name: value for name, value in wire.leaves({**message.common, **message.each}) if "/" in name}
        weight = flat.get("n")
        moved = {name: self._moved(value.detach(), sent.get(name), weight) for name, value in chosen.items()}
        factors = self._factors(moved)
        noised = {name: self._noised(name, value * factors[name], draws) for name, value in moved.items()}
        back = {name: self._back(value, sent.get(name), weight) for name, value in noised.items()}
        return wire.nest({**flat, **back})

    def _chosen(self, message: Message, flat: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The fields that are meant; one that is not there is a mistake, unless the message does without it: `gradient=False`."""
        meant = self.settings.fields
        able = {name: value for name, value in flat.items() if value.is_floating_point()}
        there = list(dict.fromkeys(_first(name) for name in able))
        unasked = [name for name, value in message.common.items() if value is False]
        wrong = [name for name in meant if name not in there and name not in unasked]
        if wrong:
            told = ", ".join(there) or "nothing that noise can be put on"
            raise AtollError(f"dp.fields names {', '.join(wrong)}, but {message.verb!r} replies {told}.")
        if not meant and not able:
            raise AtollError(f"dp.verb is {message.verb!r}, which replies nothing that noise can be put on; name another verb.")
        return {name: value for name, value in able.items() if not meant or _first(name) in meant}

    def _moved(self, value: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.unit == "row":
            return value
        return (value / _axis(weight, value) if weight is not None else value) - sent

    def _back(self, moved: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.unit == "row":
            return moved
        return (moved + sent) * _axis(weight, moved) if weight is not None else moved + sent

    def _factors(self, moved: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """How much each party's reply (or each row) is scaled down to have norm C at the most."""
        clip = self.settings.clip
        if not clip:
            return {name: torch.ones(()) for name in moved}
        if self.settings.unit == "row":
            norms = {name: value.norm(dim=-1, keepdim=True) if value.ndim > 1 else value.abs() for name, value in moved.items()}
            return {name: (clip / norm.clamp(min=1e-30)).clamp(max=1) for name, norm in norms.items()}
        if any(name.endswith("]") for name in moved):
            raise AtollError("dp.unit=party cannot clip replies whose shape differs by party; use dp.unit=row.")
        squares = torch.stack([value.reshape(len(value), -1).square().sum(1) for value in moved.values()]).sum(0)  # (P,)
        factor = (clip / squares.sqrt().clamp(min=1e-30)).clamp(max=1)
        return {name: _axis(factor, value) for name, value in moved.items()}

    def _noised(self, name: str, value: Tensor, draws: Draws) -> Tensor:
        deviation = self.settings.noise * (self.settings.clip or 1.0)
        if self.settings.source == "system":
            return value + deviation * system_normal(value.numel()).view(value.shape).to(value)
        if name.endswith("]"):  # the tensor of one party
            own = draws.generators[int(name.rsplit("[", 1)[1][:-1])]
            return value + deviation * torch.randn(value.shape, generator=own).to(value)
        return value + deviation * draws.normal(*value.shape[1:]).to(value)


class Accountant:
    """The (ε, δ) spent so far, if every call of the verb was a release: also by a party that answered them all."""

    def __init__(self, settings: NoiseSettings, *, secure: bool) -> None:
        if find_spec("opacus") is None:
            raise AtollError("Counting privacy needs the package opacus; install atoll[deploy].")
        self.settings, self.secure = settings, secure

    def epsilon(self, ledger: Ledger) -> float:
        """ε at the settings' δ, over all calls in the ledger; infinite without a clip or noise."""
        releases, fewest = ledger.calls.get(self.settings.verb, (0, 1))
        return epsilon(self.settings, releases, fewest if self.secure and self.settings.unit == "row" else 1)


def epsilon(settings: NoiseSettings, releases: int, together: int) -> float:
    """ε of so many releases; `together` is the number of noised replies of which only the sum is seen."""
    if not releases:
        return 0.0
    if not settings.noise or not settings.clip:
        return math.inf
    from opacus.accountants import RDPAccountant

    accountant = RDPAccountant()
    accountant.history = [(settings.noise * math.sqrt(together) / 2, 1.0, releases)]
    return float(accountant.get_epsilon(settings.delta))


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
