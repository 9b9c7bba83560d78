"""`vpem party`: a member's key, certificate and request; what its runs disclosed and sent."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import FileError, InputError, VpemError, printable, shorten
from vpem.files.table_settings import TableSettings
from vpem.pictures.contents import plural, size
from vpem.records import Settings, Table, off, setting, unset, words_in

from ..display import Screen, print_json, show
from ..options import Json, Quiet, Without
from ..outputs import FOLDER, READ, WRITTEN

if TYPE_CHECKING:
    from vpem.engines.tls.party_check import Finding
    from vpem.engines.tls.server import Serving
    from vpem.engines.tls.trust import Identity, Member, Roster
    from vpem.errors import Setting
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

StudyFile = Annotated[
    Path, READ, typer.Argument(metavar="STUDY", help="The study: NAME.toml, as its organiser sent "
    "it. Keys, certificates and requests lie beside it."),
]  # fmt: skip
OwnData = Annotated[
    list[Path] | None, READ, typer.Argument(help="The member's data (HDF5, CSV, Parquet), which "
    "are opened as the study's runs will, and searched for what these will refuse. Default: none."),
]  # fmt: skip
As = Annotated[
    str | None,
    typer.Option(
        "--as", help="The member whose key is used. Default: the one in the folder of the study."
    ),
]
Days = Annotated[int, typer.Option(help="For how many days the certificate is valid.")]
Listen = Annotated[
    str | None,
    typer.Option(
        help="Where to listen for others, HOST:PORT or PORT; 0.0.0.0 or [::] means all addresses "
        "of this machine. Default: the port of its address in the study, on all interfaces."
    ),
]


def facts_in(facts: Report, title: str = "") -> Table:
    """Return a table of the facts that are there; a list has a line for each."""
    rows = [
        (name * (not place), line)
        for name, fact in facts.items()
        for place, line in enumerate(fact if isinstance(fact, list) else [fact])
        if line
    ]
    return Table(rows, caption=title)


def in_words(about: Report) -> list[str]:
    """Return the words of a fingerprint as two lines of six, to be compared by telephone."""
    words = about["words"].split()
    return [" ".join(words[:6]), " ".join(words[6:])]


def card(first: Report, about: Report, title: str = "") -> Table:
    """Return a table of facts, and of what describes a certificate or a request."""
    mark, before = about["fingerprint"], about.get("before")
    if "study" in about:
        named = about["features"]
        brings = f"{plural(len(named), 'feature')}: {shorten(named, 8)}"
        brings = brings if named else "features that it does not name"
        first["brings"] = brings if about["data"] else "no data"
        first["dialled at"] = about["address"] or "-"
        title = title or f"{about['name']} asks to be in {about['study']}"
    facts = {"certificates for": about.get("subject"), "by authority": about.get("authority")}
    facts |= {"for": about.get("hosts"), "issued by": about.get("issuer")}
    facts |= {"valid until": about["valid_until"][:10], "fingerprint": [mark[:32], mark[32:]]}
    facts |= {"in words": in_words(about), "before": before and f"{before[:32]}..."}
    return facts_in(first | facts, title)


def show_request(file: Path, json: bool) -> None:
    """Print a request, whether or not a study would accept it."""
    with Screen():
        from vpem.files.studies.identities import read_request

        about = read_request(file).describe()
        print_json(about) if json else show(card({}, about))


def warn_of_refusals(study: Study, screen: Screen, so_far: bool = False) -> None:
    """Warn of what the policy beside a study refuses; if ``so_far``, more parties will join."""
    from vpem.fits.guard import Guard

    from .options import typed

    def option(one: Setting) -> str:
        return " ".join(
            typed({one.name.replace("_", "-"): True if one.value is None else one.value})
        )

    for command, error in Guard(study).refused(so_far):
        refusal = printable(error.sentence_with(option))
        screen.warn(f"{refusal}; this member will refuse 'vpem {command}'")


app = typer.Typer(
    help="Take part in studies: keys, requests, policies, logs.\n\n"
    "Example: vpem party init --name lab"
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
        from vpem.files.studies.identities import make_identity, member_of

        if folder is not None and not folder.is_dir():
            raise FileError(f"there is no folder {folder}")
        identity = make_identity(folder or Path(), name, days)
        about = member_of(identity.certificate).describe()
        screen.say(f"wrote {identity.key}, which is to stay secret, and {identity.certificate}")
        if json:
            print_json(about)
        elif not quiet:
            show(card({"name": name}, about))


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
        from vpem.files.studies import identities

        names = [] if file else identities.identities_in(Path())
        files = [identities.read_identity(Path(), name).certificate for name in names]
        if file is not None and file.suffix == ".request":
            abouts = [identities.read_request(file).member.describe()]
        else:
            abouts = [*map(identities.describe_certificate, [file] if file else files)]
        if not abouts:
            raise InputError("there is no key here; make one by 'vpem party init --name ...'")
        if json:
            print_json({"certificates": abouts})
        else:
            show(*(card({"name": about["name"]}, about) for about in abouts))


class Asking(Settings, kept=False):
    """What a request says, beside what its data do."""

    address: str | None = unset(
        "HOST:PORT where others can dial this member; without it, it only dials.", often=True
    )
    listen: str | None = unset(
        "HOST:PORT where the member listens on its own machine, if others dial another address (a "
        "forwarded port).",
        often=True,
    )
    features: str | None = unset(
        "Names of features, separated by commas: in place of DATA, or only these of it.", often=True
    )
    authority: Path | None = unset(
        "Certificate (PEM) of the authority that issued this member's, such as a hospital's: "
        "others accept what it issues for the same name, so that renewals need no request.",
        file="read",
        often=True,
    )
    subject: str | None = unset(
        "Name in that certificate by which others know this member. Default: the only one.",
    )


@app.command()
def request(
    context: typer.Context,
    file: StudyFile,
    data: OwnData = None,
    name: As = None,
    quiet: Quiet = False,
    *,
    asking: Asking,
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
        from vpem.files.studies.identities import only_identity
        from vpem.files.studies.study import MOST_FEATURES, read_study

        from .options import look_at

        study = read_study(file)
        who = only_identity(study.folder, name)
        if study.carried and (asking.address or asking.listen):
            raise InputError(
                f"members of {study.name} meet inside a job of NVFlare, and none is dialled; leave "
                "out --address and --listen"
            )
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
            names = tuple(map(str, words_in("features", table.features)))
            if "" in names or len(set(names)) < len(names):
                raise InputError(
                    "--features must be different names, separated by commas, got "
                    f"{table.features!r}"
                )
        about = {name: getattr(asking, name) for name in ("address", "listen", "authority")}
        _send(study, who, screen, features=names, subject=asking.subject, **about)


def _send(study: Study, who: str, screen: Screen, **said: Any) -> None:
    """Write a request of a member of a study, and show what is to be compared."""
    from vpem.files.studies.identities import write_request

    sent = write_request(study, who, **said)
    if screen.quiet:
        return
    title = f"Send {sent.path.name} to {study.organiser}, and read your words to them"
    show(card({"request": sent.path}, sent.describe(), title))
    warn_of_refusals(study, screen, so_far=True)
    if who != study.organiser:
        about = study.member(study.organiser).describe()
        title = f"The organiser of {study.name}: let them read these words to you"
        show(card({"name": study.organiser}, about, title))


@app.command()
def renew(file: StudyFile, name: As = None, days: Days = 365, quiet: Quiet = False) -> None:
    """Make a new key and certificate, and a request to use them.

    The old key signs the request, too. The old ones stay as NAME.old.key and NAME.old.crt, and are
    used until the study has the new ones. For further studies in the same folder run 'vpem party
    request'.

    Example: vpem party renew heart.toml
    """
    with Screen(quiet) as screen:
        from vpem.files.studies import identities, signed
        from vpem.files.studies.study import read_study

        signed.check_days(days)
        study = read_study(file)
        who = identities.only_identity(study.folder, name)
        identities.known_identity(study, who)
        identity = identities.renew_identity(study.folder, who, days)
        screen.say(f"wrote {identity.key} and {identity.certificate}; the old ones are {who}.old.*")
        _send(study, who, screen)


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

    report = read_log(files, last)
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
    show(facts_in(facts), Table(rows, ("kind", "peer", *heads), right=heads))


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
        show(facts_in(facts, Path(one["file"]).name))


class Checking(Settings, kept=False):
    idle: float = setting(
        3.0,
        "Leave each link without data for so many seconds: some networks cut links that are silent "
        "for long.",
        least=0.0,
        most=500.0,  # then the other end gives up
        often=True,
    )
    serve: bool = off(
        "Answer the checks of others, until Ctrl-C. A member that waits in a run of the study, and "
        "a relay, answer them anyway.",
        often=True,
    )


@app.command()
def check(
    context: typer.Context,
    file: StudyFile,
    data: OwnData = None,
    name: As = None,
    listen: Listen = None,
    json: Json = False,
    quiet: Quiet = False,
    *,
    links: Checking,
    table_settings: Annotated[TableSettings, Without("worker_column")],
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
        from vpem.engines.tls.party_check import Finding
        from vpem.files.studies import identities, signed
        from vpem.files.studies.study import read_study

        study = read_study(file)
        who = identities.only_identity(study.folder, name)
        member, first, relay = study.member(who), study.roster.members[0], study.roster.relay
        door = signed.door_of(listen) or member.door
        findings = _look_at_data(context, study, member, data or [], table_settings, screen)
        if links.serve and all(one.state == "ok" for one in findings):
            if door is None and relay is None and (first is member or first.address is None):
                raise InputError(
                    f"no member can dial {who}, which has neither an address nor a relay"
                )
            serving = _serve(file, who, screen, passes_on=first is member and relay is None)
            serving.run(door, ": it answers checks until Ctrl-C")
        certificate, *found = identities.check_links(study, who, door, links.idle)
        if study.carried:
            why = "members meet inside a job of NVFlare, which must run for links to be checked"
            found.append(Finding(who, "links", "note", "not checked", why))
        findings = [certificate, *findings, *found]
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
                peer, before = one.peer * (one.peer != before), one.peer
                rows.append((peer, one.what, one.observation, one.state.removeprefix("ok")))
            title = f"{study.name} as {who}"
            show(Table(rows, ("with", "what", "found", ""), title, ()))
            for one in findings:
                if one.sentence:
                    print(printable(f"{one.state}: {one.sentence}"))
            if not failed:
                print(f"{who} can take part in {study.name}.")
        only = f"only while it runs the study or 'vpem party check {study.path.name} --serve'"
        if closed := ", ".join(one.peer for one in failed if one.what == "port"):
            screen.say(f"{closed} answers {only}")
        elif member.address is not None:
            screen.say(f"others reach {who} {only}")
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
    file: StudyFile,
    listen: Listen = None,
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
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.signed import door_of

        serving = _serve(file, None, screen)
        roster, passing = serving.roster, serving.relay
        if log is not None and passing is not None:
            passing.note_in(log, screen.warn, study=roster.study, edition=roster.edition)
        door = door_of(listen) or (None if roster.relay is None else roster.relay.door)
        serving.run(door, ": it sees who talks with whom and how much, and nothing else")


def _serve(file: Path, name: str | None, screen: Screen, passes_on: bool = True) -> Serving:
    """Return what answers members of the newest edition of a study: a member, or the relay."""
    from vpem.engines.tls.relay import Relay
    from vpem.engines.tls.server import Serving
    from vpem.files.studies.identities import identity_of
    from vpem.files.studies.study import read_study

    def newest() -> tuple[Roster, Identity]:
        study = read_study(file)
        relay = study.roster.relay
        who = name if relay is None else name or relay.name
        if who is None:
            raise InputError(
                f"{file} names no relay; its organiser names one when the study is made: vpem "
                "study init --relay HOST:PORT --relay-certificate FILE"
            )
        return study.roster, identity_of(study, who)

    passing = Relay() if passes_on else None
    return Serving(file, newest, name or "the relay", screen.say, screen.warn, passing)
