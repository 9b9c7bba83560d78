"""Who is believed to be whom: TLS 1.3 with certificates pinned one by one."""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from datetime import UTC, datetime

from vpem.engines.tls.alerts import SpeakingContext
from vpem.engines.tls.members import Identity, Member, Roster, fingerprint, validity
from vpem.errors import InputError

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


def client_context(identity: Identity, expected: Iterable[Member]) -> ssl.SSLContext:
    """Return what a member dials with, who accepts these certificates only."""
    context = SpeakingContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False  # the certificate is the name
    return _pinned(context, identity, expected)


def any_context() -> ssl.SSLContext:
    """Return what one looks at certificates with, of whomever: nothing may be sent over it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


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
        context.load_cert_chain(identity.certificate, identity.key)
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
    pinned = roster.members[rank].certificate
    try:
        own = ssl.PEM_cert_to_DER_cert(identity.certificate.read_text())
    except (OSError, ValueError):
        return f"{identity.certificate} is no certificate that can be read"
    mark = fingerprint(own)
    if mark in roster.revoked:
        return f"the certificate of {identity.name} was revoked on {roster.revoked[mark]}"
    if own != pinned:
        return (
            f"{identity.certificate} is not the certificate that {roster.name} has for "
            f"{identity.name} (fingerprint {mark[:16]}, not {fingerprint(pinned)[:16]})"
        )
    return not_valid(identity.name, own, now)


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
