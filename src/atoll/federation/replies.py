"""The parties' replies at the server: one row per party, checked for one common form, and their sums."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.deferred import Deferred
from atoll.federation.bounds import Limits
from atoll.federation.declarations import Free, Leaf
from atoll.federation.fields import Fields, row, sum_over_parties
from atoll.federation.messages import Answer
from atoll.parties import Parties


class Replies(Mapping[int, Fields]):
    """The parties' replies by party; `stack` gives one field of all of them along a party axis, in party order."""

    def __init__(self, parties: Sequence[int], fields: Fields) -> None:
        self.parties = Parties(parties)
        self.fields = fields

    def __getitem__(self, party: int) -> Fields:
        index = self.parties.index(party)
        return {name: row(value, index) for name, value in self.fields.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    @property
    def index(self) -> Tensor:
        """(P,) the numbers of the parties that answered."""
        return torch.tensor(self.parties.numbers)

    def stack(self, field: str) -> Any:
        """(P, …) or a dict of such; a list where the parties' tensors differ in shape."""
        return self.fields[field]

    def total(self, *, scatter: str = "", size: int = 0, weights: Sequence[float] | None = None) -> Fields:
        """The sum of the replies over the parties, in their order.

        Fields with one tensor per party are summed by scatter-add: `scatter` names the field with each party's row numbers,
        `size` is the number of rows of the sums, and each party's rows are multiplied by its weight. The sums of
        the weights on each row replace the row numbers.
        """
        weights = [1.0] * len(self) if weights is None else weights
        index = self.fields.get(scatter, [])
        sums: Fields = {}
        for name, value in self.fields.items():
            if not isinstance(value, list):
                sums[name] = sum_over_parties(value)
            elif name == scatter:
                sums[name] = scatter_add([torch.ones(len(rows)) for rows in index], index, size, weights)
            else:
                sums[name] = scatter_add(value, index, size, weights)
        return sums


def scatter_add(values: Sequence[Tensor], index: Sequence[Tensor], size: int, weights: Sequence[float]) -> Tensor:
    """(size, …): the weighted rows of every party, added up where its row numbers say."""
    total = torch.zeros(size, *values[0].shape[1:])
    for rows, numbers, weight in zip(values, index, weights, strict=True):
        total.index_add_(0, numbers, rows * weight)
    return total


def answering(answers: Sequence[Answer]) -> Parties:
    """The parties of some answers, one answer after the other."""
    if len(answers) == 1:
        return answers[0].parties
    return Parties(np.concatenate([np.empty(0, np.int64), *(answer.parties.numbers for answer in answers)]))


def agreeing(answers: list[Answer]) -> tuple[list[Answer], dict[int, str]]:
    """Answers of the most common form, and for the parties whose answer has another one what differs."""
    forms = [_form(answer.fields) for answer in answers]
    usual = dict(Counter(forms).most_common(1)[0][0])
    kept: list[Answer] = []
    odd: dict[int, str] = {}
    for answer, form in zip(answers, forms, strict=True):
        differing = [
            f"field {name!r} is {dict(form).get(name)}, expected {usual.get(name)}"
            for name in sorted(dict(form).keys() | usual.keys())
            if dict(form).get(name) != usual.get(name)
        ]
        if differing:
            odd |= dict.fromkeys(answer.parties, differing[0])
        else:
            kept.append(answer)
    return kept, odd


def fitting(
    limits: Limits | None, answers: list[Answer], declared: Mapping[str, Leaf] | None
) -> tuple[list[Answer], dict[int, str]]:
    """Answers with the names, types and shapes declared, and what is wrong with the others."""
    odd: dict[int, str] = {}
    if declared is None or limits is None:
        return agreeing(answers) if len(answers) > 1 else (answers, odd)
    kept = []
    for answer in answers:
        reason = limits.misfit(declared, answer.fields, len(answer.parties))
        odd |= dict.fromkeys(answer.parties, reason) if reason else {}
        kept += [] if reason else [answer]
    if len(kept) > 1 and any(isinstance(part, Free) and not leaf.ragged for leaf in declared.values() for part in leaf.shape):
        kept, others = agreeing(kept)  # a number of rows that the declaration leaves open
        odd |= others
    return _without_partial(kept, declared), odd


def _without_partial(answers: list[Answer], declared: Mapping[str, Leaf]) -> list[Answer]:
    """The answers without optional fields that some of them do not have: nobody is left out for leaving one out."""
    optional = {name for name, leaf in declared.items() if leaf.optional}
    if len(answers) < 2 or not optional:
        return answers
    here = [{name for name, _ in wire.leaves(answer.fields)} for answer in answers]
    dropped = {name for name in optional if not all(name in names for names in here)}
    if not any(dropped & names for names in here):
        return answers
    return [
        Answer(answer.parties, wire.nest({name: value for name, value in wire.leaves(answer.fields) if name not in dropped}))
        for answer in answers
    ]


def outliers(limits: Limits | None, fields: Fields, parties: int, declared: Mapping[str, Leaf] | None) -> dict[int, str]:
    """Rows of the parties whose numbers are out of range, or not finite where nothing is declared."""
    if declared is None or limits is None or not parties:
        return not_finite(fields, parties)
    return limits.outliers(declared, fields, parties)


def _form(fields: Fields) -> tuple[Any, ...]:
    """Names, types and shapes of a reply without its party axis."""
    described: dict[str, Any] = {}
    for name, value in wire.leaves(fields):
        ragged = name.endswith("]")
        described[name.rsplit("/[", 1)[0]] = (str(value.dtype), "ragged" if ragged else tuple(value.shape[1:]))
    return tuple(sorted(described.items()))


def not_finite(fields: Fields, parties: int) -> dict[int, str]:
    """Rows of the parties whose reply holds a number that is not finite, and in which field."""
    reasons: dict[int, str] = {}
    for name, value in wire.leaves(fields):
        if isinstance(value, Deferred):
            if bool(torch.isfinite(value.probe())):
                continue
            value = value.dense()
        if not value.is_floating_point() or value.numel() == 0:
            continue
        if name.endswith("]"):
            if not bool(torch.isfinite(value).all()):
                reasons.setdefault(int(name.rsplit("[", 1)[1][:-1]), f"field {name!r} is not finite")
        elif not bool(torch.isfinite(value.sum())):  # one pass; look closer only where the sum is off
            for index in (~torch.isfinite(value).reshape(parties, -1).all(1)).nonzero()[:, 0].tolist():
                reasons.setdefault(index, f"field {name!r} is not finite")
    return reasons


def advice(failed: Mapping[int, str]) -> str:
    """What to do where every party's numbers went out of bounds at once: the training diverges."""
    diverged = bool(failed) and all("is not finite" in reason or ", beyond " in reason for reason in failed.values())
    return ": the training diverges; lower lr, or scale the features" if diverged else ""
