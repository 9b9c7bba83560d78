"""`vpem study`: what parties agree on, as its organiser makes, signs and changes it."""

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

from .agreed import EXAMPLES, StudyLinks, agree_on, refuse_as_own, setup_of
from .demo import demo_of_study
from .files import READ
from .options import Json, Quiet
from .output import Screen, print_json
from .party import As, about_certificate, facts_of, in_words
from .policy import refusals

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.engines.tls.trust import Member
    from vpem.files.studies.identities import MembershipRequest
    from vpem.files.studies.study import Study
    from vpem.network.schema import Report

    from .agreed import Agreed


WIDEST = 96
"""Characters of a line of text."""


def report_of(study: Study) -> Report:
    """Return all of a study as plain values."""
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
    from vpem.engines.tls.trust import written_address

    from .output import plural, show, table

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
    from vpem.engines.tls.trust import validity, written_address

    features = len(study.features.get(member.name, ()))
    return (
        member.name,
        "a party" if member.holds else "the server",
        "-" if member.address is None else written_address(member.address),
        str(features) if features else "not named" if member.holds else "none",
        f"{validity(member.certificate)[1]:%Y-%m-%d}",
    )


class NewStudy(Settings, heading="Study", kept=False):
    """How members of a new study are linked, and what they will have."""

    star: str | None = setting(
        None, "HOST:PORT where others dial its organiser, who adds up (a star)."
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
        None, "HOST:PORT where others can dial the organiser, on other graphs than a star."
    )
    listen: str | None = setting(
        None, "HOST:PORT of the organiser's door on its own machine, if others know another."
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
        600.0, "Seconds after which a member that is not heard of is given up.", least=1.0
    )
    if_lost: str = setting(
        "wait",
        "What becomes of a run then: it ends, and goes on from checkpoints once that member is "
        "back (wait), or the others go on (without).",
        choices=("wait", "without"),
    )


def check_links(how: NewStudy) -> None:
    """Raise InputError where members could not reach each other, or options do not go together."""
    star = how.topology in (None, "star")
    if how.star is not None and not star:
        raise InputError(
            Setting("star"), " says where a star's server is; for other graphs it is ",
            Setting("address"),
        )  # fmt: skip
    if how.star is not None and how.address is not None:
        raise InputError("give ", Setting("star"), " or ", Setting("address"), ", not both")
    if how.star is None and how.relay is None and star:
        raise InputError(
            "how do members reach each other? Say ", Setting("star", "HOST:PORT"),
            ", where the others dial this one, or ", Setting("relay", "HOST:PORT"),
        )  # fmt: skip
    if (how.relay is None) != (how.relay_certificate is None):
        raise InputError(
            Setting("relay"), " and ", Setting("relay_certificate"), " go together: members pin it"
        )  # fmt: skip
    if how.listen is not None and how.star is None and how.address is None:
        raise InputError(
            Setting("listen"), " is for a member that others dial; give ", Setting("star"), " or ",
            Setting("address"),
        )  # fmt: skip


def new_study(name: str, organiser: str | None, how: NewStudy, agreed: Sequence[Agreed]) -> Study:
    """Return the first edition of a study, of its organiser alone.

    Where nobody is named, the organiser is the one whose key alone lies in this folder.
    """
    import secrets

    from vpem.engines.tls.trust import Member, Roster
    from vpem.files.studies.identities import certificate_of, only_identity, read_identity
    from vpem.files.studies.signed import address_of, check_name, moment
    from vpem.files.studies.study import Study

    check_name(name, "the name of a study")
    folder, topology = Path(), how.topology or "star"
    who = only_identity(folder, organiser)
    address = how.star or how.address
    member = Member(
        who,
        certificate_of(read_identity(folder, who)),
        None if address is None else address_of(address),
        holds=how.data or topology != "star",
    )
    relay, number = _relay(how), secrets.token_hex(16)
    setup = StudyLinks(
        who,
        topology,
        None if relay is None else relay.name,
        how.result,
        how.if_lost,
        how.timeout,
        member.holds,
    )
    return Study(
        folder / f"{name}.toml", name, number, 1, __version__, who,
        moment(datetime.now(UTC)), how.result, float(how.timeout),
        roster=Roster(number, name, 1, (member,), relay),
        features={who: ()},
        listens={} if how.listen is None else {who: address_of(how.listen)},
        if_lost=how.if_lost,
        **what_is_run(setup, agreed),
    )  # fmt: skip


def what_is_run(setup: StudyLinks, agreed: Sequence[Agreed]) -> Report:
    """Return the fields of a study that say what is run, and what that shows to whom."""
    from .policy import disclosures

    if setup.if_lost == "without":
        check_goes_on(agreed)
    values = {one.command: one.values for one in agreed}
    return {
        "options": {one.command: one.table for one in agreed},
        "runs": tuple(one.line() for one in agreed),
        "shows": tuple(one.text for one in disclosures(setup, values)),
    }


def check_goes_on(agreed: Sequence[Agreed]) -> None:
    """Raise InputError where a run cannot go on without a member, saying why."""
    for one in agreed:
        if one.command == "select":
            raise InputError(
                Setting("if_lost", "without"), " cannot be had with 'vpem select', which compares "
                "fits to the features of the same parties; let it wait",
            )  # fmt: skip
        for name in ("epsilon", "release_epsilon"):
            if one.values.get(name) is not None:
                raise InputError(
                    Setting("if_lost", "without"),
                    f" cannot be had with --{name.replace('_', '-')}, which is spent where a run "
                    "begins again; let it wait",
                )  # fmt: skip
        over_rows = one.values.get("split") == "rows" or one.command not in ("fit", "kmeans")
        if one.values.get("secure_sum") and (over_rows or one.values.get("sum") == "tree"):
            raise InputError(
                Setting("if_lost", "without"), " can be had with --secure-sum for 'vpem fit' and "
                "'vpem kmeans' over features, at a server: others begin with sums that would be "
                "taken again without who is lost; let it wait",
            )  # fmt: skip
        hops = one.values.get("hops") if one.values.get("split") != "rows" else None
        if str(hops or 0) != "0":
            raise InputError(
                Setting("if_lost", "without"), " cannot be had with --hops above 0: hubs have "
                "features of others, and of a lost one; give --hops 0, or let it wait",
            )  # fmt: skip


def _relay(how: NewStudy) -> Member | None:
    """Return the relay of a new study."""
    from vpem.engines.tls.trust import Member
    from vpem.files.studies.identities import read_certificate
    from vpem.files.studies.signed import address_of, common_name

    if how.relay is None or how.relay_certificate is None:
        return None
    certificate = read_certificate(how.relay_certificate)
    return Member(common_name(certificate), certificate, address_of(how.relay), holds=False)


app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Make, sign and show studies: who takes part, and what will be run."
    "\n\nExample: vpem study show heart.toml",
)

StudyFile = Annotated[Path, READ, typer.Argument(metavar="STUDY", help="The study: NAME.toml.")]
StudyOption = Annotated[
    Path | None,
    READ,
    typer.Option("--study", help="The study. Default: the one here.", show_default=False),
]


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def init(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="Of the study: letters, digits, - and _.")],
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="What will be run: fit (the default), select, kmeans, ... Several: repeat it.",
            show_default=False,
        ),
    ] = None,
    organiser: As = None,
    quiet: Quiet = False,
    *,
    how: NewStudy,
) -> None:
    """Make a study, signed by the member whose key is here.

    It is written to NAME.toml. All other options are those of the command that will be run, which
    all members then run with them; those of data, outputs and machines are each member's own. What
    each will show to whom is printed, and stands in the file.

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
        agreed = agree_on(context, command or ["fit"], name, how.topology or "star")
        check_links(how)
        study = sign_edition(new_study(name, organiser, how, agreed), force=False)
        if not quiet:
            show_study(study)
        screen.say(
            f"wrote {study.path}, edition 1, signed by {study.organiser}; send it to those who are "
            f"to take part: they ask by 'vpem party request {study.path.name}'"
        )


# ---- showing -------------------------------------------------------------------------------------


@app.command()
def show(file: StudyFile, json: Json = False) -> None:
    """Check a study, and show who takes part and what is run.

    And what each will show to whom, as the organiser has signed it. What the policy.toml beside it
    does not allow is said.

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


# ---- editions ------------------------------------------------------------------------------------


@app.command()
def approve(
    request: Annotated[Path, READ, typer.Argument(help="NAME.request, as a member sent it.")],
    which: Annotated[
        Path | None,
        READ,
        typer.Option(
            "--study",
            help="The study. Default: the one here, or else beside the request.",
            show_default=False,
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    fingerprint: Annotated[
        str | None,
        typer.Option(
            help="The twelve words (or 64 hexadecimal digits) that the member has said: others "
            "are refused, and nothing is asked.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Let somebody be a member, if the fingerprint is the right one.

    Shows who asks, asks back, and signs the next edition of the study.

    Example: vpem study approve lab.request
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import approved, read_request, sign_edition
        from vpem.files.studies.study import read_study

        asked = read_request(request)
        here = Path(f"{asked.study}.toml")
        study = read_study(which or (here if here.exists() else request.parent / here))
        following = approved(study, asked)
        if fingerprint is not None:
            _compare(asked, fingerprint)
        asks = fingerprint is None and not yes
        if asks or not quiet:
            _show_request(study, asked)
        if asks:
            _confirm(f"Is this {asked.member.name}? [y/N] ")
        _end(sign_edition(following), screen)


def _end(study: Study, screen: Any) -> None:
    others = [one.name for one in study.roster.members if one.name != study.organiser]
    to = f"; send it to {', '.join(others)}" if others else ""
    screen.say(f"wrote {study.path}, edition {study.edition}{to}")


def _compare(request: MembershipRequest, given: str) -> None:
    """Refuse a certificate whose fingerprint is not the one that was told."""
    from vpem.engines.tls.trust import fingerprint, fingerprint_words

    plain = " ".join(given.lower().replace(":", "").split())
    certificate = request.member.certificate
    words = fingerprint_words(certificate)
    if plain.replace(" ", "") != fingerprint(certificate) and plain != words:
        raise InputError(
            f"{request.path} has another fingerprint than the one given: its words are {words}"
        )


def _show_request(study: Study, request: MembershipRequest) -> None:
    from vpem.files.studies.identities import check_request

    kind = {
        "join": "join, as a new member",
        "renew": "have a new certificate (signed by the old key, too)",
        "change": "change what it said before",
    }[check_request(study, request)]
    _show_facts(request, [("wants to", kind)])


def _show_facts(request: MembershipRequest, facts: list[tuple[str, str]]) -> None:
    """Print what stands in a request, below what else there is to say."""
    from vpem.engines.tls.trust import fingerprint, written_address

    from .output import show, table

    member, count = request.member, len(request.features)
    brings = f"{count} features: {shorten(request.features, 8)}"
    brings = brings if count else "features that it does not name"
    facts = [
        *facts,
        ("brings", brings if request.member.holds else "no data"),
        ("dialled at", "-" if member.address is None else written_address(member.address)),
        *facts_of(member.certificate),
    ]
    if request.before is not None:
        facts.append(("before", fingerprint(request.before)[:32] + "..."))
    show(table(facts, "", "", title=f"{member.name} asks to be in {request.study}"))


def show_request(file: Path, json: bool) -> None:
    """Print a request, of which it is not known whether the study would take it."""
    with Screen():
        from vpem.files.studies.identities import read_request

        asked = read_request(file)
        if json:
            about = about_certificate(asked.member.name, asked.member.certificate)
            print_json({"study": asked.study, **about, "features": list(asked.features)})
        else:
            _show_facts(asked, [])


def _confirm(question: str) -> None:
    """Ask on the terminal, and go on only after a yes."""
    if not sys.stdin.isatty():
        raise InputError(
            "nothing was signed: there is no terminal to ask at; compare the words, then give "
            "--fingerprint with them, or --yes"
        )
    print(question, end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise InputError("nothing was signed")


@app.command(
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True},
)
def change(
    context: typer.Context,
    file: StudyFile,
    command: Annotated[
        list[str] | None,
        typer.Option(
            help="What the options are of: a command that the study has, or one more that will be "
            "run. Several: repeat it. Default: all that it has.",
            show_default=False,
        ),
    ] = None,
    if_lost: Annotated[
        str | None,
        typer.Option(
            help="What becomes of a run when a member is not heard of: wait, or without.",
            show_default=False,
        ),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Change what will be run, or with which options.

    Options take the place of those that the study has; others stay. Shows what each member will
    show to whom, and signs the next edition.

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
            raise InputError("nothing was to be changed: say ", Setting("command"), " or options")
        if any(word.partition("=")[0] == "--topology" for word in context.args):
            raise InputError(
                Setting("topology"), " says how members reach each other; for another make a new "
                "study: vpem study init",
            )  # fmt: skip
        setup = setup_of(study)
        names = command or list(study.options)
        agreed = agree_on(context, names, str(file), setup.topology, study.options)
        edition = sign_edition(changed(study, **what_is_run(setup, agreed)))
        if not quiet:
            show_study(edition)
        _end(edition, screen)


@app.command()
def revoke(
    name: Annotated[str, typer.Argument(help="The member.")],
    which: StudyOption = None,
    quiet: Quiet = False,
) -> None:
    """Let a member's certificate hold no more.

    Signs the next edition of the study, without the member. Runs of older editions are refused by
    all who have the new one.

    Example: vpem study revoke lab
    """
    with Screen(quiet) as screen:
        from vpem.files.studies.identities import revoked, sign_edition
        from vpem.files.studies.study import read_study

        study = read_study(which or _only_study())
        _end(sign_edition(revoked(study, name)), screen)


def _only_study() -> Path:
    """Return the one study of this folder."""
    names = sorted(file.with_suffix(".toml") for file in Path().glob("*.known"))
    studies = [file for file in names if file.exists()]
    if len(studies) != 1:
        there = ", ".join(map(str, studies)) if studies else "none"
        raise InputError(f"which study? Say --study NAME.toml; here there are {there}")
    return studies[0]


app.command("demo")(demo_of_study)
