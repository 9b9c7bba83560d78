"""Signed texts, and the keys and self-signed certificates (Ed25519 only) that sign them.

A signed text is TOML whose last table is ``[signature]``; Ed25519 signs the text above it, UTF-8
with lines ended by newlines, without the empty line between, behind its kind and a zero byte.
Programs of mail that write other ends of lines do no harm. Its tables, which anybody may have
written, are read field by field: names, addresses, times.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import ipaddress
import re
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from vpem.checks import check_int, read_int
from vpem.engines.tls.trust import (
    MOST_ISSUERS,
    NAME,
    certificates_in,
    is_signed,
    names_of,
    parsed,
    scheme_of,
    validity,
)
from vpem.errors import FileError, InputError, Setting, brief, did_you_mean
from vpem.files.json_text import TOML_TIMES, as_toml, parse_toml
from vpem.files.opening import PathLike, read_text
from vpem.network.schema import Report

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.x509 import Certificate


T = TypeVar("T")

LABEL = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?")
LONGEST_HOST = 253
LONGEST = 200
"""Characters of a text that is no list, certificate or sentence."""


def check_name(name: str, what: str = "a name") -> str:
    """Return a name for a file and certificate: 1 to 40 letters, digits, - or _; or InputError."""
    if not NAME.fullmatch(name):
        raise InputError(
            f"{what} must be 1 to 40 letters, digits, - or _, with a letter or digit at both "
            f"ends, got {brief(name)}"
        )
    return name


def address_of(text: str) -> tuple[str, int]:
    """Return host and port of ``hub.org:443``, ``192.0.2.7:443`` or ``[2001:db8::7]:443``."""
    host, colon, port = text.rpartition(":")
    number = read_int(port) or 0
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    labels = host.removesuffix(".").split(".")
    is_host = len(host) <= LONGEST_HOST and all(LABEL.fullmatch(label) for label in labels)
    if bare != host:
        with suppress(ValueError):
            is_host = ipaddress.ip_address(bare).version == 6
    if not (colon and 0 < number < 1 << 16 and is_host):
        raise InputError(
            f"an address must be a host and a port from 1 to 65535, such as hub.org:443, got "
            f"{brief(text)}"
        )
    return bare, number


def door_of(text: str | None) -> tuple[str, int] | None:
    """Return where to listen by ``HOST:PORT``, or by a port alone, on all interfaces."""
    if text is None:
        return None
    host, _, port = text.rpartition(":")
    number = read_int(port) or 0
    if not 0 < number < 1 << 16:
        raise InputError(Setting("listen"), f" must be PORT or HOST:PORT, got {brief(text)}")
    return host.strip("[]"), number


def moment(time: datetime) -> str:
    """Write a time in UTC, to the second, as files of studies have it."""
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def now() -> str:
    """Return the time as `moment` writes it."""
    return moment(datetime.now(UTC))


class Fields:
    """A table read field by field; what is left is refused. Messages begin with ``where``."""

    def __init__(self, table: object, where: str) -> None:
        if not isinstance(table, dict):
            raise InputError(f"{where} must be a table, got {brief(table)}")
        self.where = where
        self._left: Report = dict(table)
        self._known: list[str] = []

    def pop_field(self, name: str, kind: type[T], words: str, default: T | None = None) -> T:
        """Return a field of a type, or the default where there is none."""
        self._known.append(name)
        value = self._left.pop(name, default)
        if value is None:
            raise InputError(f"{self.where} has no {name}")
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return value

    def text(self, name: str, default: str | None = None, most: int = LONGEST) -> str:
        """Return a text of printable characters and newlines."""
        text = self.pop_field(name, str, "a text", default)
        if len(text) > most:
            raise InputError(f"{self.where}: {name} has more than {most} characters")
        if not text.replace("\n", "").isprintable():
            raise InputError(f"{self.where}: {name} has characters that cannot be printed")
        return text

    def texts(self, name: str, most: int, longest: int = LONGEST) -> tuple[str, ...]:
        """Return a list of printable texts, without one that is not there."""
        texts = self.pop_field(name, list, "a list of texts", [])
        if len(texts) > most:
            raise InputError(f"{self.where}: {name} has {len(texts)} entries, more than {most}")
        for text in texts:
            if not isinstance(text, str) or not text.isprintable() or len(text) > longest:
                raise InputError(
                    f"{self.where}: {name} must be texts of at most {longest} printable "
                    f"characters, got {brief(text)}"
                )
        return tuple(texts)

    def count(self, name: str, least: int = 1, most: int = 10**9) -> int:
        words = f"an integer from {least} to {most}"
        value = self.pop_field(name, int, words)
        if not least <= value <= most:
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return value

    def seconds(self, name: str) -> float:
        """Return a positive time in seconds, at most a year."""
        words = "a number of seconds above 0"
        value = self.pop_field(name, int | float, words)  # type: ignore[arg-type]
        if not 0 < value <= 366 * 86400:
            raise InputError(f"{self.where}: {name} must be {words}, got {brief(value)}")
        return float(value)

    def time(self, name: str) -> str:
        """Return a time in UTC as `moment` writes it."""

        def checked(text: str) -> str:
            with suppress(ValueError, OverflowError):
                time = datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
                if moment(time) == text:
                    return text
            raise InputError(f"a time must be written as 2026-01-31T12:00:00Z, got {brief(text)}")

        return self.read(name, checked)

    def hexadecimal(self, name: str, digits: int) -> str:
        text = self.text(name)
        if not re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
            raise InputError(
                f"{self.where}: {name} must be {digits} hexadecimal digits, got {brief(text)}"
            )
        return text

    def read(self, name: str, reader: Callable[[str], T]) -> T:
        """Return what a function makes of a text; its errors say where the text stands."""
        text = self.text(name)
        try:
            return reader(text)
        except InputError as error:
            raise InputError(f"{self.where}: {name}: {error}") from None

    def read_if_any(self, name: str, reader: Callable[[str], T]) -> T | None:
        """Return what a function makes of a text, or None where there is none."""
        self._known.append(name)
        return self.read(name, reader) if name in self._left else None

    def choice(self, name: str, choices: Iterable[str], default: str | None = None) -> str:
        """Return one of some words, or the default where there is none."""
        words = list(choices)
        text = self.text(name, default)
        if text not in words:
            raise InputError(
                f"{self.where}: {name} must be one of {', '.join(words)}, got {brief(text)}"
                f"{did_you_mean(text, words)}"
            )
        return text

    def end(self) -> None:
        """Raise InputError where something is left that was not read."""
        for name in self._left:
            hint = did_you_mean(name, self._known)
            raise InputError(f"{self.where} has an unknown key {brief(name)}{hint}")


SLACK = timedelta(minutes=15)
"""How long before it is made a certificate is valid, since clocks differ."""

MOST_DAYS = 3660
LONGEST_PEM = 4096
NEEDED = "keys and certificates need vpem[tls]: pip install 'vpem[tls]'"


def need_tls() -> None:
    """Raise InputError where the libraries of certificates are not installed."""
    try:
        import cryptography  # noqa: F401
        import mnemonic  # noqa: F401
    except ImportError:
        raise InputError(NEEDED) from None


def make_key() -> tuple[Ed25519PrivateKey, bytes]:
    """Make a private key; also returned as PKCS 8 in PEM, not encrypted."""
    need_tls()
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    plain = form.NoEncryption()
    return key, key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, plain)


def check_days(days: int) -> None:
    check_int("days", days, least=1, most=MOST_DAYS)


def make_certificate(name: str, key: Ed25519PrivateKey, days: int = 365) -> bytes:
    """Return a self-signed certificate (DER) of a member, valid for 1 to `MOST_DAYS` days."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    check_name(name)
    check_days(days)
    now = datetime.now(UTC).replace(microsecond=0)
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    certificate = (
        x509.CertificateBuilder()
        .subject_name(who)
        .issuer_name(who)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SLACK)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, None)
    )
    return certificate.public_bytes(Encoding.DER)


def pem_of(certificate: bytes) -> str:
    """Return a certificate (DER) as PEM."""
    from ssl import DER_cert_to_PEM_cert

    return DER_cert_to_PEM_cert(certificate)


def parse_certificate(text: str, name: str | None = None) -> bytes:
    """Return a certificate (DER) that anybody may have made: one in PEM, and nothing else.

    InputError if it is not self-signed by Ed25519, may sign others, or has another common name.
    """
    need_tls()
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    lines = text.strip().split("\n")
    if len(text) > LONGEST_PEM or text.count("-----BEGIN") != 1 or "-----BEGIN" not in lines[0]:
        raise InputError(f"a certificate must be one in PEM, of at most {LONGEST_PEM} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused, or does not matter, below
            (der,) = certificates_in(text)
            cert = parsed(der)
            cert.not_valid_before_utc, cert.not_valid_after_utc  # noqa: B018
            _key_in(cert).verify(cert.signature, cert.tbs_certificate_bytes)
            # TLS would accept every certificate that an authority has signed.
            values = [one.value for one in cert.extensions]
            limits = [one for one in values if isinstance(one, x509.BasicConstraints)]
            if not limits or limits[0].ca:
                raise InputError(
                    "the certificate may sign others (it does not say CA:FALSE), and those of "
                    "members do not; make one by 'vpem party init'"
                )
            called = _name_in(cert)
    except InputError:
        raise
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise InputError("it is no certificate that can be read; ask for it again") from None
    except InvalidSignature:
        raise InputError(
            "the certificate is not signed by its own key, as those of 'vpem party init' are"
        ) from None
    if name is not None and called != name:
        raise InputError(f"the certificate is that of {called}, not of {name}")
    return der


def parse_chain(text: str) -> list[bytes]:
    """Return a certificate (DER) of an authority, and those of its issuers behind it, in PEM."""
    need_tls()
    from cryptography.exceptions import UnsupportedAlgorithm

    if "PRIVATE KEY" in text:
        raise InputError("there is a private key in it; keep certificates alone there")
    chain = list[bytes]()
    with suppress(ValueError, UnsupportedAlgorithm), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = certificates_in(text)
        for one in found:
            names_of(one), validity(one), parsed(one).public_key()
        chain = found
    if not 0 < len(chain) <= MOST_ISSUERS:
        raise InputError(f"it must have certificates in PEM, at most {MOST_ISSUERS}")
    return chain


def parse_authority(text: str) -> bytes:
    """Return the certificate (DER) of an authority: one in PEM, and nothing else."""
    from cryptography import x509

    certificate, *more = parse_chain(text)
    if more:
        raise InputError(
            f"it must have one certificate, that of the authority, not {1 + len(more)}"
        )
    with suppress(x509.ExtensionNotFound):
        extensions = parsed(certificate).extensions
        if extensions.get_extension_for_class(x509.BasicConstraints).value.ca:
            return certificate
    raise InputError(f"{names_of(certificate)[0][:120]} is no authority: it does not say CA:TRUE")


def check_subject(text: str) -> str:
    """Return the name of a host, by which an authority knows a member; or InputError."""
    if len(text) > LONGEST_HOST or not all(map(LABEL.fullmatch, text.lower().split("."))):
        raise InputError(
            "a name in a certificate must be that of a host, such as vpem.lab.org, without *, got "
            f"{brief(text)}"
        )
    return text.lower()


def _key_in(certificate: Certificate) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(
            "the certificate has a key of another kind than Ed25519; make one by 'vpem party init'"
        )
    return key


def _name_in(certificate: Certificate) -> str:
    """Return the one common name of a certificate, which must be that of a member."""
    from cryptography.x509.oid import NameOID

    names = [part.value for part in certificate.subject]
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or len(common) != 1:
        raise InputError("the subject of a certificate must be one common name")
    return check_name(str(common[0].value), "the common name of a certificate")


def common_name(certificate: bytes) -> str:
    """Return the name of the member in a certificate (DER)."""
    return _name_in(parsed(certificate))


MARK = "\n[signature]\n"
BYTES = 64
ISSUED = "issued"
"""Field of a signature by the key of a certificate that an authority has issued."""


class Signed:
    """A text of at most 1 MB: its signed ``body``, its ``content``, and the table ``signature``.

    Whether it is signed by a member is still to be checked (`is_by`).
    """

    def __init__(self, path: PathLike, kind: str) -> None:
        above, mark, below = read_text(path, TOML_TIMES).rpartition(MARK)
        if not mark:
            raise FileError(f"{path} is no {kind}: it has no table [signature] at its end")
        self.body, self.kind = above, kind
        self.content = parse_toml(self.body, path)
        last = parse_toml(mark + below, path)
        if set(last) != {"signature"} or "signature" in self.content:
            raise FileError(f"{path} is no {kind}: [signature] must be its last table")
        self.signature = Fields(last["signature"], f"{path}: [signature]")

    def is_by(self, certificate: bytes, name: str = "ed25519") -> bool:
        """Whether a field of the table is the signature by the key of a certificate (DER)."""
        if name == ISSUED:
            signature = _any_base64(self.signature.text(name, most=LONGEST_PEM))
        else:
            signature = self.signature.read(name, from_base64)
        return is_signed_by(certificate, self.kind, self.body, signature)

    @property
    def digest(self) -> str:
        """The SHA-256 of what was signed, in hexadecimal digits."""
        return hashlib.sha256(self.body.encode()).hexdigest()


def _any_base64(text: str) -> bytes:
    with suppress(ValueError, binascii.Error):
        return base64.b64decode(text, validate=True)
    return b""


def from_base64(text: str) -> bytes:
    signature = _any_base64(text)
    if len(signature) != BYTES:
        raise InputError(f"it must be {BYTES} bytes in base 64")
    return signature


def _in_context(kind: str, text: str) -> bytes:
    """Return what is signed of a text, which is then taken for nothing of another kind."""
    return f"vpem: {kind}\0{text}".encode()


def sign(key: Any, kind: str, text: str) -> str:
    """Return the signature of a text of some kind by a key, in base 64."""
    return base64.b64encode(key.sign(_in_context(kind, text), *scheme_of(key))).decode()


def is_signed_by(certificate: bytes, kind: str, text: str, signature: bytes) -> bool:
    """Whether a signature of a text of some kind is by the key of a certificate (DER)."""
    return is_signed(parsed(certificate).public_key(), _in_context(kind, text), signature)


def signed_text(kind: str, body: str, keys: Mapping[str, Any]) -> str:
    """Return tables of TOML, which end with one newline, with signatures by the keys below them."""
    signatures = ((name, sign(key, kind, body)) for name, key in keys.items())
    return body + MARK + "".join(_lines(signatures))


def table_of(head: str, fields: Report) -> str:
    """Write a table of TOML headed ``[study]`` or ``[[member]]``; what is None is left out."""
    return f"{head}\n" + "".join(_lines(fields.items()))


def _lines(fields: Iterable[tuple[str, object]]) -> Iterable[str]:
    for name, value in fields:
        if value is None:
            continue
        if isinstance(value, str) and "\n" in value:
            # Certificates alone: neither quotes nor backslashes are in them.
            yield f'{name} = """\n{value.strip()}\n"""\n'
        elif isinstance(value, list | tuple) and value and len(as_toml(list(value))) > 80:
            yield f"{name} = [\n" + "".join(f"    {as_toml(one)},\n" for one in value) + "]\n"
        else:
            yield f"{name} = {as_toml(list(value) if isinstance(value, tuple) else value)}\n"
