"""Keys and self-signed certificates: Ed25519 only, made here, read from whoever sent them."""

from __future__ import annotations

import warnings
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from vpem.checks import check_int
from vpem.errors import FileError, InputError
from vpem.files.studies.fields import check_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import (
        Ed25519PrivateKey,
        Ed25519PublicKey,
    )
    from cryptography.x509 import Certificate


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
    """Raise InputError where a certificate cannot be valid for so many days."""
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
    made = (
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
    return made.public_bytes(Encoding.DER)


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
    from cryptography.hazmat.primitives.serialization import Encoding

    lines = text.strip().split("\n")
    if len(text) > LONGEST_PEM or text.count("-----BEGIN") != 1 or "-----BEGIN" not in lines[0]:
        raise InputError(f"a certificate must be one in PEM, of at most {LONGEST_PEM} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about what is refused, or does not matter, below
            found = x509.load_pem_x509_certificate(text.encode())
            found.not_valid_before_utc, found.not_valid_after_utc, found.extensions  # noqa: B018
            _key_in(found).verify(found.signature, found.tbs_certificate_bytes)
            _check_signs_no_others(found)
            called = _name_in(found)
            made = found.public_bytes(Encoding.DER)
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("it is no certificate that can be read; ask for it again") from None
    except InvalidSignature:
        raise InputError(
            "the certificate is not signed by its own key, as those of 'vpem party init' are"
        ) from None
    if name is not None and called != name:
        raise InputError(f"the certificate is that of {called}, not of {name}")
    return made


def _key_in(certificate: Certificate) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    key = certificate.public_key()
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(
            "the certificate has a key of another kind than Ed25519; make one by 'vpem party init'"
        )
    return key


def _check_signs_no_others(certificate: Certificate) -> None:
    """Refuse an authority: TLS would let in whoever shows a certificate that it has signed."""
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    except x509.ExtensionNotFound:
        found = None
    if found is None or found.ca:
        raise InputError(
            "the certificate may sign others (it does not say CA:FALSE), and those of members do "
            "not; make one by 'vpem party init'"
        )


def public_key_of(certificate: bytes) -> Ed25519PublicKey:
    """Return the key of a certificate (DER) that `parse_certificate` has read."""
    from cryptography import x509

    return _key_in(x509.load_der_x509_certificate(certificate))


def _name_in(certificate: Certificate) -> str:
    """Return the one common name of a certificate, which must be that of a member."""
    from cryptography.x509.oid import NameOID

    names = [part.value for part in certificate.subject]
    common = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    if len(names) != 1 or len(common) != 1:
        raise InputError("the subject of a certificate must be one common name")
    return check_name(str(common[0].value), "the common name of a certificate")


def common_name(certificate: bytes) -> str:
    """Return the name of the member that a certificate (DER) is of."""
    from cryptography import x509

    return _name_in(x509.load_der_x509_certificate(certificate))


def parse_key(content: bytes, file: object) -> Ed25519PrivateKey:
    """Return a private key of a file: Ed25519, without a password."""
    need_tls()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        found = load_pem_private_key(content, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise FileError(
            f"{file} is no private key as 'vpem party init' makes it (PEM, without a password)"
        ) from None
    if not isinstance(found, Ed25519PrivateKey):
        raise FileError(f"{file} is a key of another kind than Ed25519")
    return found
