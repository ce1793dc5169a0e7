"""Gaussian noise at the party: replies are clipped and noised before they leave, and their privacy cost is counted.

There are two neighboring relations:

- `party`: two federations that differ in everything one party holds. A party's reply as a whole is clipped to norm C.
- `row`: two federations that differ in one row of the reply (one node's representation, in all noised fields together),
  whatever it was computed from. It guarantees nothing for nodes whose neighbors' rows change with theirs.

Parties never join or leave, so neighbors are by substitution: a reply can move by 2·C, and noise of standard deviation σ·C is a
Gaussian mechanism of multiplier σ/2. Only the party's own noise counts, even if others add theirs under secure aggregation.

With a clip, what leaves is a point of a grid of step σ·C/2²⁰, the same grid for all data: the clipped reply is rounded toward
zero (which makes no norm larger) and discrete Gaussian noise is added to the integer number of steps. Everything done to it after
that (adding the model the server sent, multiplying by the weight `n`, which leaves in clear) depends on nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.deferred import Deferred, dense
from atoll.errors import AtollError
from atoll.parties import Parties
from atoll.privacy.discrete import SIGMA, shrinking, to_grid
from atoll.privacy.masking import SECURE_STEPS
from atoll.privacy.noise_settings import EVALUATE, NoiseSettings, cost_of
from atoll.privacy.releases import Releases
from atoll.privacy.sampling import draws_of, grid_samples, normal_samples
from atoll.random import Draws

WEIGHTS = ("n", "nodes")  # the number of training nodes: it leaves in clear
MAX_MEAN = 3.0  # of the items a party sums over, if counts are noised: a larger one would outweigh the other counts
MAX_CHUNK = 1 << 21  # numbers noised at once


class Request(Protocol):
    """What noise needs to know of the message being answered."""

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


class Counted(Protocol):
    """What noise needs to know of one field of an evaluation's counts."""

    @property
    def most(self) -> str | tuple[str, ...]:
        """What each number counts: "items", or "sum" or "real" for a sum of numbers; a tuple has one for each column."""
        ...


class Noise:
    """A guard that clips and noises the selected fields of one verb's replies and, if configured, the counts of `evaluate`.

    If the server sent a model (a dict of parameters) under the same name, the reply's difference from it is clipped, per unit of
    the weight `n` by which it was multiplied: the update, as in DP-FedAvg (McMahan et al., ICLR 2018).
    Counts are those that the task declares (`Task.fields`): a sum over items is limited by their number before it is noised.
    With `strict`, nothing leaves without noise except the weight and the steps of a secure total.
    """

    def __init__(
        self,
        settings: NoiseSettings,
        releases: Releases | None = None,
        counts: Mapping[str, Counted] | None = None,
        *,
        strict: bool = False,
    ) -> None:
        self.settings = settings
        self.counts = counts or {}
        self.releases = releases if releases is not None else Releases()
        self.strict = strict

    def __call__(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """The fields as they may leave the party."""
        if message.verb == self.settings.verb:
            return self._noise_reply(message, fields, draws)
        if message.verb == EVALUATE and self.settings.evaluation_noise:
            return self._noise_counts(message, fields, draws)
        if self.strict and fields and message.verb not in SECURE_STEPS:
            raise AtollError(f"this site lets nothing leave without noise, and the replies to {message.verb!r} have none.")
        return fields

    def _noise_reply(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        flat = dict(wire.leaves(fields))
        selected = self._selected(message, flat)
        if clear := [name for name in flat.keys() - selected.keys() if self.strict and not _is_weight(name, flat[name])]:
            raise AtollError(
                f"this site lets nothing leave without noise, and {min(clear)!r} in the replies to {message.verb!r} has none."
            )
        if not selected:
            return fields
        self.releases.spend(message.parties, self.settings.cost, message.verb, message.round)
        sent = {name: value for name, value in wire.leaves({**message.common, **message.each}) if "/" in name}
        weight = _weight(flat)
        moved = {name: self._difference(value.detach(), sent.get(name), weight) for name, value in selected.items()}
        for name, value in moved.items():
            if value.shape != selected[name].shape:  # rows would be clipped and noised one by one: many releases, not one
                raise AtollError(f"{name!r} was sent with a different shape than the reply has.")
        if not self.settings.clip:
            noised = {name: self._unclipped(name, value, draws) for name, value in moved.items()}
        elif self.settings.protected_unit == "party":
            noised = self._per_party(moved, draws, self.settings.clip, self.settings.noise)
        else:
            noised = self._per_row(moved, draws)
        restored = {name: self._restored(value, sent.get(name), weight) for name, value in noised.items()}
        return wire.nest({**flat, **restored})

    def _noise_counts(self, message: Request, fields: dict[str, Any], draws: Draws) -> dict[str, Any]:
        """A party's counts, scaled down together to the clip (which preserves their ratios) and noised; no longer integers."""
        self.releases.spend(message.parties, cost_of(self.settings.evaluation_noise), message.verb, message.round)
        flat = {name: dense(value).detach().double() for name, value in wire.leaves(fields)}
        flat |= {name: _limited(flat[name], counted.most) for name, counted in self.counts.items() if name in flat}
        return wire.nest(self._per_party(flat, draws, self.settings.evaluation_clip, self.settings.evaluation_noise))

    def _selected(self, message: Request, flat: Mapping[str, Any]) -> dict[str, Tensor]:
        """The fields to be noised; naming a missing one is an error, unless the message switched it off (`gradient=False`)."""
        wanted = self.settings.fields
        floating = {name: value for name, value in flat.items() if isinstance(value, Deferred) or value.is_floating_point()}
        names = list(dict.fromkeys(_first(name) for name in floating))
        unasked = [name for name, value in message.common.items() if value is False]
        wrong = [name for name in wanted if name not in names and name not in unasked]
        if wrong:
            available = ", ".join(names) or "nothing that can be noised"
            raise AtollError(f"dp.fields names {', '.join(wrong)}, but {message.verb!r} replies {available}.")
        if not wanted and not floating:
            raise AtollError(f"dp.verb is {message.verb!r}, which replies nothing that can be noised; name another verb.")
        return {name: dense(value) for name, value in floating.items() if not wanted or _first(name) in wanted}

    def _difference(self, value: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.protected_unit == "row":
            return value
        return (value / _axis(weight.clamp(min=1), value) if weight is not None else value) - sent

    def _restored(self, moved: Tensor, sent: Any, weight: Tensor | None) -> Tensor:
        if not isinstance(sent, Tensor) or self.settings.protected_unit == "row":
            return moved
        return (moved + sent) * _axis(weight, moved) if weight is not None else moved + sent

    def _per_party(self, moved: Mapping[str, Tensor], draws: Draws, clip: float, noise: float) -> dict[str, Tensor]:
        """Per party: everything of a party is one vector."""
        if any(name.endswith("]") for name in moved):
            raise AtollError(
                "dp.protected_unit=party cannot clip replies whose shape differs by party; use dp.protected_unit=row."
            )
        shaped = {name: value.reshape(len(value), 1, -1) for name, value in moved.items()}
        return self._noise_vectors(shaped, moved, draws, clip, noise)

    def _per_row(self, moved: Mapping[str, Tensor], draws: Draws) -> dict[str, Tensor]:
        """Per row: row i of all fields of a party is one vector. Fields are all (P, …), or all have one tensor per party."""
        groups: dict[str, dict[str, Tensor]] = {}  # index of a party (empty: all parties) → its fields
        for name, value in moved.items():
            index = name.rsplit("[", 1)[1][:-1] if name.endswith("]") else ""
            groups.setdefault(index, {})[name] = value
        result: dict[str, Tensor] = {}
        for index, fields in groups.items():
            shaped = {name: _rows_of_party(value) if index else _as_rows(value) for name, value in fields.items()}
            rows = {name: value.shape[1] for name, value in shaped.items()}
            if len(set(rows.values())) > 1 or ("" in groups and len(groups) > 1):
                counts = ", ".join(f"{name}: {count}" for name, count in list(rows.items())[:4])
                raise AtollError(
                    "dp.protected_unit=row clips row i of all fields together, but they have different numbers of rows "
                    f"({counts}); name those that belong together in dp.fields, or use dp.protected_unit=party."
                )
            local = draws_of(draws, int(index)) if index else draws
            result |= self._noise_vectors(shaped, fields, local, self.settings.clip, self.settings.noise)
        return {name: result[name] for name in moved}

    def _noise_vectors(
        self, shaped: Mapping[str, Tensor], like: Mapping[str, Tensor], draws: Draws, clip: float, noise: float
    ) -> dict[str, Tensor]:
        """(P, rows, w) fields side by side, each row of them clipped and noised as one vector; some parties at a time."""
        parties, rows, _ = next(iter(shaped.values())).shape
        widths = [value.shape[2] for value in shaped.values()]
        pieces: list[list[Tensor]] = [[] for _ in shaped]
        step = max(1, MAX_CHUNK // max(1, rows * sum(widths)))
        for start in range(0, parties, step):
            chunk = [value[start : start + step].to(torch.float64) for value in shaped.values()]
            vectors = torch.cat(chunk, 2).reshape(-1, sum(widths)).numpy()
            vectors = np.nan_to_num(vectors, nan=0.0, posinf=0.0, neginf=0.0)  # divergence of the training must not be visible
            if noise:
                samples = grid_samples(draws, self.settings.noise_source, start, len(chunk[0]), vectors.shape)
                vectors = (to_grid(vectors, clip, noise) + samples) * (noise * clip / SIGMA)
            else:
                vectors = vectors * shrinking(vectors, clip)
            for piece, part in zip(pieces, torch.split(torch.from_numpy(vectors), widths, 1), strict=True):
                piece.append(part)
        return {
            name: torch.cat(piece).reshape(value.shape).to(value.dtype)
            for piece, (name, value) in zip(pieces, like.items(), strict=True)
        }

    def _unclipped(self, name: str, value: Tensor, draws: Draws) -> Tensor:
        """The papers' noise, without a clip: it guarantees nothing, and consists of floating-point numbers."""
        party = int(name.rsplit("[", 1)[1][:-1]) if name.endswith("]") else None
        return value + self.settings.noise * normal_samples(draws, self.settings.noise_source, value.shape, party).to(value)


def _is_weight(name: str, value: Tensor) -> bool:
    """Whether a field is the number of training nodes: one number per party."""
    return name in WEIGHTS and value.ndim == 1


def _weight(flat: Mapping[str, Any]) -> Tensor | None:
    """The weight that leaves in clear beside the fields it was multiplied with."""
    weight = flat.get("n")
    if weight is not None and weight.is_floating_point():
        raise AtollError(
            "dp.verb names a verb whose weight 'n' is not a whole number: fields multiplied with it cannot be noised."
        )
    return weight


def _limited(counts: Tensor, most: str | tuple[str, ...]) -> Tensor:
    """(…, columns) each sum within `MAX_MEAN` times the items that the first such column counts; without one, as it is."""
    if isinstance(most, str) or "items" not in most:
        return counts
    limit = MAX_MEAN * counts[..., most.index("items"), None].abs()
    sums = torch.tensor([one != "items" for one in most])
    return torch.where(sums, counts.clamp(-limit, limit), counts)


def _as_rows(value: Tensor) -> Tensor:
    """(P, rows, w): the last axis is that of a row; a party's single vector or number is one row."""
    if value.ndim < 3:
        return value.reshape(len(value), 1, -1)
    return value.reshape(len(value), -1, value.shape[-1])


def _rows_of_party(value: Tensor) -> Tensor:
    """(1, rows, w) of one party's own tensor."""
    return value.reshape(1, -1, value.shape[-1] if value.ndim > 1 else 1)


def _first(name: str) -> str:
    return name.split("/", maxsplit=1)[0]


def _axis(values: Tensor, like: Tensor) -> Tensor:
    return values.view(-1, *[1] * (like.ndim - 1)).to(like)
