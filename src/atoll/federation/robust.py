"""Robust totals: averages of the parties' replies that a few lying parties cannot take over.

A verb declares which fields of its reply are multiplied by a weight (`@verb(averaged={"model": "n"})`). With a robust rule the
server divides each party's field by its weight, applies the rule to the quotients, and hands the algorithm the result as a
total whose weight is 1. Every party counts the same: the weight that a party reports decides only whether it counts.

- `median`, `trimmed`: of every coordinate, without the f largest and f smallest values (Yin et al., ICML 2018);
- `clipped`: the mean of the updates, none longer than a norm (Sun et al., 2019);
- `krum`, `multikrum`: the reply, or the mean of the k − f − 2 replies, nearest to the others (Blanchard et al., NeurIPS 2017;
  El Mhamdi et al., ICML 2018).

The server looks at single replies, as with `ask`. Fields that are not declared stay plain sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from atoll.errors import AtollError

RULES = ("none", "median", "trimmed", "clipped", "krum", "multikrum")


def needed(rule: str, liars: int) -> int:
    """The fewest replies among which the rule withstands that many liars."""
    return 2 * liars + (3 if rule in ("krum", "multikrum") else 1)


def check_algorithm(rule: str, algorithm: str, averaged: Mapping[str, Any], *, secure: bool) -> None:
    """Refuse a rule that has nothing to work on, because of the algorithm or of secure aggregation."""
    if rule == "none":
        return
    if secure:
        raise AtollError(f"robust={rule} compares single replies, which secure aggregation hides; leave out one of the two.")
    if not averaged:
        raise AtollError(
            f"robust={rule} is for sums of models, and {algorithm} has none that it could replace; leave robust out."
        )


@dataclass(frozen=True)
class Field:
    """One averaged field: its tensors by name, each party's mean along the first axis, and what updates are measured from."""

    values: dict[str, Tensor]  # (k, …); where a party does not count, the reference
    reference: dict[str, Tensor]  # (…) what the server sent, or 0
    weight: str

    @classmethod
    def of(cls, total: Any, weights: Tensor, weight: str, sent: Any) -> Field:
        """From a reply's field, which is multiplied by the weights (k, …)."""
        tensors: Mapping[str, Tensor] = total if isinstance(total, Mapping) else {"": total}
        given: Mapping[str, Any] = sent if isinstance(sent, Mapping) else {"": sent}
        values: dict[str, Tensor] = {}
        reference: dict[str, Tensor] = {}
        for name, value in tensors.items():
            around = given.get(name)
            fits = isinstance(around, Tensor) and around.shape == value.shape[1:]
            reference[name] = given[name] if fits else torch.zeros(value.shape[1:], dtype=value.dtype)
            divisor = _like(weights, value)
            values[name] = torch.where(divisor > 0, value / divisor, reference[name])
        return cls(values, reference, weight)

    def finite(self) -> Tensor:
        """(k,) the parties all of whose numbers are finite."""
        finite = [torch.isfinite(value).flatten(1).all(1) for value in self.values.values()]
        return torch.stack(finite).all(0)


@dataclass(frozen=True)
class Robust:
    """A rule, the number of liars it has to withstand, and the fields it is for: verb → field → weight."""

    rule: str
    liars: int
    norm: float  # `clipped`: the longest update; 0: the median of their lengths
    averaged: Mapping[str, Mapping[str, str]]

    def total(self, verb: str, fields: Mapping[str, Any], sent: Mapping[str, Any]) -> dict[str, Any]:
        """The replies' total, in which the averaged fields are the rule's result and their weights 1.

        A weight with further axes says for each row whether the party counts there (FedSpray: whether it has nodes of the
        class). A row for which too few parties count gets the weight 0.
        """
        weights = {weight: fields[weight] for weight in self.averaged[verb].values() if weight in fields}
        averaged = {
            name: Field.of(fields[name], weights[weight], weight, sent.get(name))
            for name, weight in self.averaged[verb].items()
            if name in fields and fields[name] is not None and len(fields[name])
        }
        present = self._present(verb, weights, averaged)
        result = {name: _sum(value) for name, value in fields.items() if name not in averaged and name not in weights}
        enough = {name: rows.sum(0) >= self._needed_rows() for name, rows in present.items()}
        for name, field in averaged.items():
            combined = self._combine(field, present[field.weight])
            shown = {key: torch.where(_like(enough[field.weight], value), value, 0) for key, value in combined.items()}
            result[name] = shown if isinstance(fields[name], Mapping) else shown[""]
        for name, weight in weights.items():
            result[name] = enough[name].to(weight.dtype)
        return {name: result.get(name, fields[name]) for name in fields}

    def _needed_rows(self) -> int:
        """How many parties must count for a row; Krum has selected the trusted ones by then."""
        return 1 if self.rule in ("krum", "multikrum") else needed(self.rule, self.liars)

    def _present(self, verb: str, weights: Mapping[str, Tensor], averaged: Mapping[str, Field]) -> dict[str, Tensor]:
        """For each weight (k, …) the parties that count: positive weight, finite numbers, selected where the rule selects."""
        counted = torch.ones(len(next(iter(weights.values()))), dtype=torch.bool)
        for weight in weights.values():
            counted = counted & (weight > 0) if weight.ndim == 1 else counted  # a party may have no say in some rows
        for field in averaged.values():
            counted = counted & field.finite()
        count = int(counted.sum())
        if count < needed(self.rule, self.liars):
            raise AtollError(
                f"robust={self.rule} with byzantine={self.liars} needs at least {needed(self.rule, self.liars)} replies to "
                f"{verb!r}, and {count} of {len(counted)} can be counted; lower byzantine, or have more parties answer."
            )
        if self.rule in ("krum", "multikrum"):
            members = counted.nonzero()[:, 0]
            scores = krum_scores(distances([field.values for field in averaged.values()], members), self.liars)
            selected = 1 if self.rule == "krum" else count - self.liars - 2
            counted = torch.zeros_like(counted).index_fill_(0, members[scores.argsort(stable=True)[:selected]], True)
        return {name: (weight > 0) & _like(counted, weight) for name, weight in weights.items()}

    def _combine(self, field: Field, present: Tensor) -> dict[str, Tensor]:
        if self.rule == "median":
            return {name: trimmed_mean(value, present, None) for name, value in field.values.items()}
        if self.rule == "trimmed":
            return {name: trimmed_mean(value, present, self.liars) for name, value in field.values.items()}
        if self.rule == "clipped":
            return clipped_mean(field, present, self.norm)
        return {name: mean(value, present) for name, value in field.values.items()}


class RobustSettings(Protocol):
    """The settings of a run that choose a robust total."""

    @property
    def robust(self) -> str:
        """The rule; `none` is the plain mean."""

    @property
    def byzantine(self) -> int:
        """How many parties may lie."""

    @property
    def robust_norm(self) -> float:
        """The longest update of `clipped`."""

    @property
    def participation(self) -> float:
        """The share of parties in a round."""


def make(settings: RobustSettings, averaged: Mapping[str, Mapping[str, str]], parties: int) -> Robust | None:
    """The rule that the settings choose, if there are enough parties for it; None is the plain mean."""
    rule, liars = settings.robust, settings.byzantine
    if rule == "none":
        return None
    count = max(1, round(min(settings.participation, 1) * parties))
    if count < needed(rule, liars):
        raise AtollError(
            f"robust={rule} with byzantine={liars} needs at least {needed(rule, liars)} parties in a round, and there are "
            f"{count}; lower byzantine, or take more parties."
        )
    return Robust(rule, liars, settings.robust_norm, averaged)


def mean(values: Tensor, present: Tensor) -> Tensor:
    """(k, …) → (…): the mean over the parties present; 0 where there is none."""
    shown = _like(present, values)
    return torch.where(shown, values, 0).sum(0) / shown.sum(0).clamp(min=1)


def trimmed_mean(values: Tensor, present: Tensor, trim: int | None) -> Tensor:
    """(k, …) → (…): per coordinate the mean without its `trim` smallest and largest values; None leaves the median."""
    shown = _like(present, values)
    count = shown.sum(0)
    least = ((count - 1) // 2).clamp(min=0) if trim is None else torch.tensor(trim)
    ordered = values.masked_fill(~shown, torch.inf).sort(0).values
    rank = torch.arange(len(values)).view(-1, *[1] * (values.ndim - 1))
    kept = (rank >= least) & (rank < count - least)
    return torch.where(kept, ordered, 0).sum(0) / kept.sum(0).clamp(min=1)


def clipped_mean(field: Field, present: Tensor, norm: float) -> dict[str, Tensor]:
    """The reference and the mean of the updates from it, those longer than `norm` (0: the median length) shortened to it."""
    updates = {name: value - field.reference[name] for name, value in field.values.items()}
    lengths = torch.stack([update.double().flatten(1).square().sum(1) for update in updates.values()]).sum(0).sqrt()
    counted = present.flatten(1).any(1) if present.ndim > 1 else present
    longest = trimmed_mean(lengths, counted, None) if norm == 0 else torch.tensor(norm, dtype=lengths.dtype)
    shares = torch.where(lengths > longest, longest / lengths, 1.0).float()
    return {name: field.reference[name] + mean(update * _like(shares, update), present) for name, update in updates.items()}


def distances(fields: list[dict[str, Tensor]], members: Tensor) -> Tensor:
    """(m, m) squared distances between the members' replies, over all fields together."""
    total = torch.zeros(len(members), len(members), dtype=torch.float64)
    for values in fields:
        for value in values.values():
            rows = value[members].flatten(1).double()
            total += torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").square()
    return total


def krum_scores(squares: Tensor, liars: int) -> Tensor:
    """(m,) for each reply the sum of its squared distances to the m − f − 2 others that are nearest."""
    count = len(squares)
    others = squares + torch.diag(torch.full((count,), torch.inf, dtype=squares.dtype))
    return others.sort(1).values[:, : count - liars - 2].sum(1)


def _like(weights: Tensor, value: Tensor) -> Tensor:
    """Weights with trailing axes of length 1, to be broadcast with a value whose first axes are theirs."""
    return weights.view(*weights.shape, *[1] * (value.ndim - weights.ndim))


def _sum(value: Any) -> Any:
    return {name: _sum(item) for name, item in value.items()} if isinstance(value, Mapping) else value.sum(0)
