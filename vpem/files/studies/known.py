"""Which organiser and edition of a study a folder has seen: neither may be exchanged later.

NAME.known lies beside NAME.toml. The first reading pins the organiser's certificate (people compare
its words by telephone); later editions must be signed by the same one, or by one that it has
named its successor, and be no older.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from vpem.engines.tls.members import fingerprint
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import atomic_write
from vpem.files.studies.certificates import parse_certificate, pem_of
from vpem.files.studies.fields import Fields
from vpem.files.studies.signed import (
    Signed,
    digest_of,
    from_base64,
    is_signed_by,
    read_signed,
    table_of,
)
from vpem.files.toml_text import read_toml

if TYPE_CHECKING:
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


MOST_FORMER = 50


@dataclass(frozen=True)
class Former:
    """A certificate that the organiser had before."""

    certificate: bytes  # DER
    signature: str  # by its key, of `succession` to the next: base 64


def succession(number: str, following: bytes) -> str:
    """Return what a former organiser's key signs: that a certificate follows in a study."""
    return f"vpem: in the study {number} this certificate follows: {fingerprint(following)}\n"


def former_of(text: Signed, path: Path) -> tuple[Former, ...]:
    """Return the organiser's former certificates."""
    tables = text.content.pop("former", [])
    if not isinstance(tables, list) or len(tables) > MOST_FORMER:
        raise InputError(f"{path} must have at most {MOST_FORMER} tables [[former]]")
    found = []
    for number, table in enumerate(tables):
        fields = Fields(table, f"{path}: [[former]] {number + 1}")
        certificate = parse_certificate(fields.text("certificate", most=1 << 13))
        signature = fields.text("ed25519")
        from_base64(signature)
        fields.end()
        found.append(Former(certificate, signature))
    return tuple(found)


def check_known(study: Study, text: Signed) -> None:
    """Raise FileError where a study is not the one that its folder knows, or older."""
    file = study.path.with_suffix(".known")
    if not file.exists():
        return
    try:
        fields = Fields(read_toml(file).get("known"), f"{file}: [known]")
        number, edition = fields.hexadecimal("id", 32), fields.count("edition")
        certificate = parse_certificate(fields.text("organiser", most=1 << 13))
        digest = fields.hexadecimal("sha256", 64)
        fields.end()
    except InputError as error:
        raise FileError(f"{error}; {file} is written by vpem alone") from None
    if number != study.id:
        raise FileError(
            f"{study.path} is another study than the {study.name} that this folder knows; keep a "
            "folder for each"
        )
    if not _follows(study, certificate):
        raise FileError(
            f"{study.path} is signed by another {study.organiser} than before; ask there, and do "
            f"not use it (if it is right all the same, remove {file})"
        )
    if study.edition < edition:
        raise FileError(
            f"{study.path} is edition {study.edition} of {study.name}, older than the edition "
            f"{edition} that was here before; get the newest from {study.organiser}"
        )
    if study.edition == edition and digest_of(text) != digest:
        raise FileError(
            f"{study.path} is another edition {edition} of {study.name} than the one that was here "
            f"before; ask {study.organiser} which one holds"
        )


def _follows(study: Study, certificate: bytes) -> bool:
    """Whether a study's organiser is the one of a certificate, or its successor."""
    chain = [former.certificate for former in study.former]
    chain.append(study.member(study.organiser).certificate)
    if certificate not in chain:
        return False
    begin = chain.index(certificate)
    return all(
        is_signed_by(
            former.certificate,
            "successor",
            succession(study.id, after),
            from_base64(former.signature),
        )
        for former, after in zip(study.former[begin:], chain[begin + 1 :], strict=True)
    )


def remember(study: Study) -> None:
    """Note in its folder the organiser and the edition of a study that was read."""
    organiser = study.member(study.organiser).certificate
    table: Report = {
        "id": study.id,
        "edition": study.edition,
        "organiser": pem_of(organiser),
        "sha256": digest_of(read_signed(study.path, "study")),
    }
    head = f"# What this folder knows of {study.path.name}; written by vpem.\n"
    text = head + table_of("[known]", table)
    file = study.path.with_suffix(".known")
    if file.exists() and file.read_text(encoding="utf-8", errors="replace") == text:
        return
    with atomic_write(file, force=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
