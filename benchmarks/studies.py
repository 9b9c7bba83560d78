"""Studies on this machine, with a folder for each member."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vpem import __version__
from vpem.engines.tls.trust import Identity, Member, Roster
from vpem.files.studies.identities import certificate_of, make_identity, write_study
from vpem.files.studies.study import Study

Address = tuple[str, int]


def make_study(
    home: Path,
    addresses: Mapping[str, Address | None],
    options: dict[str, dict[str, Any]],
    *,
    name: str = "heart",
    server: str | None = "hub",
    relay: Address | None = None,
    **given: Any,
) -> tuple[dict[str, Study], dict[str, Identity]]:
    """Make a study, keys and certificates, in a folder for each member.

    Addresses are of the members, by rank, where each can be dialled: the first signs the study.
    Options are by command; ``server`` brings no data; a relay has the folder ``relay``. Returned
    are the study as each has it, the relay too, and their identities.
    """
    made = {}
    for one in (*addresses, *(["relay"] if relay else [])):
        (home / one).mkdir(mode=0o700, exist_ok=True)
        made[one] = make_identity(home / one, one)
    members = tuple(
        Member(one, certificate_of(made[one]), address, one != server)
        for one, address in addresses.items()
    )
    passer = Member("relay", certificate_of(made["relay"]), relay, False) if relay else None
    roster = Roster(secrets.token_hex(16), name, 1, members, passer)
    first = members[0].name
    fields: dict[str, Any] = {
        "version": __version__, "signed": "2026-01-31T12:00:00Z", "result": "all", "timeout": 600.0,
    }  # fmt: skip
    study = Study(
        home / first / f"{name}.toml", name, roster.study, 1, organiser=first, options=options,
        roster=roster, **(fields | given),
    )  # fmt: skip
    studies = {one: replace(study, path=home / one / f"{name}.toml") for one in made}
    for each in studies.values():
        write_study(each, made[first])
    return studies, made
