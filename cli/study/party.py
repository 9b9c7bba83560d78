"""`vpem party`: a member's key, certificate and request; what its runs disclosed and sent."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import FileError, InputError, VpemError, printable, shorten
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural, size

from ..commands.use import refuse_given
from ..display import PrintedTable, Screen, print_json, show, table
from ..options import Json, Quiet, Without
from ..outputs import FOLDER, READ, WRITTEN

if TYPE_CHECKING:
    from vpem.engines.tls.party_check import Finding
    from vpem.engines.tls.relay import Passed
    from vpem.engines.tls.trust import Identity, Member, Roster
    from vpem.errors import Setting
    from vpem.files.studies.identities import MembershipRequest
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

StudyFile = Annotated[
    Path, READ, typer.Argument(metavar="STUDY", help="The study: NAME.toml, as its organiser sent "
    "it. Keys, certificates and requests lie beside it."),
]  # fmt: skip
As = Annotated[
    str | None,
    typer.Option(
        "--as", help="The member whose key is used. Default: the one in the folder of the study."
    ),
]
Days = Annotated[int, typer.Option(help="For how many days the certificate is valid.")]


def those_of(facts: Mapping[str, object], title: str | None = None) -> PrintedTable:
    """Return a table of the facts that are there."""
    return table([(name, fact) for name, fact in facts.items() if fact], "", "", title=title)


def in_words(about: Report) -> list[str]:
    """Return the words of a fingerprint as two lines of six, to be compared by telephone."""
    words = about["words"].split()
    return [" ".join(words[:6]), " ".join(words[6:])]


def card(about: Report, *facts: tuple[str, object], title: str | None = None) -> PrintedTable:
    """Return a table of facts, and of a certificate: until when it holds, and its fingerprint."""
    mark = about["fingerprint"]
    rows = [*facts, ("valid until", about["valid_until"][:10]), ("fingerprint", mark[:32])]
    rows += [("", mark[32:]), *zip(("in words", ""), in_words(about), strict=True)]
    return table(rows, "", "", title=title)


def card_of(request: MembershipRequest, *facts: tuple[str, object], title: str) -> PrintedTable:
    """Return a table of the contents of a request, below other facts."""
    from vpem.engines.tls.trust import fingerprint

    member, brings = request.member, "features that it does not name"
    if member.features:
        brings = f"{plural(len(member.features), 'feature')}: {shorten(member.features, 8)}"
    brings = brings if member.holds else "no data"
    facts = (*facts, ("brings", brings), ("dialled at", member.where or "-"))
    shown = card(member.describe(), *facts, title=title)
    if request.before is not None:
        shown.rows.append(["before", fingerprint(request.before)[:32] + "..."])
    return shown


def show_request(file: Path, json: bool) -> None:
    """Print a request, whether or not a study would accept it."""
    with Screen():
        from vpem.files.studies.identities import read_request

        request = read_request(file)
        if json:
            about = {**request.member.describe(), "features": request.member.features}
            print_json({"study": request.study, **about})
        else:
            show(card_of(request, title=f"{request.member.name} asks to be in {request.study}"))


def warn_of_refusals(study: Study, screen: Screen, so_far: bool = False) -> None:
    """Warn of what the policy beside a study refuses; if ``so_far``, more parties will join."""
    from vpem.fits.guard import Guard

    from .options import typed

    def option(setting: Setting) -> str:
        value = True if setting.value is None else setting.value
        return " ".join(typed({setting.name.replace("_", "-"): value}))

    for command, error in Guard(study).refused(so_far):
        refusal = printable(error.sentence_with(option))
        screen.warn(f"{refusal}; this member will refuse 'vpem {command}'")


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Take part in studies: keys, requests, policies, logs of messages.\n\n"
    "Example: vpem party init --name lab",
)


@app.command()
def init(
    name: Annotated[str, typer.Option(help="Name of the member: letters, digits, - and _.")],
    folder: Annotated[
        Path | None,
        FOLDER,
        typer.Option(help="Folder for its key and its studies. Default: this one."),
    ] = None,
    days: Days = 365,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Make a key, which stays here, and a certificate.

    Writes NAME.key (mode 0600) and NAME.crt; neither is ever replaced. Others know this member by
    the certificate's fingerprint, which is compared by telephone as twelve words.

    Example: vpem party init --name lab
    """
    with Screen(quiet) as screen:
        from vpem.engines.tls.trust import Member
        from vpem.files.studies.identities import certificate_of, make_identity

        if folder is not None and not folder.is_dir():
            raise FileError(f"there is no folder {folder}")
        identity = make_identity(folder or Path(), name, days)
        about = Member(name, certificate_of(identity)).describe()
        screen.say(f"wrote {identity.key}, which is to stay secret, and {identity.certificate}")
        if json:
            print_json(about)
        elif not quiet:
            show(card(about, ("name", name)))


@app.command("show")
def show_identity(
    file: Annotated[
        Path | None,
        READ,
        typer.Argument(help="A certificate (.crt) or a request. Default: the keys in this folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Show names, fingerprints and dates of certificates and requests.

    Example: vpem party show lab.crt
    """
    with Screen():
        from vpem.engines.tls.trust import Member
        from vpem.files.studies import identities
        from vpem.files.studies.signed import common_name

        if file is None:
            names = identities.identities_in(Path())
            if not names:
                raise InputError("there is no key here; make one by 'vpem party init --name ...'")
            own = {name: identities.read_identity(Path(), name) for name in names}
            shown = [Member(name, identities.certificate_of(one)) for name, one in own.items()]
        elif file.suffix == ".request":
            shown = [identities.read_request(file).member]
        else:
            certificate = identities.read_certificate(file)
            shown = [Member(common_name(certificate), certificate)]
        abouts = [one.describe() for one in shown]
        if json:
            print_json({"certificates": abouts})
        else:
            show(*(card(about, ("name", about["name"])) for about in abouts))


@app.command()
def request(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data (HDF5, CSV, Parquet), whose features the request names. "
            "Default: none are named."
        ),
    ] = None,
    name: As = None,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where others can dial this member; without it, it only dials.",
        ),
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where the member listens on its own machine, if others dial another address (a "
            "forwarded port).",
        ),
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Names of features, separated by commas: in place of DATA, or only these of it."
        ),
    ] = None,
    quiet: Quiet = False,
    *,
    table: Annotated[TableSettings, Without("worker_column")],
) -> None:
    """Request to take part in a study: write NAME.request.

    Send it to the organiser. It holds name, certificate and, if DATA or --features give them,
    names of features; nothing is secret. DATA that runs of the study would refuse are refused at
    once. Compare the organiser's words, and your own, by telephone. A further request of a member
    says what has changed; after 'vpem party renew' it holds the new certificate.

    Example: vpem party request heart.toml lab.csv
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import only_identity, write_request
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import MOST_FEATURES, read_study

        from .options import look_at

        study = read_study(file)
        who = only_identity(study.folder, name)
        names: tuple[str, ...] = ()
        if data:
            names, _ = look_at(context, study, who, data, table, screen.say)
            if len(names) > MOST_FEATURES:
                screen.say(
                    f"{len(names)} features are more than a request names ({MOST_FEATURES}); it "
                    "names none"
                )
                names = ()
        else:
            refuse_given(table, "applies to DATA; name the file", "features")
            if table.features:
                names = tuple(part.strip() for part in table.features.split(","))
            if "" in names or len(set(names)) < len(names):
                raise InputError(
                    "--features must be different names, separated by commas, got "
                    f"{table.features!r}"
                )
        at, door = (None if one is None else address_of(one) for one in (address, listen))
        sent = write_request(study, who, address=at, listen=door, features=names)
        _show_sent(study, sent, screen)


def _show_sent(study: Study, request: MembershipRequest, screen: Screen) -> None:
    if screen.quiet:
        return
    title = f"Send {request.path.name} to {study.organiser}, and read your words to them"
    show(card_of(request, ("request", request.path), title=title))
    warn_of_refusals(study, screen, so_far=True)
    if request.member.name != study.organiser:
        about = study.member(study.organiser).describe()
        title = f"The organiser of {study.name}: let them read these words to you"
        show(card(about, ("name", study.organiser), title=title))


@app.command()
def renew(file: StudyFile, name: As = None, days: Days = 365, quiet: Quiet = False) -> None:
    """Make a new key and certificate, and a request to use them.

    The old key signs the request, too. The old ones stay as NAME.old.key and NAME.old.crt, and are
    used until the study has the new ones. For further studies in the same folder run 'vpem party
    request'.

    Example: vpem party renew heart.toml
    """
    with Screen(quiet) as screen:
        from vpem.files.studies import identities
        from vpem.files.studies.signed import check_days
        from vpem.files.studies.study import read_study

        check_days(days)
        study = read_study(file)
        who = identities.only_identity(study.folder, name)
        identities.known_identity(study, who)
        identity = identities.renew_identity(study.folder, who, days)
        screen.say(f"wrote {identity.key} and {identity.certificate}; the old ones are {who}.old.*")
        _show_sent(study, identities.write_request(study, who), screen)


@app.command()
def policy() -> None:
    """Print a policy to begin with, for policy.toml beside a study.

    Whatever a study says, a party's policy limits, on its own machine, how far features may travel,
    how few parties and rows are enough, how many components there may be, how many E-steps a run
    may take and how many runs there may be, what differential privacy they need, whether sums are
    masked, and which models, commands, alignments, topologies and results are allowed. A refusal is
    explained in full there; other parties see only the name of the party that refused. Write it to
    the file with > policy.toml.

    Example: vpem party policy
    """
    from vpem.files.studies.policy import EXAMPLE

    sys.stdout.write(EXAMPLE)


@app.command()
def log(
    files: Annotated[
        list[Path],
        READ,
        typer.Argument(
            help="Logs of one member, such as lab-heart.log; if several, the oldest first."
        ),
    ],
    last: Annotated[bool, typer.Option("--last", help="Only the last run.")] = False,
    json: Json = False,
) -> None:
    """Sum up the messages of a member of a study, by kind and peer.

    A member notes every message of a study in a log beside it, in a line of JSON: when, sent or
    received, to or from whom, its kind (see docs/reference/communication.md), payload bytes, and
    their SHA-256, which is the same at both ends.

    Example: vpem party log lab-heart.log
    """
    from vpem.files.studies.logs import read_log

    report = read_log(files, last).report()
    if json:
        print_json(report)
        return
    runs = [f"{run['time']} {run['command']}" for run in report["runs"]]
    facts = {
        "runs": f"{len(runs)}, the last {runs[-1]}" if runs else "none",
        "messages": f"{report['messages']:,}, {size(report['bytes'])}",
        "first, last": f"{report['first'] or '-'}, {report['last'] or '-'}",
        "cut short": report["cut"] and f"{report['cut']} (the machine went down meanwhile)",
    }
    counts = ("sent", "bytes_sent", "received", "bytes_received")
    heads = [key.replace("_", " ") for key in counts]
    rows = [
        [one["kind"], one["peer"], *(f"{one[key]:,}" for key in counts)] for one in report["totals"]
    ]
    show(those_of(facts), table(rows, "kind", "peer", *heads, right=heads))


@app.command()
def budget(
    where: Annotated[
        Path | None,
        FOLDER,
        typer.Argument(metavar="STUDY", help="The study, or its folder. Default: this folder."),
    ] = None,
    data: Annotated[Path | None, READ, typer.Option(help="Only this data file.")] = None,
    json: Json = False,
) -> None:
    """Show what runs of studies have disclosed of each data file here.

    A party notes every run before it begins, in data.spent beside its studies: runs with
    differential privacy, whose epsilon is that of all together, at the largest of their deltas, and
    runs without noise, whose disclosure no epsilon bounds. What most-epsilon-in-all in policy.toml
    leaves is shown, too. Files with the same path or the same content count as one.

    Example: vpem party budget --data lab.csv
    """
    from vpem.fits.guard import disclosed

    where = where or Path()
    if not where.exists():
        raise FileError(f"there is no study and no folder {where}")
    report = disclosed(where if where.is_dir() else where.parent, data)
    if json:
        print_json(report)
    elif not report["data"]:
        show(f"{report['ledger']}: no run of a study has read {data or 'data'}")
    for one in () if json else report["data"]:
        noisy, bare = plural(one["with_noise"], "run"), plural(one["without_noise"], "run")
        epsilon, whom = one["epsilon"], "all" if one["epsilon"]["worker"] else "outsiders"
        facts = {
            "runs": ", ".join(f"{name} {count}" for name, count in one["runs"].items()),
            "first, last": f"{one['first']}, {one['last']}",
            "sums of data": f"{one['sums']:,}",
            "without masks": one["not_masked"] and plural(one["not_masked"], "run"),
            "interrupted": one["not_ended"] and f"{one['not_ended']}, which count as whole runs",
            "with noise": one["delta"]
            and f"{noisy}, together epsilon {epsilon['outsider']:.4g}, "
            f"delta {one['delta']:g}, against {whom}",
            "without noise": one["without_noise"]
            and f"{bare}: no epsilon bounds what was disclosed",
            "left": one["left"] is not None
            and f"epsilon {one['left']:.3g} for one more run (policy.toml)",
        }
        show(those_of(facts, Path(one["file"]).name))


@app.command()
def check(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data, which are opened as the study's runs will, and searched for "
            "what these will refuse. Default: they are not checked.",
        ),
    ] = None,
    name: As = None,
    idle: Annotated[
        float,
        typer.Option(
            help="Leave each link without data for so many seconds: some networks cut links that "
            "are silent for long."
        ),
    ] = 3.0,
    serve: Annotated[
        bool,
        typer.Option(
            "--serve",
            help="Answer the checks of others, until Ctrl-C. A member that waits in a run of the "
            "study, and a relay, answer them anyway.",
        ),
    ] = False,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen for others. Default: the port of the member's address, if it has "
            "one, on all interfaces.",
        ),
    ] = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    settings: Annotated[TableSettings, Without("worker_column")],
) -> None:
    """Check this member's data, and its links with others.

    Data, if they are named: ids, types and missing values, as the study's commands take them; this
    is not sent to others. Links: certificates, names, proxy (https_proxy, no_proxy), port, TLS,
    clocks, versions and editions, round trip, bytes a second both ways, idle time, and whether
    others can dial this member, if it has an address. Prints a table, and a sentence for whatever
    fails. The exit code is 2 if anything fails, otherwise 0.

    Example: vpem party check heart.toml lab.csv
    """
    with Screen(quiet) as screen:
        from vpem.checks import check_number
        from vpem.engines.tls.relay import Relay
        from vpem.engines.tls.server import Serving
        from vpem.files.studies.identities import check_links, identity_of, only_identity
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        check_number("idle", idle, least=0.0, most=500.0)  # then the other end gives up
        study = read_study(file)
        who = only_identity(study.folder, name)
        member, first = study.member(who), study.roster.members[0]
        door = member.door if listen is None else address_of(listen)
        findings = _look_at_data(context, study, member, data or [], settings, screen)
        if serve and all(one.state == "ok" for one in findings):
            relay = study.roster.relay
            if door is None and relay is None and (first is member or first.address is None):
                raise InputError(
                    f"no member can dial {who}, which has neither an address nor a relay"
                )
            passes_on = Relay() if first is member and relay is None else None

            def newest() -> tuple[Roster, Identity]:
                edition = read_study(file)
                return edition.roster, identity_of(edition, who)

            serving = Serving(file, newest, who, screen.say, screen.warn, passes_on)
            serving.run(door, ": it answers checks until Ctrl-C")
        certificate, *links = check_links(study, who, door, idle)
        findings = [certificate, *findings, *links]
        failed = [one for one in findings if one.state == "fails"]
        if json:
            checks = [
                {"with": one.peer, "what": one.what, "state": one.state, "found": one.observation,
                 "value": one.value, "sentence": one.sentence or None}
                for one in findings
            ]  # fmt: skip
            about = {"study": study.id, "edition": study.edition, "name": who, "checks": checks}
            print_json({"works": not failed, **about})
        elif not quiet:
            rows, before = list[tuple[str, ...]](), ""
            for one in findings:
                peer, before = "" if one.peer == before else one.peer, one.peer
                noted = "" if one.state == "ok" else one.state
                rows.append((peer, one.what, one.observation, noted))
            show(table(rows, "with", "what", "found", "", title=f"{study.name} as {who}"))
            for one in findings:
                if one.sentence:
                    print(printable(f"{one.state}: {one.sentence}"))
            if not failed:
                print(f"{who} can take part in {study.name}.")
        closed = [one.peer for one in failed if one.what == "port"]
        command = f"vpem party check {study.path.name} --serve"
        if closed:
            screen.say(f"{', '.join(closed)} answers only while it runs the study or '{command}'")
        elif member.address is not None:
            screen.say(f"others reach {who} only while it runs the study or '{command}'")
        if failed:
            raise typer.Exit(2)


def _look_at_data(
    context: typer.Context,
    study: Study,
    member: Member,
    data: list[Path],
    settings: TableSettings,
    screen: Screen,
) -> list[Finding]:
    """Open a member's data as the runs of a study will."""
    from vpem.engines.tls.party_check import Finding

    from ..names import in_options
    from .options import INDIVIDUALS, look_at, refuse_data

    name, state, found, sentence = member.name, "ok", "", ""
    refuse_data(study, member, data)
    if not member.holds:
        return []
    if not data:
        refuse_given(settings, "applies to DATA; name the file")
        sentence = f"name your data: vpem party check {study.path.name} {name}.csv"
        state, found = "note", "not checked"
    elif {*study.options} == {INDIVIDUALS}:
        found = f"not checked: 'vpem {INDIVIDUALS}' reads them by options of its own"
    else:
        try:
            names, n_rows = look_at(
                context, study, name, data, settings, screen.say, member.features
            )
            width = plural(len(names), "feature")
            found = f"{plural(n_rows, 'row')}, {width}, as the study takes them"
        except VpemError as error:
            state, sentence = "fails", in_options(error)
    return [Finding(name, "data", state, found, sentence)]


def relay(
    file: Annotated[
        Path,
        READ,
        typer.Argument(
            metavar="STUDY",
            help="The study, NAME.toml, which names this relay; its key and "
            "certificate lie beside it.",
        ),
    ],
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen; 0.0.0.0 or [::] means all addresses of this machine. Default: "
            "the port of the study's address, on all interfaces.",
        ),
    ] = None,
    log: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            help="Add a line of JSON to this file whenever a member connects, leaves, or talks "
            "with another: when, how long, how many bytes.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Pass sealed messages on between members of a study.

    It links members of which neither can be dialled: all dial the relay, which needs a port that
    they can reach, and no data. Inside they speak TLS with each other, so that the relay learns who
    talks with whom, when and how much, and nothing else. It runs until Ctrl-C or SIGTERM; a newer
    edition of the study takes effect when the file is replaced.

    Make its key with 'vpem party init --name relay', and give its certificate to the organiser.

    Example: vpem relay heart.toml --listen 0.0.0.0:443
    """  # fmt: skip
    with Screen(quiet) as screen:
        from vpem.engines.tls.relay import Relay
        from vpem.engines.tls.server import Serving
        from vpem.files.studies.identities import certificate_of, read_identity, usable
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        def newest() -> tuple[Roster, Identity]:
            edition = read_study(file)
            known = edition.roster.relay
            if known is None:
                raise InputError(f"{file} names no relay any more")
            identity = usable(read_identity(edition.folder, known.name))
            if certificate_of(identity) != known.certificate:
                raise InputError(
                    f"the certificate {identity.certificate} is not the one that {file} has for "
                    f"its relay {known.name}; give it to {edition.organiser}"
                )
            return edition.roster, identity

        study = read_study(file)
        relayed = study.roster.relay
        where = address_of(listen) if listen is not None else relayed.door if relayed else None
        if where is None:
            raise InputError(
                f"{file} names no relay; its organiser names one when the study is made: vpem "
                "study init --relay HOST:PORT --relay-certificate FILE"
            )
        passing = Relay(None if log is None else _noting(log, screen, study))
        serving = Serving(file, newest, "the relay", screen.say, screen.warn, passing)
        serving.run(where, ": it sees who talks with whom and how much, and nothing else")


def _noting(path: Path, screen: Screen, study: Study) -> Callable[[Passed], None]:
    """Return what adds a line of JSON on what a relay passes on; a full disk stops no relay.

    The file may be moved away meanwhile.
    """
    from json import dumps

    from vpem.files.studies.signed import now

    works, keys = True, ("event", "from", "to", "bytes", "bytes_back", "seconds")

    def note(passed: Passed | None = None) -> None:
        nonlocal works
        line: Report = {"event": "begun", "study": study.id, "edition": study.edition}
        if passed is not None:
            line = dict(zip(keys, vars(passed).values(), strict=True))
            line["seconds"] = round(passed.seconds, 3)
        try:
            if works:
                with open(path, "a", encoding="utf-8") as file:
                    file.write(dumps({"time": now(), **line}) + "\n")
        except OSError as error:
            works, sentence = False, f"{path} cannot be written: {error.strerror or error}"
            if passed is None:
                raise FileError(sentence) from None
            screen.warn(f"{sentence}; nothing is logged any more")

    note()
    return note
