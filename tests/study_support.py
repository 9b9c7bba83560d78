"""Studies on disk, as their members have them."""

import secrets
from dataclasses import replace

from vpem.engines.tls.members import Member, Roster
from vpem.files.studies.identities import certificate_of, make_identity, read_identity
from vpem.files.studies.study import Study
from vpem.files.studies.writing import write_study


def folder_of(tmp_path, name):
    """A folder of one's own."""
    folder = tmp_path / name
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def make_study(tmp_path, *parties, address=("127.0.0.1", 4433), **more):
    """A study 'heart' of a server 'hub' and some parties, in a folder each: {name: Study}."""
    names = ("hub", *parties)
    made = {name: make_identity(folder_of(tmp_path, name), name) for name in names}
    members = tuple(
        Member(name, certificate_of(made[name]), address if name == "hub" else None, name != "hub")
        for name in names
    )
    roster = Roster(secrets.token_hex(16), "heart", 1, members)
    given = {
        "version": "0.1.0", "organiser": "hub", "signed": "2026-01-31T12:00:00Z", "result": "all",
        "timeout": 600.0, "options": {"fit": {"topology": "star", "hops": 0, "components": 2}},
    } | more  # fmt: skip
    study = Study(tmp_path / "hub" / "heart.toml", "heart", roster.study, 1, roster=roster,
                  features=dict.fromkeys(names, ()), **given)  # fmt: skip
    found = {}
    for name in names:
        found[name] = replace(study, path=tmp_path / name / "heart.toml")
        write_study(found[name], made["hub"])
    return found


def with_relay(studies, tmp_path, port):
    """Let studies of `make_study` have a relay on this machine, which has a folder of its own."""
    relay = make_identity(folder_of(tmp_path, "relay"), "relay")
    member = Member("relay", certificate_of(relay), ("127.0.0.1", port), False)
    hub = read_identity(tmp_path / "hub", "hub")
    found = {}
    for name in (*studies, "relay"):
        study = studies.get(name, studies["hub"])
        roster = replace(study.roster, relay=member)
        found[name] = replace(study, path=tmp_path / name / "heart.toml", roster=roster)
        write_study(found[name], hub)
    return found
