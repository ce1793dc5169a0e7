"""A server that lies: it drives secure totals step by step with whatever lists it likes, keeps everything it hears, and works out
all that follows from it.

The parties are real cohorts, each with a host, secrets and a signing key of its own; messages pass as bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from atoll import wire
from atoll.errors import AtollError, PartyFailure
from atoll.federation.cohort import Cohort, Message, Schema, verb
from atoll.graphs.graph import Graph
from atoll.privacy import masking
from atoll.privacy.identities import Identities
from atoll.privacy.masking import MASKS, SELF, Advert, Call
from atoll.privacy.opened_totals import OpenedTotals
from atoll.privacy.secrets import Secrets

PRIME = 2**61 - 1  # linear algebra modulo a large prime is exact for our small numbers
FIELD = "int64/secret"


class Replying(Cohort):
    """A party whose reply is a function of the party and the call, as in every deterministic algorithm."""

    @verb
    def reply(self) -> dict[str, Any]:
        """The number nobody may learn."""
        assert self.message is not None
        return {"secret": torch.tensor([[value(party, self.message.round)] for party in self.message.parties])}

    @verb
    def other(self) -> dict[str, Any]:
        """Another private verb."""
        return {"secret": torch.tensor([[-7 * (party + 1)] for party in self.message.parties])}  # type: ignore[union-attr]


def value(party: int, round: int) -> int:
    """What a party replies in a round."""
    return 1000 * (party + 1) ** 3 + 17 * round


@dataclass
class Masked:
    """A masked reply as the server holds it, with what the party was told before."""

    party: int
    call: Call
    own: Advert
    users: tuple[int, ...]
    adverts: dict[int, Advert]
    transcript: bytes
    number: int


@dataclass
class Talk:
    """One session as the server leads it; every list may be a lie."""

    call: Call
    session: bytes = field(default_factory=lambda: os.urandom(masking.SESSION_BYTES))
    adverts: dict[int, torch.Tensor] = field(default_factory=dict)
    signatures: dict[int, torch.Tensor] = field(default_factory=dict)
    users: list[int] = field(default_factory=list)
    shares: dict[int, torch.Tensor] = field(default_factory=dict)
    opened: list[int] = field(default_factory=list)
    masked: list[int] = field(default_factory=list)
    answered: list[int] = field(default_factory=list)
    confirmed: dict[int, torch.Tensor] = field(default_factory=dict)
    revealed: list[int] = field(default_factory=list)
    step: int = 0


class World:
    """Some parties and the lying server's book about them."""

    def __init__(self, parties: int, folder: Path | None = None, least: int = 3, secrets: type[Secrets] = Secrets) -> None:
        self.count, self.least, self.folder, self.kind = parties, least, folder, secrets
        self.keys = [Ed25519PrivateKey.generate() for _ in range(parties)]
        self.records = [OpenedTotals(folder / f"{party}.jsonl" if folder else None) for party in range(parties)]
        self.hosts: list[Cohort] = []
        self.sent: list[tuple[int, Message]] = []
        self.replies: list[Masked] = []
        self.given: dict[tuple[Advert, int], dict[int, bytes]] = {}  # (whose, kind) → by the receiver's place: the share
        self.both: list[str] = []  # a party that gave both kinds of one secret
        self.kinds: dict[tuple[Advert, Advert], int] = {}  # (receiver, dealer) → the kind it gave
        self.thresholds: dict[Advert, int] = {}
        self.refusals: list[str] = []
        for party in range(parties):
            self.hosts.append(self._host(party))

    def _host(self, party: int) -> Cohort:
        one = torch.zeros(1, dtype=torch.bool)
        graph = Graph(
            *(torch.ones(1, 1), torch.zeros(2, 0, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)),
            *(one, one, one, 1, torch.zeros(1, dtype=torch.int64), torch.tensor([0, 1])),
        )
        public = [key.public_key() for key in self.keys]
        identities = Identities(public, {party: self.keys[party]})
        secrets = self.kind(identities, run="run", min_parties=self.least, opened=self.records[party])
        return Replying(graph, None, Schema(1, 1, self.count), 0, [party], secrets=secrets)

    def crash(self, party: int) -> None:
        """The party's process is lost and started again: what it knows is what stands on its disk."""
        if self.folder is not None:
            self.records[party] = OpenedTotals(self.folder / f"{party}.jsonl")
        self.hosts[party] = self._host(party)

    def send(
        self,
        party: int,
        name: str,
        call: Call,
        common: dict[str, Any],
        each: dict[str, Any] | None = None,
        secure: dict[str, Any] | None = None,
    ) -> Any:
        """One message to one party, as bytes: its reply, or why there is none."""
        message = Message(name, call.round, call.call, True, [party], common, each or {}, secure)
        return self.deliver(party, message)

    def deliver(self, party: int, message: Message) -> Any:
        """Deliver, and write down all that the server has of it."""
        self.sent.append((party, message))
        decoded = wire.decode(wire.encode({"common": message.common, "each": message.each, "secure": message.secure or {}}))
        common, each, secure = decoded.get("common", {}), decoded.get("each", {}), decoded.get("secure")
        message = Message(message.verb, message.round, message.call, True, [party], common, each, secure)
        host = self.hosts[party]
        assert host.secrets is not None
        own = host.secrets.sessions.get(party)
        adverts = dict(own.adverts) if own else {}
        try:
            fields = wire.decode(wire.encode(host.answer(message)))
        except (PartyFailure, AtollError) as error:
            self.refusals.append(str(error))
            return str(error)
        if own is not None and message.verb == "secure_reveal":
            self._hear_shares(party, adverts, own, fields["shares"][0])
        elif own is not None and message.verb in ("reply", "other"):
            number = int(dict(wire.leaves(fields))[FIELD][0, 0])
            call = Call(message.round, message.call, message.verb)
            self.replies.append(Masked(party, call, adverts[party], own.masked, adverts, own.transcript, number))
        return fields

    def _hear_shares(self, party: int, adverts: dict[int, Advert], own: Any, shares: torch.Tensor) -> None:
        for user, row in zip(own.masked, shares, strict=True):
            share = bytes(row.tolist())
            if not any(share):
                continue
            kind = SELF if user in own.answered else MASKS
            dealer = adverts[user]
            if self.kinds.setdefault((adverts[party], dealer), kind) != kind:
                self.both.append(f"party {party} gave both kinds of party {user}'s shares")
            self.given.setdefault((dealer, kind), {})[own.users.index(party) + 1] = share
            self.thresholds[dealer] = masking.threshold(len(own.users))

    # The steps, with lists that the caller chooses

    def keys_of(self, talk: Talk, parties: Iterable[int], total: str = "") -> None:
        """Step 1."""
        for party in parties:
            reply = self.send(
                party, "secure_keys", talk.call, {"session": masking.as_bytes(talk.session), "total": total or talk.call.verb}
            )
            if not isinstance(reply, str):
                talk.adverts[party], talk.signatures[party] = reply["keys"][0], reply["signature"][0]

    def share(self, talk: Talk, users: Sequence[int], to: Sequence[int] | None = None) -> None:
        """Step 2."""
        talk.users = list(users)
        common = {
            "session": masking.as_bytes(talk.session),
            "users": masking.ids(users),
            "keys": torch.stack([talk.adverts[user] for user in users]),
            "signatures": torch.stack([talk.signatures[user] for user in users]),
        }
        for party in users if to is None else to:
            reply = self.send(party, "secure_shares", talk.call, common)
            if not isinstance(reply, str):
                talk.shares[party] = reply["shares"][0]

    def open(self, talk: Talk, dealers: Sequence[int], to: Sequence[int] | None = None) -> None:
        """Step 3."""
        dealers = [dealer for dealer in dealers if len(talk.shares.get(dealer, ())) == len(talk.users) > 0]
        for party in dealers if to is None else to:
            if party not in talk.users or not dealers:
                continue
            column = talk.users.index(party)
            mine = torch.stack([talk.shares[dealer][column] for dealer in dealers])[None]
            common = {"session": masking.as_bytes(talk.session), "dealers": masking.ids(dealers)}
            reply = self.send(party, "secure_open", talk.call, common, {"shares": mine})
            if not isinstance(reply, str):
                talk.opened.append(party)

    def mask(self, talk: Talk, users: Sequence[int], to: Sequence[int] | None = None) -> None:
        """Step 4."""
        talk.masked = list(users)
        agreed = {"session": masking.as_bytes(talk.session), "users": masking.ids(users)}
        for party in users if to is None else to:
            if not isinstance(self.send(party, talk.call.verb, talk.call, {}, secure=agreed), str):
                talk.answered.append(party)

    def confirm(self, talk: Talk, answered: Sequence[int], to: Sequence[int] | None = None) -> None:
        """Step 5."""
        if not talk.masked:
            return
        here = torch.tensor([user in answered for user in talk.masked])
        for party in answered if to is None else to:
            reply = self.send(party, "secure_confirm", talk.call, {"session": masking.as_bytes(talk.session), "answered": here})
            if not isinstance(reply, str):
                talk.confirmed[party] = reply["signature"][0]

    def reveal(self, talk: Talk, answered: Sequence[int], to: Sequence[int]) -> list[str]:
        """Step 6; what the parties said that refused."""
        if not talk.masked:
            return []
        here = torch.tensor([user in answered for user in talk.masked])
        none = torch.zeros(64, dtype=torch.uint8)
        rows = torch.stack([talk.confirmed.get(user, none) for user in talk.masked])
        common = {"session": masking.as_bytes(talk.session), "answered": here, "signatures": rows}
        replies = {party: self.send(party, "secure_reveal", talk.call, common) for party in to}
        talk.revealed += [party for party, reply in replies.items() if not isinstance(reply, str)]
        return [reply for reply in replies.values() if isinstance(reply, str)]

    def honest(self, call: Call, parties: Sequence[int], drops: Sequence[set[int]] = ((),) * 6) -> Talk:  # type: ignore[assignment]
        """A session as an honest server leads it; `drops` are those who are not heard of in each step and after."""
        talk, gone = Talk(call), [set().union(*drops[: step + 1]) for step in range(6)]
        self.keys_of(talk, [party for party in parties if party not in gone[0]])
        here = sorted(talk.adverts)
        if len(here) < max(2, self.least):
            return talk
        self.share(talk, here, [party for party in here if party not in gone[1]])
        dealers = sorted(talk.shares)
        self.open(talk, dealers, [party for party in dealers if party not in gone[2]])
        users = [party for party in dealers if party in talk.opened]
        self.mask(talk, users, [party for party in users if party not in gone[3]])
        self.confirm(talk, talk.answered, [party for party in talk.answered if party not in gone[4]])
        self.reveal(talk, talk.answered, [party for party in talk.confirmed if party not in gone[5]])
        return talk

    # What follows from all of it

    def seeds(self) -> dict[tuple[Advert, int], bytes]:
        """Every secret of which the server has enough shares: really put together, and compared with what was advertised."""
        found = {}
        for (dealer, kind), shares in self.given.items():
            if len(shares) < self.thresholds[dealer]:
                continue
            seed = masking.combine(sorted(shares.items())[: self.thresholds[dealer]])
            public = masking.public_key(masking.private_key(seed))
            assert (masking.seed_commitment(seed) == dealer.commitment) if kind == SELF else (public == dealer.masks)
            found[dealer, kind] = seed
        return found

    def learned(self) -> list[tuple[dict[tuple[Call, int], int], int]]:
        """A basis of all combinations of replies that the server can compute, each with its value.

        Every masked reply is an equation: x + the self mask + the pair masks = y. Masks whose seed is known are taken off, and
        the unknown ones are eliminated; what is left holds replies only.
        """
        seeds = self.seeds()
        masks: dict[Any, int] = {}
        replies: dict[tuple[Call, int], int] = {}
        rows: list[tuple[dict[int, int], dict[int, int], int]] = []
        for one in self.replies:
            unknown: dict[int, int] = {}
            number = one.number
            if (one.own, SELF) in seeds:
                number -= int(masking.stream(seeds[one.own, SELF], "secret", 1, one.transcript)[0])
            else:
                unknown[masks.setdefault(one.own, len(masks))] = 1
            for user in one.users:
                if user == one.party:
                    continue
                other, sign = one.adverts[user], 1 if one.party < user else -1
                ends = [(one.own, other, one.party, user), (other, one.own, user, one.party)]
                known = next((end for end in ends if (end[0], MASKS) in seeds), None)
                if known is not None:
                    private = masking.private_key(seeds[known[0], MASKS])
                    seed = masking.pair_seed(private, known[1].masks, known[2], known[3], one.transcript)
                    number -= sign * int(masking.stream(seed, "secret", 1)[0])
                else:
                    pair = masks.setdefault((one.transcript, frozenset((one.own, other))), len(masks))
                    unknown[pair] = sign % PRIME
            place = replies.setdefault((one.call, one.party), len(replies))
            rows.append((unknown, {place: 1}, number))
        return _replies_only(rows, {place: name for name, place in replies.items()})

    def opened_below_the_minimum(self) -> str:
        """Which few parties' replies the server can isolate; empty where it cannot."""
        if self.both:
            return self.both[0]
        seeds = self.seeds()
        for dealer, kind in seeds:
            if (dealer, 1 - kind) in seeds:
                return "both secrets of one party's session are known"
        rows = [combination for combination, _ in self.learned()]
        for few in combinations(range(self.count), self.least - 1):
            outside = [{name: factor for name, factor in row.items() if name[1] not in few} for row in rows]
            if _rank(outside) < _rank(rows):
                return f"the replies of {few} can be isolated"
        return ""


def _reduce(rows: list[list[Any]], first: int) -> list[list[Any]]:
    """Gauss' elimination modulo the prime on the first columns; rows of the same length."""
    done = 0
    for column in range(first):
        pivot = next((place for place in range(done, len(rows)) if rows[place][column] % PRIME), None)
        if pivot is None:
            continue
        rows[done], rows[pivot] = rows[pivot], rows[done]
        inverse = pow(rows[done][column], -1, PRIME)
        rows[done] = [entry * inverse % PRIME for entry in rows[done]]
        for place in range(len(rows)):
            if place != done and rows[place][column] % PRIME:
                factor = rows[place][column]
                rows[place] = [(a - factor * b) % PRIME for a, b in zip(rows[place], rows[done], strict=True)]
        done += 1
    return rows[done:]


def _replies_only(
    rows: list[tuple[dict[int, int], dict[int, int], int]], names: dict[int, Any]
) -> list[tuple[dict[Any, int], int]]:
    """Combinations of the rows without an unknown mask. The combination itself is tracked, to get at the value modulo 2⁶⁴."""
    width = max((1 + column for unknown, _, _ in rows for column in unknown), default=0)
    track = [
        [unknown.get(column, 0) for column in range(width)] + [int(place == own) for place in range(len(rows))]
        for own, (unknown, _, _) in enumerate(rows)
    ]
    found = []
    for row in _reduce(track, width):
        factors = [entry - PRIME if entry > PRIME // 2 else entry for entry in row[width:]]
        combination: dict[Any, int] = {}
        for factor, (_, replies, _) in zip(factors, rows, strict=True):
            for place, one in replies.items():
                combination[names[place]] = combination.get(names[place], 0) + factor * one
        number = sum(factor * value for factor, (_, _, value) in zip(factors, rows, strict=True)) % 2**64
        kept = {name: factor for name, factor in combination.items() if factor % PRIME}
        if kept:
            found.append((kept, number - 2**64 if number >= 2**63 else number))
    return found


def _rank(rows: list[dict[Any, int]]) -> int:
    names = sorted({name for row in rows for name in row})
    matrix = [[row.get(name, 0) % PRIME for name in names] for row in rows]
    return len(matrix) - len(_reduce(matrix, len(names)))
