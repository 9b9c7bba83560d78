"""How a study is shown: to people, and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .party import in_words

if TYPE_CHECKING:
    from vpem.engines.tls.members import Member
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


WIDEST = 96
"""Characters of a line of text."""


def report_of(study: Study) -> Report:
    """Return all of a study as plain values."""
    from vpem.engines.tls.members import (
        fingerprint,
        fingerprint_words,
        validity,
        written_address,
    )
    from vpem.files.studies.signed import moment

    relay = study.roster.relay
    members = [
        {
            "name": one.name,
            "rank": rank,
            "data": one.holds,
            "address": None if one.address is None else written_address(one.address),
            "features": study.features.get(one.name, ()),
            "fingerprint": fingerprint(one.certificate),
            "words": fingerprint_words(one.certificate),
            "valid_until": moment(validity(one.certificate)[1]),
        }
        for rank, one in enumerate(study.roster.members)
    ]
    return {
        "name": study.name, "id": study.id, "edition": study.edition, "signed": study.signed,
        "organiser": study.organiser, "vpem": study.version, "result": study.result,
        "timeout": study.timeout, "if_lost": study.if_lost, "options": study.options,
        "runs": study.runs, "shows": study.shows, "members": members,
        "revoked": dict(study.roster.revoked),
        "relay": None if relay is None else {
            "name": relay.name, "fingerprint": fingerprint(relay.certificate),
            "address": relay.address and written_address(relay.address),
        },
    }  # fmt: skip


def show_study(study: Study) -> None:
    """Print a study."""
    from vpem.engines.tls.members import written_address

    from .output import plural, show
    from .tables import table

    relay = study.roster.relay
    result = {"all": "all members", "shards": "each has its own part"}[study.result]
    facts = [
        ("study", f"{study.name}, edition {study.edition} of {study.signed[:10]}"),
        ("organiser", study.organiser),
        ("result", result),
        ("timeout", f"{study.timeout:g} s"),
        ("if lost", {"wait": "all wait for it", "without": "the others go on"}[study.if_lost]),
    ]
    if relay is not None and relay.address is not None:
        facts.append(("relay", f"{relay.name}, {written_address(relay.address)}"))
    if study.roster.revoked:
        facts.append(("revoked", plural(len(study.roster.revoked), "certificate")))
    members = [_row(study, one) for one in study.roster.members]
    words = [
        (name, line)
        for one in study.roster.members
        for name, line in zip((one.name, ""), in_words(one.certificate), strict=True)
    ]
    show(
        table(facts, "", ""),
        table(members, "member", "is", "dialled at", "features", "valid until", title="Members"),
        table(words, "member", "fingerprint in words"),
        "What is run\n",
        *map(_folded, study.runs),
        "\nWhat is shown to whom\n",
        *(_folded(f"* {sentence}") for sentence in study.shows),
    )


def _folded(line: str) -> str:
    """Break a line between words, those after the first a little to the right."""
    import shutil
    import textwrap

    wide = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    return textwrap.fill(line, wide, subsequent_indent="  ", break_on_hyphens=False)


def _row(study: Study, member: Member) -> tuple[str, ...]:
    """Return what a table says of a member."""
    from vpem.engines.tls.members import validity, written_address

    features = len(study.features.get(member.name, ()))
    return (
        member.name,
        "a party" if member.holds else "the server",
        "-" if member.address is None else written_address(member.address),
        str(features) if features else "not named" if member.holds else "none",
        f"{validity(member.certificate)[1]:%Y-%m-%d}",
    )
