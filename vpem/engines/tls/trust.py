"""Members of a study: their certificates in TLS 1.3, pinned or of an authority; what they sign.

Of a member with an authority that is pinned in place of a certificate: any certificate below it
with the member's name among its alternative names is the member's, and signs, as the run begins, a
key that is made for this run and signs all else.
"""

from __future__ import annotations

import hashlib
import os
import re
import ssl
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem import __version__
from vpem.engines.tls.wire import SpeakingContext
from vpem.errors import InputError, printable
from vpem.network.messages import decode, encode

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.x509 import Certificate


VERSION = f"{__version__} (protocol 2)"
"""What members compare: in 2 an iteration is one sum, in 1 they agreed on what it came to."""

SPOKEN = 16
"""Bytes of a fingerprint that are read over a telephone: as hard to imitate as its key."""

NO_CHECK_TIME = 0x200000
"""OpenSSL's X509_V_FLAG_NO_CHECK_TIME: dates are looked at after the handshake, by `not_valid`,
so that both ends can say whose certificate it is, and until when it held."""

THEY_REFUSE = (
    "ALERT_UNKNOWN_CA",
    "ALERT_CERTIFICATE_UNKNOWN",
    "ALERT_BAD_CERTIFICATE",
    "ALERT_CERTIFICATE_REQUIRED",
    "ALERT_CERTIFICATE_REVOKED",
    "ALERT_CERTIFICATE_EXPIRED",
    "ALERT_ACCESS_DENIED",
    "ALERT_DECRYPT_ERROR",
)
"""What OpenSSL calls alerts of an end that does not believe this one's certificate."""

NOT_OURS = ("WRONG_VERSION_NUMBER", "PROTOCOL_VERSION", "UNSUPPORTED_PROTOCOL", "HANDSHAKE_FAILURE")
"""What it calls the answers of something else."""

NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,38}[A-Za-z0-9])?")
"""Of a study or member: a part of names of files."""

SIGNATURE_BYTES = 64
NONCE_BYTES = 16

PASSPHRASE = "VPEM_KEY_PASSPHRASE"
"""Variable with the passphrase of a key that is encrypted."""

MOST_ISSUERS = 5
"""Certificates that are shown at most: a member's own, and of authorities below the pinned one."""

LEAST_RSA = 2048  # bits of a key
CURVES = ("secp256r1", "secp384r1", "secp521r1")

BEGIN_CRL = b"-----BEGIN X509 CRL-----"

KEYS, INTRODUCTION = b"vpem: keys of masked sums\0", b"vpem: what a member runs\0"
PASSED_ON = b"vpem: what the first member passes on\0"
"""Stand before what is signed here, so that nothing else that the key signs is taken for it."""


def fingerprint(certificate: bytes) -> str:
    """Return the SHA-256 of a certificate (DER), in 64 hexadecimal digits."""
    return hashlib.sha256(certificate).hexdigest()


def fingerprint_words(certificate: bytes) -> str:
    """Return half of a certificate's fingerprint as twelve words of BIP 39, the last a checksum."""
    from mnemonic import Mnemonic

    digest = hashlib.sha256(certificate).digest()
    return str(Mnemonic("english").to_mnemonic(digest[:SPOKEN]))


def validity(certificate: bytes) -> tuple[datetime, datetime]:
    """Return from when and until when a certificate (DER) is valid, in UTC."""
    read = parsed(certificate)
    return read.not_valid_before_utc, read.not_valid_after_utc


def parsed(certificate: bytes) -> Certificate:
    """Return a certificate (DER) whose extensions can be read, too; or ValueError."""
    from cryptography import x509

    try:
        read = x509.load_der_x509_certificate(certificate)
        read.extensions  # noqa: B018
    except (x509.InvalidVersion, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise ValueError(str(error)) from None
    return read


def names_of(certificate: bytes) -> tuple[str, str]:
    """Return subject and issuer of a certificate (DER), which are the same if it is self-signed."""
    read = parsed(certificate)
    return printable(read.subject.rfc4514_string()), printable(read.issuer.rfc4514_string())


def hosts_of(certificate: bytes) -> list[str]:
    """Return the alternative names of a certificate (DER) that are of hosts."""
    from cryptography import x509

    try:
        extensions = parsed(certificate).extensions
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return []
    return [name.lower() for name in names.get_values_for_type(x509.DNSName)]


def certificates_in(text: str) -> list[bytes]:
    """Return all certificates (DER) of a text in PEM; ValueError where one cannot be read."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding

    try:
        read = x509.load_pem_x509_certificates(text.encode())
    except x509.InvalidVersion as error:
        raise ValueError(str(error)) from None
    return [one.public_bytes(Encoding.DER) for one in read]


def load_key(content: bytes) -> Any:
    """Return a private key (PEM), encrypted by the passphrase of `PASSPHRASE` or not at all.

    ValueError or TypeError where it is none, or the passphrase is wrong or missing.
    """
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    word = os.environ.get(PASSPHRASE, "").encode() if b"ENCRYPTED" in content else None
    return load_pem_private_key(content, word)


def scheme_of(key: Any) -> list[Any]:
    """Return how a key signs: Ed25519 as it is, ECDSA or RSA-PSS with SHA-256."""
    from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
    from cryptography.hazmat.primitives.hashes import SHA256

    if isinstance(key, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return [ec.ECDSA(SHA256())]
    if isinstance(key, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        return [padding.PSS(padding.MGF1(SHA256()), padding.PSS.DIGEST_LENGTH), SHA256()]
    return []


def is_signed(key: Any, message: bytes, signature: bytes) -> bool:
    """Whether a signature of a message is by a public key, of whatever kind."""
    from cryptography.exceptions import InvalidSignature

    try:
        key.verify(signature, message, *scheme_of(key))
    except InvalidSignature:
        return False
    return True


def unlike(
    member: Member,
    shown: Sequence[bytes],  # DER; the first may be followed by those of its issuers
    members: Iterable[Member] = (),  # all, none of whom it may name, too
    now: datetime | None = None,
) -> str:
    """Return why what was shown is not the certificate of a member, or an empty text.

    The dates of the first are not looked at: see `not_valid`.
    """
    if not member.subject:
        return "" if [*shown[:1]] == [member.certificate] else "the study has another certificate"
    hosts = hosts_of(shown[0]) if shown else []
    if member.subject not in hosts:
        others = printable(", ".join(hosts[:3]) or "no host")[:120]
        return f"it is for {others}, not for {member.subject}"
    if also := [one.name for one in members if one.subject in hosts and one.name != member.name]:
        return f"it is for {member.name} and {', '.join(also)}: each needs a certificate of its own"
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.x509 import verification as paths
    from cryptography.x509.oid import ExtendedKeyUsageOID

    now = datetime.now(UTC) if now is None else now
    try:
        root = parsed(member.certificate)
        leaf, *above = map(parsed, shown[:MOST_ISSUERS])
        moment = min(max(now, leaf.not_valid_before_utc), leaf.not_valid_after_utc)
        policy = paths.PolicyBuilder().store(paths.Store([root])).time(moment)
        chain = policy.build_client_verifier().verify(leaf, above).chain
        uses: dict[type, Any] = {type(one.value): one.value for one in leaf.extensions}
        key = leaf.public_key()
    except (paths.VerificationError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        why = printable(str(error)).rpartition("exhausted: ")[2].partition(" (encountered")[0]
        issued = f"{names_of(member.certificate)[0][:120]}, the authority of {member.name}"
        return f"it does not lead to {issued} ({why.removeprefix('validation failed: ')[:120]})"
    usage, purposes = uses.get(x509.KeyUsage), uses.get(x509.ExtendedKeyUsage)
    if not (
        isinstance(key, ed25519.Ed25519PublicKey)
        or (isinstance(key, rsa.RSAPublicKey) and key.key_size >= LEAST_RSA)
        or (isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in CURVES)
    ):
        return f"its key is no RSA of {LEAST_RSA} bits, ECDSA (P-256, P-384, P-521) or Ed25519"
    if usage is not None and not usage.digital_signature:
        return "it is not for signatures (key usage)"
    if member.address and purposes and ExtendedKeyUsageOID.SERVER_AUTH not in purposes:
        return f"it is not for servers (extended key usage), and others dial {member.name}"
    return _revoked(member.crl, chain, now) if member.crl is not None else ""


def _revoked(file: Path, chain: Sequence[Any], now: datetime) -> str:
    """Return why a file of lists of what is revoked is against a chain up to a root."""
    from cryptography import x509
    from cryptography.exceptions import UnsupportedAlgorithm

    try:
        first, *more = file.read_bytes().split(BEGIN_CRL)
        lists = [x509.load_pem_x509_crl(BEGIN_CRL + one) for one in more]
        for one, issuer in pairwise(chain):
            own = [
                each for each in lists or [x509.load_der_x509_crl(first)]
                if each.issuer == one.issuer and each.is_signature_valid(issuer.public_key())
            ]  # fmt: skip
            if not own and one is chain[0]:
                return f"{file.name} has no list of {printable(one.issuer.rfc4514_string())[:120]}"
            for each in own:
                until = each.next_update_utc or now
                if until < now or any(extension.critical for extension in each.extensions):
                    dated = f"is valid until {until:%Y-%m-%d %H:%M} UTC"
                    return (
                        f"{file.name} {dated}, or lists a part only: download the whole list again"
                    )
                entry = each.get_revoked_certificate_by_serial_number(one.serial_number)
                if entry is not None:
                    return f"its authority has revoked it on {entry.revocation_date_utc:%Y-%m-%d}"
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion,
            x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:  # fmt: skip
        why = getattr(error, "strerror", None) or "it is no list of revoked certificates"
        return f"{file.name} cannot be read ({why})"
    return ""


def whose(members: Sequence[Member], shown: Sequence[bytes]) -> tuple[Member | None, str]:
    """Return the member whose certificate was shown; or None, and why it belongs to none."""
    why = "the certificate is that of no member"
    for one in members:
        if not (wrong := unlike(one, shown, members)):
            return one, ""
        if one.subject and shown and one.subject in hosts_of(shown[0]):
            why = f"the certificate is not that of {one.name}: {wrong}"
    return None, why


def written_address(address: tuple[str, int]) -> str:
    """Return an address as people write it; what is no IPv4 or name has brackets."""
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


@dataclass(frozen=True)
class Member:
    """One who may connect."""

    name: str
    certificate: bytes  # self-signed (DER): no other is taken for it; or of its authority
    address: tuple[str, int] | None = None  # where others dial it; None: it only dials
    holds: bool = True  # brings data; a server may only add up
    features: tuple[str, ...] = ()  # of its data, if it has named them
    listen: tuple[str, int] | None = None  # where it listens, if others dial another address
    subject: str = ""  # name in the certificates of its authority, if it has one
    crl: Path | None = None  # what the authority has revoked: looked at whenever it is shown

    @property
    def door(self) -> tuple[str, int] | None:
        """Where it listens: by default at the port of its address, on all interfaces."""
        return self.listen or (None if self.address is None else ("", self.address[1]))

    @property
    def where(self) -> str | None:
        return None if self.address is None else written_address(self.address)

    def describe(self) -> dict[str, str]:
        """Return name, fingerprint and dates of its certificate as plain values."""
        begins, ends = (f"{one:%Y-%m-%dT%H:%M:%SZ}" for one in validity(self.certificate))
        mark, words = fingerprint(self.certificate), fingerprint_words(self.certificate)
        about = {"name": self.name, "fingerprint": mark, "words": words}
        if self.subject:
            about |= {"authority": names_of(self.certificate)[0][:120], "subject": self.subject}
        return about | {"valid_from": begins, "valid_until": ends}


@dataclass(frozen=True)
class Roster:
    """All who take part in a study; ``revoked`` has times (ISO 8601) by fingerprint."""

    study: str  # number: 32 hexadecimal digits
    name: str
    edition: int  # how often the list has been signed
    members: tuple[Member, ...]  # by rank; the first is the server of a star
    relay: Member | None = None  # passes sealed bytes on between those who cannot be dialled
    revoked: Mapping[str, str] = field(default_factory=dict)
    left_out: tuple[Member, ...] = ()  # others have continued, and say so to these
    text: str = field(default="", compare=False)  # SHA-256 of what was signed, in hexadecimal

    def without(self, names: Collection[str]) -> Roster:
        """Return the roster of those who continue without the members of these names."""
        return replace(
            self,
            members=tuple(one for one in self.members if one.name not in names),
            left_out=(*self.left_out, *(one for one in self.members if one.name in names)),
        )

    def differs(
        self, own: str, name: str, version: str, study: str, edition: int, text: str
    ) -> str:
        """Return how what another member has differs from what this one has, or an empty text."""
        if version != VERSION:
            return (
                f"{own} has vpem {VERSION} and {name} has {version}; all members need the same "
                "version"
            )
        if study != self.study:
            return (
                f"{name} takes part in another study ({study[:8]}, not {self.study[:8]}): both "
                f"need the same file {self.name}.toml"
            )
        if edition != self.edition:
            return (
                f"{name} has edition {edition} of {self.name} and {own} has edition "
                f"{self.edition}: {own if edition > self.edition else name} needs the newest"
            )
        if text != self.text:
            return (
                f"{own} and {name} have different texts of edition {edition} of {self.name}, with "
                f"SHA-256 {self.text[:16]} and {text[:16]}; ask the organiser which one is valid"
            )
        return ""

    def rank_of(self, name: str) -> int | None:
        names = [member.name for member in self.members]
        return names.index(name) if name in names else None


@dataclass(frozen=True)
class Identity:
    """What this process shows to others, and the key that proves it: files in PEM."""

    name: str
    certificate: Path
    key: Path


def client_context(identity: Identity, expected: Iterable[Member]) -> ssl.SSLContext:
    """Return what a member dials with, who accepts these certificates only."""
    context = SpeakingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is the name
    return _pinned(context, identity, expected)


def server_context(identity: Identity, expected: Iterable[Member]) -> ssl.SSLContext:
    """Return what a member answers with, who accepts these certificates only."""
    context = SpeakingContext(ssl.PROTOCOL_TLS_SERVER)
    context.num_tickets = 0
    return _pinned(context, identity, expected)


def _pinned(
    context: ssl.SSLContext, identity: Identity, expected: Iterable[Member]
) -> ssl.SSLContext:
    context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_3
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN | ssl.VerifyFlags(NO_CHECK_TIME)
    try:
        word = os.environ.get(PASSPHRASE, "")  # or OpenSSL would ask
        context.load_cert_chain(identity.certificate, identity.key, password=word)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"{identity.certificate} and {identity.key} are not a certificate and its key "
            f"({error.strerror or 'unreadable'})"
        ) from None
    certificates = b"".join({member.certificate: None for member in expected})
    if certificates:
        context.load_verify_locations(cadata=certificates)
    return context


def believed(roster: Roster) -> list[Member]:
    """Return the members whose certificates have not been revoked, those left out among them."""
    known = (*roster.members, *roster.left_out)
    return [each for each in known if fingerprint(each.certificate) not in roster.revoked]


def not_valid(name: str, certificate: bytes, now: datetime | None = None) -> str:
    """Return why a certificate (DER) does not hold at present, or an empty text."""
    since, until = validity(certificate)
    now = datetime.now(UTC) if now is None else now
    clock = f"by this machine's clock it is {now:%Y-%m-%d %H:%M} UTC"
    if now > until:
        return f"the certificate of {name} has expired on {until:%Y-%m-%d %H:%M} UTC ({clock})"
    if now < since:
        return f"the certificate of {name} is not valid before {since:%Y-%m-%d %H:%M} UTC ({clock})"
    return ""


def identity_error(roster: Roster, identity: Identity, now: datetime | None = None) -> str:
    """Return why a member cannot take part with its own certificate, or an empty text."""
    rank = roster.rank_of(identity.name)
    if rank is None:
        names = ", ".join(member.name for member in roster.members)
        return f"{identity.name} is not a member of {roster.name}, which has {names}"
    member = roster.members[rank]
    pinned = member.certificate
    try:
        certificate, *above = certificates_in(identity.certificate.read_text())
    except (OSError, ValueError):
        return f"{identity.certificate} is no certificate that can be read"
    mark = fingerprint(certificate)
    if mark in roster.revoked:
        return f"the certificate of {identity.name} was revoked on {roster.revoked[mark]}"
    wrong = unlike(member, [certificate, *above], roster.members, now)
    if wrong and member.subject:
        return f"{identity.certificate} is not the certificate of {identity.name}: {wrong}"
    if wrong:
        return (
            f"{identity.certificate} is not the certificate that {roster.name} has for "
            f"{identity.name} (fingerprint {mark[:16]}, not {fingerprint(pinned)[:16]})"
        )
    return not_valid(identity.name, certificate, now)


def refusal_of(error: BaseException | None) -> str:
    """Return what a failed handshake means: "unknown", "refused", "other", or an empty text."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return "unknown"
    reason = str(getattr(error, "reason", "") or "") if isinstance(error, ssl.SSLError) else ""
    if any(word in reason for word in THEY_REFUSE):
        return "refused"
    if any(word in reason for word in NOT_OURS):
        return "other"
    return ""


class MemberSigns:
    """What members sign (`vpem.engines.engine.Engine.signs`): facts are study, edition and members.

    ``run`` is a hash of what all have said of themselves, which members alone know.
    """

    def __init__(self, roster: Roster, identity: Identity) -> None:
        self._roster, self._identity = roster, identity
        self._own = next(one for one in roster.members if one.name == identity.name)
        self.run, self.about = b"", (roster.study, roster.text)
        shown = [
            f"{each.name} {fingerprint(each.certificate)} {each.subject}".rstrip()
            for each in roster.members
        ]
        self.facts = [roster.study, str(roster.edition), roster.text, *shown]

    def nonce(self) -> bytes:
        """Return what makes an introduction unlike any other; with an authority also the proof.

        That is the certificate, with those of its issuers, and the key for this run.
        """
        nonce = os.urandom(NONCE_BYTES)
        if not self._own.subject:
            return nonce
        chain = certificates_in(self._identity.certificate.read_text())
        return nonce + encode([*chain, self._key.public_key().public_bytes_raw()])

    def vouch(self, message: bytes) -> bytes:
        """Return the signature of an introduction, by the key of this member's certificate."""
        if not self._own.subject:
            return self.sign(message, INTRODUCTION)
        key = load_key(self._identity.key.read_bytes())
        return bytes(key.sign(INTRODUCTION + message, *scheme_of(key)))

    def _proved(self, rank: int, message: bytes, signature: bytes) -> bool:
        """Whether a member has signed its introduction, and so, with an authority, its key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        member, members = self._roster.members[rank], self._roster.members
        if not member.subject:
            return self.holds(rank, message, signature, INTRODUCTION)
        parts = decode(decode(message)[-1][NONCE_BYTES:])
        if not isinstance(parts, list) or {*map(type, parts)} != {bytes}:
            return False
        *chain, key = parts
        if wrong := unlike(member, chain, members) or not_valid(member.name, chain[0]):
            raise InputError(f"{member.name} does not show its certificate: {wrong}")
        with suppress(ValueError):
            self._keys[rank] = Ed25519PublicKey.from_public_bytes(key)
            return is_signed(parsed(chain[0]).public_key(), INTRODUCTION + message, signature)
        return False

    def introduced(self, everyones: Sequence[tuple[bytes, bytes]]) -> None:
        """Agree on what each member says that it runs; InputError if it has not signed that."""
        for rank, (said, signature) in enumerate(everyones):
            if not self._proved(rank, said, signature):
                raise InputError(
                    f"{self._roster.members[rank].name} has signed another command, other options "
                    f"or another text of {self._roster.name} than have come here: they were "
                    "changed on the way"
                )
        every = hashlib.sha256(b"".join(hashlib.sha256(said).digest() for said, _ in everyones))
        self.run = every.digest()
        self.facts.append(every.hexdigest())

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        if self._own.subject:
            return Ed25519PrivateKey.generate()  # for this run
        key = None
        with suppress(OSError, ValueError, TypeError):
            key = load_key(self._identity.key.read_bytes())
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"{self._identity.key} is no Ed25519 key that can be read")
        return key

    @cached_property
    def _keys(self) -> list[Any]:
        known = [None if one.subject else one.certificate for one in self._roster.members]
        return [each and parsed(each).public_key() for each in known]

    def sign(self, message: bytes, context: bytes = KEYS) -> bytes:
        """Return this member's signature (Ed25519) of a message."""
        return self._key.sign(context + message)

    def holds(self, rank: int, message: bytes, signature: bytes, context: bytes = KEYS) -> bool:
        """Whether a signature of a message is that of a member."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        key = self._keys[rank]
        is_own = isinstance(key, Ed25519PublicKey)
        return is_own and is_signed(key, context + message, signature)

    def seal(self, number: int, message: bytes) -> bytes:
        """Return a message that the first member is to pass on, signed, by its number in the run.

        What all have said of themselves is signed with it, so that it counts in this run alone.
        """
        return message + self.sign(self._in_run(number, message), PASSED_ON)

    def unseal(self, rank: int, number: int, sealed: bytes | bytearray | memoryview) -> bytes:
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
