"""Studies as they are written and signed: see `vpem.files.studies.study`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vpem.engines.tls.members import written_address
from vpem.errors import InputError
from vpem.files.hdf5 import atomic_write
from vpem.files.studies.certificates import pem_of
from vpem.files.studies.identities import certificate_of, key_of
from vpem.files.studies.signed import signed_text, table_of
from vpem.files.studies.study import FORMAT
from vpem.files.toml_text import as_toml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.engines.tls.members import Identity, Member
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


def write_study(study: Study, identity: Identity, *, force: bool = True) -> None:
    """Sign a study and write it to its path, completely or not at all; only the organiser may."""
    if certificate_of(identity) != study.member(study.organiser).certificate:
        raise InputError(f"{study.name} is signed by {study.organiser}, not by {identity.name}")
    text = signed_text("study", _body(study), {"ed25519": key_of(identity)})
    with atomic_write(study.path, force) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _body(study: Study) -> str:
    """Return the text of a study, above its signature."""
    parts = [
        f"# A study of vpem. Look at it: vpem study show {study.path.name}\n"
        "# It is signed: whoever changes a letter makes it void.\n",
        table_of(
            "[study]",
            {
                "name": study.name, "id": study.id, "edition": study.edition, "format": FORMAT,
                "vpem": study.version, "organiser": study.organiser, "signed": study.signed,
                "result": study.result, "timeout": study.timeout,
                "if-lost": study.if_lost, "runs": study.runs, "shows": study.shows,
            },
        ),
    ]  # fmt: skip
    parts += [table_of(f"[{name}]", table) for name, table in study.options.items()]
    parts += [
        table_of("[[member]]", member_table(member, study.features.get(member.name, ()),
                                            study.listens.get(member.name)))
        for member in study.roster.members
    ]  # fmt: skip
    if study.roster.relay is not None:
        parts.append(table_of("[relay]", member_table(study.roster.relay)))
    if study.roster.revoked:
        parts.append(_mapping("[revoked]", study.roster.revoked))
    parts += [
        table_of("[[former]]", {"certificate": pem_of(one.certificate), "ed25519": one.signature})
        for one in study.former
    ]
    return "\n".join(parts)


def member_table(
    member: Member, features: tuple[str, ...] = (), listen: tuple[str, int] | None = None
) -> Report:
    """Return the table of a member, as `check_member` reads it."""
    return {
        "name": member.name,
        "certificate": pem_of(member.certificate),
        "address": None if member.address is None else written_address(member.address),
        "listen": None if listen is None else written_address(listen),
        "data": member.holds,
        "features": features or None,
    }


def _mapping(head: str, values: Mapping[str, str]) -> str:
    return f"{head}\n" + "".join(f"{as_toml(k)} = {as_toml(v)}\n" for k, v in values.items())
