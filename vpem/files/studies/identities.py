"""The key and certificate of a member, and what is signed by them: studies and requests.

A request to be a member of a study is NAME.request; nothing in it is secret. The next edition of a
study (`vpem.files.studies.study`) is signed where a member joins, is renewed, or leaves.
"""

from __future__ import annotations

import os
import stat
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vpem import __version__
from vpem.engines.tls.trust import (
    PASSPHRASE,
    Identity,
    Member,
    certificates_in,
    fingerprint,
    hosts_of,
    load_key,
    names_of,
    not_valid,
    parsed,
    unlike,
    validity,
    written_address,
)
from vpem.errors import FileError, InputError, Setting, VpemWarning, printable
from vpem.files.hdf5 import atomic_write
from vpem.files.json_text import as_toml
from vpem.files.opening import PathLike, open_regular
from vpem.files.studies.signed import (
    ISSUED,
    Fields,
    Signed,
    address_of,
    check_name,
    check_subject,
    common_name,
    make_certificate,
    make_key,
    need_tls,
    now,
    parse_authority,
    parse_certificate,
    parse_chain,
    pem_of,
    sign,
    signed_text,
    table_of,
)
from vpem.files.studies.study import (
    FORMAT,
    MOST_FEATURES,
    MOST_FORMER,
    MOST_MEMBERS,
    Study,
    check_member,
    read_study,
    remember,
    succession,
)
from vpem.files.temporaries import temporary_beside
from vpem.network.schema import Report

if TYPE_CHECKING:
    from vpem.engines.tls.party_check import Finding


SOON = timedelta(days=30)
LARGEST = 1 << 14  # bytes of a file with a key or a certificate
OTHERS = 0o077
PRIVATE_FILES = os.name == "posix"  # modes of files keep them from others


def make_identity(folder: Path, name: str, days: int = 365) -> Identity:
    """Make a key and a self-signed certificate, NAME.key and NAME.crt, which must not exist."""
    need_tls()
    _need_private_files()
    check_name(name)
    identity = _files(folder, name)
    for file in (identity.key, identity.certificate):
        if os.path.lexists(file):
            raise FileError(f"{file} exists; no key is replaced: choose another name or folder")
    _look_at(folder)
    key, pem = make_key()
    certificate = make_certificate(name, key, days)
    write_new(identity.key, pem, 0o600)
    write_new(identity.certificate, pem_of(certificate).encode(), 0o666)
    return identity


def renew_identity(folder: Path, name: str, days: int = 365) -> Identity:
    """Make a new key and certificate; the old, NAME.old.*, serve until studies have the new."""
    current, old = read_identity(folder, name), _files(folder, f"{name}.old")
    if is_issued(own := certificate_of(current)):
        raise InputError(
            f"{current.certificate} is issued by {names_of(own)[1][:120]}: put a new one of that "
            "authority, and its key, in its place; no one else needs to know"
        )
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
    write_new(old.key, _content(current.key), 0o600)
    write_new(old.certificate, _content(current.certificate), 0o666)
    with (
        temporary_beside(current.key, 0o600) as new_key,
        temporary_beside(current.certificate) as new,
    ):
        _fill(new_key, pem)
        _fill(new, pem_of(certificate).encode())
        os.replace(new_key, current.key)
        os.replace(new, current.certificate)
    return current


def identities_in(folder: Path) -> list[str]:
    """Return the names of those whose key and certificate are in a folder."""
    try:
        names = sorted(file.stem for file in folder.glob("*.key"))
    except OSError:
        return []
    return [name for name in names if not name.endswith(".old") and _whole(_files(folder, name))]


def read_identity(folder: Path, name: str, *, old: bool = False) -> Identity:
    """Return the files of a member that has a key and a certificate in a folder, unread."""
    check_name(name)
    identity = _files(folder, f"{name}.old" if old else name)
    if not _whole(identity):
        there = identities_in(folder)
        try_ = f"; there {'is' if len(there) == 1 else 'are'} {', '.join(there)}" if there else ""
        missing = identity.certificate if identity.key.exists() else identity.key
        raise FileError(
            f"{missing} does not exist{try_}; a key and a certificate are made by 'vpem party init "
            f"--name {name}'"
        )
    return identity


def read_certificate(file: Path, name: str | None = None) -> bytes:
    """Return the certificate (DER) of a PEM file, whose common name must be the one given."""
    content = _content(file)
    try:
        return parse_certificate(content.decode("ascii", "replace").replace("\r\n", "\n"), name)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def chain_of(identity: Identity) -> list[bytes]:
    """Return the certificate (DER) of a member, and those of its issuers that are beside it."""
    file = identity.certificate
    text, issued = _content(file).decode("ascii", "replace"), False
    with suppress(ValueError):
        issued = is_issued(certificates_in(text)[0])
    if not issued:
        return [read_certificate(file, identity.name)]
    try:
        return parse_chain(text)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def is_issued(certificate: bytes) -> bool:
    """Whether a certificate (DER) comes from an authority, and is not self-signed."""
    subject, issuer = names_of(certificate)
    return subject != issuer


def certificate_of(identity: Identity) -> bytes:
    """Return the certificate (DER) of a member."""
    return chain_of(identity)[0]


def member_of(
    certificate: Path, address: str | None = None, listen: str | None = None, holds: bool = True
) -> Member:
    """Return whose certificate (PEM) this is; others dial an address, HOST:PORT, if it has one.

    It listens there too, or at ``listen``.
    """
    content = read_certificate(certificate)
    at, door = (None if one is None else address_of(one) for one in (address, listen))
    return Member(common_name(content), content, at, holds, listen=door)


def describe_certificate(file: Path) -> Report:
    """Return what a certificate (PEM) says as plain values; it may be or come of an authority."""
    with suppress(ValueError):
        one = certificates_in(_content(file).decode("ascii", "replace"))[0]
        if not is_issued(one):
            parse_authority(pem_of(one))
        about = {
            "issuer": names_of(one)[1][:120],
            "hosts": printable(", ".join(hosts_of(one)))[:120],
        }
        return Member(file.stem, one).describe() | about
    return member_of(file).describe()


def key_of(identity: Identity) -> Any:
    """Return a member's private key; FileError if others can read it, or it is another's."""
    _need_private_files()
    mode = stat.S_IMODE(os.stat(identity.key).st_mode) if identity.key.exists() else 0
    content = _content(identity.key)
    if mode & OTHERS:
        raise FileError(
            f"{identity.key} can be read or changed by others (mode {mode:04o}); run chmod 600 on "
            "it, or, if others may have read it, make another by 'vpem party renew'"
        )
    need_tls()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        key = load_key(content)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        if b"ENCRYPTED" in content:
            has = "does not open it" if os.environ.get(PASSPHRASE) else "is not set"
            raise FileError(
                f"{identity.key} is encrypted, and its passphrase is read from the environment "
                f"variable {PASSPHRASE}, which {has}"
            ) from None
        raise FileError(
            f"{identity.key} is no private key as 'vpem party init' makes it (PEM)"
        ) from None
    certificate = certificate_of(identity)
    issued = is_issued(certificate)
    if not issued and not isinstance(key, Ed25519PrivateKey):
        raise FileError(f"{identity.key} is a key of another kind than Ed25519")
    if key.public_key() != parsed(certificate).public_key():
        together = "its authority issued for it" if issued else "'vpem party init' made together"
        raise FileError(
            f"{identity.key} is not the key of {identity.certificate}; put back the two that "
            f"{together}"
        )
    return key


def usable(identity: Identity) -> Identity:
    """Return an identity that can be used now, with a warning if that ends within 30 days."""
    key_of(identity)
    _look_at(identity.key.parent)
    certificate = certificate_of(identity)
    another = "make another by 'vpem party renew'"
    if is_issued(certificate):
        another = f"put another of its authority in its place ({identity.certificate})"
    if wrong := not_valid(identity.name, certificate):
        raise InputError(f"{wrong}; set the clock, or {another}")
    ends = validity(certificate)[1]
    if ends - datetime.now(UTC) < SOON:
        until = f"{identity.certificate} is valid until {ends:%Y-%m-%d} only"
        warnings.warn(VpemWarning(f"{until}; {another}"), stacklevel=2)
    return identity


def identity_of(study: Study, name: str) -> Identity:
    """Return the key and certificate of a member, which must be usable now.

    They lie beside the study, which must know the certificate: of a member that was renewed, the
    pair that it knows. Organiser and edition of the study are remembered there (NAME.known): no
    other organiser and no older edition will be read from now on.
    """
    identity = known_identity(study, name)
    try:
        remember(study)
    except FileError as error:  # the folder does not let us
        warnings.warn(VpemWarning(f"older editions will not be recognised: {error}"), stacklevel=2)
    return usable(identity)


def known_identity(study: Study, name: str) -> Identity:
    """Return the key and certificate by which a study knows a member, or its relay, at any time."""
    relay = study.roster.relay
    member = relay if relay is not None and relay.name == name else study.member(name)
    renewed = not member.subject and _whole(_files(study.folder, f"{name}.old"))
    for old in (False, True) if renewed else (False,):
        try:
            identity = read_identity(study.folder, name, old=old)
            shown = chain_of(identity)
            wrong = unlike(member, shown, study.roster.members)
            if not wrong:
                key_of(identity)
                return identity
        except FileError:
            if old or not renewed:
                raise
    since = study.roster.revoked.get(fingerprint(certificate_of(identity)))
    if since is not None:
        raise InputError(
            f"the certificate of {name} was revoked on {since}: make another key (vpem party "
            f"renew) and ask {study.organiser}"
        )
    if member.subject:
        raise InputError(f"{identity.certificate} is not the certificate of {name}: {wrong}")
    sent = "the certificate" if member is relay else "a request (vpem party request)"
    raise InputError(
        f"the certificate {identity.certificate} is not the one that {study.path} has of {name}; "
        f"ask {study.organiser} for its newest edition, or send it {sent}"
    )


def check_links(
    study: Study, name: str, door: tuple[str, int] | None, idle: float
) -> list[Finding]:
    """Look at a member's certificate, and its links with all whom it may talk with.

    Meanwhile it listens at its ``door``; each link is left ``idle`` for so many seconds.
    """
    import asyncio

    from vpem.engines.tls.party_check import Finding
    from vpem.engines.tls.server import examine_all

    state, sentence = "ok", ""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", VpemWarning)
        try:
            identity = identity_of(study, name)
        except InputError as error:
            # Others are dialled all the same: the clock may be wrong.
            identity = read_identity(study.folder, name)
            key_of(identity)
            state, sentence = "fails", str(error)
    for one in caught:
        if isinstance(one.message, VpemWarning):
            state, sentence = "note", str(one.message)
    certificate = certificate_of(identity)
    until = f"until {validity(certificate)[1]:%Y-%m-%d}"
    links = asyncio.run(examine_all(study.roster, identity, door, idle))
    clock_fails = any((one.what, one.state) == ("clock", "fails") for one in links)
    if clock_fails and not_valid(name, certificate):
        state, until, sentence = "note", f"{until}, so not by this machine's clock", ""
    return [Finding(name, "certificate", state, until, sentence), *links]


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
    raise InputError(f"the folder {folder} has the keys of {', '.join(there)}; pass --as NAME")


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


def write_study(study: Study, identity: Identity, *, force: bool = True) -> None:
    """Sign a study and write it to its path, completely or not at all; only the organiser may."""
    if certificate_of(identity) != study.member(study.organiser).certificate:
        raise InputError(f"{study.name} is signed by {study.organiser}, not by {identity.name}")
    parts = [
        f"# A study of vpem. Look at it: vpem study show {study.path.name}\n"
        "# It is signed: any change makes it void.\n",
        table_of(
            "[study]",
            {
                "name": study.name, "id": study.id, "edition": study.edition, "format": FORMAT,
                "vpem": study.version, "organiser": study.organiser, "signed": study.signed,
                "result": study.result, "timeout": study.timeout,
                "if-lost": study.if_lost, "runs": study.runs, "shows": study.shows,
                **study.carried,
            },
        ),
    ]  # fmt: skip
    parts += [table_of(f"[{name}]", table) for name, table in study.options.items()]
    parts += [table_of("[[member]]", member_table(one)) for one in study.roster.members]
    if study.roster.relay is not None:
        parts.append(table_of("[relay]", member_table(study.roster.relay)))
    if study.roster.revoked:
        revoked = (f"{as_toml(k)} = {as_toml(v)}\n" for k, v in study.roster.revoked.items())
        parts.append("[revoked]\n" + "".join(revoked))
    parts += [
        table_of("[[former]]", {"certificate": pem_of(certificate), "ed25519": signature})
        for certificate, signature in study.former
    ]
    text = signed_text("study", "\n".join(parts), {"ed25519": key_of(identity)})
    with atomic_write(study.path, force) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def member_table(member: Member) -> Report:
    """Return the table of a member, as `check_member` reads it."""
    return {
        "name": member.name,
        "subject": member.subject or None,
        "authority" if member.subject else "certificate": pem_of(member.certificate),
        "address": member.where,
        "listen": None if member.listen is None else written_address(member.listen),
        "data": member.holds,
        "features": member.features or None,
    }


@dataclass(frozen=True)
class MembershipRequest:
    path: Path
    study: str
    id: str  # of the study
    organiser: str  # fingerprint of its certificate
    member: Member
    version: str = __version__  # of vpem
    made: str = ""  # UTC
    before: bytes | None = None  # renewed certificate (DER), whose key has signed too
    chain: tuple[bytes, ...] = ()  # its certificate, with an authority those of its issuers, too

    def describe(self) -> Report:
        """Return who wants to be a member of what as plain values."""
        about = {"study": self.study, **self.member.describe(), "features": self.member.features}
        before = None if self.before is None else fingerprint(self.before)
        return about | {"data": self.member.holds, "address": self.member.where, "before": before}


def write_request(
    study: Study,
    name: str,
    *,
    address: str | None = None,  # HOST:PORT where others can dial it
    listen: str | None = None,  # where its door is, if elsewhere
    features: tuple[str, ...] = (),  # at most `MOST_FEATURES`
    authority: Path | None = None,  # of a certificate that is not self-signed
    subject: str | None = None,  # which of the names in it is meant
) -> MembershipRequest:
    """Write NAME.request beside a study; what a member does not change stays as the study has it.

    A request to renew is signed by the key that the study knows, too.
    """
    if len(features) > MOST_FEATURES:
        raise InputError(
            f"a request names at most {MOST_FEATURES} features, got {len(features)}; it may name "
            "none"
        )
    identity, before = usable(read_identity(study.folder, name)), None
    chain = chain_of(identity)
    member = _asking(identity, chain, authority, subject, study.roster.members)
    at, door = (None if one is None else address_of(one) for one in (address, listen))
    member = replace(member, address=at, listen=door, features=features)
    if study.roster.rank_of(name) is not None:
        known = study.member(name)
        if not known.subject and member.certificate != known.certificate:
            # Its own key was renewed.
            before = known_identity(study, name)
        member = replace(
            member, address=member.address or known.address, holds=known.holds or bool(features),
            features=features or known.features, listen=member.listen or known.listen,
        )  # fmt: skip
    request = MembershipRequest(
        study.folder / f"{name}.request",
        study.name,
        study.id,
        fingerprint(study.member(study.organiser).certificate),
        member,
        made=now(),
        before=None if before is None else certificate_of(before),
        chain=tuple(chain),
    )
    head = (
        f"# {name} asks to be a member of the study {study.name}. Nothing here is secret."
        f"\n# Its organiser answers it: vpem study approve {request.path.name}\n\n"
    )
    about = {
        "study": request.study, "id": request.id, "organiser": request.organiser,
        "format": FORMAT, "vpem": request.version, "made": request.made,
        "before": None if request.before is None else pem_of(request.before),
        "chain": "".join(map(pem_of, request.chain)) if member.subject else None,
    }  # fmt: skip
    table = table_of("[member]", member_table(member))
    keys = {ISSUED if member.subject else "ed25519": key_of(identity)}
    if before is not None:
        keys["before"] = key_of(before)
    text = signed_text("request", head + table_of("[request]", about) + "\n" + table, keys)
    with atomic_write(request.path, force=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    remember(study)
    return request


def _asking(
    identity: Identity,
    chain: list[bytes],
    authority: Path | None,
    subject: str | None,
    members: Sequence[Member],
) -> Member:
    """Return who asks: with its certificate, or with an authority and a name."""
    own = identity.certificate
    if not is_issued(chain[0]):
        if authority is not None or subject is not None:
            what = Setting("subject") if authority is None else Setting("authority", authority)
            raise InputError(what, f" is for a certificate of an authority; {own} is self-signed")
        return Member(identity.name, chain[0])
    hosts = hosts_of(chain[0])
    if subject is None and len(hosts) != 1:
        here = f"{own} is for {', '.join(hosts[:5]) or 'no host'}"
        raise InputError(f"{here}: others know a member by one; give ", Setting("subject", "HOST"))
    if authority is None:
        issued = f"{own} is issued by {names_of(chain[0])[1][:120]}: give that authority's with "
        raise InputError(issued, Setting("authority", "FILE"))
    try:
        root = parse_authority(_content(authority).decode("ascii", "replace"))
    except InputError as error:
        raise InputError(f"{authority}: {error}") from None
    member = Member(identity.name, root, subject=check_subject(subject or hosts[0]))
    if wrong := unlike(member, chain, members):
        raise InputError(f"{own} is not the certificate of {identity.name}: {wrong}")
    return member


def read_request(path: PathLike) -> MembershipRequest:
    """Read a request that may come from anybody, and check all of it.

    FileError if it is larger than 1 MB, was changed after it was signed, or is not signed by the
    keys of its certificates; InputError if something in it is not as it must be.
    """
    need_tls()
    path = Path(path)
    text = Signed(path, "request")
    about = Fields(text.content.pop("request", None) or {}, f"{path}: [request]")
    version = about.text("vpem")
    if about.count("format") != FORMAT:
        raise InputError(f"{path} was made by vpem {version}, whose requests are of another format")
    fields = Fields(text.content.pop("member", None) or {}, f"{path}: [member]")
    member = check_member(fields)
    before, chain = (about.text(key, "", most=1 << 14) for key in ("before", "chain"))
    request = MembershipRequest(
        path,
        about.read("study", check_name),
        about.hexadecimal("id", 32),
        about.hexadecimal("organiser", 64),
        member,
        version,
        about.time("made"),
        parse_certificate(before, member.name) if before else None,
        tuple(parse_chain(chain)) if member.subject else (member.certificate,),
    )
    if wrong := unlike(member, request.chain):
        raise FileError(f"{path} has a certificate that is not that of {member.name}: {wrong}")
    for table in (fields, about, Fields(text.content, str(path))):
        table.end()
    signed = text.is_by(request.chain[0], ISSUED if member.subject else "ed25519")
    if request.before is not None:
        signed = signed and text.is_by(request.before, "before")
    text.signature.end()
    if not signed:
        raise FileError(
            f"{path} has been changed since {member.name} signed it, or was not signed by the key "
            f"of its certificate; ask {member.name} to send it again"
        )
    return request


def check_request(study: Study, request: MembershipRequest) -> str:
    """Return what a request would do: "join", "renew" or "change".

    InputError if it is for another study or organiser, or its certificate or name cannot be used.
    """
    path, member = request.path, request.member
    if request.id != study.id:
        raise InputError(
            f"{path} is for {'another ' if request.study == study.name else ''}"
            f"{request.study}, not for {study.path}"
        )
    organisers = [study.member(study.organiser).certificate]
    organisers += [certificate for certificate, _ in study.former]
    if request.organiser not in map(fingerprint, organisers):
        raise InputError(
            f"{path} was made for a {study.name} of another organiser (fingerprint "
            f"{request.organiser[:16]}...); {member.name} has a wrong {study.path.name}"
        )
    since = study.roster.revoked.get(fingerprint(member.certificate))
    if since is not None:
        raise InputError(
            f"the certificate of {member.name} was revoked on {since[:10]}; it must make another, "
            "in another folder, by 'vpem party init'"
        )
    name = member.name
    if wrong := not_valid(name, request.chain[0]):
        raise InputError(wrong)
    if wrong := unlike(member, request.chain, study.roster.members):
        raise InputError(f"{path} has a certificate that cannot be that of {name}: {wrong}")
    same = [one for one in study.roster.members if one.name.lower() == name.lower()]
    if not same:
        if len(study.roster.members) >= MOST_MEMBERS:
            raise InputError(f"{study.name} has {MOST_MEMBERS} members, and may have no more")
        return "join"
    if (same[0].certificate, same[0].subject) == (member.certificate, member.subject):
        return "change"
    if same[0].name == name and same[0].certificate == request.before:
        return "renew"
    raise InputError(
        f"{study.name} has a member {same[0].name} with another certificate, whose key has not "
        f"signed {request.path}: if it is the same {name}, it must renew (vpem party renew), or be "
        f"revoked first (vpem study revoke {same[0].name}); else it needs another name"
    )


def approved(study: Study, request: MembershipRequest) -> Study:
    """Return the next edition of a study, with the member of a request."""
    kind, member = check_request(study, request), request.member
    members, revoked, former = list(study.roster.members), dict(study.roster.revoked), study.former
    if kind == "join":
        members.append(member)
    else:
        rank = study.roster.rank_of(member.name)
        assert rank is not None
        if kind == "renew":
            revoked[fingerprint(members[rank].certificate)] = now()
            if member.name == study.organiser:
                if len(former) >= MOST_FORMER:
                    raise InputError(
                        f"the organiser of {study.name} was renewed {MOST_FORMER} times already"
                    )
                identity = known_identity(study, study.organiser)
                text = succession(study.id, member.certificate)
                signature = sign(key_of(identity), "successor", text)
                former = (*former, (certificate_of(identity), signature))
        members[rank] = member
    return replace(following(study, members=tuple(members), revoked=revoked), former=former)


def revoked(study: Study, name: str) -> Study:
    """Return the next edition of a study, without a member whose certificate holds no more."""
    member = study.member(name)
    if name == study.organiser:
        raise InputError(f"{name} signs {study.name}; who organises it cannot be revoked")
    gone = dict(study.roster.revoked)
    if not member.subject:  # that of its authority may be others', too
        gone[fingerprint(member.certificate)] = now()
    members = tuple(one for one in study.roster.members if one.name != name)
    return following(study, members=members, revoked=gone)


def following(study: Study, **changes: Any) -> Study:
    """Return the next edition of a study, with changes of its roster."""
    edition = study.edition + 1
    return replace(
        study,
        edition=edition,
        version=__version__,
        signed=now(),
        roster=replace(study.roster, edition=edition, **changes),
    )


def sign_edition(study: Study, *, force: bool = True) -> Study:
    """Sign a study by the key of its organiser beside it, write it, and read it again."""
    write_study(study, usable(known_identity(study, study.organiser)), force=force)
    edition = read_study(study.path)
    remember(edition)
    return edition
