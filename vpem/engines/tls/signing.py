"""What a member of a study signs with the key of its certificate, and what others have signed."""

from __future__ import annotations

from contextlib import suppress

from vpem.engines.tls.members import Identity, Roster, fingerprint
from vpem.errors import InputError

__all__ = ["MemberSigns"]

CONTEXT = b"vpem: keys of masked sums\0"
"""Stands before what is signed here, so that nothing else that the key signs is taken for it."""


class MemberSigns:
    """Signatures of members (`vpem.engines.engine.Signs`): facts are study, edition and members."""

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self._roster, self._identity = roster, identity
        shown = [f"{each.name} {fingerprint(each.certificate)}" for each in roster.members]
        self.facts = [roster.study, str(roster.edition), *shown]

    def sign(self, message: bytes) -> bytes:
        """Return this member's signature (Ed25519) of a message."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = None
        with suppress(OSError, ValueError, TypeError):
            key = load_pem_private_key(self._identity.key.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{self._identity.key} is no Ed25519 key that can be read")
        return key.sign(CONTEXT + message)

    def holds(self, rank: int, message: bytes, signature: bytes) -> bool:
        """Whether a signature of a message is that of a member."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        certificate = x509.load_der_x509_certificate(self._roster.members[rank].certificate)
        key = certificate.public_key()
        if not isinstance(key, Ed25519PublicKey):
            return False
        try:
            key.verify(signature, CONTEXT + message)
        except InvalidSignature:
            return False
        return True
