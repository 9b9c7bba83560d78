"""Who takes part, and by which certificates they know each other."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

SPOKEN = 16
"""Bytes of a fingerprint that are read over a telephone: as hard to imitate as its key."""


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER), in 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def fingerprint_words(certificate: bytes) -> str:
    """Return the first half of a certificate's fingerprint as twelve words of BIP 39.

    The last word has a checksum: a word that was misheard is found out.
    """
    from mnemonic import Mnemonic

    digest = hashlib.sha256(certificate).digest()
    return str(Mnemonic("english").to_mnemonic(digest[:SPOKEN]))


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Return from when and until when a certificate (DER) is valid, in UTC."""
    from cryptography import x509

    found = x509.load_der_x509_certificate(certificate)
    return found.not_valid_before_utc, found.not_valid_after_utc


def written_address(address: tuple[str, int]) -> str:
    """Return an address as people write it; what is no IPv4 or name has brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Member:
    """Somebody who may connect."""

    name: str
    certificate: bytes  # self-signed (DER): nobody else is taken for it
    address: tuple[str, int] | None = None  # where others dial it; None: it only dials
    holds: bool = True  # brings data; a server may only add up


@dataclass(frozen=True)
class Roster:
    """All who take part in a study.

    Certificates in ``revoked`` hold no more, by fingerprint, since when (ISO 8601).
    """

    study: str  # number: 32 hexadecimal digits
    name: str
    edition: int  # how often the list has been signed
    members: tuple[Member, ...]  # by rank; the first is the server of a star
    relay: Member | None = None  # passes sealed bytes on between those who cannot be dialled
    revoked: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[Member, ...] = ()  # others have gone on; whoever comes is told so
    text: str = field(default="", compare=False)  # SHA-256 of what was signed, in hexadecimal

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of those who are left out."""
        return tuple(member.name for member in self.left_out)

    def without(self, names: Collection[str]) -> Roster:
        """Return the roster of those who go on without the members of these names."""
        return replace(
            self,
            members=tuple(one for one in self.members if one.name not in names),
            left_out=(*self.left_out, *(one for one in self.members if one.name in names)),
        )

    def texts_differ(self, own: str, name: str, text: str) -> str:
        """Return what to say where two members have different texts of one edition."""
        return (
            f"{own} and {name} have different texts of edition {self.edition} of {self.name}, with "
            f"SHA-256 {self.text[:16]} and {text[:16]}; ask the organiser which one holds"
        )

    def rank_of(self, name: str) -> int | None:
        """Return the number of the member that is called so, if there is one."""
        names = [member.name for member in self.members]
        return names.index(name) if name in names else None


@dataclass(frozen=True)
class Identity:
    """What this process shows to others, and the key that proves it: files in PEM."""

    name: str
    certificate: Path
    key: Path
