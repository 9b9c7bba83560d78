"""What goes wrong with another member: on the way to it, or as it ends, begins again, or is lost.

Each is one sentence: what, and what to try. A fit says it, and `vpem party check` the same one.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

from websockets import exceptions as ws

from vpem.engines.engine import StalledError
from vpem.engines.tls.trust import Member, refusal_of, unlike, written_address
from vpem.engines.tls.wire import Called
from vpem.errors import Setting, VpemError, printable

ASTRAY = timedelta(minutes=5)
"""How much two clocks may differ."""

POLICY = 1008
"""Code of WebSocket with which a member is sent away for good; the reason is a sentence."""

Errors = type[BaseException] | tuple[type[BaseException], ...]

CREDENTIALS = "https_proxy=http://USER:PASSWORD@HOST:PORT"

ENDED = (
    ws.InvalidHandshake,
    ws.ConnectionClosed,
    ConnectionResetError,
    ConnectionAbortedError,
    BrokenPipeError,
    EOFError,
)
"""Ways of the library and of the system to say that the other end has gone."""


class Fault(VpemError):
    """Why there is no way to a member.

    What failed is a ``kind``: "name", "port", "proxy", "cut", "tls", "certificate", "clock" or
    "answer"; or "taken", where another process of this member is there.
    """

    def __init__(self, message: str, kind: str = "answer") -> None:
        super().__init__(message)
        self.kind = kind


class Refused(Fault):
    """A link that cannot be, however often it is tried.

    ``of_member``: it is of the process itself with which a link was made, not of a second one.
    """

    exit_code = 2

    def __init__(self, message: str, kind: str = "answer", of_member: bool = False) -> None:
        super().__init__(message, kind)
        self.of_member = of_member


class Trouble(Fault):
    """A link that cannot be at present."""


@dataclass
class Met:
    """What was seen on the way to a member."""

    own: str  # who dials
    member: Member  # who was dialled
    host: str
    port: int
    proxy: str | None = None  # without its password
    seconds: float = 10.0  # waited
    shown: Sequence[bytes] = ()  # certificates (DER), where they were others
    banner: bytes = b""  # first bytes, if not TLS

    @property
    def where(self) -> str:
        return f"{self.member.name} ({written_address((self.host, self.port))})"


def others_clock(headers: Any) -> datetime | None:
    """Return the time that an answer (headers of HTTP) was made, by its sender's clock."""
    try:
        date = parsedate_to_datetime(headers["Date"])
    except (LookupError, TypeError, ValueError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=UTC)


def clock(name: str, theirs: datetime | None) -> str:
    """Say by how much this machine's clock differs from a member's; empty if by little."""
    if theirs is None:
        return ""
    behind = theirs - datetime.now(UTC)
    if abs(behind) <= ASTRAY:
        return ""
    which = "behind" if behind > ASTRAY else "ahead of"
    minutes = round(abs(behind).total_seconds() / 60)
    unit, size = ("day", 1440) if minutes >= 1440 else ("hour", 60)
    count = f"{minutes / size:.3g}"
    span = f"{count} {unit}{'' if count == '1' else 's'}" if minutes >= 60 else f"{minutes} minutes"
    return (
        f"this machine's clock is {span} {which} that of {name}: set the one that is wrong "
        "(timedatectl set-ntp true)"
    )


def closed(member: Member, opened: Called) -> Fault:
    """Return why a member has ended a connection that it had opened, by what it said then."""
    reason = printable(opened.close_reason or "")
    headers = opened.response.headers if opened.response is not None else {}
    if opened.close_code != POLICY:
        why = f" ({reason})" if reason else ""
        return Trouble(f"{member.name} ended the connection{why}: try again", "cut")
    off = clock(member.name, others_clock(headers))
    if "certificate" in reason and off:
        return Refused(f"{off}; meanwhile {reason}, says {member.name}", "clock")
    renew = ": renew it (vpem party renew)" if "expired" in reason else ""
    kind = "certificate" if "certificate" in reason else "answer"
    return Refused(f"{member.name} refuses: {reason}{renew}", kind)


ON_THE_WAY: tuple[tuple[Errors, str, str], ...] = (
    (ws.InvalidStatus, "answer", "{met.where} answers with HTTP {status}: it is ending, or not "
     "ready yet; try again"),
    (ENDED, "cut", "{met.where} ended the connection as it began: it is ending, or something on "
     "the way lets no TLS 1.3 pass; try again, then ask who keeps the network"),
    (socket.gaierror, "name", "the host {met.host} of {met.member.name} has no address ({why}): "
     "check its spelling in the study, and this machine's DNS"),
    (ConnectionRefusedError, "port", "{met.where} refuses connections: nothing listens there, or a "
     "firewall refuses; start {met.member.name}, or have port {met.port} opened"),
    (TimeoutError, "port", "{met.where} does not answer in {met.seconds:g} s: its machine is off, "
     "or a firewall drops what is sent there; have port {met.port} opened"),
    (BaseException, "port", "{met.where} cannot be reached ({why}): look at the network"),
)  # fmt: skip
"""What errors mean, and the kind of fault that they are; the first that fits."""

AT_A_PROXY: tuple[tuple[Errors, type[Fault], str], ...] = (
    (ImportError, Refused, "the proxy {proxy} speaks SOCKS: pip install python-socks, or name an "
     "HTTP proxy, https_proxy=http://HOST:PORT"),
    (ws.InvalidProxy, Refused, "https_proxy cannot be read ({error.msg}): it must be "
     f"{CREDENTIALS}"),
    (ws.InvalidProxyMessage, Refused, "what is at {proxy} does not answer as an HTTP proxy does: "
     "check https_proxy"),
    (socket.gaierror, Trouble, "its host has no address"),
    (ConnectionRefusedError, Trouble, "it refuses connections"),
    (TimeoutError, Trouble, "no answer in {met.seconds:g} s"),
    (BaseException, Trouble, "{why}"),
)  # fmt: skip
"""The same of a proxy; a `Trouble` is only why it cannot be used."""


def explain(error: BaseException, met: Met, members: Sequence[Member] = ()) -> Fault:
    """Return what an error of `asyncio`, `ssl` or `websockets` means, by any of ``members``."""
    early = isinstance(error, OSError) and not isinstance(error, ssl.SSLError)
    why = printable(getattr(error, "strerror", None) or str(error) or type(error).__name__).lower()
    if isinstance(error, ws.ProxyError | ws.InvalidProxy | ImportError) or (met.proxy and early):
        proxy, past = met.proxy or "in https_proxy", f"no_proxy={met.host}"
        if isinstance(error, ws.InvalidProxyStatus):
            status, reason = error.response.status_code, error.response.reason_phrase
            sentence = (
                f"the proxy {proxy} does not connect to {met.where} (HTTP {status} "
                f"{printable(reason)[:60]}): ask who keeps it to allow CONNECT to "
                f"{met.host}:{met.port}, or bypass it with {past}"
            )
            if status == 407:
                wants = f"the proxy {proxy} asks for a name and a password, or for others"
                sentence = f"{wants}: {CREDENTIALS}"
            return (Trouble if status >= 500 else Refused)(sentence, "proxy")
        _, fault, sentence = next(row for row in AT_A_PROXY if isinstance(error, row[0]))
        said = printable(sentence.format(error=error, met=met, proxy=proxy, why=why))
        if fault is Trouble:
            said = (
                f"the proxy {proxy} cannot be used ({said}): check https_proxy, or bypass it with "
                f"{past}"
            )
        return fault(said, "proxy")
    if isinstance(error, ssl.SSLCertVerificationError):
        return _another(met, members, getattr(error, "verify_message", ""))
    if isinstance(error, ssl.SSLError):
        return _by_tls(error, met)
    status = error.response.status_code if isinstance(error, ws.InvalidStatus) else 0
    _, kind, sentence = next(row for row in ON_THE_WAY if isinstance(error, row[0]))
    return Trouble(sentence.format(met=met, why=why, status=status), kind)


def _another(met: Met, members: Sequence[Member], why: str) -> Refused:
    """Say whose certificate it is that was shown in place of the member's, or why it is not."""
    name, where = met.member.name, met.where
    other = next((one.name for one in members if not unlike(one, met.shown, members)), name)
    if other != name:
        sentence = (
            f"{where} is {other}, by its certificate: addresses in the study are swapped, or "
            f"{other} listens at the port of {name}"
        )
        return Refused(sentence, "certificate")
    if met.member.subject:
        why = unlike(met.member, met.shown, members) or printable(why) or "TLS does not accept it"
        sentence = f"what answers in the place of {where} shows a certificate that is not {name}'s"
        return Refused(f"{sentence}: {why}", "certificate")
    subject = issuer = ""
    if met.shown:
        from cryptography import x509

        try:
            read = x509.load_der_x509_certificate(met.shown[0])
            subject, issuer = read.subject.rfc4514_string(), read.issuer.rfc4514_string()
            subject = printable(subject)[:80] or "an empty name"
            issuer = printable(issuer)[:80] or "an empty name"
        except ValueError:
            subject, issuer = "an unreadable name", "an unreadable issuer"
    if subject != issuer:
        sentence = (
            f"something on the way to {where} opens TLS: the certificate shown is issued by "
            f"{issuer}; ask who keeps the network to let TLS to {met.host}:{met.port} pass unopened"
        )
        return Refused(sentence, "certificate")
    shown = f"that of {subject}" if subject else "another"
    return Refused(
        f"what answers in the place of {where} shows a certificate that the study does not have "
        f"({shown}): it was renewed, or this is another machine; get the newest study file, and "
        "have the fingerprint read to you",
        "certificate",
    )


def _by_tls(error: ssl.SSLError, met: Met) -> Fault:
    """Say what an error of TLS comes of, other than one about the certificate shown."""
    reason = str(getattr(error, "reason", None) or error)
    if refusal_of(error) == "refused":
        return Refused(
            f"{met.where} does not know the certificate of {met.own}: it was renewed, revoked or "
            "belongs to another study; get the newest study file, at both ends",
            "certificate",
        )
    if ("PROTOCOL" in reason and "VERSION" in reason) or "UNSUPPORTED_PROTOCOL" in reason:
        return Trouble(
            f"{met.where} speaks no TLS 1.3: another program answers there, or a gateway on the "
            f"way; ask who keeps the network to let port {met.port} pass unopened",
            "tls",
        )
    if refusal_of(error) == "other":
        first = met.banner
        text = printable(first[:40].decode("ascii", "replace").strip())
        program = f"{text!r}" if text else "something else"
        if first.startswith((b"SSH-", b"HTTP/")):
            program = "SSH" if first.startswith(b"SSH-") else "plain HTTP"
        return Trouble(
            f"{met.where} answers with {program}, not with TLS: the port is another program's; "
            "look at the address in the study",
            "tls",
        )
    return Trouble(
        f"TLS with {met.where} fails ({printable(reason).lower().replace('_', ' ')}): something on "
        "the way damages it, or another program answers there",
        "tls",
    )


@dataclass(frozen=True)
class LinkTimes:
    """Times of links, in seconds."""

    pulse: float = 10.0  # between signs of life on a link that has nothing to say
    silence: float = 20.0  # after which a link is opened again
    stuck: float = 30.0  # unacknowledged for so long: opened again
    opening: float = 10.0  # for a connection to be opened
    pauses: tuple[float, float] = (0.05, 5.0)  # between attempts: first, longest
    patience: int = 4  # times that others may answer in a member's place


class Parted(VpemError):
    """Another member has ended, why, perhaps since a third one has, and with which exit code."""

    def __init__(self, name: str, sentence: str, exit_code: int) -> None:
        said = re.match(r"[\w-]+ ended: ", sentence)
        super().__init__(sentence if said else f"{name} ended: {sentence}")
        self.name, self.exit_code = name, exit_code


class Returned(VpemError):
    """Another member's process is a new one: it died, and began again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} has begun again, and what it knew is gone")
        self.name = name


class Unheard(StalledError):
    """Another member has not been heard of for too long."""

    def __init__(self, name: str, *parts: str | Setting) -> None:
        super().__init__(*parts)
        self.name = name


class GoneOn(VpemError):
    """The first member, ``name``, goes on ``without`` some others."""

    def __init__(self, name: str, without: tuple[str, ...]) -> None:
        super().__init__(f"{name} goes on without {', '.join(without)}")
        self.without = without


class LeftOut(VpemError):
    """The others have gone on without this member, as one of them has said."""

    exit_code = 4


@dataclass(frozen=True)
class Sent:
    time: float  # seconds since 1970
    sent: bool  # by this member
    peer: str
    topic: str  # kind of message
    size: int  # bytes of the message itself
    digest: str  # their HMAC-SHA256, by a key that those of the run have had
