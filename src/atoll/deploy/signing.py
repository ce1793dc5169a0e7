"""Signing keys in the kits: an Ed25519 key per site, and all sites' certificates in every kit.

The federation's own authority signs them when the kits are made. A site takes the others' keys and the order of the parties
from its own kit, never from the server, so the server cannot substitute its own keys.
"""

from __future__ import annotations

import datetime
import json
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from atoll import storage
from atoll.errors import AtollError
from atoll.parties import divide_evenly
from atoll.privacy.identities import Identities

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
    from cryptography.x509 import Certificate

FOLDER = "signing"  # in a kit: one certificate per site and, at a site, its own key
KEY = "signing.key"


@dataclass(frozen=True)
class Signing:
    """The signing keys in one kit: all sites in party order with their public keys and, at a site, its own private key."""

    sites: tuple[str, ...]
    site: str | None
    public: tuple[Ed25519PublicKey, ...]
    private: Ed25519PrivateKey | None

    @classmethod
    def open(cls, kit: Path) -> Signing:
        """The keys in a kit; a certificate that the federation's authority did not sign for that very site is refused."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
        from cryptography.x509 import load_pem_x509_certificate

        try:
            about = tomllib.loads((kit / "atoll.toml").read_text())
            sites, site = tuple(map(str, about["sites"])), about.get("site")
            authority = load_pem_x509_certificate((kit / "startup" / "rootCA.pem").read_bytes())
            certificates = [load_pem_x509_certificate((kit / FOLDER / f"{name}.crt").read_bytes()) for name in sites]
            key = load_pem_private_key((kit / FOLDER / KEY).read_bytes(), None) if site is not None else None
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise AtollError(
                "the kit's signing keys cannot be read; make new kits with this version's `atoll provision`, or leave secure out."
            ) from error
        public = tuple(_checked(one, name, authority) for one, name in zip(certificates, sites, strict=True))
        if key is None:
            return cls(sites, None, public, None)
        if not isinstance(key, Ed25519PrivateKey) or key.public_key() != public[sites.index(str(site))]:
            raise AtollError(f"the kit's signing key is not that of {site}; copy the kit again from where it was made.")
        return cls(sites, str(site), public, key)

    def identities(self, parties: int) -> Identities:
        """The keys by party; with more parties than sites (in a simulation), a site signs for all of its parties."""
        ranges = list(zip(self.sites, self.public, divide_evenly(parties, len(self.sites)), strict=True))
        public = [key for _, key, numbers in ranges for _ in numbers]
        local = next((numbers for name, _, numbers in ranges if name == self.site), range(0))
        return Identities(public, dict.fromkeys(local, self.private) if self.private is not None else {})


def issue(sites: Sequence[str], state: Path) -> dict[str, tuple[bytes, bytes]]:
    """A key and a certificate per site as PEM; `state` is the file where NVFlare's provisioning keeps the authority's key."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
    from cryptography.x509.oid import NameOID

    document = json.loads(state.read_text())
    authority = x509.load_pem_x509_certificate(document["root_cert"].encode())
    signer = load_pem_private_key(document["root_pri_key"].encode(), None)
    issued = {}
    for site in sites:
        key = Ed25519PrivateKey.generate()
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, site)]))
            .issuer_name(authority.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(authority.not_valid_before_utc)
            .not_valid_after(authority.not_valid_after_utc)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .sign(signer, SHA256())  # type: ignore[arg-type]
        )
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        issued[site] = (secret, certificate.public_bytes(Encoding.PEM))
    return issued


def write(kit: Path, site: str | None, issued: dict[str, tuple[bytes, bytes]]) -> None:
    """Write all sites' certificates to a kit, and a site's own key to its kit."""
    (kit / FOLDER).mkdir()
    for name, (_, certificate) in issued.items():
        storage.write_whole(kit / FOLDER / f"{name}.crt", certificate)
    if site is not None:
        storage.write_whole(kit / FOLDER / KEY, issued[site][0], mode=0o600)


def _checked(certificate: Certificate, site: str, authority: Certificate) -> Ed25519PublicKey:
    """The public key of a site's certificate, after checking the certificate."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.x509.oid import NameOID

    key, now = certificate.public_key(), datetime.datetime.now(datetime.UTC)
    names = [name.value for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError) as error:
        raise AtollError(f"the signing certificate of {site} was not made by this federation's authority.") from error
    if names != [site] or not isinstance(key, Ed25519PublicKey):
        raise AtollError(f"the signing certificate of {site} is not for {site}.")
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise AtollError(
            f"the signing certificate of {site} is valid until {certificate.not_valid_after_utc:%Y-%m-%d}; make new kits."
        )
    return key
