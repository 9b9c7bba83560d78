"""Texts with a signature below them: whoever changes one letter is found out.

Such a file is TOML whose last table is ``[signature]``; Ed25519 signs the text above it, UTF-8 with
lines ended by newlines, without the empty line between, behind its kind and a zero byte. Programs
of mail that write other ends of lines do no harm.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any

from vpem.errors import FileError, InputError
from vpem.files.opening import PathLike, read_text
from vpem.files.studies.certificates import public_key_of
from vpem.files.studies.fields import Fields
from vpem.files.toml_text import TIMES, as_toml, parse_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    from vpem.network.schema import Report


MARK = "\n[signature]\n"
BYTES = 64


class Signed:
    """A text that was read, and what is said to be its signature.

    ``body`` was signed, ``content`` is what it stands for, and ``signature`` the table below it.
    """

    def __init__(self, text: str, path: PathLike, kind: str) -> None:
        above, mark, below = text.rpartition(MARK)
        if not mark:
            raise FileError(f"{path} is no {kind}: it has no table [signature] at its end")
        self.body, self.kind = above, kind
        self.content = parse_toml(self.body, path)
        table = parse_toml(mark + below, path).pop("signature")
        if set(parse_toml(mark + below, path)) != {"signature"} or "signature" in self.content:
            raise FileError(f"{path} is no {kind}: [signature] must be its last table")
        self.signature = Fields(table, f"{path}: [signature]")

    def is_by(self, certificate: bytes, name: str = "ed25519") -> bool:
        """Whether a field of the table is the signature by the key of a certificate (DER)."""
        signature = self.signature.read(name, from_base64)
        return is_signed_by(certificate, self.kind, self.body, signature)


def digest_of(text: Signed) -> str:
    """Return the SHA-256 of what was signed, in hexadecimal digits."""
    return hashlib.sha256(text.body.encode()).hexdigest()


def read_signed(path: PathLike, kind: str) -> Signed:
    """Read a text of at most 1 MB with its signature, which is still to be checked."""
    return Signed(read_text(path, TIMES), path, kind)


def from_base64(text: str) -> bytes:
    """Return the bytes of a signature."""
    try:
        found = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        found = b""
    if len(found) != BYTES:
        raise InputError(f"it must be {BYTES} bytes in base 64")
    return found


def _in_context(kind: str, text: str) -> bytes:
    """Return what is signed of a text, which is then taken for nothing of another kind."""
    return f"vpem: {kind}\0{text}".encode()


def sign(key: Ed25519PrivateKey, kind: str, text: str) -> str:
    """Return the signature of a text of some kind by a key, in base 64."""
    return base64.b64encode(key.sign(_in_context(kind, text))).decode()


def is_signed_by(certificate: bytes, kind: str, text: str, signature: bytes) -> bool:
    """Whether a signature of a text of some kind is by the key of a certificate (DER)."""
    from cryptography.exceptions import InvalidSignature

    try:
        public_key_of(certificate).verify(signature, _in_context(kind, text))
    except InvalidSignature:
        return False
    return True


def signed_text(kind: str, body: str, keys: Mapping[str, Ed25519PrivateKey]) -> str:
    """Return tables of TOML, which end with one newline, with signatures by the keys below them."""
    signatures = ((name, sign(key, kind, body)) for name, key in keys.items())
    return body + MARK + "".join(_lines(signatures))


def table_of(head: str, fields: Report) -> str:
    """Write a table of TOML headed ``[study]`` or ``[[member]]``; what is None is left out.

    Values are as `as_toml` writes them; a text of several lines becomes one, too.
    """
    return f"{head}\n" + "".join(_lines(fields.items()))


def _lines(fields: Iterable[tuple[str, Any]]) -> Iterable[str]:
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
