"""Secure totals: Bonawitz et al., CCS 2017. The server learns the sum of the parties' replies and nothing else of them.

For every total, each party u makes two key pairs and a seed, and hides its reply x_u, as integers modulo 2⁶⁴, behind masks:

    y_u = x_u + PRG(b_u) + Σ_{v > u} PRG(s_uv) − Σ_{v < u} PRG(s_uv)

s_uv is agreed by X25519, so the pairs' masks cancel in the sum. Seeds are shared (Shamir) among all parties, encrypted for each:
from any `threshold` of them the server gets b_u of those who answered, or the pair masks of those who dropped out, never both.
Server and parties follow the protocol but look at what they see; fewer than `threshold` of them may put their heads together.
PRG is ChaCha20, keys come from HKDF-SHA256, shares travel under ChaCha20-Poly1305: all from `cryptography` and `pycryptodome`.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError, PartyFailure

if TYPE_CHECKING:
    from atoll.federation import Federation

FRACTION = 30  # bits behind the binary point of numbers that are not whole
CIPHERTEXT = 16 + 16 + 16  # two shares and their authentication
NONCE = b"\0" * 12  # every key encrypts a single message

Integers = np.ndarray[Any, np.dtype[np.uint64]]


def threshold(parties: int) -> int:
    """How many of them must answer, and how many fewer can learn nothing: more than two thirds."""
    return 2 * parties // 3 + 1 if parties > 2 else parties


class Secrets:
    """What each party of a cohort keeps for secure totals: a root secret, and the last session it revealed shares for.

    All keys of a session are derived from the root, so a party that is rebuilt from its memory in between goes on.
    """

    def __init__(self, parties: Sequence[int]) -> None:
        _require()
        self.parties = [int(party) for party in parties]
        roots = [list(os.urandom(32)) for _ in self.parties]
        self.roots = torch.tensor(roots, dtype=torch.uint8).view(-1, 32)
        self.revealed = torch.full((len(self.parties), 2), -1, dtype=torch.int64)

    def state(self) -> dict[str, Tensor]:
        """Everything, by party."""
        return {"roots": self.roots, "revealed": self.revealed}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        """Take it back."""
        self.roots, self.revealed = state["roots"].clone(), state["revealed"].clone()

    def keys(self, session: Tensor) -> Tensor:
        """Step 1: (P, 2, 32) the public keys of the channel and of the masks."""
        rows = [[_public(self._key(place, session, kind)) for kind in ("channel", "mask")] for place in range(len(self.parties))]
        return torch.tensor([[list(key) for key in row] for row in rows], dtype=torch.uint8)

    def shares(self, session: Tensor, users: Tensor, keys: Tensor) -> Tensor:
        """Step 2: (P, U, 48) each party's shares of its two seeds, encrypted for every user."""
        from Crypto.Protocol.SecretSharing import Shamir

        count, rows = len(users), []
        for place, party in enumerate(self.parties):
            seeds = [self._seed(place, session, kind) for kind in ("mask", "self")]
            split = [dict(Shamir.split(threshold(count), count, seed)) for seed in seeds]
            row = []
            for number, user in enumerate(users.tolist(), 1):
                box = _box(self._key(place, session, "channel"), keys[number - 1, 0], party, user)
                row.append(list(box.encrypt(NONCE, split[0][number] + split[1][number], _label(session, party, user))))
            rows.append(row)
        return torch.tensor(rows, dtype=torch.uint8)

    def mask(self, fields: Mapping[str, Any], session: Tensor, users: Tensor, keys: Tensor) -> dict[str, Any]:
        """Step 3: every number as an integer, hidden; names are grouped by the type they come back as."""
        hidden: dict[str, Tensor] = {}
        for name, value in wire.leaves(fields):
            numbers = _integers(value, name, len(users))
            for place in range(len(self.parties)):
                numbers[place] += self._masks(place, session, users, keys, name, numbers[place].size).reshape(
                    numbers[place].shape
                )
            hidden[f"{str(value.dtype).removeprefix('torch.')}/{name}"] = torch.from_numpy(numbers.view(np.int64))
        return wire.nest(hidden)

    def reveal(self, session: Tensor, users: Tensor, keys: Tensor, ciphertexts: Tensor, answered: Tensor) -> Tensor:
        """Step 4: (P, U, 16) of those who answered the share of the self mask, of the others that of the pair masks."""
        rows = []
        for place, party in enumerate(self.parties):
            if self.revealed[place].tolist() == session.tolist():
                raise PartyFailure(f"party {party} was asked twice for its shares of one total")
            self.revealed[place] = session
            row = []
            for number, user in enumerate(users.tolist()):
                box = _box(self._key(place, session, "channel"), keys[number, 0], user, party)
                pair = box.decrypt(NONCE, bytes(ciphertexts[place, number].tolist()), _label(session, user, party))
                row.append(list(pair[16:] if answered[number] else pair[:16]))
            rows.append(row)
        return torch.tensor(rows, dtype=torch.uint8)

    def _masks(self, place: int, session: Tensor, users: Tensor, keys: Tensor, name: str, size: int) -> Integers:
        own = self.parties[place]
        total = stream(self._seed(place, session, "self"), name, size)
        for number, user in enumerate(users.tolist()):
            if user != own:
                total += pair_mask(self._key(place, session, "mask"), keys[number, 1], own, user, name, size)
        return total

    def _seed(self, place: int, session: Tensor, kind: str) -> bytes:
        return _derive(bytes(self.roots[place].tolist()), f"{kind} {session.tolist()}", 16)

    def _key(self, place: int, session: Tensor, kind: str) -> Any:
        return _private(self._seed(place, session, kind))


def total(
    federation: Federation, verb: str, parties: Sequence[int], each: Mapping[str, Any], common: Mapping[str, Any]
) -> dict[str, Any]:
    """The server's side: four messages, then the sum of those who answered the third, unmasked."""
    from atoll.cohort import pick

    session = torch.tensor([federation.round, federation.calls])
    keys = federation.exchange("secure_keys", parties, {}, {"session": session})
    shared = federation.exchange(
        "secure_shares", keys.parties, {}, {"session": session, "users": _ids(keys.parties), "keys": keys.stack("keys")}
    )
    users = list(shared.parties)
    needed = threshold(len(keys.parties))
    if len(users) < needed or len(keys.parties) < 2:
        raise AtollError(
            f"Round {federation.round}: a secure total of {verb!r} needs {max(needed, 2)} parties, but {len(users)} answered; "
            "have more parties take part, or leave secure out."
        )
    places = [list(keys.parties).index(user) for user in users]
    own = keys.stack("keys")[places]
    agreed = {"session": session, "users": _ids(users), "keys": own}
    rows = pick(each, [list(parties).index(user) for user in users])
    masked = federation.exchange(verb, users, rows, {**common, "secure": agreed})
    answered = torch.tensor([user in set(masked.parties) for user in users])
    boxes = shared.stack("shares")[:, places]  # (from, to, 48)
    helpers = [user for user in users if user in set(masked.parties)]
    mine = boxes.transpose(0, 1)[answered]
    told = federation.exchange("secure_reveal", helpers, {"ciphertexts": mine}, {**agreed, "answered": answered})
    if len(told.parties) < needed:
        raise AtollError(
            f"Round {federation.round}: {len(told.parties)} parties gave their shares of {verb!r}, but {needed} are needed."
        )
    numbers = [places[users.index(party)] + 1 for party in told.parties][:needed]
    seeds = [_combine(numbers, told.stack("shares")[:needed, place]) for place in range(len(users))]
    return _unmask(masked.fields, users, own, answered, seeds)


def _unmask(fields: Mapping[str, Any], users: list[int], keys: Tensor, answered: Tensor, seeds: list[bytes]) -> dict[str, Any]:
    """Take the self masks of those who answered and the pair masks with those who did not off the sum."""
    found: dict[str, Tensor] = {}
    for path, value in wire.leaves(fields):
        kind, _, name = path.partition("/")
        summed: Integers = value.sum(0).numpy().view(np.uint64)
        for user, here, seed in zip(users, answered.tolist(), seeds, strict=True):
            if here:
                summed = summed - stream(seed, name, summed.size).reshape(summed.shape)
                continue
            for other, key, present in zip(users, keys, answered.tolist(), strict=True):
                if present:  # what the dropped party would have added cancels what the other one added
                    summed = summed + pair_mask(_private(seed), key[1], user, other, name, summed.size).reshape(summed.shape)
        dtype: torch.dtype = getattr(torch, kind)
        integers = torch.from_numpy(np.array(summed.view(np.int64)))
        found[name] = (integers.double() / 2**FRACTION).to(dtype) if dtype.is_floating_point else integers.to(dtype)
    return wire.nest(found)


def stream(seed: bytes, name: str, size: int) -> Integers:
    """PRG: so many random integers from a seed, other ones for every field."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(_derive(seed, f"field {name}", 32), b"\0" * 16), None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), dtype=np.uint64).copy()


def pair_mask(private: Any, public: Tensor, own: int, other: int, name: str, size: int) -> Integers:
    """What `own` adds for its pair with `other`: the agreed stream, with a minus for the higher of the two."""
    agreed = _derive(private.exchange(_peer(public)), f"pair {min(own, other)} {max(own, other)}", 32)
    mask = stream(agreed, name, size)
    return mask if own < other else np.uint64(0) - mask


def _integers(value: Tensor, name: str, parties: int) -> Integers:
    """Fixed-point integers modulo 2⁶⁴; what is not finite, or too large for the sum to fit, is refused at the party."""
    if not value.is_floating_point():
        return _unsigned(value.detach().long())
    scaled = value.detach().double() * 2**FRACTION
    if not bool(torch.isfinite(scaled).all()) or bool((scaled.abs() >= 2**62 / parties).any()):
        raise PartyFailure(f"field {name!r} is not finite, or too large for a secure total")
    return _unsigned(scaled.round().long())


def _unsigned(value: Tensor) -> Integers:
    numbers: Integers = value.contiguous().numpy().view(np.uint64).copy()
    return numbers


def _combine(numbers: Sequence[int], shares: Tensor) -> bytes:
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine([(number, bytes(share.tolist())) for number, share in zip(numbers, shares, strict=True)]))


def _ids(parties: Sequence[int]) -> Tensor:
    return torch.tensor(list(parties), dtype=torch.int64)


def _label(session: Tensor, sender: int, receiver: int) -> bytes:
    return struct.pack("<4q", *session.tolist(), sender, receiver)


def _box(private: Any, public: Tensor, sender: int, receiver: int) -> Any:
    """The cipher for what one party sends to another; the two directions have different keys."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(_derive(private.exchange(_peer(public)), f"box {sender} {receiver}", 32))


def _private(seed: bytes) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(_derive(seed, "x25519", 32))


def _public(private: Any) -> bytes:
    return bytes(private.public_key().public_bytes_raw())


def _peer(public: Tensor) -> Any:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    return X25519PublicKey.from_public_bytes(bytes(public.tolist()))


def _derive(secret: bytes, purpose: str, length: int) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt=None, info=f"atoll {purpose}".encode()).derive(secret)


def _require() -> None:
    if find_spec("Crypto") is None or find_spec("cryptography") is None:
        raise AtollError("Secure totals need the packages cryptography and pycryptodome; install atoll[deploy].")
