"""A study: who takes part, what will be run, and what each will show, signed by its organiser.

NAME.known lies beside NAME.toml: which organiser and edition a folder has seen. The first reading
pins the organiser's certificate (people compare its words by telephone); later editions must be
signed by the same one, or by one that it has named its successor, and be no older.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from vpem.engines.tls.trust import Member, Roster, fingerprint
from vpem.errors import FileError, InputError, check_choice, did_you_mean, printable
from vpem.files.hdf5 import atomic_write
from vpem.files.json_text import read_toml
from vpem.files.opening import PathLike
from vpem.files.studies.signed import (
    Fields,
    Signed,
    address_of,
    check_name,
    check_subject,
    from_base64,
    is_signed_by,
    need_tls,
    parse_authority,
    parse_certificate,
    pem_of,
    table_of,
)
from vpem.network.schema import Report
from vpem.records import ENGINES

MOST_FORMER = 50

FORMAT = 1
RESULTS = ("all", "shards")
IF_LOST = ("wait", "without")
MOST_MEMBERS = 200
MOST_FEATURES = 1000
"""Names of features that a member may announce."""
MOST_LINES = 200
LONGEST_LINE = 1000
OWN_TABLES = ("study", "member", "relay", "revoked", "former", "signature")
COMMAND = re.compile(r"[a-z][a-z-]{0,30}")
OPTION = re.compile(r"[a-z][a-z0-9_-]{0,60}")


Former = tuple[bytes, str]
"""A certificate (DER) that the organiser had before, and the signature by its key of `succession`
to the next, in base 64."""


@dataclass(frozen=True)
class Study:
    """What parties agree on.

    When a member is not heard of for ``timeout``, a run ends by ``if_lost`` "wait", with
    checkpoints from which all can resume once that member is back; by "without" the others go on.
    """

    path: Path  # NAME.toml
    name: str
    id: str  # 32 hexadecimal digits
    edition: int  # how often it has been signed
    version: str  # of vpem, at the organiser
    organiser: str  # the member who signs it
    signed: str  # UTC
    result: str  # "all", or each its own part ("shards")
    timeout: float  # seconds
    options: dict[str, Report]  # by command, for all
    roster: Roster  # in the order of ranks
    runs: tuple[str, ...] = ()  # command lines that all will run
    shows: tuple[str, ...] = ()  # what these will show to whom
    former: tuple[Former, ...] = ()  # the organiser's, oldest first
    if_lost: str = "wait"
    engine: str = "tls"  # by which they reach each other

    @property
    def folder(self) -> Path:
        """Where the study lies, and the key and certificate of a member beside it."""
        return self.path.parent

    @property
    def topology(self) -> str:
        """The graph on which members are linked, which all commands with one have."""
        graphs = (table["topology"] for table in self.options.values() if "topology" in table)
        return str(next(graphs, "star"))

    @property
    def first(self) -> str:
        """The first member, as sentences call it."""
        return f"the {'server' if self.topology == 'star' else 'first member'} {self.organiser}"

    @property
    def n_parties(self) -> int:
        """Members with data."""
        return sum(member.holds for member in self.roster.members)

    @property
    def carried(self) -> Report:
        """The engine, where members do not reach each other over TLS of their own."""
        return {} if self.engine == "tls" else {"engine": self.engine}

    def describe(self) -> Report:
        relay, members = self.roster.relay, []
        for rank, one in enumerate(self.roster.members):
            about = {"name": one.name, "rank": rank, "data": one.holds, "address": one.where}
            about |= {"features": one.features, **one.describe()}
            del about["valid_from"]
            members.append(about)
        return {
            "name": self.name, "id": self.id, "edition": self.edition, "signed": self.signed,
            "organiser": self.organiser, "vpem": self.version, "result": self.result,
            "timeout": self.timeout, "if_lost": self.if_lost, "options": self.options,
            "runs": self.runs, "shows": self.shows, "members": members,
            "revoked": dict(self.roster.revoked),
            "relay": relay and {
                "name": relay.name, "fingerprint": fingerprint(relay.certificate),
                "address": relay.where,
            },
            **self.carried,
        }  # fmt: skip

    def member(self, name: str) -> Member:
        rank = self.roster.rank_of(name)
        if rank is not None:
            return self.roster.members[rank]
        names = [member.name for member in self.roster.members]
        raise InputError(
            f"{printable(name)!r} is no member of {self.name}, edition {self.edition}"
            f"{did_you_mean(name, names)}; its members are {', '.join(names)} (a newer edition "
            f"may have others: ask {self.organiser} for it)"
        )


def read_study(path: PathLike) -> Study:
    """Read a study that may come from anybody, and check all of it.

    FileError if it is larger than 1 MB, not signed by its organiser, or changed since, or if
    NAME.known has another organiser or a newer edition; InputError if anything else is wrong.
    """
    need_tls()
    path = Path(path)
    text = Signed(path, "study")
    head = Fields(text.content.pop("study", None) or {}, f"{path}: [study]")
    organiser = head.read("organiser", check_name)
    members = _members(text, path)
    known = {member.name: member for member in members}
    if organiser not in known:
        raise InputError(f"{path}: the organiser {organiser} is none of its members")
    if known[organiser].subject:
        raise InputError(
            f"{path}: {organiser} signs the study, so that others pin its own certificate (vpem "
            "party init), and not that of its authority"
        )
    if not text.is_by(known[organiser].certificate):
        raise FileError(
            f"{path} has been changed since {organiser} signed it, or not signed by {organiser}; "
            "get it again from there (changes are made by 'vpem study')"
        )
    text.signature.end()
    version = head.text("vpem")
    if head.count("format") != FORMAT:
        raise InputError(f"{path} was made by vpem {version}, whose studies are of another format")
    name, edition = head.read("name", check_name), head.count("edition")
    number = head.hexadecimal("id", 32)
    tables = text.content.pop("former", [])
    if not isinstance(tables, list) or len(tables) > MOST_FORMER:
        raise InputError(f"{path} must have at most {MOST_FORMER} tables [[former]]")
    former: list[Former] = []
    for place, one in enumerate(tables):
        fields = Fields(one, f"{path}: [[former]] {place + 1}")
        certificate = parse_certificate(fields.text("certificate", most=1 << 13))
        signature = fields.text("ed25519")
        from_base64(signature)
        fields.end()
        former.append((certificate, signature))
    table = text.content.pop("revoked", {})
    if not isinstance(table, dict) or len(table) > MOST_MEMBERS:
        raise InputError(f"{path}: [revoked] must be a table of at most {MOST_MEMBERS} entries")
    fields = Fields(table, f"{path}: [revoked]")
    for mark in table:
        if not re.fullmatch("[0-9a-f]{64}", mark):
            raise InputError(f"{path}: [revoked] must have fingerprints, got {mark[:80]!r}")
    revoked = {mark: fields.time(mark) for mark in table}
    table, relay = text.content.pop("relay", None), None
    if table is not None:
        fields = Fields(table, f"{path}: [relay]")
        relay = replace(check_member(fields), holds=False, features=(), listen=None)
        fields.end()
        if relay.address is None:
            raise InputError(f"{path}: [relay] has no address")
    roster = Roster(number, name, edition, members, relay, revoked, text=text.digest)
    study = Study(
        path, name, number, edition, version, organiser,
        head.time("signed"), head.choice("result", RESULTS), head.seconds("timeout"),
        _options(text.content, path), roster,
        head.texts("runs", MOST_LINES, LONGEST_LINE), head.texts("shows", MOST_LINES, LONGEST_LINE),
        tuple(former), head.choice("if-lost", IF_LOST, "wait"),
        head.choice("engine", ENGINES, "tls"),
    )  # fmt: skip
    head.end()
    for member in members:
        if fingerprint(member.certificate) in revoked:
            raise InputError(f"{path}: the certificate of {member.name} is revoked")
    if path.name != f"{name}.toml":
        raise FileError(f"{path} is the study {name}; call its file {name}.toml")
    check_known(study, text)
    return study


def _members(text: Signed, path: Path) -> tuple[Member, ...]:
    tables = text.content.pop("member", None)
    if not isinstance(tables, list) or not 1 <= len(tables) <= MOST_MEMBERS:
        raise InputError(f"{path} must have 1 to {MOST_MEMBERS} tables [[member]]")
    members: list[Member] = []
    for number, table in enumerate(tables):
        fields = Fields(table, f"{path}: [[member]] {number + 1}")
        member = check_member(fields)
        fields.end()
        for other in members:
            if other.name.lower() == member.name.lower():
                raise InputError(f"{path}: two members are called {member.name}")
            if member.subject and other.subject == member.subject:
                raise InputError(f"{path}: {other.name} and {member.name} are both {other.subject}")
            if not member.subject and other.certificate == member.certificate:
                raise InputError(f"{path}: {other.name} and {member.name} have one certificate")
        crl = path.with_name(f"{member.name}.crl")
        members.append(
            replace(member, crl=crl if member.subject and os.path.lexists(crl) else None)
        )
    return tuple(members)


def check_member(fields: Fields) -> Member:
    """Return the member of a table, or of the one in a request."""
    name = fields.read("name", check_name)
    subject = fields.read_if_any("subject", check_subject)
    text = fields.text("authority" if subject else "certificate", most=1 << 13)
    try:
        certificate = parse_authority(text) if subject else parse_certificate(text, name)
    except InputError as error:
        raise InputError(f"{fields.where} ({name}): {error}") from None
    return Member(
        name, certificate, fields.read_if_any("address", address_of),
        fields.pop_field("data", bool, "true or false", True),
        fields.texts("features", MOST_FEATURES), fields.read_if_any("listen", address_of),
        subject or "",
    )  # fmt: skip


def _options(content: Report, path: Path) -> dict[str, Report]:
    options: dict[str, Report] = {}
    for command, table in content.items():
        if not COMMAND.fullmatch(command) or not isinstance(table, dict):
            hint = did_you_mean(command, OWN_TABLES)
            raise InputError(f"{path}: {command[:60]!r} is the table of no command{hint}")
        for name, value in table.items():
            values = value if isinstance(value, list) else [value]
            if not OPTION.fullmatch(name):
                raise InputError(f"{path}: [{command}] has no option {name[:60]!r}")
            is_plain = all(
                len(one) <= LONGEST_LINE and one.isprintable()
                if isinstance(one, str)
                else isinstance(one, bool | int | float)
                for one in values
            )
            if len(values) > MOST_FEATURES or not is_plain:
                raise InputError(
                    f"{path}: [{command}] {name} must be a number, a text, true or false, or a "
                    "list of them"
                )
        options[command] = dict(table)
    return options


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
    # The organiser is the one of the certificate, or its successor.
    chain = [before for before, _ in study.former]
    chain.append(study.member(study.organiser).certificate)
    begin = chain.index(certificate) if certificate in chain else len(chain)
    if begin == len(chain) or not all(
        is_signed_by(before, "successor", succession(study.id, after), from_base64(signature))
        for (before, signature), after in zip(study.former[begin:], chain[begin + 1 :], strict=True)
    ):
        raise FileError(
            f"{study.path} is signed by another {study.organiser} than before; ask there, and do "
            f"not use it (if it is right all the same, remove {file})"
        )
    if study.edition < edition:
        raise FileError(
            f"{study.path} is edition {study.edition} of {study.name}, older than the edition "
            f"{edition} that was here before; get the newest from {study.organiser}"
        )
    if study.edition == edition and text.digest != digest:
        raise FileError(
            f"{study.path} is another edition {edition} of {study.name} than the one that was here "
            f"before; ask {study.organiser} which one is valid"
        )


def succession(number: str, following: bytes) -> str:
    """Return what a former organiser's key signs: that a certificate follows in a study."""
    return f"vpem: in the study {number} this certificate follows: {fingerprint(following)}\n"


def remember(study: Study) -> None:
    """Note in its folder the organiser and the edition of a study that was read."""
    organiser = study.member(study.organiser).certificate
    table: Report = {
        "id": study.id,
        "edition": study.edition,
        "organiser": pem_of(organiser),
        "sha256": Signed(study.path, "study").digest,
    }
    head = f"# What this folder knows of {study.path.name}; written by vpem.\n"
    text = head + table_of("[known]", table)
    file = study.path.with_suffix(".known")
    if file.exists() and file.read_text(encoding="utf-8", errors="replace") == text:
        return
    with atomic_write(file, force=True) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


CONTROLLER = "nvflare.collab.runtime.controller.CollabController"
EXECUTOR = "nvflare.collab.runtime.executor.CollabExecutor"
COMPONENTS = "vpem.engines.nvflare"
"""Classes that a site has to allow in its list, of NVFlare and of `vpem.engines.nvflare`."""


def write_job(study: Study, command: str, folder: Path) -> None:
    """Write a job of NVFlare in which sites run a command of a study, without code or data.

    FileError if the folder exists, InputError if the study has no such command, or its members
    reach each other otherwise.
    """
    check_choice("command", command, tuple(study.options))
    if study.engine != "nvflare":
        raise InputError(
            f"members of {study.name} reach each other by --engine {study.engine}, without a job; "
            "for one make a new study: vpem study init NAME --engine nvflare"
        )
    arguments = {"study": study.name, "command": command}

    def component(name: str, kind: str) -> Report:
        return {"id": name, "path": f"{COMPONENTS}.{kind}", "args": arguments}

    executor = {"path": EXECUTOR, "args": {"client_obj_id": "site"}}
    files: dict[str, Report] = {
        "meta.json": {
            "name": f"{study.name}-{command}", "resource_spec": {}, "min_clients": 1,
            "deploy_map": {"app": ["@ALL"]},
        },
        "app/config/config_fed_server.json": {
            "format_version": 2, "components": [component("server", "Server")],
            "workflows": [
                {"id": "controller", "path": CONTROLLER, "args": {"server_obj_id": "server"}}
            ],
        },
        "app/config/config_fed_client.json": {
            "format_version": 2, "components": [component("site", "Site")],
            "executors": [{"tasks": ["*"], "executor": executor}],
        },
    }  # fmt: skip
    if folder.exists():
        raise FileError(f"{folder} exists; give a new folder")
    try:
        with TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as home:
            for name, content in files.items():
                path = Path(home, "job", name)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            Path(home, "job").rename(folder)
    except OSError as error:
        raise FileError(f"{folder} cannot be made: {error.strerror}") from None
