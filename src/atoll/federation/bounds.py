"""Checks of what arrives against what the verbs declare (see `declarations`), at the server and at the sites.

A party that sends something else is named with the field and the bound, and no other party is affected. A verb that declares
nothing (a user's own algorithm) gets the federation's general checks.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll.deferred import Deferred, dense
from atoll.errors import AtollError, PartyFailure, short
from atoll.federation.checks import flatten, misfit, out_of_range, rows_outside, type_name, wrong_scalar
from atoll.federation.declarations import Case, Free, Leaf, Scalar, flat
from atoll.federation.fields import row
from atoll.tasks import DEFAULT_TASK, TASKS, Task

if TYPE_CHECKING:
    from atoll.federation.cohort import Cohort
    from atoll.federation.messages import Message, Schema

DOMINANT = 0.9  # a party with more than this share of all weights is noted in the history
Expected = Mapping[str, Leaf | Scalar]


@dataclass(frozen=True)
class Rules:
    """The run's limits on what one party may claim; the names are those of the run's settings."""

    max_weight: int = 10**8
    max_share: float = 1.0
    max_nodes: int = 10**6


class Limits:
    """What the verbs of one run's cohorts take and give."""

    def __init__(
        self,
        cohort: type[Cohort],
        settings: Any,
        schema: Schema,
        rules: Rules | None = None,
        *,
        noised: str = "",
        fractions: str = "",
        task: Task | None = None,
    ) -> None:
        """`noised`: the verb whose replies are clipped and noised, so that they need only be finite. `fractions`: a verb all of
        whose fields are noised and arrive as fractions."""
        self.cohort, self.rules, self.noised, self.fractions = cohort, rules or Rules(), noised, fractions
        task = task or TASKS.find(DEFAULT_TASK)
        self.case = Case(settings, schema, self.rules.max_weight, self.rules.max_nodes, task)
        self.known: dict[tuple[str, str], Expected] = {}
        self.replies: dict[tuple[str, bool], dict[str, Leaf]] = {}

    # What a verb gives: checked by the server, and before masking by the party itself.

    def reply(self, message: Message) -> dict[str, Leaf] | None:
        """The fields of the reply to this message, by full name; None where the verb declares nothing."""
        secure = message.secure is not None
        kept = self.replies.get((message.verb, secure))
        if kept is not None:
            return kept
        expected = self._expected("gives", message)
        if expected is None:
            return None
        leaves = {name: leaf for name, leaf in expected.items() if isinstance(leaf, Leaf)}
        if secure:
            leaves = {f"{type_name(leaf.dtype)}/{name}": _masked(leaf) for name, leaf in leaves.items()}
        leaves = dict(sorted(leaves.items(), key=lambda item: bool(item[1].times)))  # weights before what they multiply
        if ("gives", message.verb) in self.known:  # the same for every message
            self.replies[message.verb, secure] = leaves
        return leaves

    def misfit(self, leaves: Mapping[str, Leaf], fields: Mapping[str, Any], parties: int) -> str:
        """What is wrong with the names, types or shapes of a reply of `parties` parties; empty where nothing is."""
        return misfit(leaves, dict(flatten(fields)), self.case.nodes, parties)

    def outliers(
        self, leaves: Mapping[str, Leaf], fields: Mapping[str, Any], parties: int, *, tell: bool = True
    ) -> dict[int, str]:
        """Rows of the parties with a number outside its range, and in which field; names and shapes fit.

        Without `tell` the number itself is not in the reason."""
        values = dict(flatten(fields))
        reasons: dict[int, str] = {}
        for name, leaf in leaves.items():
            value = values.get(name)
            if leaf.ragged:
                for index, rows in enumerate(value or []):
                    if rows_outside(rows[None], leaf, None):
                        reasons.setdefault(index, out_of_range(name, rows, leaf, tell=tell))
            elif isinstance(value, Tensor | Deferred):
                weights = values.get(leaf.times)
                for index in rows_outside(value, leaf, weights):
                    reasons.setdefault(index, out_of_range(name, row(value, index), leaf, weights is not None, tell=tell))
        return reasons

    def check_own(self, message: Message, fields: Mapping[str, Any], parties: int) -> None:
        """Refuse to mask a reply that is out of bounds, which the server could not see; the reason does not say by how much."""
        leaves = self.reply(replace(message, secure=None))
        if leaves is None:
            return
        if reason := self.misfit(leaves, fields, parties):
            raise PartyFailure(reason)
        for reason in self.outliers(leaves, fields, parties, tell=False).values():
            raise PartyFailure(reason)

    # Weights.

    def weight(self, leaves: Mapping[str, Leaf]) -> str:
        """The field that says how much a party counts; empty where there is none."""
        return next((name for name, leaf in leaves.items() if leaf.weight), "")

    def shares(self, leaves: Mapping[str, Leaf], fields: Mapping[str, Any]) -> Tensor | None:
        """(P,) each party's share of all weights; None where there are none, or one party alone."""
        weights = fields.get(self.weight(leaves))
        if not isinstance(weights, Tensor) or len(weights) < 2:
            return None
        return weights.double() / weights.sum().clamp(min=1)

    def dominant(self, leaves: Mapping[str, Leaf], fields: Mapping[str, Any]) -> tuple[int, float] | None:
        """The row of a party with more than `DOMINANT` of all weights, and its share."""
        weights = fields.get(self.weight(leaves))
        if not isinstance(weights, Tensor) or len(weights) < 2:
            return None
        largest, total = weights.max().item(), max(weights.sum().item(), 1)
        return (int(weights.argmax()), largest / total) if largest > DOMINANT * total else None

    def cut(self, leaves: Mapping[str, Leaf], fields: dict[str, Any]) -> dict[str, Any]:
        """The reply with no party's weight above `max_share` of all; fields that are multiplied by it are scaled with it."""
        shares, name = self.shares(leaves, fields), self.weight(leaves)
        most = max(self.rules.max_share, 1 / len(shares)) if shares is not None else 1.0
        if shares is None or not bool((shares > most).any()):
            return fields
        before = fields[name]
        after = torch.minimum(before, torch.tensor(int(_level(before, most))).to(before))
        factor = after.double() / before.clamp(min=1)
        groups = {leaf.group for leaf in leaves.values() if leaf.times == name}
        return {
            key: after if key == name else _scaled(value, factor) if key in groups else value for key, value in fields.items()
        }

    # What a verb takes: checked by a site before the verb runs.

    def arguments(self, message: Message, largest: int) -> None:
        """Refuse a message whose arguments are not the verb's, or whose reply would not fit into `largest` bytes."""
        method = self.cohort.verb_named(message.verb)
        given = {**message.common, **message.each}
        if twice := sorted(message.common.keys() & message.each.keys()):
            raise AtollError(f"{message.verb!r} is given {short(twice[0])!r} twice.")
        parameters = dict(list(inspect.signature(method).parameters.items())[1:])
        for name in given:
            if name not in parameters:
                raise AtollError(f"{message.verb!r} takes no argument {short(name)!r}.")
        expected = self._expected("takes", message)
        if expected is None:
            for name, parameter in parameters.items():
                if parameter.default is parameter.empty and name not in given:
                    raise AtollError(f"{message.verb!r} needs the argument {name!r}.")
            return
        self._check(message, expected)
        leaves = self.reply(message) or {}
        sizes = (math.prod(1 if isinstance(part, Free) else part for part in leaf.shape) for leaf in leaves.values())
        size = 4 * len(message.parties) * sum(sizes)
        if size > largest:
            raise AtollError(f"the reply to {message.verb!r} would have {size} bytes, more than the {largest} that are sent.")

    def _check(self, message: Message, expected: Expected) -> None:
        for values, parties in ((message.common, None), (message.each, len(message.parties))):
            here = {name: value for name, value in flatten(values) if value is not None}
            groups = {name.partition("/")[0] for name in here}
            parts = {name: what for name, what in expected.items() if name.partition("/")[0] in groups}
            tensors = {name: leaf for name, leaf in parts.items() if isinstance(leaf, Leaf)}
            scalars = {name: what for name, what in parts.items() if isinstance(what, Scalar)}
            reason = next((wrong_scalar(name, here[name], what) for name, what in scalars.items()), "")
            rest = {name: value for name, value in here.items() if name not in scalars}
            reason = reason or misfit(tensors, rest, self.case.nodes, parties)
            if not reason:
                one = rest if parties is not None else {name: value[None] for name, value in rest.items()}
                reason = next(iter(self.outliers(tensors, one, parties or 1).values()), "")
            if reason:
                raise AtollError(f"{message.verb!r} cannot be answered: {reason}.")
        there = {name.partition("/")[0] for name, value in {**message.common, **message.each}.items() if value is not None}
        for name, what in expected.items():
            if not what.optional and name.partition("/")[0] not in there:
                raise AtollError(f"{message.verb!r} needs the argument {name.partition('/')[0]!r}.")

    def _expected(self, kind: str, message: Message) -> Expected | None:
        declared = getattr(self.cohort.verb_named(message.verb), kind, None)
        if declared is None:
            return None
        if not callable(declared) and (kind, message.verb) in self.known:
            return self.known[kind, message.verb]
        case = self.case if not callable(declared) else replace(self.case, arguments={**message.common, **message.each})
        expected = flat(declared, case)
        if kind == "gives":
            expected = _weighted(expected, self.cohort.verb_named(message.verb).__dict__.get("averaged", {}))
        if kind == "gives" and message.verb == self.noised:
            expected = {name: _noised(leaf) if isinstance(leaf, Leaf) else leaf for name, leaf in expected.items()}
        if kind == "gives" and message.verb == self.fractions:
            doubled = {name: replace(leaf, dtype=torch.float64) for name, leaf in expected.items() if isinstance(leaf, Leaf)}
            expected = {name: _noised(leaf) for name, leaf in doubled.items()}
        if not callable(declared):
            self.known[kind, message.verb] = expected
        return expected


def _weighted(expected: Expected, averaged: Mapping[str, str]) -> dict[str, Leaf | Scalar]:
    """Fields that each party has multiplied by its weight: their range is for one unit of it."""
    single = {
        field: name for field, name in averaged.items() if name in expected and getattr(expected[name], "shape", None) == ()
    }
    return {
        name: replace(leaf, times=single[leaf.group]) if isinstance(leaf, Leaf) and leaf.group in single else leaf
        for name, leaf in expected.items()
    }


def _masked(leaf: Leaf) -> Leaf:
    return replace(leaf, dtype=torch.int64, low=None, high=None, times="", weight=False)


def _noised(leaf: Leaf) -> Leaf:
    """Fields that are not whole numbers are noised, and then have no range."""
    if not leaf.dtype.is_floating_point:
        return leaf
    largest = torch.finfo(leaf.dtype).max
    return replace(leaf, low=-largest, high=largest, times="")


def _scaled(value: Any, factor: Tensor) -> Any:
    if isinstance(value, Mapping):
        return {name: _scaled(item, factor) for name, item in value.items()}
    value = dense(value)
    return value * factor.view(-1, *[1] * (value.ndim - 1)).to(value)


def _level(weights: Tensor, most: float) -> float:
    """The cap under which the heaviest have at most that share of all: Σ min(n, cap)·most = cap."""
    ordered = weights.double().sort(descending=True).values
    for above in range(1, len(ordered)):
        rest = float(ordered[above:].sum())
        cap = most * rest / (1 - most * above) if most * above < 1 else math.inf
        if cap >= float(ordered[above]):
            return cap
    return math.inf
