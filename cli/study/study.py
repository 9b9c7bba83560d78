"""`vpem study`: studies that an organiser makes, signs and changes, and parties agree on."""

from __future__ import annotations

import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import get_terminal_size
from textwrap import fill
from typing import TYPE_CHECKING, Annotated

import typer

from vpem import __version__
from vpem.errors import InputError, Setting, check_choice
from vpem.pictures.contents import plural
from vpem.records import (
    ENGINES,
    Settings,
    Table,
    beside,
    not_both,
    off,
    rule,
    setting,
    unless,
    unset,
)
from vpem.settings import TOPOLOGIES

from ..commands.doctor import demo_of_study
from ..display import Screen, print_json, show
from ..options import Json, Quiet
from ..outputs import FOLDER, READ
from .party import As, StudyFile, card, facts_in, in_words, warn_of_refusals

if TYPE_CHECKING:
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

VARIADIC = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context of commands whose further words are options of the commands to be run."""


def show_study(report: Report) -> None:
    relay, revoked = report["relay"], len(report["revoked"])
    facts = {
        "study": f"{report['name']}, edition {report['edition']} of {report['signed'][:10]}",
        "organiser": report["organiser"],
        "result": {"all": "all members", "shards": "each has its own part"}[report["result"]],
        "timeout": f"{report['timeout']:g} s",
        "if lost": {"wait": "all wait for it", "without": "the others go on"}[report["if_lost"]],
        "engine": report.get("engine"),
        "relay": relay and f"{relay['name']}, {relay['address']}",
        "revoked": revoked and plural(revoked, "certificate"),
    }
    members, words = [], list[tuple[str, str]]()
    for one in report["members"]:
        kind, brings = ("a party", "not named") if one["data"] else ("the server", "none")
        brings, until = str(len(one["features"]) or brings), one["valid_until"][:10]
        members.append((one["name"], kind, one["address"] or "-", brings, until))
        if "subject" in one:
            words.append((one["name"], f"any of {one['subject']} that this authority issues:"))
            words.append(("", one["authority"]))
        words += zip((one["name"] * ("subject" not in one), ""), in_words(one), strict=True)
    width = min(96, get_terminal_size((96, 24)).columns)
    folded = partial(fill, width=width, subsequent_indent="  ", break_on_hyphens=False)
    show(
        facts_in(facts),
        Table(members, ("member", "is", "dialled at", "features", "valid until"), "Members", ()),
        Table(words, ("member", "fingerprint in words"), right=()),
        "What is run\n",
        *map(folded, report["runs"]),
        "\nWhat is shown to whom\n",
        *(folded(f"* {sentence}") for sentence in report["shows"]),
    )


CARRIED = rule(
    lambda given: (
        given["engine"] == "nvflare"
        and any(given[name] is not None for name in ("star", "relay", "address"))
    ),
    " nvflare has the links of a federation, and none of {star}, {relay} or {address}; leave these "
    "out, or it",
)


class MatrixSettings(Settings, kept=False):
    matrix: bool = off(
        "Show who dials whom, where, how many bytes an iteration takes, and what is in them: a "
        "page that those who keep firewalls can approve.",
        often=True,
    )
    samples: int | None = unset(
        "Rows that all parties share, for the bytes of --matrix. Default: 1000.",
        least=1,
        most=10**15,
        idle=beside(" is the number of rows of {matrix}; add it", matrix=False),
    )


class NewStudy(Settings, heading="Study", kept=False):
    """How members of a new study are linked, and what they will have."""

    engine: str = setting(
        "tls",
        "tls: members reach each other over links of their own. nvflare: inside a job of NVFlare, "
        "which 'vpem study job' writes, with no port of their own; fits then have --accelerate "
        "local:8 unless it is given, or cannot be.",
        choices=ENGINES,
        idle=CARRIED,
    )
    star: str | None = unset(
        "HOST:PORT where others dial the organiser, who adds up (a star).",
        often=True,
        idle=unless(
            " says where a star's server is; on other graphs give {address}",
            topology=(None, "star"),
        ),
    )
    relay: str | None = unset(
        "HOST:PORT of a 'vpem relay', which passes sealed messages on between members that cannot "
        "be dialled; needs --relay-certificate.",
        often=True,
        idle=beside(
            " goes with its certificate, which members pin; add {relay_certificate=FILE}",
            relay_certificate=None,
        ),
    )
    relay_certificate: Path | None = unset(
        "The relay's certificate (.crt).",
        file="read",
        idle=beside(" is for a relay; add {relay=HOST:PORT}", relay=None),
    )
    topology: str | None = unset(
        "Graph of the members: star, cycle, path, complete, ... Default: star.",
        choices=TOPOLOGIES,
        often=True,
    )
    address: str | None = unset(
        "HOST:PORT where others can dial the organiser, on graphs other than a star.",
        often=True,
        idle=not_both("star", "address"),
    )
    listen: str | None = unset(
        "HOST:PORT where the organiser listens on its own machine, if others dial another.",
        idle=beside(
            " is for a member that others dial; give {star} or {address}", star=None, address=None
        ),
    )
    data: bool = off(
        "The organiser brings data too. Without --star or --topology star it always does.",
        often=True,
    )
    result: str = setting(
        "all",
        "Who has the result: all members, or each the parameters of its own features (shards).",
        choices=("all", "shards"),
        often=True,
    )
    timeout: float = setting(
        600.0, "Seconds after which a member that does not answer is given up.", least=1.0
    )
    if_lost: str = setting(
        "wait",
        "What becomes of a run then: it ends, and resumes from checkpoints once that member is "
        "back (wait), or the others go on (without).",
        choices=("wait", "without"),
    )

    def first_edition(self, name: str, organiser: str | None) -> Study:
        """Return a study of which nothing is run yet, with its organiser as the only member.

        Default organiser: the one whose key lies in this folder. InputError where members could not
        reach each other.
        """
        from secrets import token_hex

        from vpem.engines.tls.trust import Roster
        from vpem.files.studies import identities, signed
        from vpem.files.studies.study import Study

        star, number, folder, relay = self.topology in (None, "star"), token_hex(16), Path(), None
        carried = self.engine == "nvflare"
        if star and self.star is None and self.relay is None and not carried:
            raise InputError(
                "how do members reach each other? Give ", Setting("star", "HOST:PORT"),
                ", where the others dial this one, or ", Setting("relay", "HOST:PORT"),
            )  # fmt: skip
        signed.check_name(name, "the name of a study")
        own = identities.read_identity(folder, identities.only_identity(folder, organiser))
        member = identities.member_of(
            own.certificate, self.star or self.address, self.listen, self.data or not star
        )
        if self.relay_certificate is not None:
            relay = identities.member_of(self.relay_certificate, self.relay, holds=False)
        return Study(
            folder / f"{name}.toml", name, number, 1, __version__, own.name, signed.now(),
            self.result, float(self.timeout), {}, Roster(number, name, 1, (member,), relay),
            if_lost=self.if_lost, engine=self.engine,
        )  # fmt: skip


app = typer.Typer(
    help="Make, sign and show studies: who takes part, and what is run.\n\n"
    "Example: vpem study show heart.toml"
)

Which = Annotated[
    Path | None,
    READ,
    typer.Option("--study", help="The study. Default: the one here, or beside the request."),
]
Commands = Annotated[
    list[str] | None,
    typer.Option(
        help="What will be run: fit, select, kmeans, ... Repeat it for several. Default: fit; to "
        "change a study, all that it has.",
    ),
]


@app.command(context_settings=VARIADIC)
def init(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the study: letters, digits, - and _.")],
    command: Commands = None,
    organiser: As = None,
    quiet: Quiet = False,
    *,
    setup: NewStudy,
) -> None:
    """Make a study, signed by the member whose key is here.

    It is written to NAME.toml. All other options belong to the command that all members will run;
    options of data, outputs and machines are each member's own. What each member will show to whom
    is printed, and stands in the file.

    Example: vpem study init heart --star hub.org:443 --align ids --hops 0 -k 2

    Example: vpem study init lungs --topology cycle --address hub.org:443 --align ids -k 2
    """
    with Screen(quiet) as screen:
        from .options import accelerate, agree_on, refuse_first

        refuse_first(context, name)
        if (there := Path(f"{name}.toml")).exists():
            raise InputError(
                f"{there} exists, and 'vpem study show {there}' shows it; give the new study "
                "another name"
            )
        first, commands = setup.first_edition(name, organiser), command or ["fit"]
        if first.carried:
            accelerate(context, first, commands, setup.topology, screen.say)
        _sign(agree_on(context, first, commands, setup.topology), screen, shown=True)


@app.command()
def job(
    file: StudyFile,
    folder: Annotated[
        Path | None, FOLDER, typer.Option(help="Folder of the job. Default: NAME-job here.")
    ] = None,
    command: Annotated[
        str, typer.Option(help="Which of the study's commands the job runs.")
    ] = "fit",
    quiet: Quiet = False,
) -> None:
    """Write the job of NVFlare in which members of a study meet.

    It names the study and one of its commands, and holds no code and no data: each site runs 'vpem
    COMMAND --study NAME.toml' in the folder local/vpem of its startup kit, where the study, the
    member's key, its policy, and a vpem.toml with its data lie. Submit it by 'nvflare job submit'.

    Example: vpem study job heart.toml
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.study import read_study, write_job

        study = read_study(file)
        folder = folder or Path(f"{study.name}-job")
        write_job(study, command, folder)
        screen.say(f"wrote {folder}; submit it: nvflare job submit -j {folder}")


@app.command("show")
def show_file(
    context: typer.Context, file: StudyFile, json: Json = False, *, page: MatrixSettings
) -> None:
    """Check a study, and show who takes part and what is run.

    It also shows what each member will show to whom, as the organiser has signed it, and warns of
    whatever the policy.toml beside it does not allow.

    Example: vpem study show heart.toml

    Example: vpem study show heart.toml --matrix --samples 20000
    """
    if not page.matrix:
        print_study(file, json)
        return
    with Screen():
        from vpem.files.studies.study import read_study

        from .matrix import matrix_of, tables_of_matrix

        report = matrix_of(context, read_study(file), page.samples)
        print_json(report) if json else show(*tables_of_matrix(report))


def print_study(file: Path, json: bool) -> None:
    with Screen() as screen:
        from vpem.files.studies.study import read_study

        study = read_study(file)
        (print_json if json else show_study)(study.describe())
        warn_of_refusals(study, screen)


@app.command()
def approve(
    request: Annotated[Path, READ, typer.Argument(help="NAME.request, as a member sent it.")],
    which: Which = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            help="The twelve words (or 64 hexadecimal digits) that the member has read out: any "
            "others are refused, without a question.",
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Accept a member's request, if the fingerprint is the right one.

    Shows the request, asks for a yes, and signs the next edition of the study.

    Example: vpem study approve lab.request
    """
    with Screen(quiet) as screen:
        from vpem.files.studies import identities
        from vpem.files.studies.study import read_study

        joining = identities.read_request(request)
        here = Path(f"{joining.study}.toml")
        study = read_study(which or (here if here.exists() else request.parent / here))
        following = identities.approved(study, joining)
        about, said = joining.describe(), (fingerprint or "").lower().replace(":", "").split()
        alike = said == about["words"].split() or "".join(said) == about["fingerprint"]
        if fingerprint is not None and not alike:
            raise InputError(
                f"{request} has another fingerprint than the one given: its words are "
                f"{about['words']}"
            )
        asks = fingerprint is None and not yes
        if asks or not quiet:
            purpose = {
                "join": "join, as a new member",
                "renew": "have a new certificate (signed by the old key, too)",
                "change": "change what it said before",
            }[identities.check_request(study, joining)]
            show(card({"wants to": purpose}, about))
        if asks:
            if not sys.stdin.isatty():
                raise InputError(
                    "nothing was signed: there is no terminal for the question; compare the words, "
                    "then give them with --fingerprint, or give --yes"
                )
            print(f"Is this {about['name']}? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise InputError("nothing was signed")
        _sign(following, screen)


def _sign(edition: Study, screen: Screen, shown: bool = False) -> None:
    """Sign and write an edition, show it, and say to whom it goes."""
    from vpem.files.studies.identities import sign_edition

    study = sign_edition(edition, force=edition.edition > 1)
    if shown and not screen.quiet:
        show_study(study.describe())
    others = [one.name for one in study.roster.members if one.name != study.organiser]
    to = f"; send it to {', '.join(others)}" * bool(others)
    if study.edition == 1:
        to = (
            f", signed by {study.organiser}; send it to those who are to take part: they join by "
            f"'vpem party request {study.path.name}'"
        )
    screen.say(f"wrote {study.path}, edition {study.edition}{to}")


@app.command(context_settings=VARIADIC)
def change(
    context: typer.Context,
    file: StudyFile,
    command: Commands = None,
    if_lost: Annotated[
        str | None,
        typer.Option(help="What becomes of a run when a member does not answer: wait, or without."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Change what will be run, or with which options.

    New options replace those that the study has; its other options stay. Shows what each member
    will show to whom, and signs the next edition.

    Example: vpem study change heart.toml --align ids -k 2-6

    Example: vpem study change heart.toml --if-lost without

    Example: vpem study change heart.toml --command kmeans -k 3
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import following
        from vpem.files.studies.study import IF_LOST, read_study

        from .options import agree_on, refuse_first

        refuse_first(context, file)
        study = read_study(file)
        if if_lost is not None:
            check_choice("if_lost", if_lost, IF_LOST)
            study = replace(study, if_lost=if_lost)
        if not (command or context.args or if_lost):
            raise InputError("nothing to change: give ", Setting("command"), " or options")
        commands = command or list(study.options)
        _sign(agree_on(context, following(study), commands), screen, shown=True)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The member.")],
    which: Which = None,
    quiet: Quiet = False,
) -> None:
    """Revoke a member's certificate.

    Signs the next edition of the study, without the member. Everyone with the new edition refuses
    runs of older ones.

    Example: vpem study revoke lab
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import revoked
        from vpem.files.studies.study import read_study

        files = sorted(file.with_suffix(".toml") for file in Path().glob("*.known"))
        studies = [file for file in files if file.exists()] if which is None else [which]
        if len(studies) != 1:
            there = ", ".join(map(str, studies)) if studies else "none"
            raise InputError(f"which study? Give --study NAME.toml; studies here: {there}")
        _sign(revoked(read_study(studies[0]), name), screen)


app.command("demo")(demo_of_study)
