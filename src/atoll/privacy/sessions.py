"""What one party keeps of one attempt at a secure total."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from atoll.privacy import masking
from atoll.privacy.entropy import Entropy
from atoll.privacy.masking import MASKS, SELF, Advert, Call


@dataclass
class Session:
    """One party's state in one attempt at a total."""

    session: bytes  # the server's identifier of the attempt
    call: Call
    digest: bytes
    channel: Any = field(repr=False)
    seeds: tuple[bytes, bytes] = field(repr=False)  # pair masks' key, self mask
    nonce: bytes
    step: int = 0  # index in STEPS of the last step taken
    users: tuple[int, ...] = ()  # who advertised keys
    adverts: dict[int, Advert] = field(default_factory=dict)
    keys: bytes = b""  # the transcript of the first step
    dealers: tuple[int, ...] = ()  # who dealt shares
    received: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)
    masked: tuple[int, ...] = ()  # whose masks are in the replies
    transcript: bytes = b""  # the transcript of the masks
    answered: tuple[int, ...] = ()

    @classmethod
    def begin(cls, party: int, session: bytes, call: Call, digest: bytes, entropy: Entropy) -> Session:
        """A session with secrets of its own."""
        channel, pairs, own = (entropy(party, session, what)[: masking.SEED_BYTES] for what in ("channel", "pairs", "self"))
        return cls(session, call, digest, masking.private_key(channel), (pairs, own), entropy(party, session, "nonce"))

    def advert(self) -> bytes:
        """The party's first message."""
        masks = masking.public_key(masking.private_key(self.seeds[MASKS]))
        return b"".join((masking.public_key(self.channel), masks, masking.seed_commitment(self.seeds[SELF]), self.nonce))

    def forget(self) -> None:
        """Forget the secrets; the session itself is remembered, so that its steps are not repeated."""
        self.channel, self.seeds, self.received, self.adverts = None, (b"", b""), {}, {}
