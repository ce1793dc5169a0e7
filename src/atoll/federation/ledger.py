"""The ledger: every byte that passed between the server and the parties, by round, verb, direction and party."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from atoll import wire
from atoll.deferred import Deferred

MAX_DETAILED = 1024  # parties up to which every round's bytes are kept per party; beyond, only their sum
COLUMNS = ("up", "down", "wire_up", "wire_down", "messages")


class Ledger:
    """Payload bytes (tensor data, what papers count), wire bytes and messages; training apart from evaluation.

    `up` is from the parties to the server, `down` from the server to the parties; a message and its reply count as one.
    """

    def __init__(self, parties: int) -> None:
        self.parties = parties
        self._alike = np.zeros(len(COLUMNS), np.int64)  # of many parties: what every one of them has
        self._apart = np.zeros((parties, len(COLUMNS)), np.int64) if parties <= MAX_DETAILED else None  # what each has
        self.rounds: dict[int, dict[tuple[str, bool], np.ndarray]] = {}  # round → (verb, training) → (P or 1, columns)
        self.seconds: dict[int, float] = {}  # round → what its training messages would take, where there is a network model

    @property
    def by_party(self) -> np.ndarray:
        """(P, columns) of training, all rounds together."""
        return np.broadcast_to(self._alike, (self.parties, len(COLUMNS))) if self._apart is None else self._apart

    def record(self, round: int, verb: str, training: bool, parties: Sequence[int], **bytes: int | np.ndarray) -> None:
        """Add what some parties sent or received; a number stands for each of them, an array for one after the other."""
        rows: Any = slice(None) if len(parties) == self.parties else np.asarray(parties, dtype=np.int64)
        detailed = self.parties <= MAX_DETAILED
        tables = self.rounds.setdefault(round, {})
        table = tables.get((verb, training))
        if table is None:
            table = tables[verb, training] = np.zeros((self.parties if detailed else 1, len(COLUMNS)), np.int64)
        for name, count in bytes.items():
            column = COLUMNS.index(name)
            if training:
                self._add(rows, column, count)
            if detailed:
                table[rows, column] += count
            else:
                table[0, column] += int(np.sum(count)) if np.ndim(count) else len(parties) * int(count)

    def _add(self, rows: Any, column: int, count: int | np.ndarray) -> None:
        if self._apart is None and isinstance(rows, slice) and not np.ndim(count):
            self._alike[column] += count
            return
        if self._apart is None:
            self._apart = self.by_party.copy()
        self._apart[rows, column] += count

    def wait(self, round: int, seconds: float) -> None:
        """Add what an exchange would take on the modeled network."""
        self.seconds[round] = self.seconds.get(round, 0.0) + seconds

    def total(self, *, round: int | None = None, verb: str | None = None, training: bool = True) -> dict[str, int]:
        """Sums over all parties, of one round or verb or of all."""
        sums = np.zeros(len(COLUMNS), dtype=np.int64)
        for rows in self.rounds.values() if round is None else [self.rounds.get(round, {})]:
            for (name, purpose), row in rows.items():
                if purpose == training and verb in (None, name):
                    sums += row.sum(0)
        return dict(zip(COLUMNS, map(int, sums), strict=True))

    def summary(self) -> dict[str, Any]:
        """What result.json says: training traffic by direction and verb, and evaluation traffic beside it."""
        verbs = dict.fromkeys(verb for rows in self.rounds.values() for verb, training in rows if training)
        return {
            **self.total(),
            "by_verb": {verb: self.total(verb=verb) for verb in verbs},
            "evaluation": self.total(training=False),
        }

    def state(self) -> dict[str, Any]:
        """The whole ledger, for a checkpoint."""
        keys = [[at, verb, training] for at, rows in self.rounds.items() for verb, training in rows]
        rows = [row for rows in self.rounds.values() for row in rows.values()]
        stacked = np.stack(rows) if rows else np.zeros((0, 1, len(COLUMNS)), np.int64)
        return {
            "by_party": self._kept(),
            "keys": keys,
            "rows": torch.from_numpy(stacked),
            "seconds": [[at, seconds] for at, seconds in self.seconds.items()],
        }

    def _kept(self) -> torch.Tensor:
        """`by_party` as a tensor; where all parties have the same, one row for all."""
        if self._apart is None:
            return torch.from_numpy(self._alike.copy()).expand(self.parties, -1)
        return torch.from_numpy(self._apart.copy())

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` gave."""
        by_party = state["by_party"]
        alike = self.parties > MAX_DETAILED and wire.rows_are_shared(by_party)
        self._alike, self._apart = by_party[0].numpy().copy(), None if alike else by_party.numpy().copy()
        self.rounds = {}
        for (at, verb, training), row in zip(state["keys"], state["rows"].numpy(), strict=True):
            self.rounds.setdefault(at, {})[verb, training] = row.copy()
        self.seconds = dict(state.get("seconds", []))


def message_sizes(
    common: Mapping[str, Any], each: Mapping[str, Any], scalars: Mapping[str, Any]
) -> tuple[int | np.ndarray, int | np.ndarray]:
    """Payload and wire bytes of each party's message: a number where all are equal, an array where some field is ragged."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    values = dict(scalars)
    ragged: dict[str, list[torch.Tensor]] = {}
    for name, value in wire.leaves(common):
        if isinstance(value, torch.Tensor | Deferred):
            shapes[name] = (value.dtype, tuple(value.shape))
        else:
            values[name] = value
    for name, value in wire.leaves(each):
        if name.endswith("]"):
            ragged.setdefault(name.rsplit("/[", 1)[0], []).append(value)
        else:
            shapes[name] = (value.dtype, (1, *value.shape[1:]))
    if not ragged:
        return _payload(shapes), wire.wire_size(shapes, values)
    count = len(next(iter(ragged.values())))
    single = [
        shapes | {f"{name}/[0]": (items[i].dtype, tuple(items[i].shape)) for name, items in ragged.items()} for i in range(count)
    ]
    return np.array([_payload(shape) for shape in single]), np.array([wire.wire_size(shape, values) for shape in single])


def _payload(shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
