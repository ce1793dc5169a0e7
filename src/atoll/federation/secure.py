"""Secure totals: Bonawitz et al., CCS 2017, against a server that lies (their Figure 4 with signatures and consistency check).

For every total, each party u makes two key pairs and a seed, and hides its reply x_u, as integers modulo 2⁶⁴, behind masks:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)

s_uv is agreed by X25519, so the pairs' masks cancel in the sum. Seeds are shared (Shamir) among all parties, encrypted for each:
from `threshold` of them the server gets b_u of those who answered, or the pair masks of those who dropped out, never both.

This is the server's side: six messages, then the sum. What the parties check and refuse is in `secrets`; the server checks too,
so that a party that sends nonsense is named and the others go on. Between `shares` and the masked replies the parties say whose
shares they could open (`open`), so that a party that deals damaged shares is left out before its masks are in any reply.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError
from atoll.federation.fields import pick
from atoll.privacy import masking
from atoll.privacy.identities import SIGNATURE_BYTES
from atoll.privacy.masking import MASKS, SELF, Advert, Call, Integers
from atoll.privacy.masking import stream as stream  # noise draws from it
from atoll.privacy.masking import threshold as threshold

if TYPE_CHECKING:
    from atoll.federation.federation import Federation
    from atoll.federation.replies import Replies

log = logging.getLogger("atoll.secure")


def total(
    federation: Federation, verb: str, parties: Sequence[int], each: Mapping[str, Any], common: Mapping[str, Any]
) -> dict[str, Any]:
    """The sum of the replies of the parties that answered, and nothing else of them."""
    return SecureTotal(federation, verb).total(parties, each, common)


class SecureTotal:
    """One session: what the server knows of one attempt at a total."""

    def __init__(self, federation: Federation, verb: str) -> None:
        self.federation = federation
        self.verb = verb
        self.where = f"Round {federation.round}"
        self.number = os.urandom(masking.SESSION_BYTES)
        call = Call(federation.round, federation.calls, verb)
        self.digest = masking.session_digest(str(getattr(federation.engine, "run_digest", "")), call, self.number)
        self.session = {"session": masking.as_bytes(self.number)}
        self.users: list[int] = []  # parties that advertised keys
        self.adverts: dict[int, Advert] = {}
        self.needed = 0

    def total(self, parties: Sequence[int], each: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
        """All steps."""
        self.arguments = masking.arguments_digest(common, self.federation.training, each)
        keys, settled = self._keys(parties)
        shared = self._exchange("secure_shares", self.users, keys)
        self._enough(shared.parties)
        users = self._deal(shared)
        rows = pick(each, [list(parties).index(user) for user in users])
        masked = self.federation.exchange(self.verb, users, rows, common, {**self.session, "users": masking.ids(users)})
        answered = list(masked.parties)
        self._enough(answered, settled)
        shares = self._reveal(users, answered)
        return self._unmask(masked.fields, users, answered, self._seeds(users, answered, shares))

    def _keys(self, parties: Sequence[int]) -> tuple[dict[str, Tensor], frozenset[int]]:
        """Step 1: all parties' signed keys; and over which parties this call was opened before a resume, if it was."""
        self._enough(parties)
        replies = self._exchange("secure_keys", parties, {"total": self.verb})
        adverts = self._field(replies, "keys", (masking.ADVERT_PARTS, 32))
        signatures = self._field(replies, "signature", (SIGNATURE_BYTES,))
        before = self._field(replies, "settled", (self.federation.schema.parties,), torch.bool)
        settled, wrong = self._settled(before, replies.parties)
        for index, party in enumerate(replies.parties):
            self.adverts[party] = Advert.of(adverts[index])
            statement = masking.keys_statement(self.digest, party, b"".join(self.adverts[party]))
            if not self._signed(party, signatures[index], statement):
                wrong[party] = "sent keys that it did not sign"
            elif not all(masking.usable(key) for key in self.adverts[party][:2]):
                wrong[party] = "sent keys that cannot be used"
            elif settled and party not in settled and party not in wrong:
                wrong[party] = "was not in this total before the run was resumed"
        self._note(wrong)
        self.users = [party for party in replies.parties if party not in wrong]
        self._enough(self.users, settled)
        self.needed = masking.threshold(len(self.users))
        rows = [list(replies.parties).index(user) for user in self.users]
        self.keys = masking.keys_transcript(self.digest, self.users, adverts[rows].contiguous().numpy().tobytes())
        return {"users": masking.ids(self.users), "keys": adverts[rows], "signatures": signatures[rows]}, settled

    def _deal(self, shared: Replies) -> list[int]:
        """Steps 2 and 3: pass the shares on; the parties whose shares enough of the others could open."""
        dealers = list(shared.parties)
        columns = [self.users.index(dealer) for dealer in dealers]
        dealt = self._field(shared, "shares", (len(self.users), masking.SHARE_BYTES))[:, columns]  # (from, to, bytes)
        replies = self._exchange("secure_open", dealers, {"dealers": masking.ids(dealers)}, {"shares": dealt.transpose(0, 1)})
        opened = self._field(replies, "opened", (len(dealers),), torch.bool)
        good = {
            (dealer, dealers[int(column)])
            for dealer, row in zip(replies.parties, opened, strict=True)
            for column in row.nonzero()
        }
        for receiver in replies.parties:
            for dealer in dealers:
                if (receiver, dealer) not in good:
                    log.warning(
                        "round %d, %r: party %d could not open the share of party %d",
                        *(self.federation.round, self.verb, receiver, dealer),
                    )
        users, bad = list(replies.parties), {}
        while worst := [dealer for dealer in users if sum((user, dealer) in good for user in users) < self.needed]:
            blamed = min(worst, key=lambda dealer: sum((user, dealer) in good for user in users))
            if sum((user, blamed) in good for user in replies.parties) < self.needed <= len(replies.parties):
                others = [user for user in replies.parties if (user, blamed) not in good]
                one = f"{self._named(others[0])} says it" if len(others) == 1 else "the others"  # which may be a lie
                bad[blamed] = f"dealt shares that {one} could not open"
            users.remove(blamed)
        self._note(bad)
        self._enough(users)
        self.bound = {
            (dealer, receiver): bytes(dealt[row, column, masking.BOX_BYTES :].tolist())
            for row, dealer in enumerate(dealers)
            for column, receiver in enumerate(dealers)
        }
        self.good = good
        self.transcript = masking.masks_transcript(self.keys, dealers, users, self.arguments)
        return users

    def _reveal(self, users: list[int], answered: list[int]) -> dict[int, dict[int, bytes]]:
        """Steps 5 and 6: the parties sign who answered; then the shares, by whose secret it is and who gave it."""
        here = {"answered": torch.tensor([user in answered for user in users])}
        replies = self._exchange("secure_confirm", answered, here)
        signatures = self._field(replies, "signature", (SIGNATURE_BYTES,))
        statements = [masking.answered_statement(self.transcript, party, answered) for party in replies.parties]
        signed = {party: signatures[index] for index, party in enumerate(replies.parties)}
        sure = [p for p, said in zip(replies.parties, statements, strict=True) if self._signed(p, signed[p], said)]
        self._note(dict.fromkeys(set(replies.parties) - set(sure), "signed something else than who answered"))
        self._enough(sure, what="gave their shares of")
        rows = torch.stack([signed[user] if user in sure else torch.zeros_like(signatures[0]) for user in users])
        revealed = self._exchange("secure_reveal", sure, {**here, "signatures": rows})
        given = self._field(revealed, "shares", (len(users), masking.SEED_BYTES))
        opened: dict[int, dict[int, bytes]] = {user: {} for user in users}
        lied: dict[int, str] = {}
        for row, giver in enumerate(revealed.parties):
            for column, user in enumerate(users):
                share, kind = bytes(given[row, column].tolist()), SELF if user in answered else MASKS
                bound = self.bound[user, giver][kind * masking.DIGEST_BYTES :][: masking.DIGEST_BYTES]
                if (giver, user) not in self.good:
                    continue
                if masking.share_commitment(self.keys, user, giver, kind, share) == bound:
                    opened[user][giver] = share
                else:
                    lied[giver] = f"sent a wrong share of {self._named(user)}'s masks"
        self._note(lied)
        self._enough([party for party in revealed.parties if party not in lied], what="gave their shares of")
        return opened

    def _seeds(self, users: list[int], answered: list[int], shares: Mapping[int, Mapping[int, bytes]]) -> dict[int, bytes]:
        """Each party's seed from its shares, compared with what it committed to."""
        seeds = {}
        for user in users:
            given = sorted(shares[user].items())[: self.needed]
            if len(given) < self.needed:
                raise AtollError(
                    f"{self.where}: {len(given)} parties gave shares of {self._named(user)}'s masks that fit, "
                    f"but {self.needed} are needed to total {self.verb!r}."
                )
            seed = masking.combine([(self.users.index(giver) + 1, share) for giver, share in given])
            if user in answered:
                fits = masking.seed_commitment(seed) == self.adverts[user].commitment
            else:
                fits = masking.public_key(masking.private_key(seed)) == self.adverts[user].masks
            if not fits:
                raise AtollError(
                    f"{self.where}: {self._named(user)} dealt shares that do not fit together, so that {self.verb!r} "
                    "cannot be totaled; go on without that party."
                )
            seeds[user] = seed
        return seeds

    def _unmask(
        self, fields: Mapping[str, Any], users: list[int], answered: list[int], seeds: Mapping[int, bytes]
    ) -> dict[str, Any]:
        """Subtract from the sum the self masks of those who answered and the pair masks with those who did not."""
        gone = [user for user in users if user not in answered]
        pairs = {
            (user, other): masking.pair_seed(
                masking.private_key(seeds[user]), self.adverts[other].masks, user, other, self.transcript
            )
            for user in gone
            for other in answered
        }
        totals: dict[str, Tensor] = {}
        for path, value in wire.leaves(fields):
            kind, _, name = path.partition("/")
            if kind not in masking.TYPES or value.dtype != torch.int64:
                raise AtollError(f"{self.where}: the masked replies to {self.verb!r} could not be read.")
            summed: Integers = value.sum(0).numpy().view("uint64")
            for user in answered:
                summed = summed - masking.stream(seeds[user], name, summed.size, self.transcript).reshape(summed.shape)
            for (user, other), seed in pairs.items():  # what the dropped party would have added cancels what the other one added
                summed = summed + masking.pair_mask(seed, user, other, name, summed.size).reshape(summed.shape)
            totals[name] = masking.from_integers(summed, kind)
        return wire.nest(totals)

    def _exchange(
        self, step: str, parties: Sequence[int], common: Mapping[str, Any], each: Mapping[str, Any] | None = None
    ) -> Replies:
        return self.federation.exchange(step, parties, each or {}, {**self.session, **common})

    def _field(self, replies: Replies, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.uint8) -> Tensor:
        """A field of all replies, with a row for each party."""
        value = replies.fields.get(name)
        if not isinstance(value, Tensor) or value.dtype != dtype or tuple(value.shape) != (len(replies), *shape):
            raise AtollError(f"{self.where}: the parties' {name!r} for the secure total of {self.verb!r} could not be read.")
        return value

    def _signed(self, party: int, signature: Tensor, statement: bytes) -> bool:
        known = self.federation.identities
        return known is None or known.signed(party, bytes(signature.tolist()), statement)

    def _named(self, party: int) -> str:
        return f"party {self.federation.name_of(party)}"

    def _note(self, failed: Mapping[int, str]) -> None:
        self.federation.note(self.verb, failed)

    def _settled(self, before: Tensor, here: Sequence[int]) -> tuple[frozenset[int], dict[int, str]]:
        """The parties over which this call was opened before the run was resumed, since it is opened over no others; and the
        parties whose claim does not fit the others': one that lies must not choose who takes part."""
        claims: dict[frozenset[int], set[int]] = {}
        for party, row in zip(here, before, strict=True):
            if bool(row.any()):
                claims.setdefault(frozenset(row.nonzero()[:, 0].tolist()), set()).add(party)
        if not claims:
            return frozenset(), {}
        best = max(claims, key=lambda one: (len(claims[one]), len(one), sorted(one)))
        opened = len(claims[best] | (best - set(here))) >= max(masking.threshold(len(best)), self.federation.secure_min)
        settled = best if opened or best == set(here) else frozenset()
        odd = {party for one, said in claims.items() if one != settled for party in said}
        return settled, dict.fromkeys(sorted(odd), "says that this total was opened over other parties before")

    def _complete(self, settled: frozenset[int], here: set[int]) -> None:
        if lost := sorted(settled - here):
            names = ", ".join(self._named(party) for party in lost)
            back = "it is" if len(lost) == 1 else "all are"
            raise AtollError(
                f"{self.where}: {self.verb!r} was totaled with {names} before the run was resumed, and "
                f"cannot be without: the difference would be single replies; resume when {back} back."
            )

    def _enough(self, parties: Sequence[int], settled: frozenset[int] = frozenset(), what: str = "") -> None:
        """Stop the run where too few parties are left."""
        needed = max(self.needed, self.federation.secure_min)
        self._complete(settled, set(parties))
        if len(parties) >= needed:
            return
        why = ""
        if self.federation.missing:
            why = f" ({self.federation.reasons(self.federation.missing)})"
        if what:
            raise AtollError(f"{self.where}: {len(parties)} parties {what} {self.verb!r}, but {needed} are needed{why}.")
        lower = " lower secure_min," if needed > max(self.needed, 2) else ""
        raise AtollError(
            f"{self.where}: a secure total of {self.verb!r} needs {needed} parties, but {len(parties)} answered{why}; "
            f"have more parties take part,{lower} or leave secure out."
        )
