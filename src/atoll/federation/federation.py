"""The server's only door to the parties: `ask` sees each reply, `total` their sum, `tell` nothing. Every byte is counted here."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError
from atoll.federation import secure
from atoll.federation.bounds import Limits
from atoll.federation.cohort import Fields, Message, Schema, pick
from atoll.federation.declarations import Free, Leaf
from atoll.federation.ledger import Ledger
from atoll.federation.network import Link
from atoll.federation.robust import Robust
from atoll.graphs.graph import Graph
from atoll.parties import Parties
from atoll.privacy.identities import Identities
from atoll.random import generator


@dataclass(frozen=True)
class Answer:
    """The reply of the parties of one site; every field has a party axis, or is a list with one tensor a party."""

    parties: Parties
    fields: Fields

    def __post_init__(self) -> None:
        object.__setattr__(self, "parties", Parties(self.parties))


@dataclass(frozen=True)
class Failure:
    """A party that did not answer, and why."""

    party: int
    reason: str


class Engine(Protocol):
    """What carries messages to the parties and their answers back."""

    def deliver(self, message: Message) -> list[Answer | Failure]:
        """Send one message to the parties it names; every one of them is in an answer or a failure."""
        ...

    def state(self) -> Fields:
        """The memory of all parties, for a checkpoint."""
        ...

    def restore(self, memory: Fields) -> None:
        """Give all parties their memory back."""
        ...


class Replies(Mapping[int, Fields]):
    """The parties' replies by party; `stack` gives one field of all of them along a party axis, in party order."""

    def __init__(self, parties: Sequence[int], fields: Fields) -> None:
        self.parties = Parties(parties)
        self.fields = fields

    def __getitem__(self, party: int) -> Fields:
        place = self.parties.index(party)
        return {name: _row(value, place) for name, value in self.fields.items()}

    def __iter__(self) -> Iterator[int]:
        return iter(self.parties)

    def __len__(self) -> int:
        return len(self.parties)

    def stack(self, field: str) -> Any:
        """(P, …) or a dict of such; a list where the parties' tensors differ in shape."""
        return self.fields[field]


class Federation:
    """The parties as the server sees them."""

    def __init__(
        self,
        engine: Engine,
        schema: Schema,
        *,
        verbs: Mapping[str, str],
        seed: int = 0,
        participation: float = 1.0,
        missing_is_fatal: bool = False,
        secure: bool = False,
        secure_min: int = 2,
        identities: Identities | None = None,
        robust: Robust | None = None,
        evaluate_at_server: bool = True,
        public: Mapping[str, Any] | None = None,
        whole: Graph | None = None,
        scenario: str = "horizontal",
        link: Link | None = None,
        names: Sequence[str] = (),
        limits: Limits | None = None,
    ) -> None:
        """`verbs`: name → public or private. `robust`: how replies are averaged where parties may lie.
        `public`: what the scenario lets the server know (the node scenario's edges).
        `whole`: the union of the parties' graphs; only a simulation has it, and only `evaluate` may look at it.
        `secure_min`: the fewest parties of a secure total. `identities`: the parties' signing keys, where the server knows them.
        `scenario`: how the graph is spread over the parties. `link`: a model of the network, for the seconds messages would take.
        `names`: what the parties are called, where they are called anything; messages address them by number all the same.
        `limits`: what the verbs declare of their replies.
        """
        self.engine = engine
        self.schema = schema
        self.verbs = verbs
        self.seed = seed
        self.participation = participation
        self.missing_is_fatal = missing_is_fatal
        self.secure = secure
        self.secure_min = secure_min
        self.identities = identities
        self.robust = robust
        self.evaluate_at_server = evaluate_at_server
        self.public = public or {}
        self.whole = whole
        self.scenario = scenario
        self.link = link
        self.names = tuple(names)
        self.limits = limits
        self.derived: dict[str, Any] = {}  # what the server makes once of what it knows, by name
        self.ledger = Ledger(schema.parties)
        self.round = 0
        self.calls = 0
        self.training = True
        self.missing: dict[int, str] = {}
        self.refused: set[int] = set()  # those of the missing who answered, but not as declared
        self.dominant: dict[int, float] = {}  # parties that have nearly all the weight in this round, and their share

    @cached_property
    def parties(self) -> Parties:
        """All parties there are."""
        return Parties(range(self.schema.parties))

    @cached_property
    def topology(self) -> Graph:
        """Node scenario: what the server knows, as a graph without features; only training nodes have labels."""
        y = self.public["y_train"]
        none = torch.zeros(len(y), dtype=torch.bool)
        ids, ptr = torch.arange(len(y)), torch.tensor([0, len(y)])
        return Graph(torch.empty(len(y), 0), self.public["edge_index"], y, y >= 0, none, none, self.schema.classes, ids, ptr)

    def name_of(self, party: int) -> str:
        """What a party is called: by its name, or else by its number."""
        return self.names[party] if party < len(self.names) else str(party)

    def reasons(self, missing: Mapping[int, str]) -> str:
        """Why parties are missing, by name, in one line; of many the first few."""
        told = [
            f"party {self.name_of(party)}: {reason.removeprefix(f'{self.name_of(party)} ')}"
            for party, reason in islice(missing.items(), TOLD)
        ]
        return "; ".join([*told, *([f"and {len(missing) - TOLD} more"] if len(missing) > TOLD else [])])

    def begin(self, round: int) -> None:
        """A new round: everybody who was missing is welcome again."""
        self.round = round
        self.calls = 0
        self.missing, self.refused, self.dominant = {}, set(), {}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """What is said inside is evaluation: to all parties, and billed apart."""
        self.training = False
        try:
            yield
        finally:
            self.training = True

    def participants(self) -> Parties:
        """The parties of this round: all, or a fraction of them chosen by seed and round."""
        if self.participation >= 1 or not self.training or self.round == 0:
            return self.parties
        count = max(1, round(self.participation * len(self.parties)))
        order = torch.randperm(len(self.parties), generator=generator(self.seed, "participants", self.round))
        return Parties(order[:count].sort().values.numpy())

    def ask(self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any) -> Replies:
        """Call a verb at the parties and see each one's reply.

        `common` goes to every party; the first axis of each tensor in `each` is the party: one row for each in `to`,
        or, without `to`, for each of all parties. Without `to`, this round's participants are asked.
        """
        if self.secure and self.verbs.get(verb) != "public":
            raise AtollError(
                f"Secure aggregation is on and the verb {verb!r} is private: the server may only ask for its total; "
                "choose an algorithm that needs no more, or leave secure out."
            )
        parties, rows = self._address(verb, to, each)
        return self.exchange(verb, parties, rows, common)

    def total(
        self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any
    ) -> Fields:
        """Call a verb at the parties and see only the sum of their replies, added in party order.

        Under secure aggregation this holds for the whole machine: each reply is masked before it leaves its party.
        With a robust rule the declared averages are the rule's, with weight 1 (`atoll.federation.robust`).
        """
        parties, rows = self._address(verb, to, each)
        if self.secure:
            return secure.total(self, verb, parties, rows, common)
        if self.robust is not None and verb in self.robust.averaged:
            return self.robust.total(verb, self.exchange(verb, parties, rows, common).fields, common)
        return _sum(self.exchange(verb, parties, rows, common).fields)

    def tell(self, verb: str, *, to: Sequence[int] | None = None, each: Mapping[str, Any] | None = None, **common: Any) -> None:
        """Call a verb at the parties; nothing comes back.

        No reply means that there is nothing to mask: under secure aggregation a private verb may be called, without a session.
        """
        parties, rows = self._address(verb, to, each)
        if fields := self.exchange(verb, parties, rows, common).fields:
            raise AtollError(
                f"Round {self.round}: {verb!r} was called with `tell`, but it replies {next(iter(fields))!r}; "
                "call it with `ask` or `total`, or let it return nothing."
            )

    def _address(self, verb: str, to: Sequence[int] | None, each: Mapping[str, Any] | None) -> tuple[Parties, Mapping[str, Any]]:
        """A new call: the addressed parties that are not missing, and their rows of `each`."""
        self.calls += 1
        addressed = self.participants() if to is None else Parties(to)
        present = addressed.without(self.missing)
        if not present:
            raise AtollError(f"Round {self.round}: no party is left to answer {verb!r} ({self.reasons(self.missing)}).")
        listed = self.parties if to is None else addressed
        each = each or {}
        return present, each if present == listed else pick(each, listed.indices(present))

    def exchange(self, verb: str, parties: Sequence[int], each: Mapping[str, Any], common: Mapping[str, Any]) -> Replies:
        """One message to these parties and their replies, checked and billed: what `ask` and `total` are made of."""
        message = Message(verb, self.round, self.calls, self.training, Parties(parties), common, each)
        down = self._bill_down(message)
        replies = self._gather(message, self.engine.deliver(message))
        up = self._bill_up(message, replies)
        if self.link is not None and self.training:
            self.ledger.wait(self.round, self.link.exchange(message.parties, down, replies.parties, up))
        return replies

    def _gather(self, message: Message, results: Sequence[Answer | Failure]) -> Replies:
        """Check what arrived, note who is missing, and put the rest in party order."""
        failed = {result.party: result.reason for result in results if isinstance(result, Failure)}
        answers = [result for result in results if isinstance(result, Answer)]
        declared = self.limits.reply(message) if self.limits is not None else None
        answers, odd = self._fitting(answers, declared)
        parties = Parties(np.concatenate([np.empty(0, np.int64), *(answer.parties.numbers for answer in answers)]))
        fields = _concatenate([answer.fields for answer in answers])
        odd |= {parties[place]: reason for place, reason in self._outliers(fields, len(parties), declared).items()}
        failed |= odd
        self._refuse(message, odd)
        kept = Parties(np.sort(parties.without(failed).numbers))
        if kept != parties:
            fields = pick(fields, parties.indices(kept))
        self.note(message.verb, failed)
        if not kept:
            raise AtollError(
                f"Round {self.round}: no party answered {message.verb!r} ({self.reasons(self.missing)}){_advice(failed)}."
            )
        return Replies(kept, self._weighed(kept, fields, declared))

    def _fitting(self, answers: list[Answer], declared: Mapping[str, Leaf] | None) -> tuple[list[Answer], dict[int, str]]:
        """Answers with the names, types and shapes declared, and what is wrong with the others."""
        odd: dict[int, str] = {}
        if declared is None or self.limits is None:
            return _agreeing(answers) if len(answers) > 1 else (answers, odd)
        kept = []
        for answer in answers:
            reason = self.limits.misfit(declared, answer.fields, len(answer.parties))
            odd |= dict.fromkeys(answer.parties, reason) if reason else {}
            kept += [] if reason else [answer]
        if len(kept) > 1 and any(isinstance(part, Free) and not leaf.ragged for leaf in declared.values() for part in leaf.shape):
            kept, others = _agreeing(kept)  # a number of rows that the declaration leaves open
            odd |= others
        return kept, odd

    def _outliers(self, fields: Fields, parties: int, declared: Mapping[str, Leaf] | None) -> dict[int, str]:
        """Places of the parties whose numbers are out of range, or not finite where nothing is declared."""
        if declared is None or self.limits is None or not parties:
            return _unfit(fields, parties)
        return self.limits.outliers(declared, fields, parties)

    def _refuse(self, message: Message, odd: Mapping[int, str]) -> None:
        self.refused |= odd.keys()
        if odd and message.round == 0:  # before the first round, which has no line in the history
            log.warning("before the first round, %r: left out %s", message.verb, self.reasons(odd))

    def _weighed(self, parties: Parties, fields: Fields, declared: Mapping[str, Leaf] | None) -> Fields:
        """The fields with every weight within `max_share`; who has nearly all the weight is noted."""
        if declared is None or self.limits is None or not self.training:
            return fields
        if self.limits.rules.max_share < 1:
            fields = self.limits.cut(declared, fields)
        if (dominant := self.limits.dominant(declared, fields)) is not None:
            row, share = dominant
            self.dominant[parties[row]] = round(share, 6)
        return fields

    def note(self, verb: str, failed: Mapping[int, str]) -> None:
        """Some parties are missing from now on in this round, and why; or the run stops."""
        if failed and self.missing_is_fatal:
            raise AtollError(f"Round {self.round}: {verb!r} stopped the run ({self.reasons(failed)}).")
        self.missing |= dict(sorted(failed.items()))

    def _bill_down(self, message: Message) -> int | np.ndarray:
        envelope = {"verb": message.verb, "round": message.round, "call": message.call, "training": message.training}
        payload, size = _sizes(message.common, message.each, envelope)
        self._record(message.parties, message.verb, down=payload, wire_down=size, messages=1)
        return size

    def _bill_up(self, message: Message, replies: Replies) -> int | np.ndarray:
        payload, size = _sizes({}, replies.fields, {})
        self._record(replies.parties, message.verb, up=payload, wire_up=size)
        return size

    def _record(self, parties: Sequence[int], verb: str, **bytes: int | np.ndarray) -> None:
        self.ledger.record(self.round, verb, self.training, parties, **bytes)


def _row(value: Any, place: int) -> Any:
    if isinstance(value, Mapping):
        return {name: _row(item, place) for name, item in value.items()}
    return value[place]


def _sum(fields: Mapping[str, Any]) -> Fields:
    return {name: _sum(value) if isinstance(value, Mapping) else value.sum(0) for name, value in fields.items()}


def _advice(failed: Mapping[int, str]) -> str:
    """Where all parties' numbers went out of bounds at once, it is the training."""
    diverged = bool(failed) and all("is not finite" in reason or ", beyond " in reason for reason in failed.values())
    return ": the training diverges; lower lr, or scale the features" if diverged else ""


log = logging.getLogger("atoll.federation.federation")
TOLD = 5  # reasons an error tells of all there are


def _concatenate(chunks: Sequence[Fields]) -> Fields:
    """The fields of several sites one after the other; those of a single site as they are."""
    if len(chunks) <= 1:
        return chunks[0] if chunks else {}
    joined: Fields = {}
    for name, first in chunks[0].items():
        values = [chunk[name] for chunk in chunks]
        if isinstance(first, Mapping):
            joined[name] = _concatenate(values)
        elif isinstance(first, list):
            joined[name] = [item for value in values for item in value]
        else:
            joined[name] = torch.cat(values)
    return joined


def _signature(fields: Fields) -> tuple[Any, ...]:
    """Names, types and shapes of a reply without its party axis."""
    described: dict[str, Any] = {}
    for name, value in wire.leaves(fields):
        ragged = name.endswith("]")
        described[name.rsplit("/[", 1)[0]] = (str(value.dtype), "ragged" if ragged else tuple(value.shape[1:]))
    return tuple(sorted(described.items()))


def _agreeing(answers: list[Answer]) -> tuple[list[Answer], dict[int, str]]:
    """Answers of the common form, and for the parties whose answer has another one what differs."""
    signatures = [_signature(answer.fields) for answer in answers]
    usual = dict(Counter(signatures).most_common(1)[0][0])
    kept: list[Answer] = []
    odd: dict[int, str] = {}
    for answer, signature in zip(answers, signatures, strict=True):
        differing = [
            f"field {name!r} is {dict(signature).get(name)}, expected {usual.get(name)}"
            for name in sorted(dict(signature).keys() | usual.keys())
            if dict(signature).get(name) != usual.get(name)
        ]
        if differing:
            odd |= dict.fromkeys(answer.parties, differing[0])
        else:
            kept.append(answer)
    return kept, odd


def _unfit(fields: Fields, parties: int) -> dict[int, str]:
    """Places of the parties whose reply holds a number that is not finite, and in which field."""
    found: dict[int, str] = {}
    for name, value in wire.leaves(fields):
        if not value.is_floating_point() or value.numel() == 0:
            continue
        if name.endswith("]"):
            place = int(name.rsplit("[", 1)[1][:-1])
            if not bool(torch.isfinite(value).all()):
                found.setdefault(place, f"field {name!r} is not finite")
        elif not bool(torch.isfinite(value.sum())):  # one pass; look closer only where the sum is off
            for place in (~torch.isfinite(value).reshape(parties, -1).all(1)).nonzero()[:, 0].tolist():
                found.setdefault(place, f"field {name!r} is not finite")
    return found


def _sizes(
    common: Mapping[str, Any], each: Mapping[str, Any], scalars: Mapping[str, Any]
) -> tuple[int | np.ndarray, int | np.ndarray]:
    """Payload and wire bytes of one party's message: a number where all are alike, an array where some field is ragged."""
    shapes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {}
    values = dict(scalars)
    ragged: dict[str, list[Tensor]] = {}
    for name, value in wire.leaves(common):
        if isinstance(value, Tensor):
            shapes[name] = (value.dtype, tuple(value.shape))
        else:
            values[name] = value
    for name, value in wire.leaves(each):
        if name.endswith("]"):
            ragged.setdefault(name.rsplit("/[", 1)[0], []).append(value)
        else:
            shapes[name] = (value.dtype, (1, *value.shape[1:]))
    if not ragged:
        return _bytes(shapes), wire.wire_size(shapes, values)
    count = len(next(iter(ragged.values())))
    one = [
        shapes | {f"{name}/[0]": (items[i].dtype, tuple(items[i].shape)) for name, items in ragged.items()} for i in range(count)
    ]
    return np.array([_bytes(shape) for shape in one]), np.array([wire.wire_size(shape, values) for shape in one])


def _bytes(shapes: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]) -> int:
    return sum(dtype.itemsize * math.prod(shape) for dtype, shape in shapes.values())
