"""Where the secrets of secure totals come from: the system or, where a process may have to be repeated exactly, a key."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

Entropy = Callable[[int, bytes, str], bytes]  # (party, session, what for) → 32 bytes


def fresh(party: int, session: bytes, what: str) -> bytes:
    """From the system: nobody can predict or repeat them."""
    return os.urandom(32)


def derived(key: bytes) -> Entropy:
    """From a key of at most 64 bytes: the same again for the same party, session and purpose, and unknown without the key.

    For simulations alone, whose parties' processes are started again from what one process knows.
    """

    def draw(party: int, session: bytes, what: str) -> bytes:
        return hashlib.blake2b(f"{party} {what} ".encode() + session, key=key, digest_size=32).digest()

    return draw
