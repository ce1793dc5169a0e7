"""Arithmetic and cryptography of secure totals, shared by server and parties: fixed-point integers, masks, encryption, digests.

All primitives are those of `cryptography` (X25519, HKDF-SHA256, ChaCha20, ChaCha20-Poly1305) and `pycryptodome` (Shamir).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from atoll import wire
from atoll.errors import AtollError, PartyFailure

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

SECURE_STEPS = ("secure_keys", "secure_shares", "secure_open", "secure_confirm", "secure_reveal")  # verbs without memory
FRACTION_BITS = 30  # of a floating-point number as a fixed-point integer
SEED_BYTES = 16
SESSION_BYTES = 16
DIGEST_BYTES = 32
ADVERT_PARTS = 4  # of 32 bytes: the channel's public key, the masks' public key, the self mask's commitment, fresh randomness
BOX_BYTES = 2 * SEED_BYTES + 16  # two shares and an authentication tag
SHARE_BYTES = BOX_BYTES + 2 * DIGEST_BYTES  # and the commitments to both
MASKS, SELF = 0, 1  # kinds of shares: of the pair masks' key, and of the self mask's seed
INTEGER_TYPES = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
TYPES = {str(t).removeprefix("torch."): t for t in (*INTEGER_TYPES, torch.float64, torch.float32, torch.float16, torch.bfloat16)}

Integers = np.ndarray[Any, np.dtype[np.uint64]]


class Call(NamedTuple):
    """The total that a session is for: its verb, and the index of the call within the run."""

    round: int
    call: int
    verb: str


class Advert(NamedTuple):
    """A party's first message, which it signs; each part has 32 bytes."""

    channel: bytes
    masks: bytes
    commitment: bytes
    nonce: bytes

    @classmethod
    def of(cls, row: Tensor) -> Advert:
        """The advert in a (4, 32) tensor of bytes."""
        return cls(*(bytes(part) for part in row.tolist()))


def threshold(parties: int) -> int:
    """How many of the parties must help to open a total: more than two thirds."""
    return 2 * parties // 3 + 1 if parties > 2 else parties


def min_total_parties(setting: int, parties: int) -> int:
    """The fewest parties of a total for this `secure_min`: by default 3, or all if there are fewer; never one."""
    return max(2, setting or min(3, parties))


def session_digest(run: str, call: Call, session: bytes) -> bytes:
    """Identifies a session: the run, which of its totals, and which attempt."""
    return digest("session", run, call.round, call.call, call.verb, session)


def keys_statement(session: bytes, party: int, advert: bytes) -> bytes:
    """What a party signs in the first step."""
    return digest("advert", session, party, advert)


def answered_statement(transcript: bytes, party: int, answered: Sequence[int]) -> bytes:
    """What a party signs before any share is revealed."""
    return digest("confirm", transcript, party, answered)


def keys_transcript(session: bytes, users: Sequence[int], adverts: bytes) -> bytes:
    """Everything agreed in the first step."""
    return digest("keys", session, users, adverts)


def masks_transcript(keys: bytes, dealers: Sequence[int], users: Sequence[int], arguments: bytes) -> bytes:
    """The keys' transcript, whose masks are in the replies, and the digest of the verb's arguments."""
    return digest("masks", keys, dealers, users, arguments)


def arguments_digest(common: Mapping[str, Any], training: bool = False, apart: Iterable[str] = ()) -> bytes:
    """The arguments that all parties receive alike, and the names of those that differ by party.

    Otherwise a server could send one party a model, and the others a model to which their replies are known, and read the one
    party's reply off the sum.
    """
    parts: list[bytes | str | int | Sequence[int]] = ["told", training, json.dumps(sorted(apart))]
    for name, value in sorted(wire.leaves(common), key=lambda leaf: leaf[0]):
        if isinstance(value, Tensor):
            numbers = value.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            parts += [name, str(value.dtype), tuple(value.shape), numbers]
        else:
            parts += [name, json.dumps(value, sort_keys=True)]
    return digest(*parts)


def run_digest(
    run: str,
    config: Mapping[str, Any],
    schema: Mapping[str, Any],
    encoding: Sequence[Any] = (),
    nodes: Tensor | None = None,
) -> str:
    """The run as all of its sites must see it: its name, configuration, schema, as the only item its tables' encoding, and which
    node each row is where all sites hold the same.

    Otherwise a server could have one site encode its table so that its replies, or its failures, say what is in it, or have it
    pair its rows with other nodes of the others.
    """
    agreed: dict[str, Any] = {"encoding": list(encoding)} if encoding else {}
    agreed |= {} if nodes is None else {"nodes": nodes}
    return arguments_digest({"run": run, "config": [dict(config)], "schema": dict(schema), **agreed}).hex()


def share_commitment(transcript: bytes, dealer: int, receiver: int, kind: int, share: bytes) -> bytes:
    """Binds a dealer to the share it gave to a receiver."""
    return digest("share", transcript, dealer, receiver, kind, share)


def seed_commitment(seed: bytes) -> bytes:
    """Binds a party to the seed of its self mask."""
    return digest("self", seed)


def digest(*parts: bytes | str | int | Sequence[int]) -> bytes:
    """SHA-256 of some values, each with its length, so that different lists of values have different encodings."""
    hashed = hashlib.sha256(b"atoll secure total 2")
    for part in parts:
        if isinstance(part, str):
            part = part.encode()
        elif isinstance(part, int):
            part = struct.pack("<q", part)
        elif not isinstance(part, bytes):
            part = struct.pack(f"<{len(part)}q", *part)
        hashed.update(struct.pack("<q", len(part)) + part)
    return hashed.digest()


def stream(seed: bytes, name: str, size: int, context: bytes = b"") -> Integers:
    """PRG: pseudorandom integers from a seed, different for every field and context."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms

    cipher = Cipher(algorithms.ChaCha20(derive(seed, f"field {name}".encode() + context, 32), b"\0" * 16), None)
    return np.frombuffer(cipher.encryptor().update(bytes(8 * size)), dtype=np.uint64).copy()


def pair_seed(private: X25519PrivateKey, public: bytes, party: int, other: int, context: bytes) -> bytes:
    """The seed of two parties' pair mask."""
    return derive(agree(private, public), b"pair %d %d " % (min(party, other), max(party, other)) + context, 32)


def pair_mask(seed: bytes, party: int, other: int, name: str, size: int) -> Integers:
    """What `own` adds for its pair with `other`: the agreed stream, negated for the higher-numbered party."""
    mask = stream(seed, name, size)
    return mask if party < other else np.uint64(0) - mask


def integers(value: Tensor, name: str, parties: int, rows: Sequence[int]) -> Integers:
    """Fixed-point integers modulo 2⁶⁴; values that are not finite, or too large for the sum of `parties`, are refused by name."""
    value = value.detach()
    if value.is_floating_point():
        scaled = value.double() * 2**FRACTION_BITS
        fits = scaled.isfinite() & (scaled.abs() < 2**62 / parties)
        whole = scaled.round().where(fits, 0).long()
    else:
        whole = value.long()
        limit = 2**62 // parties
        fits = (whole < limit) & (whole > -limit)
    if not bool(fits.all()):
        wrong = [party for party, fit in zip(rows, fits.reshape(len(fits), -1).all(1).tolist(), strict=True) if not fit]
        raise PartyFailure(f"field {name!r} of party {wrong[0]} is not finite, or too large for a secure total")
    numbers: Integers = whole.contiguous().numpy().view(np.uint64).copy()
    return numbers


def from_integers(numbers: Integers, kind: str) -> Tensor:
    """The sum in the type of its terms; sums of integers are int64."""
    whole = torch.from_numpy(np.array(numbers.view(np.int64)))
    return (whole.double() / 2**FRACTION_BITS).to(TYPES[kind]) if TYPES[kind].is_floating_point else whole


def split(seed: bytes, needed: int, count: int) -> list[bytes]:
    """Shamir shares of a seed, for receivers 1 to `count`."""
    from Crypto.Protocol.SecretSharing import Shamir

    return [bytes(share) for _, share in sorted(Shamir.split(needed, count, seed))]


def combine(shares: Sequence[tuple[int, bytes]]) -> bytes:
    """The seed that shares (receiver's number from 1, share) belong to."""
    from Crypto.Protocol.SecretSharing import Shamir

    return bytes(Shamir.combine(list(shares)))


def box(private: X25519PrivateKey, public: bytes, sender: int, receiver: int, context: bytes) -> Any:
    """The cipher for what one party sends to another in one session; its key is for this direction and session only."""
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    return ChaCha20Poly1305(derive(agree(private, public), b"box %d %d " % (sender, receiver) + context, 32))


def private_key(seed: bytes) -> X25519PrivateKey:
    """The X25519 key derived from a seed."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

    return X25519PrivateKey.from_private_bytes(derive(seed, b"x25519", 32))


def public_key(private: X25519PrivateKey) -> bytes:
    """The public part of a key."""
    return bytes(private.public_key().public_bytes_raw())


def usable(public: bytes) -> bool:
    """Whether a secret can be agreed on with this public key, which is not so for points of low order."""
    try:
        agree(private_key(b"\1" * SEED_BYTES), public)
    except PartyFailure:
        return False
    return True


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """X25519: the secret that two parties share."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError as error:
        raise PartyFailure("refuses keys on which no secret can be agreed") from error


def derive(secret: bytes, purpose: bytes, length: int) -> bytes:
    """HKDF-SHA256."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(SHA256(), length, salt=None, info=b"atoll " + purpose).derive(secret)


def as_bytes(value: bytes | Sequence[bytes]) -> Tensor:
    """Bytes, or rows of bytes of one length, as a tensor."""
    if isinstance(value, bytes):
        return torch.frombuffer(bytearray(value), dtype=torch.uint8)
    return torch.stack([as_bytes(row) for row in value])


def ids(parties: Sequence[int]) -> Tensor:
    """Party numbers as a tensor."""
    return torch.tensor(list(parties), dtype=torch.int64)


def require_cryptography() -> None:
    """Refuse, with what to install, if the packages are missing."""
    if find_spec("Crypto") is None or find_spec("cryptography") is None:
        raise AtollError("Secure totals need the packages cryptography and pycryptodome; install atoll[deploy].")
