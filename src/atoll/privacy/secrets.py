"""Secure totals at the parties: what each party keeps for a session, what it checks, and what it refuses.

A session is one attempt at one total. Each party draws fresh secrets for it, which are never saved: after a restart a process no
longer knows the session, and counts as dropped out. The steps come in this order, each once:

    keys → shares → open → mask → confirm → reveal

Everything agreed on so far (the run with its configuration, the call, all parties' signed keys and fresh randomness, who takes
part, the verb's arguments) is hashed into each later step: into the keys of ciphers, the masks and the signatures. Parties that
received different messages cannot decrypt each other's shares, and do not accept each other's signatures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError, PartyFailure, listed
from atoll.privacy import masking
from atoll.privacy.entropy import Entropy, fresh
from atoll.privacy.identities import SIGNATURE_BYTES, Identities
from atoll.privacy.masking import MASKS, SELF, Advert, Call, Integers, threshold
from atoll.privacy.opened_totals import OpenedTotals
from atoll.privacy.sessions import Session

STEPS = ("keys", "shares", "open", "mask", "confirm", "reveal")
UNKNOWN = "does not know the session of this secure total: it was restarted, or another one began"
ZERO_NONCE = b"\0" * 12  # each key encrypts a single message


class Secrets:
    """What the parties of one process keep for secure totals: one session each, and which totals they helped to open.

    It is not part of the parties' memory: nothing of it is saved except the record of opened totals.
    """

    def __init__(
        self,
        identities: Identities,
        *,
        run: str = "",
        min_parties: int = 2,
        opened: OpenedTotals | None = None,
        entropy: Entropy = fresh,
    ) -> None:
        """`min_parties`: the fewest parties whose sum may be opened; `opened`: the record of opened totals, a file at a site."""
        masking.require_cryptography()
        self.identities = identities
        self.run = run
        self.min_parties = max(2, min_parties)
        self.opened, self.entropy = opened or OpenedTotals(), entropy
        self.sessions: dict[int, Session] = {}

    def keys(self, parties: Sequence[int], call: Call, session: Tensor) -> dict[str, Tensor]:
        """Step 1: fresh secrets; (P, 4, 32) adverts, (P, 64) signatures, and (P, N) over which parties it was opened before."""
        number = _bytes(session, (masking.SESSION_BYTES,), "session")
        name = masking.session_digest(self.run, call, number)
        adverts, signatures = [], []
        before = torch.zeros(len(parties), len(self.identities), dtype=torch.bool)
        for row, party in enumerate(parties):
            record = self.sessions[party] = Session.begin(party, number, call, name, self.entropy)
            adverts.append(record.advert())
            signatures.append(self.identities.sign(party, masking.keys_statement(name, party, adverts[-1])))
            before[row, list(self.opened.find(party, call) or ())] = True
        shaped = masking.as_bytes(adverts).view(len(parties), masking.ADVERT_PARTS, 32)
        return {"keys": shaped, "signature": masking.as_bytes(signatures), "settled": before}

    def shares(
        self, parties: Sequence[int], call: Call, session: Tensor, users: Tensor, keys: Tensor, signatures: Tensor
    ) -> dict[str, Tensor]:
        """Step 2: (P, U, 112) each party's shares of its two seeds, encrypted for each user, with commitments."""
        records = self._advance("shares", parties, call, session)
        all_users = self._cohort(users, range(len(self.identities)), parties, 0)
        adverts = _bytes(keys, (len(all_users), masking.ADVERT_PARTS, 32), "keys")
        signed = _bytes(signatures, (len(all_users), SIGNATURE_BYTES), "signatures")
        name, size = records[0].digest, masking.ADVERT_PARTS * 32
        received = {user: adverts[size * index : size * (index + 1)] for index, user in enumerate(all_users)}
        offsets = range(0, len(signed), SIGNATURE_BYTES)
        claims = [
            (user, signed[start : start + SIGNATURE_BYTES], masking.keys_statement(name, user, received[user]))
            for user, start in zip(all_users, offsets, strict=True)
        ]
        if wrong := self.identities.invalid_signatures(claims):
            raise PartyFailure(f"refuses keys that are not signed by party {wrong[0]}")
        known = {user: Advert(*(received[user][at : at + 32] for at in range(0, size, 32))) for user in all_users}
        rows = []
        for party, mine in zip(parties, records, strict=True):
            if received[party] != mine.advert():
                raise PartyFailure("refuses a list of keys in which its own are not those it sent")
            mine.users, mine.adverts, mine.keys = all_users, known, masking.keys_transcript(mine.digest, all_users, adverts)
            rows.append(masking.as_bytes(self._deal(party, mine)))
        return {"shares": torch.stack(rows)}

    def _deal(self, party: int, record: Session) -> list[bytes]:
        """The shares for every user: a box with both, and what binds the dealer to them."""
        count = len(record.users)
        halves = [masking.split(seed, threshold(count), count) for seed in record.seeds]
        dealt = []
        for index, user in enumerate(record.users):
            pair = (halves[MASKS][index], halves[SELF][index])
            bound = b"".join(masking.share_commitment(record.keys, party, user, kind, pair[kind]) for kind in (MASKS, SELF))
            cipher = masking.box(record.channel, record.adverts[user].channel, party, user, record.keys)
            dealt.append(cipher.encrypt(ZERO_NONCE, b"".join(pair), record.keys + bound) + bound)
        return dealt

    def open(self, parties: Sequence[int], call: Call, session: Tensor, dealers: Tensor, shares: Tensor) -> dict[str, Tensor]:
        """Step 3: receive the others' shares; (P, D) which of them could be decrypted and match their dealer's commitment."""
        records = self._advance("open", parties, call, session)
        from_whom = self._cohort(dealers, records[0].users, parties, threshold(len(records[0].users)))
        data = _bytes(shares, (len(parties), len(from_whom), masking.SHARE_BYTES), "shares")
        opened = torch.zeros(len(parties), len(from_whom), dtype=torch.bool)
        for row, (party, mine) in enumerate(zip(parties, records, strict=True)):
            mine.dealers = from_whom
            for column, dealer in enumerate(from_whom):
                start = (row * len(from_whom) + column) * masking.SHARE_BYTES
                pair = _unbox(party, mine, dealer, data[start : start + masking.SHARE_BYTES])
                if pair is not None:
                    mine.received[dealer], opened[row, column] = pair, True
        return {"opened": opened}

    def enter(self, parties: Sequence[int], call: Call, arguments: bytes, session: Tensor, users: Tensor) -> list[Session]:
        """Step 4, before the verb is called: check that a masked reply may be given; `arguments` is the digest of the verb's."""
        records = self._advance("mask", parties, call, session)
        masked = self._cohort(users, records[0].dealers, parties, threshold(len(records[0].users)))
        for mine in records:
            mine.masked, mine.transcript = masked, masking.masks_transcript(mine.keys, mine.dealers, masked, arguments)
        return records

    def mask(self, fields: Mapping[str, Any], parties: Sequence[int], sessions: Sequence[Session]) -> dict[str, Any]:
        """Step 4: every number as a masked integer; fields are grouped by the type that their sum will have."""
        flat = dict(wire.leaves(fields))
        if ragged := [name for name in flat if name.endswith("]")]:
            raise AtollError(f"field {ragged[0]!r} has a different shape at every party, so it has no total.")
        hidden = {name: masking.integers(value, name, len(sessions[0].masked), parties) for name, value in flat.items()}
        for row, (party, record) in enumerate(zip(parties, sessions, strict=True)):
            pairs = _pair_seeds(party, record)
            for name, numbers in hidden.items():
                numbers[row] += _masks(party, record, pairs, name, numbers[row].size).reshape(numbers[row].shape)
            record.channel, record.seeds = None, (b"", b"")  # the remaining steps need only the others' shares
        kinds = {name: str(value.dtype).removeprefix("torch.") for name, value in flat.items()}
        return wire.nest({f"{kinds[name]}/{name}": torch.from_numpy(value.view(np.int64)) for name, value in hidden.items()})

    def confirm(self, parties: Sequence[int], call: Call, session: Tensor, answered: Tensor) -> dict[str, Tensor]:
        """Step 5: (P, 64) signatures of who is in the sum, as received; without enough of them no party reveals a share."""
        records = self._advance("confirm", parties, call, session)
        whom = self._answered(records[0], answered, parties)
        self._require_same_parties(parties, records[0].call, whom)
        for mine in records:
            mine.answered = whom
        statements = [
            masking.answered_statement(mine.transcript, party, whom) for party, mine in zip(parties, records, strict=True)
        ]
        signed = [self.identities.sign(party, statement) for party, statement in zip(parties, statements, strict=True)]
        return {"signature": masking.as_bytes(signed)}

    def reveal(
        self, parties: Sequence[int], call: Call, session: Tensor, answered: Tensor, signatures: Tensor
    ) -> dict[str, Tensor]:
        """Step 6: (P, U, 16) the self mask's share of each party in the sum, the pair masks' share of the others; never both."""
        records = self._advance("reveal", parties, call, session)
        whom = self._answered(records[0], answered, parties)
        if any(mine.answered != whom for mine in records):
            raise PartyFailure("refuses to reveal shares for other parties than it confirmed")
        masked, users = records[0].masked, records[0].users
        signed = _bytes(signatures, (len(masked), SIGNATURE_BYTES), "signatures")
        confirmed = 0
        for index, user in enumerate(masked):
            signature = signed[SIGNATURE_BYTES * index : SIGNATURE_BYTES * (index + 1)]
            if user in whom and any(signature):
                statement = masking.answered_statement(records[0].transcript, user, whom)
                confirmed += self.identities.signed(user, signature, statement)
        if confirmed < threshold(len(users)):
            needed = threshold(len(users))
            raise PartyFailure(f"refuses to reveal shares: {confirmed} parties confirmed who answered, {needed} must")
        self._require_same_parties(parties, records[0].call, whom)
        self.opened.add(parties, records[0].call, whom)
        rows = []
        for mine in records:
            kinds = [SELF if user in whom else MASKS for user in masked]
            none = (bytes(masking.SEED_BYTES),) * 2
            rows.append(masking.as_bytes([mine.received.get(user, none)[kind] for user, kind in zip(masked, kinds, strict=True)]))
            mine.forget()
        return {"shares": torch.stack(rows)}

    def _advance(self, step: str, parties: Sequence[int], call: Call, session: Tensor) -> list[Session]:
        """The parties' sessions, advanced by one step: each step is taken once and in order, whether it succeeds or not."""
        number = _bytes(session, (masking.SESSION_BYTES,), "session")
        advanced = []
        for party in parties:
            record = self.sessions.get(party)
            if record is None or record.session != number:
                raise PartyFailure(UNKNOWN)
            if record.call != (call if call.verb else call._replace(verb=record.call.verb)):  # not every step names its verb
                raise PartyFailure("refuses to use the session of one secure total for another")
            if record.step + 1 != STEPS.index(step):
                before = STEPS[record.step]
                raise PartyFailure(f"refuses the step {step!r} of a secure total after {before!r}: each comes once, in order")
            advanced.append(record)
        for record in advanced:
            record.step += 1
        if len({(record.keys, record.dealers, record.transcript) for record in advanced}) > 1:
            raise PartyFailure("refuses a message for parties that received different messages before")
        return advanced

    def _cohort(self, named: Tensor, among: Sequence[int], parties: Sequence[int], needed: int) -> tuple[int, ...]:
        """Check a list of parties: ascending, each once, including these parties, and not too few."""
        if not isinstance(named, Tensor) or named.dtype != torch.int64 or named.dim() != 1:
            raise PartyFailure("refuses a list of parties that is malformed")
        users = tuple(named.tolist())
        if list(users) != sorted(set(users)) or not set(users) <= set(among) or not set(parties) <= set(users):
            raise PartyFailure("refuses a list of parties that does not match earlier messages")
        if len(users) < max(self.min_parties, needed):
            fewest = max(self.min_parties, needed)
            raise PartyFailure(f"refuses a secure total of {len(users)} parties: at least {fewest} must take part")
        return users

    def _answered(self, record: Session, answered: Tensor, parties: Sequence[int]) -> tuple[int, ...]:
        if not isinstance(answered, Tensor) or answered.dtype != torch.bool or answered.shape != (len(record.masked),):
            raise PartyFailure("refuses a list of parties that is malformed")
        whom = [user for user, here in zip(record.masked, answered.tolist(), strict=True) if here]
        return self._cohort(masking.ids(whom), record.masked, parties, threshold(len(record.users)))

    def _require_same_parties(self, parties: Sequence[int], call: Call, answered: tuple[int, ...]) -> None:
        for party in parties:
            before = self.opened.find(party, call)
            if before is not None and before != answered:
                raise PartyFailure(
                    f"refuses to open this total over other parties than before the run was resumed ({listed(before)}): "
                    "the difference would be single replies"
                )


def _unbox(party: int, record: Session, dealer: int, data: bytes) -> tuple[bytes, bytes] | None:
    """The two shares from a dealer; None if they cannot be decrypted or do not match the dealer's commitment."""
    from cryptography.exceptions import InvalidTag

    sealed, bound = data[: masking.BOX_BYTES], data[masking.BOX_BYTES :]
    try:
        cipher = masking.box(record.channel, record.adverts[dealer].channel, dealer, party, record.keys)
        plain = cipher.decrypt(ZERO_NONCE, sealed, record.keys + bound)
    except (InvalidTag, PartyFailure):
        return None
    pair = (plain[: masking.SEED_BYTES], plain[masking.SEED_BYTES :])
    expected = b"".join(masking.share_commitment(record.keys, dealer, party, kind, pair[kind]) for kind in (MASKS, SELF))
    return pair if expected == bound else None


def _pair_seeds(party: int, record: Session) -> dict[int, bytes]:
    private = masking.private_key(record.seeds[MASKS])
    others = [user for user in record.masked if user != party]
    return {user: masking.pair_seed(private, record.adverts[user].masks, party, user, record.transcript) for user in others}


def _masks(party: int, record: Session, pairs: Mapping[int, bytes], name: str, size: int) -> Integers:
    total = masking.stream(record.seeds[SELF], name, size, record.transcript)
    for user, seed in pairs.items():
        total += masking.pair_mask(seed, party, user, name, size)
    return total


def _bytes(value: Tensor, shape: tuple[int, ...], name: str) -> bytes:
    """The bytes of a uint8 tensor of this shape."""
    if not isinstance(value, Tensor) or value.dtype != torch.uint8 or tuple(value.shape) != shape:
        raise PartyFailure(f"refuses a field {name!r} that is malformed")
    return value.contiguous().numpy().tobytes()
