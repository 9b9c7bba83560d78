"""`vpem party`: a member's key and certificate, and its request to take part in a study."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.files.table_settings import TableSettings

from .members import Elsewhere
from .messages import log
from .options import Json, Quiet, Without
from .policy import policy, refusals
from .requests import refuse_given
from .roles import FOLDER, READ

if TYPE_CHECKING:
    from vpem.engines.tls.members import Identity
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .output import Screen


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
        "--as", help="Whose key is used. Default: the one in the folder of the study.",
        show_default=False,
    ),
]  # fmt: skip
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
        help="Where the member's door is on its own machine, if others know it by another address "
        "(a forwarded port).",
        show_default=False,
    ),
]
WIDE = 6
"""Words of a fingerprint in a line."""


def in_words(certificate: bytes) -> list[str]:
    """Return two lines of six words each, which say who somebody is over a telephone."""
    from vpem.engines.tls.members import fingerprint_words

    words = fingerprint_words(certificate).split()
    return [" ".join(words[:WIDE]), " ".join(words[WIDE:])]


def facts_of(certificate: bytes) -> list[tuple[str, str]]:
    """Return what people compare of a certificate, for a table."""
    from vpem.engines.tls.members import fingerprint, validity

    hexadecimal = fingerprint(certificate)
    first, second = in_words(certificate)
    return [
        ("valid until", f"{validity(certificate)[1]:%Y-%m-%d}"),
        ("fingerprint", hexadecimal[:32]),
        ("", hexadecimal[32:]),
        ("in words", first),
        ("", second),
    ]


def about_certificate(name: str, certificate: bytes) -> Report:
    """Return what is told of a certificate as JSON."""
    from vpem.engines.tls.members import fingerprint, fingerprint_words, validity
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
        str, typer.Option(help="Of the member: letters, digits, - and _.", show_default=False)
    ],
    folder: Annotated[
        Path | None,
        FOLDER,
        typer.Option(
            help="Where its key is to lie, and its studies. Default: here.", show_default=False
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
    from .output import Screen, print_json, show
    from .tables import table

    with Screen(quiet) as screen:
        from vpem.errors import FileError
        from vpem.files.studies.identities import certificate_of, make_identity

        if folder is not None and not folder.is_dir():
            raise FileError(f"there is no folder {folder}")
        made = make_identity(folder or Path(), name, days)
        certificate = certificate_of(made)
        screen.say(f"wrote {made.key}, which nobody else may have, and {made.certificate}")
        if json:
            print_json(about_certificate(name, certificate))
        elif not quiet:
            show(table([("name", name), *facts_of(certificate)], "", ""))


@app.command()
def show(
    file: Annotated[
        Path | None,
        READ,
        typer.Argument(help="A certificate (.crt) or a request. Default: who is in this folder."),
    ] = None,
    json: Json = False,
) -> None:
    """Show names, fingerprints and dates of certificates and requests.

    Example: vpem party show lab.crt
    """
    from .output import Screen, print_json
    from .output import show as write
    from .tables import table

    with Screen():
        found = _certificates(file)
        if json:
            print_json({"certificates": [about_certificate(*one) for one in found]})
            return
        write(*(table([("name", name), *facts_of(made)], "", "") for name, made in found))


def _certificates(file: Path | None) -> list[tuple[str, bytes]]:
    """Return names and certificates (DER) of a file, or of this folder."""
    from vpem.errors import InputError
    from vpem.files.studies.identities import (
        certificate_of,
        identities_in,
        read_certificate,
        read_identity,
        read_request,
    )
    from vpem.files.studies.signed import common_name

    if file is None:
        names = identities_in(Path())
        if not names:
            raise InputError("there is no key here; make one by 'vpem party init --name ...'")
        return [(name, certificate_of(read_identity(Path(), name))) for name in names]
    if file.suffix == ".request":
        member = read_request(file).member
        return [(member.name, member.certificate)]
    made = read_certificate(file)
    return [(common_name(made), made)]


@app.command()
def request(
    context: typer.Context,
    file: StudyFile,
    data: Annotated[
        list[Path] | None,
        READ,
        typer.Argument(
            help="The member's data (HDF5, CSV, Parquet), of which the names of features are told. "
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
            help="Names of features, with commas between: in place of DATA, or only these of it.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
    *,
    table: Annotated[TableSettings, Without("worker_column")],
) -> None:
    """Ask to take part in a study: write NAME.request.

    It is sent to the organiser. In it are name, certificate and, if DATA or --features say them,
    names of features; nothing is secret. DATA that runs of the study would refuse are refused at
    once. Compare the organiser's words, and your own, by telephone. A member that asks again says
    what has changed; after 'vpem party renew' it asks with its new certificate.

    Example: vpem party request heart.toml lab.csv
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.studies.identities import only_identity
        from vpem.files.studies.signed import address_of
        from vpem.files.studies.study import read_study

        found = read_study(file)
        who = only_identity(found.folder, name)
        given: Report = {
            "features": _features(context, found, who, data or [], table, screen.say),
            "address": None if address is None else address_of(address),
            "listen": None if listen is None else address_of(listen),
        }
        _ask(found, who, given, screen)


def _ask(study: Study, name: str, given: Report, screen: Screen) -> None:
    """Write a request, and show what to compare."""
    from vpem.errors import shorten
    from vpem.files.studies.identities import read_identity, usable, write_request
    from vpem.files.studies.study import remember

    from .output import show
    from .tables import table

    identity, before = usable(read_identity(study.folder, name)), None
    rank = study.roster.rank_of(name)
    if rank is not None:
        # What a member does not say anew stays.
        now = study.roster.members[rank]
        before = _before(study, identity)
        given["address"] = given["address"] or now.address
        given["listen"] = given["listen"] or study.listens.get(name)
        given["holds"] = now.holds or bool(given["features"])
        given["features"] = given["features"] or study.features.get(name, ())
    made = write_request(study, identity, before=before, **given)
    remember(study)
    if screen.quiet:
        return
    organiser = study.member(study.organiser)
    features = shorten(made.features, 4) if made.features else "none named"
    show(
        table(
            [("request", str(made.path)), ("name", name), ("features", features),
             *facts_of(made.member.certificate)],
            "", "", title=f"Send {made.path.name} to {study.organiser}, and read your words there",
        )
    )  # fmt: skip
    for sentence in refusals(study, so_far=True):
        screen.warn(sentence)
    if name != study.organiser:
        title = f"The organiser of {study.name}: let them read these words to you"
        show(
            table([("name", organiser.name), *facts_of(organiser.certificate)], "", "", title=title)
        )


def _before(study: Study, identity: Identity) -> Identity | None:
    """Return the key that a study knows of a member whose own was renewed."""
    from vpem.files.studies.identities import certificate_of, known_identity

    if certificate_of(identity) == study.member(identity.name).certificate:
        return None
    return known_identity(study, identity.name)


def _named(features: str) -> tuple[str, ...]:
    """Return the names of features in an option, each of which is there once."""
    from vpem.errors import InputError

    names = tuple(part.strip() for part in features.split(","))
    if "" in names or len(set(names)) < len(names):
        raise InputError(
            f"--features must be different names, with commas between, got {features!r}"
        )
    return names


def _features(
    context: typer.Context, study: Study, name: str, data: list[Path], table: TableSettings,
    say: Any,
) -> tuple[str, ...]:  # fmt: skip
    """Return the names of features that a member would bring, if its runs will take its data."""
    from vpem.files.studies.study import MOST_FEATURES

    from .taking_part import look_at

    if not data:
        refuse_given(table, "is of DATA; name the file", "features")
        return _named(table.features) if table.features else ()
    names, _ = look_at(context, study, name, data, table, say)
    if len(names) > MOST_FEATURES:
        say(f"{len(names)} features are more than a request names ({MOST_FEATURES}); it names none")
        return ()
    return names


@app.command()
def renew(
    file: StudyFile,
    name: As = None,
    days: Days = 365,
    quiet: Quiet = False,
) -> None:
    """Make a new key and certificate, and a request that they be taken.

    The old key signs the request too. The old ones stay as NAME.old.key and NAME.old.crt, and are
    used until the study has the new ones. For further studies in the same folder give 'vpem party
    request'.

    Example: vpem party renew heart.toml
    """
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.studies.identities import known_identity, only_identity, renew_identity
        from vpem.files.studies.signed import check_days
        from vpem.files.studies.study import read_study

        check_days(days)
        found = read_study(file)
        who = only_identity(found.folder, name)
        known_identity(found, who)
        made = renew_identity(found.folder, who, days)
        screen.say(f"wrote {made.key} and {made.certificate}; the old ones are {who}.old.*")
        _ask(found, who, {"address": None, "listen": None, "features": ()}, screen)


app.command()(policy)
app.command()(log)
app.command("budget")(
    Elsewhere("budget.budget", "Show what runs of studies have told of each data file here.")
)
app.command("check")(
    Elsewhere("check.check", "Look at this member's data, and at its links with others.")
)
