"""The next edition of a study: somebody comes, is renewed, or goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from vpem import __version__
from vpem.engines.tls.members import Member, fingerprint, validity
from vpem.errors import InputError
from vpem.files.studies.fields import moment
from vpem.files.studies.identities import certificate_of, key_of, known_identity, usable
from vpem.files.studies.known import MOST_FORMER, Former, remember, succession
from vpem.files.studies.request import Request
from vpem.files.studies.signed import sign
from vpem.files.studies.study import MOST_MEMBERS, Study, read_study
from vpem.files.studies.writing import write_study


def check_request(study: Study, request: Request) -> str:
    """Return what a request would do to a study: "join", "renew" or "change".

    InputError if it is for another study or organiser, its certificate is revoked or not valid now,
    or its name is that of somebody else.
    """
    path, member = request.path, request.member
    if request.id != study.id:
        raise InputError(
            f"{path} is for {'another ' if request.study == study.name else ''}"
            f"{request.study}, not for {study.path}"
        )
    organisers = [study.member(study.organiser).certificate]
    organisers += [former.certificate for former in study.former]
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
    begins, ends = validity(member.certificate)
    if not begins <= datetime.now(UTC) <= ends:
        raise InputError(
            f"the certificate of {member.name} is valid from {moment(begins)} until {moment(ends)},"
            f" and it is {moment(datetime.now(UTC))}"
        )
    return _kind(study, request)


def _kind(study: Study, request: Request) -> str:
    """Return what a request would do, or raise InputError if its name is somebody else's."""
    name = request.member.name
    same = [one for one in study.roster.members if one.name.lower() == name.lower()]
    if not same:
        if len(study.roster.members) >= MOST_MEMBERS:
            raise InputError(f"{study.name} has {MOST_MEMBERS} members, and may have no more")
        return "join"
    if same[0].certificate == request.member.certificate:
        return "change"
    if same[0].name == name and same[0].certificate == request.before:
        return "renew"
    raise InputError(
        f"{study.name} has a member {same[0].name} with another certificate, whose key has not "
        f"signed {request.path}: if it is the same {name}, it must renew (vpem party renew), or be "
        f"revoked first (vpem study revoke {same[0].name}); else it needs another name"
    )


def approved(study: Study, request: Request) -> Study:
    """Return the next edition of a study, with whom a request is of."""
    kind, member = check_request(study, request), request.member
    members, revoked, former = list(study.roster.members), dict(study.roster.revoked), study.former
    if kind == "join":
        members.append(member)
    else:
        rank = study.roster.rank_of(member.name)
        assert rank is not None
        if kind == "renew":
            revoked[fingerprint(members[rank].certificate)] = moment(datetime.now(UTC))
            if member.name == study.organiser:
                former = (*former, _former(study, member.certificate))
        members[rank] = member
    features = {**study.features, member.name: request.features}
    listens = {name: door for name, door in study.listens.items() if name != member.name}
    if request.listen is not None:
        listens[member.name] = request.listen
    made = _next(study, members, revoked)
    return replace(made, features=features, listens=listens, former=former)


def _former(study: Study, following: bytes) -> Former:
    """Return the organiser's present certificate as a former one, which names its successor."""
    if len(study.former) >= MOST_FORMER:
        raise InputError(f"the organiser of {study.name} was renewed {MOST_FORMER} times already")
    identity = known_identity(study, study.organiser)
    signature = sign(key_of(identity), "successor", succession(study.id, following))
    return Former(certificate_of(identity), signature)


def revoked(study: Study, name: str) -> Study:
    """Return the next edition of a study, without a member whose certificate holds no more."""
    member = study.member(name)
    if name == study.organiser:
        raise InputError(f"{name} signs {study.name}; who organises it cannot be revoked")
    gone = {**study.roster.revoked, fingerprint(member.certificate): moment(datetime.now(UTC))}
    members = [one for one in study.roster.members if one.name != name]
    made = _next(study, members, gone)
    return replace(
        made,
        features={one: what for one, what in study.features.items() if one != name},
        listens={one: door for one, door in study.listens.items() if one != name},
    )


def changed(study: Study, **fields: Any) -> Study:
    """Return the next edition of a study, of which something else is run, or otherwise."""
    return replace(_next(study, study.roster.members, dict(study.roster.revoked)), **fields)


def _next(study: Study, members: Sequence[Member], revoked: dict[str, str]) -> Study:
    """Return the next edition, with these members."""
    roster = replace(
        study.roster, edition=study.edition + 1, members=tuple(members), revoked=revoked
    )
    return replace(
        study,
        edition=study.edition + 1,
        version=__version__,
        signed=moment(datetime.now(UTC)),
        roster=roster,
    )


def sign_edition(study: Study, *, force: bool = True) -> Study:
    """Sign a study by the key of its organiser beside it, write it, and read it again."""
    write_study(study, usable(known_identity(study, study.organiser)), force=force)
    found = read_study(study.path)
    remember(found)
    return found
