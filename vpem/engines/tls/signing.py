"""What a member of a study signs with the key of its certificate, and what others have signed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress

from vpem.engines.tls.members import Identity, Roster, fingerprint
from vpem.errors import InputError

__all__ = ["INTRODUCTION", "MemberSigns"]

KEYS, INTRODUCTION = b"vpem: keys of masked sums\0", b"vpem: what a member runs\0"
"""Stand before what is signed here, so that nothing else that the key signs is taken for it."""


class MemberSigns:
    """Signatures of members (`vpem.engines.engine.Signs`): facts are study, edition and members."""

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self._roster, self._identity = roster, identity
        shown = [f"{each.name} {fingerprint(each.certificate)}" for each in roster.members]
        self.facts = [roster.study, str(roster.edition), roster.text, *shown]

    def introduced(self, everyones: Sequence[tuple[bytes, bytes]]) -> None:
        """Hear what each member says that it runs, with its signature, and agree on all of it.

        InputError if one has signed something else.
        """
        for rank, (said, signature) in enumerate(everyones):
            if not self.holds(rank, said, signature, INTRODUCTION):
                raise InputError(
                    f"{self._roster.members[rank].name} has signed another command, other options "
                    f"or another text of {self._roster.name} than have come here: whoever passed "
                    "them on has changed them"
                )
        every = hashlib.sha256(b"".join(hashlib.sha256(said).digest() for said, _ in everyones))
        self.facts.append(every.hexdigest())

    def sign(self, message: bytes, context: bytes = KEYS) -> bytes:
        """Return this member's signature (Ed25519) of a message."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = None
        with suppress(OSError, ValueError, TypeError):
            key = load_pem_private_key(self._identity.key.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{self._identity.key} is no Ed25519 key that can be read")
        return key.sign(context + message)

    def holds(self, rank: int, message: bytes, signature: bytes, context: bytes = KEYS) -> bool:
        """Whether a signature of a message is that of a member."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        certificate = x509.load_der_x509_certificate(self._roster.members[rank].certificate)
        key = certificate.public_key()
        if not isinstance(key, Ed25519PublicKey):
            return False
        try:
            key.verify(signature, context + message)
        except InvalidSignature:
            return False
        return True
