"""The parties' identities: Ed25519 keys with which they sign what they send to each other through the server.

In a deployment the keys come from the kits (`atoll.deploy.signing`). In a simulation one key of the process signs for all of its
parties, so messages have the same sizes everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from atoll.errors import AtollError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE_BYTES = 64


class Identities:
    """The public key of every party by number, and the private keys of the local ones."""

    def __init__(self, public: Sequence[Ed25519PublicKey], private: Mapping[int, Ed25519PrivateKey]) -> None:
        self.public = public
        self.private = private

    def __len__(self) -> int:
        return len(self.public)

    def sign(self, party: int, statement: bytes) -> bytes:
        """The party's signature (64 bytes) of a statement."""
        if party not in self.private:
            raise AtollError(f"party {party} is not local, or has no signing key.")
        return self.private[party].sign(statement)

    def signed(self, party: int, signature: bytes, statement: bytes) -> bool:
        """Whether the party signed the statement."""
        from cryptography.exceptions import InvalidSignature

        try:
            self.public[party].verify(signature, statement)
        except (InvalidSignature, ValueError):
            return False
        return True

    def invalid_signatures(self, claims: Iterable[tuple[int, bytes, bytes]]) -> list[int]:
        """The parties whose (party, signature, statement) is not valid."""
        return [party for party, signature, statement in claims if not self.signed(party, signature, statement)]


def simulated_identities(parties: int, private: bytes = b"") -> Identities:
    """Identities for the parties of a simulation; `private`: the `simulation_key` of the process that started this one."""
    from atoll.privacy.masking import require_cryptography

    require_cryptography()
    key = _key_of(private) if private else _process_key()
    return Identities([key.public_key()] * parties, dict.fromkeys(range(parties), key))


def simulation_key() -> bytes:
    """The key that signs for all parties of this process's simulations, to hand to processes that hold some of them."""
    return _process_key().private_bytes_raw()


@cache
def _process_key() -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.generate()


@cache
def _key_of(private: bytes) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    return Ed25519PrivateKey.from_private_bytes(private)
