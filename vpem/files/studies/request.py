"""A request to be a member of a study: NAME.request, signed by its own key; nothing is secret."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vpem import __version__
from vpem.engines.tls.members import Identity, Member, fingerprint
from vpem.errors import FileError, InputError
from vpem.files.hdf5 import atomic_write
from vpem.files.opening import PathLike
from vpem.files.studies.certificates import need_tls, parse_certificate, pem_of
from vpem.files.studies.fields import Fields, address_of, check_name, moment
from vpem.files.studies.identities import certificate_of, key_of
from vpem.files.studies.signed import read_signed, signed_text, table_of
from vpem.files.studies.study import FORMAT, MOST_FEATURES, Study, check_member
from vpem.files.studies.writing import member_table


@dataclass(frozen=True)
class Request:
    """Who wants to be a member, and of which study."""

    path: Path
    study: str
    id: str  # of the study
    organiser: str  # fingerprint of its certificate
    member: Member
    features: tuple[str, ...] = ()  # that would be brought, if named
    listen: tuple[str, int] | None = None  # if others use another address
    version: str = __version__  # of vpem
    made: str = ""  # UTC
    before: bytes | None = None  # renewed certificate (DER), whose key has signed too


def write_request(
    study: Study,
    identity: Identity,
    *,
    address: tuple[str, int] | None = None,  # where others can dial it
    listen: tuple[str, int] | None = None,  # where its door is, if elsewhere
    features: tuple[str, ...] = (),  # at most `MOST_FEATURES`
    holds: bool = True,  # it brings data
    before: Identity | None = None,
) -> Request:
    """Write NAME.request beside a study; one that is there is replaced.

    Of a renewal, ``before`` is the key and certificate that the study knows.
    """
    if len(features) > MOST_FEATURES:
        raise InputError(
            f"a request names at most {MOST_FEATURES} features, got {len(features)}; it may name "
            "none"
        )
    request = Request(
        study.folder / f"{identity.name}.request",
        study.name,
        study.id,
        fingerprint(study.member(study.organiser).certificate),
        Member(identity.name, certificate_of(identity), address, holds),
        features,
        listen,
        made=moment(datetime.now(UTC)),
        before=None if before is None else certificate_of(before),
    )
    keys = {"ed25519": key_of(identity)}
    if before is not None:
        keys["before"] = key_of(before)
    with atomic_write(request.path, force=True) as temporary:
        temporary.write_text(
            signed_text("request", _body(request), keys), encoding="utf-8", newline="\n"
        )
    return request


def _body(request: Request) -> str:
    """Return the text of a request, above its signatures."""
    name = request.member.name
    head = (
        f"# {name} asks to be a member of the study {request.study}. Nothing here is secret.\n"
        f"# Its organiser answers it: vpem study approve {request.path.name}\n\n"
    )
    about = {
        "study": request.study, "id": request.id, "organiser": request.organiser,
        "format": FORMAT, "vpem": request.version, "made": request.made,
        "before": None if request.before is None else pem_of(request.before),
    }  # fmt: skip
    member = member_table(request.member, request.features, request.listen)
    return head + table_of("[request]", about) + "\n" + table_of("[member]", member)


def read_request(path: PathLike) -> Request:
    """Read a request that may come from anybody, and check all of it.

    FileError if it is larger than 1 MB, was changed after it was signed, or is not signed by the
    keys of its certificates; InputError if something in it is not as it must be.
    """
    need_tls()
    path = Path(path)
    text = read_signed(path, "request")
    about = Fields(text.content.pop("request", None) or {}, f"{path}: [request]")
    version = about.text("vpem")
    if about.count("format") != FORMAT:
        raise InputError(f"{path} was made by vpem {version}, whose requests are of another format")
    fields = Fields(text.content.pop("member", None) or {}, f"{path}: [member]")
    member = check_member(fields)
    before = about.text("before", "", most=1 << 13)
    request = Request(
        path,
        about.read("study", check_name),
        about.hexadecimal("id", 32),
        about.hexadecimal("organiser", 64),
        member,
        fields.texts("features", MOST_FEATURES),
        fields.read_if_any("listen", address_of),
        version,
        about.time("made"),
        parse_certificate(before, member.name) if before else None,
    )
    for table in (fields, about, Fields(text.content, str(path))):
        table.end()
    signed = text.is_by(member.certificate)
    if request.before is not None:
        signed = signed and text.is_by(request.before, "before")
    text.signature.end()
    if not signed:
        raise FileError(
            f"{path} has been changed since {member.name} signed it, or was not signed by the key "
            f"of its certificate; ask {member.name} to send it again"
        )
    return request
