"""Keys that two parties share: X25519 key pairs of one run, and what is derived of them.

Nothing here is ever written or sent but public keys. `cryptography` does what is cryptographic.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Never

from vpem.errors import InputError, VpemError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305


KEY_BYTES = 32
"""Of a public key, and of one that a pair shares."""

SEALED_BYTES = KEY_BYTES + 16
"""Of a key that is sealed for one party (ChaCha20-Poly1305)."""

PROTOCOL = b"vpem masked sums 3"


def need_cryptography() -> None:
    """Raise InputError where the library of keys and ciphers is not installed."""
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise InputError("masked sums need vpem[secure]: pip install 'vpem[secure]'") from None


def _field(content: bytes) -> bytes:
    return len(content).to_bytes(8, "big") + content


def expanded(secret: bytes, what: bytes, rest: bytes) -> bytes:
    """Return a key for something, of a secret (HKDF, expansion)."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    return HKDFExpand(SHA256(), KEY_BYTES, _field(PROTOCOL + what) + rest).derive(secret)


def transcript_of(facts: Sequence[str], public: Sequence[bytes]) -> bytes:
    """Return the SHA-256 of what all parties agree on: facts of study and sum, and public keys."""
    parts = [PROTOCOL, len(facts).to_bytes(8, "big"), *(fact.encode() for fact in facts), *public]
    return hashlib.sha256(b"".join(map(_field, parts))).digest()


class OfOneProcess:
    """What is neither copied nor used in any other process than that which made it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def check_process(self) -> None:
        """Raise VpemError in a copy of the process that made this."""
        if os.getpid() != self._process:
            raise VpemError(
                "masks and their keys are of one process: start others with keys of their own "
                "instead of copying it"
            )

    def __reduce_ex__(self, protocol: Any) -> Never:
        raise TypeError("masks and their keys are never copied or written")


class OwnKeys(OfOneProcess):
    """Fresh key pairs of the parties that live in this process; ``public`` has a key for each."""

    def __init__(self, parties: Iterable[int]) -> None:
        super().__init__()
        need_cryptography()
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = {int(party): X25519PrivateKey.generate() for party in parties}
        self.public = {
            party: key.public_key().public_bytes_raw() for party, key in self._private.items()
        }

    def private(self, party: int) -> X25519PrivateKey:
        """Return the private key of a party that lives here."""
        self.check_process()
        return self._private[party]


class PairKeys(OfOneProcess):
    """Keys that the parties of this process share with each other party, by whose ``public`` keys.

    ``facts`` are what all agree on besides. InputError if a public key is none, is another's too,
    or is one with which nothing is secret.
    """

    def __init__(
        self, own: OwnKeys, public: Sequence[bytes], facts: Sequence[str], names: Sequence[str]
    ) -> None:
        super().__init__()
        self.here = sorted(own.public)
        self.names = list(names)
        self._own, self._public = own, list(public)
        self._check_public()
        self.transcript = transcript_of(facts, public)
        self._shared: dict[tuple[int, int], bytes] = {}
        self._derived: dict[tuple[int, int], bytes] = {}
        self._for: tuple[tuple[int, ...], bytes] = (), b""
        elsewhere = set(range(len(public))) - set(self.here)
        for party in self.here:
            for other in sorted(elsewhere):
                self._extracted(party, other)

    def _check_public(self) -> None:
        """Refuse keys that were changed on their way, or are not their party's own."""
        first: dict[bytes, int] = {}
        for party, key in enumerate(self._public):
            if party in self._own.public and key != self._own.public[party]:
                raise InputError(
                    f"the key of {self.names[party]} for masked sums came back changed; whoever "
                    "passes keys on does not follow the protocol"
                )
            if first.setdefault(key, party) != party:
                raise InputError(
                    f"{self.names[party]} has sent the key of {self.names[first[key]]} for masked "
                    "sums as its own; every party makes one itself"
                )

    def _extracted(self, party: int, other: int) -> bytes:
        """Return the secret of a pair, of which its keys are derived (HKDF, extraction)."""
        pair = min(party, other), max(party, other)
        if pair not in self._shared:
            from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

            private = self._own.private(party)
            try:
                secret = private.exchange(X25519PublicKey.from_public_bytes(self._public[other]))
            except ValueError:  # not 32 bytes, or a point of small order: the secret is all zeros
                raise InputError(
                    f"{self.names[other]} has sent a key for masked sums with which nothing is "
                    "secret; it must be a fresh X25519 key"
                ) from None
            self._shared[pair] = hmac.digest(self.transcript, secret, "sha256")
        return self._shared[pair]

    def sealing(self, party: int, other: int) -> ChaCha20Poly1305:
        """Return what seals and opens one message between a party here and any other."""
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        return ChaCha20Poly1305(self._expanded(party, other, b" group", b""))

    def share(self, owner: int, other: int, nonce: bytes) -> bytes:
        """Return one pair's share of the key of the pad that the owner alone adds to a vector."""
        self.check_process()
        numbers = owner.to_bytes(8, "big") + other.to_bytes(8, "big")
        return expanded(self._extracted(owner, other), b" own", numbers + nonce)

    def between(self, party: int, other: int, among: tuple[int, ...], heard: bytes) -> bytes:
        """Return the key of a party here and any other, for sums ``among`` these (increasing).

        ``heard`` is the hash of all totals up to now: two that were told different ones share no
        key any more.
        """
        self.check_process()
        if (among, heard) != self._for:
            self._for, self._derived = (among, heard), {}
        pair = min(party, other), max(party, other)
        if pair not in self._derived:
            rest = b"".join(each.to_bytes(8, "big") for each in among) + heard
            self._derived[pair] = self._expanded(party, other, b" pad", rest)
        return self._derived[pair]

    def _expanded(self, party: int, other: int, what: bytes, rest: bytes) -> bytes:
        """Return a key of a pair for something (HKDF, expansion)."""
        pair = min(party, other), max(party, other)
        numbers = b"".join(each.to_bytes(8, "big") for each in pair)
        return expanded(self._extracted(party, other), what, numbers + rest)
