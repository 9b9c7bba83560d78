"""What a member of a study signs with the key of its certificate, and what others have signed."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from vpem.engines.tls.members import Identity, Roster, fingerprint
from vpem.errors import InputError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


SIGNATURE_BYTES = 64

KEYS, INTRODUCTION = b"vpem: keys of masked sums\0", b"vpem: what a member runs\0"
PASSED_ON = b"vpem: what the first member passes on\0"
"""Stand before what is signed here, so that nothing else that the key signs is taken for it."""


class MemberSigns:
    """Signatures of members (`vpem.engines.engine.Signs`): facts are study, edition and members.

    ``run`` is a hash of what all have said of themselves, which members alone know.
    """

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self._roster, self._identity = roster, identity
        self.run = b""
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
        self.run = every.digest()
        self.facts.append(every.hexdigest())

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = None
        with suppress(OSError, ValueError, TypeError):
            key = load_pem_private_key(self._identity.key.read_bytes(), None)
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{self._identity.key} is no Ed25519 key that can be read")
        return key

    @cached_property
    def _keys(self) -> list[Any]:
        """Public keys of all members."""
        from cryptography import x509

        certificates = [member.certificate for member in self._roster.members]
        return [x509.load_der_x509_certificate(each).public_key() for each in certificates]

    def sign(self, message: bytes, context: bytes = KEYS) -> bytes:
        """Return this member's signature (Ed25519) of a message."""
        return self._key.sign(context + message)

    def holds(self, rank: int, message: bytes, signature: bytes, context: bytes = KEYS) -> bool:
        """Whether a signature of a message is that of a member."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = self._keys[rank]
        if not isinstance(key, Ed25519PublicKey):
            return False
        try:
            key.verify(signature, context + message)
        except InvalidSignature:
            return False
        return True

    def seal(self, number: int, message: bytes) -> bytes:
        """Return a message that the first member is to pass on, signed, by its number in the run.

        What all have said of themselves is signed with it, so that it counts in this run alone.
        """
        return message + self.sign(self._in_run(number, message), PASSED_ON)

    def unseal(self, rank: int, number: int, sealed: Any) -> bytes:
        """Return the message that a member has signed; InputError if it has signed another."""
        whole = bytes(sealed)
        message, signature = whole[:-SIGNATURE_BYTES], whole[-SIGNATURE_BYTES:]
        if not self.holds(rank, self._in_run(number, message), signature, PASSED_ON):
            raise InputError(
                f"a message of {self._roster.members[rank].name} has come otherwise than it was "
                f"signed; {self._roster.members[0].name}, which passes it on, has changed it or "
                "taken it from another run"
            )
        return message

    def _in_run(self, number: int, message: bytes) -> bytes:
        return self.run + number.to_bytes(8, "big") + hashlib.sha256(message).digest()
