"""The key and the certificate of a member, in a folder of its own."""

from __future__ import annotations

import os
import stat
import warnings
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from vpem.engines.tls.members import Identity, validity
from vpem.errors import FileError, InputError, VpemWarning
from vpem.files.opening import PathLike, open_regular
from vpem.files.studies.certificates import (
    check_days,
    make_certificate,
    make_key,
    need_tls,
    parse_certificate,
    parse_key,
    pem_of,
    public_key_of,
)
from vpem.files.studies.fields import check_name, moment
from vpem.files.studies.known import remember
from vpem.files.studies.study import Study
from vpem.files.temporaries import temporary_beside

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


SOON = timedelta(days=30)
LARGEST = 1 << 14
"""Bytes of a file with a key or a certificate."""
OTHERS = 0o077
PRIVATE_FILES = os.name == "posix"
"""Whether modes of files keep them from others."""


def make_identity(folder: Path, name: str, days: int = 365) -> Identity:
    """Make a key and a self-signed certificate, NAME.key and NAME.crt, which must not exist."""
    need_tls()
    _need_private_files()
    check_name(name)
    check_days(days)
    made = _files(folder, name)
    for file in (made.key, made.certificate):
        if os.path.lexists(file):
            raise FileError(f"{file} exists; nobody's key is replaced: take another name or folder")
    _look_at(folder)
    key, pem = make_key()
    certificate = make_certificate(name, key, days)
    write_new(made.key, pem, 0o600)
    write_new(made.certificate, pem_of(certificate).encode(), 0o666)
    return made


def renew_identity(folder: Path, name: str, days: int = 365) -> Identity:
    """Make a new key and certificate; the present ones become NAME.old.key and NAME.old.crt.

    They serve until the studies have the new ones; FileError while older ones still hold.
    """
    now, old = read_identity(folder, name), _files(folder, f"{name}.old")
    if old.certificate.exists() or old.key.exists():
        until = validity(read_certificate(old.certificate, name))[1] if _whole(old) else None
        if until is None or until > datetime.now(UTC):
            raise FileError(
                f"{old.key} is still there from the last renewal; remove it and {old.certificate} "
                "once every study has the new certificate"
            )
    key, pem = make_key()
    certificate = make_certificate(name, key, days)
    old.key.unlink(missing_ok=True)
    old.certificate.unlink(missing_ok=True)
    # At any moment of this one pair of files is whole.
    write_new(old.key, _content(now.key), 0o600)
    write_new(old.certificate, _content(now.certificate), 0o666)
    with temporary_beside(now.key, 0o600) as new_key, temporary_beside(now.certificate) as new:
        _fill(new_key, pem)
        _fill(new, pem_of(certificate).encode())
        os.replace(new_key, now.key)
        os.replace(new, now.certificate)
    return now


def identities_in(folder: Path) -> list[str]:
    """Return the names of those whose key and certificate are in a folder."""
    try:
        found = sorted(file.stem for file in folder.glob("*.key"))
    except OSError:
        return []
    return [name for name in found if not name.endswith(".old") and _whole(_files(folder, name))]


def read_identity(folder: Path, name: str, *, old: bool = False) -> Identity:
    """Return the files of a member that has a key and a certificate in a folder, unread."""
    check_name(name)
    found = _files(folder, f"{name}.old" if old else name)
    if not _whole(found):
        there = identities_in(folder)
        try_ = f"; there {'is' if len(there) == 1 else 'are'} {', '.join(there)}" if there else ""
        missing = found.certificate if found.key.exists() else found.key
        raise FileError(
            f"{missing} does not exist{try_}; a key and a certificate are made by 'vpem party init "
            f"--name {name}'"
        )
    return found


def read_certificate(file: Path, name: str | None = None) -> bytes:
    """Return the certificate (DER) of a PEM file, whose common name must be the one given."""
    content = _content(file)
    try:
        return parse_certificate(content.decode("ascii", "replace").replace("\r\n", "\n"), name)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def certificate_of(identity: Identity) -> bytes:
    """Return the certificate (DER) of a member."""
    return read_certificate(identity.certificate, identity.name)


def key_of(identity: Identity) -> Ed25519PrivateKey:
    """Return the private key of a member.

    FileError if others than its owner can read it, or it is not that of the certificate.
    """
    _need_private_files()
    mode = stat.S_IMODE(os.stat(identity.key).st_mode) if identity.key.exists() else 0
    content = _content(identity.key)
    if mode & OTHERS:
        raise FileError(
            f"{identity.key} can be read or changed by others (mode {mode:04o}); run chmod 600 on "
            "it, or, if others may have read it, make another by 'vpem party renew'"
        )
    key = parse_key(content, identity.key)
    if key.public_key() != public_key_of(certificate_of(identity)):
        raise FileError(
            f"{identity.key} is not the key of {identity.certificate}; put back the two that "
            "'vpem party init' made together"
        )
    return key


def usable(identity: Identity) -> Identity:
    """Return an identity that can be used now, with a warning if that ends within 30 days."""
    key_of(identity)
    _look_at(identity.key.parent)
    begins, ends = validity(certificate_of(identity))
    now = datetime.now(UTC)
    if now < begins:
        raise InputError(
            f"{identity.certificate} is valid from {moment(begins)}, but the clock of this machine "
            f"says {moment(now)}; set the clock"
        )
    if now > ends:
        raise InputError(
            f"{identity.certificate} was valid until {moment(ends)}, and it is {moment(now)}; make "
            "another by 'vpem party renew'"
        )
    if ends - now < SOON:
        warnings.warn(
            VpemWarning(
                f"{identity.certificate} is valid until {moment(ends)[:10]} only; make another by "
                "'vpem party renew'"
            ),
            stacklevel=2,
        )
    return identity


def identity_of(study: Study | PathLike, name: str) -> Identity:
    """Return the key and certificate of a member, which must be usable now.

    They lie in a folder, or in that of a study, which must know the certificate: of a member that
    was renewed, the pair that it knows. Organiser and edition of the study are remembered there
    (NAME.known): no other organiser and no older edition will be read from now on.
    """
    if not isinstance(study, Study):
        return usable(read_identity(Path(study), name))
    found = known_identity(study, name)
    _note(study)
    return usable(found)


def known_identity(study: Study, name: str) -> Identity:
    """Return the key and certificate by which a study knows a member, valid now or not."""
    member = study.member(name)
    renewed = _whole(_files(study.folder, f"{name}.old"))
    for old in (False, True) if renewed else (False,):
        try:
            found = read_identity(study.folder, name, old=old)
            if certificate_of(found) == member.certificate:
                key_of(found)
                return found
        except FileError:
            if old or not renewed:
                raise
    raise InputError(
        f"the certificate {found.certificate} is not the one that {study.path} has of {name}; "
        f"ask {study.organiser} for its newest edition, or send it a request (vpem party request)"
    )


def _note(study: Study) -> None:
    """Remember the edition that is used, as far as the folder lets us."""
    try:
        remember(study)
    except FileError as error:
        warnings.warn(VpemWarning(f"older editions cannot be told: {error}"), stacklevel=3)


def only_identity(folder: Path, name: str | None = None) -> str:
    """Return whose key a folder has, or the name given; InputError if there is not one alone."""
    if name is not None:
        return check_name(name)
    there = identities_in(folder)
    if len(there) == 1:
        return there[0]
    if not there:
        raise InputError(
            f"the folder {folder} has no key; make one by 'vpem party init --name ...'"
        )
    raise InputError(f"the folder {folder} has the keys of {', '.join(there)}; say --as which")


def write_new(file: Path, content: bytes, mode: int) -> None:
    """Write a file that must not exist, completely or not at all."""
    try:
        with temporary_beside(file, mode) as temporary:
            _fill(temporary, content)
            try:
                # Unlike a renaming, a link never takes the place of a file.
                os.link(temporary, file)
            except FileExistsError:
                raise
            except OSError:  # a file system without links
                os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))
                os.replace(temporary, file)
    except FileExistsError:
        raise FileError(f"{file} exists; it is not replaced") from None
    except OSError as error:
        raise FileError(f"{file} could not be written: {error.strerror or error}") from error


def _fill(file: Path, content: bytes) -> None:
    """Write content into an empty file, and make it safe on disk."""
    with open(file, "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())


def _content(file: Path) -> bytes:
    with open_regular(file) as opened:
        content = opened.read(LARGEST + 1)
    if len(content) > LARGEST:
        raise FileError(f"{file} has more than {LARGEST} bytes; it is no key or certificate")
    return content


def _files(folder: Path, name: str) -> Identity:
    owner = name.removesuffix(".old")
    return Identity(owner, folder / f"{name}.crt", folder / f"{name}.key")


def _whole(identity: Identity) -> bool:
    return identity.certificate.exists() and identity.key.exists()


def _need_private_files() -> None:
    """Raise InputError where no mode of a file keeps a key from others."""
    if not PRIVATE_FILES:
        raise InputError(
            "keys of studies are kept where a file can be its owner's alone: run this on Linux or "
            "macOS (on Windows in its subsystem for Linux)"
        )


def _look_at(folder: Path) -> None:
    """Warn where others may exchange the files of a folder."""
    mode = os.stat(folder).st_mode
    if mode & 0o022 and not mode & stat.S_ISVTX:
        warnings.warn(
            VpemWarning(
                f"others may write in the folder {folder} (mode {stat.S_IMODE(mode):04o}), and so "
                "exchange keys and studies; run chmod go-w on it"
            ),
            stacklevel=3,
        )
