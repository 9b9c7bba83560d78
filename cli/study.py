"""`vpem study`: what parties agree on, as its organiser makes, signs and changes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .new_study import NewStudy
from .options import Json, Quiet
from .party import As, about_certificate, facts_of
from .policy import refusals
from .roles import READ
from .study_demo import demo
from .study_shown import report_of, show_study

if TYPE_CHECKING:
    from vpem.files.studies.identities import Request
    from vpem.files.studies.study import Study


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
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.errors import InputError
        from vpem.files.studies.identities import sign_edition

        from .agreed import agree_on
        from .new_study import check_links, new_study

        if (there := Path(f"{name}.toml")).exists():
            raise InputError(
                f"{there} exists, and 'vpem study show {there}' shows it; give the new study "
                "another name"
            )
        agreed = agree_on(context, command or ["fit"], name, how.topology or "star")
        check_links(how)
        made = sign_edition(new_study(name, organiser, how, agreed), force=False)
        if not quiet:
            show_study(made)
        screen.say(
            f"wrote {made.path}, edition 1, signed by {made.organiser}; send it to those who are "
            f"to take part: they ask by 'vpem party request {made.path.name}'"
        )


# ---- showing -------------------------------------------------------------------------------------


@app.command()
def show(file: StudyFile, json: Json = False) -> None:
    """Check a study, and show who takes part and what is run.

    And what each will show to whom, as the organiser has signed it. What the policy.toml beside it
    does not allow is said.

    Example: vpem study show heart.toml
    """
    from .output import Screen, print_json

    with Screen() as screen:
        from vpem.files.studies.study import read_study

        found = read_study(file)
        if json:
            print_json(report_of(found))
        else:
            show_study(found)
        for sentence in refusals(found):
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
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.studies.identities import approved, read_request, sign_edition
        from vpem.files.studies.study import read_study

        asked = read_request(request)
        here = Path(f"{asked.study}.toml")
        found = read_study(which or (here if here.exists() else request.parent / here))
        following = approved(found, asked)
        if fingerprint is not None:
            _compare(asked, fingerprint)
        asks = fingerprint is None and not yes
        if asks or not quiet:
            _show_request(found, asked)
        if asks:
            _confirm(f"Is this {asked.member.name}? [y/N] ")
        _end(sign_edition(following), screen)


def _end(study: Study, screen: Any) -> None:
    """Say what was written, and to whom it goes."""
    others = [one.name for one in study.roster.members if one.name != study.organiser]
    to = f"; send it to {', '.join(others)}" if others else ""
    screen.say(f"wrote {study.path}, edition {study.edition}{to}")


def _compare(request: Request, told: str) -> None:
    """Refuse a certificate whose fingerprint is not the one that was told."""
    from vpem.engines.tls.members import fingerprint, fingerprint_words
    from vpem.errors import InputError

    plain = " ".join(told.lower().replace(":", "").split())
    made = request.member.certificate
    if plain.replace(" ", "") != fingerprint(made) and plain != fingerprint_words(made):
        raise InputError(
            f"{request.path} has another fingerprint than the one given: its words are "
            f"{fingerprint_words(made)}"
        )


def _show_request(study: Study, request: Request) -> None:
    """Print who asks, and for what."""
    from vpem.files.studies.identities import check_request

    kind = {
        "join": "join, as a new member",
        "renew": "have a new certificate (signed by the old key, too)",
        "change": "change what it said before",
    }[check_request(study, request)]
    _show_facts(request, [("wants to", kind)])


def _show_facts(request: Request, facts: list[tuple[str, str]]) -> None:
    """Print what stands in a request, below what else there is to say."""
    from vpem.engines.tls.members import fingerprint, written_address
    from vpem.errors import shorten

    from .output import show
    from .tables import table

    member = request.member
    facts = [
        *facts,
        ("brings", _brings(request, shorten(request.features, 8))),
        ("dialled at", "-" if member.address is None else written_address(member.address)),
        *facts_of(member.certificate),
    ]
    if request.before is not None:
        facts.append(("before", fingerprint(request.before)[:32] + "..."))
    show(table(facts, "", "", title=f"{member.name} asks to be in {request.study}"))


def show_request(file: Path, json: bool) -> None:
    """Print a request, of which it is not known whether the study would take it."""
    from .output import Screen, print_json

    with Screen():
        from vpem.files.studies.identities import read_request

        found = read_request(file)
        if json:
            about = about_certificate(found.member.name, found.member.certificate)
            print_json({"study": found.study, **about, "features": list(found.features)})
        else:
            _show_facts(found, [])


def _brings(request: Request, names: str) -> str:
    if not request.member.holds:
        return "no data"
    count = len(request.features)
    return f"{count} features: {names}" if count else "features that it does not name"


def _confirm(question: str) -> None:
    """Ask on the terminal, and go on only after a yes."""
    from vpem.errors import InputError

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
    from .output import Screen

    with Screen(quiet) as screen:
        from dataclasses import replace

        from vpem.errors import InputError, Setting, check_choice
        from vpem.files.studies.identities import changed, sign_edition
        from vpem.files.studies.study import IF_LOST, read_study

        from .agreed import EXAMPLES, agree_on, refuse_as_own
        from .new_study import setup_of, what_is_run

        if str(file).startswith("-"):
            refuse_as_own(context, str(file))
            raise InputError(EXAMPLES["change"])
        found = read_study(file)
        if if_lost is not None:
            check_choice("if_lost", if_lost, IF_LOST)
            found = replace(found, if_lost=if_lost)
        if not (command or context.args or if_lost):
            raise InputError("nothing was to be changed: say ", Setting("command"), " or options")
        if any(word.partition("=")[0] == "--topology" for word in context.args):
            raise InputError(
                Setting("topology"), " says how members reach each other; for another make a new "
                "study: vpem study init",
            )  # fmt: skip
        setup = setup_of(found)
        names = command or list(found.options)
        agreed = agree_on(context, names, str(file), setup.topology, found.options)
        made = sign_edition(changed(found, **what_is_run(setup, agreed)))
        if not quiet:
            show_study(made)
        _end(made, screen)


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
    from .output import Screen

    with Screen(quiet) as screen:
        from vpem.files.studies.identities import revoked, sign_edition
        from vpem.files.studies.study import read_study

        found = read_study(which or _only_study())
        _end(sign_edition(revoked(found, name)), screen)


def _only_study() -> Path:
    """Return the one study of this folder."""
    from vpem.errors import InputError

    names = sorted(file.with_suffix(".toml") for file in Path().glob("*.known"))
    found = [file for file in names if file.exists()]
    if len(found) != 1:
        there = ", ".join(map(str, found)) if found else "none"
        raise InputError(f"which study? Say --study NAME.toml; here there are {there}")
    return found[0]


app.command("demo")(demo)
