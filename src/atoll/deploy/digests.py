"""Keyed digests of names that may be secret; the key is in the sites' kits and not in the server's."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from atoll.deploy.kit import NAMES_KEY
from atoll.errors import AtollError


def digest_key(kit: Path | None) -> bytes:
    """The key of the digests; empty for simulated sites."""
    if kit is None:
        return b""
    try:
        return bytes.fromhex((kit / NAMES_KEY).read_text().strip())
    except (OSError, ValueError) as error:
        raise AtollError(f"its kit has no readable {NAMES_KEY}; make new kits with this version's `atoll provision`.") from error


def digests(values: Iterable[str], kind: str, key: bytes) -> Tensor:
    """(n,) int64: a keyed digest of each value; the same text has a different digest for each kind."""
    person = kind.encode()
    hashed = [hashlib.blake2b(value.encode(), digest_size=8, key=key, person=person).digest() for value in values]
    return torch.tensor([int.from_bytes(each, "little", signed=True) for each in hashed], dtype=torch.int64)
