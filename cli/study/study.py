"""`vpem study`: studies that an organiser makes, signs and changes, and parties agree on."""

from __future__ import annotations

import sys
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem import __version__
from vpem.errors import InputError, Setting, check_choice, shorten
from vpem.records import Settings, setting
from vpem.settings import TOPOLOGIES

from ..commands.demo import demo_of_study
from ..display import Screen, print_json
from ..options import Json, Quiet
from ..outputs import READ
from .handshake import EXAMPLES, StudyLinks, agree_on, refuse_as_own, setup_of, typed
from .party import As, about_certificate, facts_of, in_words
from .policy import refusals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.studies.identities import MembershipRequest
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .handshake import Agreed

WIDEST = 96
"""Characters of a line of text."""

VARIADIC = {"ignore_unknown_options": True, "allow_extra_args": True}
"""Context of commands whose further words are options of the commands to be run."""


def report_of(study: Study) -> Report:
    """Return the whole study as plain values."""
    from vpem.engines.tls.trust import fingerprint, fingerprint_words, validity, written_address
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
    from vpem.engines.tls.trust import validity, written_address

    from ..display import plural, show, table

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
    members = list[tuple[str, ...]]()
    words = list[tuple[str, str]]()
    for one in study.roster.members:
        features = len(study.features.get(one.name, ()))
        address = "-" if one.address is None else written_address(one.address)
        brings = str(features) if features else "not named" if one.holds else "none"
        kind, until = "a party" if one.holds else "the server", validity(one.certificate)[1]
        members.append((one.name, kind, address, brings, f"{until:%Y-%m-%d}"))
        words += zip((one.name, ""), in_words(one.certificate), strict=True)
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
    import shutil
    import textwrap

    width = min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns)
    return textwrap.fill(line, width, subsequent_indent="  ", break_on_hyphens=False)


class NewStudy(Settings, heading="Study", kept=False):
    """How members of a new study are linked, and what they will have."""

    star: str | None = setting(
        None, "HOST:PORT where others dial the organiser, who adds up (a star)."
    )
    relay: str | None = setting(
        None,
        "HOST:PORT of a 'vpem relay', which passes sealed messages on between members that cannot "
        "be dialled; needs --relay-certificate.",
    )
    relay_certificate: Path | None = setting(None, "The relay's certificate (.crt).", file="read")
    topology: str | None = setting(
        None,
        "Graph of the members: star, cycle, path, complete, ... Default: star.",
        choices=TOPOLOGIES,
    )
    address: str | None = setting(
        None, "HOST:PORT where others can dial the organiser, on graphs other than a star."
    )
    listen: str | None = setting(
        None, "HOST:PORT where the organiser listens on its own machine, if others dial another."
    )
    data: bool = setting(
        False, "The organiser brings data too. Without --star or --topology star it always does."
    )
    result: str = setting(
        "all",
        "Who has the result: all members, or each the parameters of its own features (shards).",
        choices=("all", "shards"),
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


def new_study(name: str, organiser: str | None, setup: NewStudy, agreed: Sequence[Agreed]) -> Study:
    """Return the first edition of a study, with its organiser as the only member.

    Default organiser: the one whose key lies in this folder. InputError where members could not
    reach each other, or options do not go together.
    """
    import secrets

    from vpem.engines.tls.trust import Member, Roster
    from vpem.files.studies import identities
    from vpem.files.studies.signed import address_of, check_name, common_name, moment
    from vpem.files.studies.study import Study

    topology, address = setup.topology or "star", setup.star or setup.address
    if setup.star is not None and topology != "star":
        raise InputError(
            Setting("star"), " says where a star's server is; on other graphs give ",
            Setting("address"),
        )  # fmt: skip
    if setup.star is not None and setup.address is not None:
        raise InputError("give ", Setting("star"), " or ", Setting("address"), ", not both")
    if setup.star is None and setup.relay is None and topology == "star":
        raise InputError(
            "how do members reach each other? Give ", Setting("star", "HOST:PORT"),
            ", where the others dial this one, or ", Setting("relay", "HOST:PORT"),
        )  # fmt: skip
    if (setup.relay is None) != (setup.relay_certificate is None):
        raise InputError(
            Setting("relay"), " and ", Setting("relay_certificate"), " go together: members pin it"
        )  # fmt: skip
    if setup.listen is not None and address is None:
        raise InputError(
            Setting("listen"), " is for a member that others dial; give ", Setting("star"), " or ",
            Setting("address"),
        )  # fmt: skip
    check_name(name, "the name of a study")
    folder, number, relay = Path(), secrets.token_hex(16), None
    who = identities.only_identity(folder, organiser)
    member = Member(
        who,
        identities.certificate_of(identities.read_identity(folder, who)),
        None if address is None else address_of(address),
        holds=setup.data or topology != "star",
    )
    if setup.relay is not None and setup.relay_certificate is not None:
        certificate = identities.read_certificate(setup.relay_certificate)
        relay = Member(common_name(certificate), certificate, address_of(setup.relay), holds=False)
    links = StudyLinks(
        who,
        topology,
        None if relay is None else relay.name,
        setup.result,
        setup.if_lost,
        setup.timeout,
        member.holds,
    )
    return Study(
        folder / f"{name}.toml", name, number, 1, __version__, who,
        moment(datetime.now(UTC)), setup.result, float(setup.timeout),
        roster=Roster(number, name, 1, (member,), relay),
        features={who: ()},
        listens={} if setup.listen is None else {who: address_of(setup.listen)},
        if_lost=setup.if_lost,
        **what_is_run(links, agreed),
    )  # fmt: skip


def what_is_run(links: StudyLinks, agreed: Sequence[Agreed]) -> Report:
    """Return the fields of a study that say what is run, and what that shows to whom.

    InputError where a run could not go on without a lost member, but should.
    """
    from .policy import disclosures

    for one in agreed if links.if_lost == "without" else ():
        if why := _needs_all(one.command, one.values):
            raise InputError(Setting("if_lost", "without"), f" {why}")
    values = {one.command: one.values for one in agreed}
    return {
        "options": {one.command: one.table for one in agreed},
        "runs": tuple(" ".join(["vpem", one.command, *typed(one.table)]) for one in agreed),
        "shows": tuple(one.text for one in disclosures(links, values)),
    }


def _needs_all(command: str, values: Report) -> str | None:
    """Return why a run of a command cannot go on without a member; None if it can."""
    if command == "select":
        return (
            "is not possible with 'vpem select', which compares fits to the features of the same "
            "parties; let it wait"
        )
    for name in ("epsilon", "release_epsilon"):
        if values.get(name) is not None:
            return (
                f"is not possible with --{name.replace('_', '-')}, which is spent where a run "
                "begins again; let it wait"
            )
    over_rows = values.get("split") == "rows" or command not in ("fit", "kmeans")
    if values.get("secure_sum") and (over_rows or values.get("sum") == "tree"):
        return (
            "is possible with --secure-sum only for 'vpem fit' and 'vpem kmeans' over features, at "
            "a server: others start with sums that would be taken again without the lost member; "
            "let it wait"
        )
    if values.get("split") != "rows" and str(values.get("hops") or 0) != "0":
        return (
            "is not possible with --hops above 0: hubs have features of others, and of a lost "
            "member; give --hops 0, or let it wait"
        )
    return None


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, sign and show studies: who takes part, and what will be run.\n\n"
    "Example: vpem study show heart.toml",
)

StudyFile = Annotated[Path, READ, typer.Argument(metavar="STUDY", help="The study: NAME.toml.")]
StudyOption = Annotated[
    Path | None,
    READ,
    typer.Option("--study", help="The study. Default: the one here.", show_default=False),
]


@app.command(context_settings=VARIADIC)
def init(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Name of the study: letters, digits, - and _.")],
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="What will be run: fit (the default), select, kmeans, ... Repeat it for several.",
            show_default=False,
        ),
    ] = None,
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
        from vpem.files.studies.identities import sign_edition

        if (there := Path(f"{name}.toml")).exists():
            raise InputError(
                f"{there} exists, and 'vpem study show {there}' shows it; give the new study "
                "another name"
            )
        agreed = agree_on(context, command or ["fit"], name, setup.topology or "star")
        study = sign_edition(new_study(name, organiser, setup, agreed), force=False)
        if not quiet:
            show_study(study)
        screen.say(
            f"wrote {study.path}, edition 1, signed by {study.organiser}; send it to those who are "
            f"to take part: they join by 'vpem party request {study.path.name}'"
        )


@app.command()
def show(file: StudyFile, json: Json = False) -> None:
    """Check a study, and show who takes part and what is run.

    It also shows what each member will show to whom, as the organiser has signed it, and warns of
    whatever the policy.toml beside it does not allow.

    Example: vpem study show heart.toml
    """
    with Screen() as screen:
        from vpem.files.studies.study import read_study

        study = read_study(file)
        if json:
            print_json(report_of(study))
        else:
            show_study(study)
        for sentence in refusals(study):
            screen.warn(sentence)


@app.command()
def approve(
    request: Annotated[Path, READ, typer.Argument(help="NAME.request, as a member sent it.")],
    which: Annotated[
        Path | None,
        READ,
        typer.Option(
            "--study",
            help="The study. Default: the one here, or else the one beside the request.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            help="The twelve words (or 64 hexadecimal digits) that the member has read out: any "
            "others are refused, without a question.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Accept a member's request, if the fingerprint is the right one.

    Shows the request, asks for a yes, and signs the next edition of the study.

    Example: vpem study approve lab.request
    """
    with Screen(quiet) as screen:
        from vpem.engines.tls import trust
        from vpem.files.studies import identities
        from vpem.files.studies.study import read_study

        joining = identities.read_request(request)
        local_file = Path(f"{joining.study}.toml")
        study = read_study(
            which or (local_file if local_file.exists() else request.parent / local_file)
        )
        following = identities.approved(study, joining)
        if fingerprint is not None:
            plain = " ".join(fingerprint.lower().replace(":", "").split())
            certificate = joining.member.certificate
            words = trust.fingerprint_words(certificate)
            if plain.replace(" ", "") != trust.fingerprint(certificate) and plain != words:
                raise InputError(
                    f"{request} has another fingerprint than the one given: its words are {words}"
                )
        asks = fingerprint is None and not yes
        if asks or not quiet:
            purpose = {
                "join": "join, as a new member",
                "renew": "have a new certificate (signed by the old key, too)",
                "change": "change what it said before",
            }[identities.check_request(study, joining)]
            _show_facts(joining, [("wants to", purpose)])
        if asks:
            if not sys.stdin.isatty():
                raise InputError(
                    "nothing was signed: there is no terminal for the question; compare the words, "
                    "then give them with --fingerprint, or give --yes"
                )
            print(f"Is this {joining.member.name}? [y/N] ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip().lower() not in ("y", "yes"):
                raise InputError("nothing was signed")
        _end(identities.sign_edition(following), screen)


def _end(study: Study, screen: Any) -> None:
    others = [one.name for one in study.roster.members if one.name != study.organiser]
    to = f"; send it to {', '.join(others)}" if others else ""
    screen.say(f"wrote {study.path}, edition {study.edition}{to}")


def _show_facts(request: MembershipRequest, facts: list[tuple[str, str]]) -> None:
    """Print the contents of a request, below other facts."""
    from vpem.engines.tls.trust import fingerprint, written_address

    from ..display import show, table

    member, count = request.member, len(request.features)
    brings = f"{count} features: {shorten(request.features, 8)}"
    brings = brings if count else "features that it does not name"
    facts = [
        *facts,
        ("brings", brings if member.holds else "no data"),
        ("dialled at", "-" if member.address is None else written_address(member.address)),
        *facts_of(member.certificate),
    ]
    if request.before is not None:
        facts.append(("before", fingerprint(request.before)[:32] + "..."))
    show(table(facts, "", "", title=f"{member.name} asks to be in {request.study}"))


def show_request(file: Path, json: bool) -> None:
    """Print a request, whether or not a study would accept it."""
    with Screen():
        from vpem.files.studies.identities import read_request

        request = read_request(file)
        if json:
            about = about_certificate(request.member.name, request.member.certificate)
            print_json({"study": request.study, **about, "features": list(request.features)})
        else:
            _show_facts(request, [])


@app.command(context_settings=VARIADIC)
def change(
    context: typer.Context,
    file: StudyFile,
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="Command of the options: one that the study has, or a further one that will be "
            "run. Repeat it for several. Default: all that it has.",
            show_default=False,
        ),
    ] = None,
    if_lost: Annotated[
        str | None,
        typer.Option(
            help="What becomes of a run when a member does not answer: wait, or without.",
            show_default=False,
        ),
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
        from vpem.files.studies.identities import changed, sign_edition
        from vpem.files.studies.study import IF_LOST, read_study

        if str(file).startswith("-"):
            refuse_as_own(context, str(file))
            raise InputError(EXAMPLES["change"])
        study = read_study(file)
        if if_lost is not None:
            check_choice("if_lost", if_lost, IF_LOST)
            study = replace(study, if_lost=if_lost)
        if not (command or context.args or if_lost):
            raise InputError("nothing to change: give ", Setting("command"), " or options")
        if any(word.partition("=")[0] == "--topology" for word in context.args):
            raise InputError(
                Setting("topology"),
                " says how members reach each other; for another one make a new study: vpem study "
                "init",
            )
        links = setup_of(study)
        names = command or list(study.options)
        agreed = agree_on(context, names, str(file), links.topology, study.options)
        edition = sign_edition(changed(study, **what_is_run(links, agreed)))
        if not quiet:
            show_study(edition)
        _end(edition, screen)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The member.")],
    which: StudyOption = None,
    quiet: Quiet = False,
) -> None:
    """Revoke a member's certificate.

    Signs the next edition of the study, without the member. Everyone with the new edition refuses
    runs of older ones.

    Example: vpem study revoke lab
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import revoked, sign_edition
        from vpem.files.studies.study import read_study

        files = sorted(file.with_suffix(".toml") for file in Path().glob("*.known"))
        studies = [file for file in files if file.exists()] if which is None else [which]
        if len(studies) != 1:
            there = ", ".join(map(str, studies)) if studies else "none"
            raise InputError(f"which study? Give --study NAME.toml; studies here: {there}")
        _end(sign_edition(revoked(read_study(studies[0]), name)), screen)


app.command("demo")(demo_of_study)
