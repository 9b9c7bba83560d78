"""`vpem party`: a member's key, certificate and request; what its runs disclosed and sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import inf, isinf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vpem.errors import FileError, InputError, shorten
from vpem.files.table_settings import TableSettings

from ..commands.loading import refuse_given
from ..display import Screen, plural, print_json, show, size, table
from ..help import Elsewhere
from ..options import Json, Quiet, Without
from ..outputs import FOLDER, READ
from .handshake import look_at
from .policy import in_all, policy, refusals

if TYPE_CHECKING:
    from vpem.files.studies.policy import Policy
    from vpem.files.studies.spent import Ran
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report


def budget(
    where: Annotated[
        Path | None,
        FOLDER,
        typer.Argument(
            metavar="STUDY",
            help="The study, or its folder. Default: this folder.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        Path | None, READ, typer.Option(help="Only this data file.", show_default=False)
    ] = None,
    json: Json = False,
) -> None:
    """Show what runs of studies have disclosed of each data file here.

    A party notes every run before it begins, in data.spent beside its studies: runs with
    differential privacy, whose epsilon is that of all together, at the largest of their deltas, and
    runs without noise, whose disclosure no epsilon bounds. What most-epsilon-in-all in policy.toml
    leaves is shown, too. Files with the same path or the same content count as one.

    Example: vpem party budget --data lab.csv
    """
    from vpem.files.studies.policy import policy_beside
    from vpem.files.studies.spent import Spent

    where = where or Path()
    if not where.exists():
        raise FileError(f"there is no study and no folder {where}")
    folder = where if where.is_dir() else where.parent
    ledger, policy = Spent(folder), policy_beside(folder / "policy.toml")
    runs = ledger.runs()
    files = {file: {file} for ran in runs for file in ran.data}
    if data is not None and runs:
        files = {file: {file, digest} for file, digest in ledger.digests([data]).items()}
    for ran in runs:
        for file in files.keys() & ran.data.keys():
            files[file].add(ran.data[file])
    read = {file: [ran for ran in runs if ran.has_read(files[file])] for file in sorted(files)}
    reports = [_budget_report(file, some, policy) for file, some in read.items() if some]
    if json:
        print_json({"ledger": str(ledger.path), "data": reports})
    elif not reports:
        show(f"{ledger.path}: no run of a study has read {data or 'data'}")
    else:
        show(*(table(_facts(one), "", "", title=Path(one["file"]).name) for one in reports))


def _left(most: float, against: str, runs: Sequence[Ran]) -> float:
    """Return the epsilon left for one more run, at the largest delta of earlier runs."""
    from vpem.fits.privacy import Budget, spent

    if not runs or in_all(runs, against) >= most:
        return 0.0
    noise = [ran.noise for ran in runs if ran.noise]
    delta = max(one["delta"] for one in noise)
    rest = Budget(most, delta).multiplier ** -2 - sum(one["multiplier"] ** -2 for one in noise)
    return 0.999 * spent([rest**-0.5], delta) if rest > 0 else 0.0  # of noise on integers


def _budget_report(file: str, runs: Sequence[Ran], policy: Policy | None) -> Report:
    noisy = [ran for ran in runs if ran.noise is not None]
    epsilons = {who: in_all(noisy, who) if noisy else inf for who in ("outsider", "worker")}
    most = policy and policy.most_epsilon_in_all
    return {
        "file": file,
        "runs": dict(Counter(ran.command for ran in runs)),
        "first": runs[0].time,
        "last": runs[-1].time,
        "sums": sum(ran.sums or 0 for ran in runs),
        "not_ended": sum(ran.sums is None for ran in runs),
        "not_masked": sum(not ran.masked for ran in runs),
        "without_noise": len(runs) - len(noisy),
        "with_noise": len(noisy),
        "epsilon": {who: None if isinf(one) else one for who, one in epsilons.items()},
        "delta": max((ran.noise["delta"] for ran in runs if ran.noise), default=None),
        "left": _left(most, policy.epsilon_against, runs) if policy and most else None,
    }


def _facts(totals: Report) -> list[tuple[str, str]]:
    runs, epsilon = totals["runs"], totals["epsilon"]
    whom = "outsiders" if epsilon["worker"] is None else "all"
    facts = {
        "runs": ", ".join(f"{name} {count}" for name, count in runs.items()),
        "first, last": f"{totals['first']}, {totals['last']}",
        "sums of data": f"{totals['sums']:,}",
        "without masks": totals["not_masked"] and plural(totals["not_masked"], "run"),
        "interrupted": totals["not_ended"] and f"{totals['not_ended']}, which count as whole runs",
        "with noise": totals["delta"]
        and f"{plural(totals['with_noise'], 'run')}, together epsilon {epsilon['outsider']:.4g}, "
        f"delta {totals['delta']:g}, against {whom}",
        "without noise": totals["without_noise"]
        and f"{plural(totals['without_noise'], 'run')}: no epsilon bounds what was disclosed",
        "left": totals["left"] is not None
        and f"epsilon {totals['left']:.3g} for one more run (policy.toml)",
    }
    return [(name, str(fact)) for name, fact in facts.items() if fact]


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
    from vpem.files.studies.message_log import read_log

    logged = read_log(files, last)
    totals = [
        {"kind": kind, "peer": peer, **vars(counts)}
        for (kind, peer), counts in logged.totals.items()
    ]
    report = {
        "runs": [{"command": None, **run} for run in logged.runs],
        "messages": sum(row["sent"] + row["received"] for row in totals),
        "bytes": sum(row["bytes_sent"] + row["bytes_received"] for row in totals),
        "first": logged.first,
        "last": logged.last,
        "cut": logged.cut,
        "totals": totals,
    }
    if json:
        print_json(report)
        return
    runs = [f"{run['time']} {run['command']}" for run in report["runs"]]
    facts = [
        ("runs", f"{len(runs)}, the last {runs[-1]}" if runs else "none"),
        ("messages", f"{report['messages']:,}, {size(report['bytes'])}"),
        ("first, last", f"{logged.first or '-'}, {logged.last or '-'}"),
    ]
    if logged.cut:
        facts.append(("cut short", f"{logged.cut} (the machine went down meanwhile)"))
    counts = ("sent", "bytes_sent", "received", "bytes_received")
    rows = [[row["kind"], row["peer"], *(f"{row[key]:,}" for key in counts)] for row in totals]
    heads = [key.replace("_", " ") for key in counts]
    show(table(facts, "", ""), table(rows, "kind", "peer", *heads, right=heads))


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Take part in studies: keys, requests, policies, logs of messages.\n\n"
    "Example: vpem party init --name lab",
)

StudyFile = Annotated[
    Path, READ, typer.Argument(metavar="STUDY", help="The study: NAME.toml, as its organiser sent "
    "it. Keys, certificates and requests lie beside it."),
]  # fmt: skip
As = Annotated[
    str | None,
    typer.Option(
        "--as",
        help="The member whose key is used. Default: the one in the folder of the study.",
        show_default=False,
    ),
]
Days = Annotated[int, typer.Option(help="For how many days the certificate is valid.")]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where others can dial this member; without it, it only dials.",
        show_default=False,
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT",
        help="Where the member listens on its own machine, if others dial another address (a "
        "forwarded port).",
        show_default=False,
    ),
]


def in_words(certificate: bytes) -> list[str]:
    """Return a fingerprint as two lines of six words each, to be compared by telephone."""
    from vpem.engines.tls.trust import fingerprint_words

    words = fingerprint_words(certificate).split()
    return [" ".join(words[:6]), " ".join(words[6:])]


def facts_of(certificate: bytes) -> list[tuple[str, str]]:
    """Return rows of a table: how long a certificate is valid, and its fingerprint."""
    from vpem.engines.tls.trust import fingerprint, validity

    hexadecimal = fingerprint(certificate)
    return [
        ("valid until", f"{validity(certificate)[1]:%Y-%m-%d}"),
        ("fingerprint", hexadecimal[:32]),
        ("", hexadecimal[32:]),
        *zip(("in words", ""), in_words(certificate), strict=True),
    ]


def about_certificate(name: str, certificate: bytes) -> Report:
    """Return the JSON report on a certificate."""
    from vpem.engines.tls.trust import fingerprint, fingerprint_words, validity
    from vpem.files.studies.signed import moment

    begins, ends = validity(certificate)
    return {
        "name": name, "fingerprint": fingerprint(certificate),
        "words": fingerprint_words(certificate), "valid_from": moment(begins),
        "valid_until": moment(ends),
    }  # fmt: skip


@app.command()
def init(
    name: Annotated[
        str, typer.Option(help="Name of the member: letters, digits, - and _.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        FOLDER,
        typer.Option(
            help="Folder for its key and its studies. Default: this one.", show_default=False
        ),
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
        from vpem.files.studies.identities import certificate_of, make_identity

        if folder is not None and not folder.is_dir():
            raise FileError(f"there is no folder {folder}")
        identity = make_identity(folder or Path(), name, days)
        certificate = certificate_of(identity)
        screen.say(f"wrote {identity.key}, which is to stay secret, and {identity.certificate}")
        if json:
            print_json(about_certificate(name, certificate))
        elif not quiet:
            show(table([("name", name), *facts_of(certificate)], "", ""))


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
        from vpem.files.studies.signed import common_name

        if file is None:
            names = identities.identities_in(Path())
            if not names:
                raise InputError("there is no key here; make one by 'vpem party init --name ...'")
            keys = [identities.read_identity(Path(), name) for name in names]
            shown = list(zip(names, map(identities.certificate_of, keys), strict=True))
        elif file.suffix == ".request":
            member = identities.read_request(file).member
            shown = [(member.name, member.certificate)]
        else:
            certificate = identities.read_certificate(file)
            shown = [(common_name(certificate), certificate)]
        if json:
            print_json({"certificates": [about_certificate(*one) for one in shown]})
            return
        show(*(table([("name", name), *facts_of(der)], "", "") for name, der in shown))


@app.command()
def request(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data (HDF5, CSV, Parquet), whose features the request names. "
            "Default: none are named.",
            show_default=False,
        ),
    ] = None,
    name: As = None,
    address: Address = None,
    listen: Listen = None,
    features: Annotated[
        str | None,
        typer.Option(
            help="Names of features, separated by commas: in place of DATA, or only these of it.",
            show_default=False,
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
        from vpem.files.studies.identities import only_identity
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import MOST_FEATURES, read_study

        study = read_study(file)
        who = only_identity(study.folder, name)
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
            named = table.features
            names = tuple(part.strip() for part in named.split(",")) if named else ()
            if "" in names or len(set(names)) < len(names):
                raise InputError(
                    f"--features must be different names, separated by commas, got {named!r}"
                )
        changes: Report = {
            "features": names,
            "address": None if address is None else address_of(address),
            "listen": None if listen is None else address_of(listen),
        }
        _request(study, who, changes, screen)


def _request(study: Study, name: str, changes: Report, screen: Screen) -> None:
    from vpem.files.studies import identities
    from vpem.files.studies.study import remember

    identity, before = identities.usable(identities.read_identity(study.folder, name)), None
    rank = study.roster.rank_of(name)
    if rank is not None:
        # What a member does not change stays.
        now = study.roster.members[rank]
        if identities.certificate_of(identity) != now.certificate:  # its own key was renewed
            before = identities.known_identity(study, name)
        changes["address"] = changes["address"] or now.address
        changes["listen"] = changes["listen"] or study.listens.get(name)
        changes["holds"] = now.holds or bool(changes["features"])
        changes["features"] = changes["features"] or study.features.get(name, ())
    request = identities.write_request(study, identity, before=before, **changes)
    remember(study)
    if screen.quiet:
        return
    organiser = study.member(study.organiser)
    features = shorten(request.features, 4) if request.features else "none named"
    facts = [("request", str(request.path)), ("name", name), ("features", features)]
    title = f"Send {request.path.name} to {study.organiser}, and read your words to them"
    show(table([*facts, *facts_of(request.member.certificate)], "", "", title=title))
    for sentence in refusals(study, so_far=True):
        screen.warn(sentence)
    if name != study.organiser:
        title = f"The organiser of {study.name}: let them read these words to you"
        show(
            table([("name", organiser.name), *facts_of(organiser.certificate)], "", "", title=title)
        )


@app.command()
def renew(file: StudyFile, name: As = None, days: Days = 365, quiet: Quiet = False) -> None:
    """Make a new key and certificate, and a request to use them.

    The old key signs the request, too. The old ones stay as NAME.old.key and NAME.old.crt, and are
    used until the study has the new ones. For further studies in the same folder run 'vpem party
    request'.

    Example: vpem party renew heart.toml
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import known_identity, only_identity, renew_identity
        from vpem.files.studies.signed import check_days
        from vpem.files.studies.study import read_study

        check_days(days)
        study = read_study(file)
        who = only_identity(study.folder, name)
        known_identity(study, who)
        identity = renew_identity(study.folder, who, days)
        screen.say(f"wrote {identity.key} and {identity.certificate}; the old ones are {who}.old.*")
        _request(study, who, {"address": None, "listen": None, "features": ()}, screen)


app.command()(policy)
app.command()(log)
app.command()(budget)
app.command("check")(
    Elsewhere("study.check", "check", "Check this member's data, and its links with others.")
)
