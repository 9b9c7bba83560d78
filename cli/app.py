"""The tree of commands, each loaded at its first use, their help, and how one is run.

All commands have what `Command` gives them: options from files and the environment,
`--show-config`, and help. `--help` shows the options that people need most (those of settings with
``often``), in brief; `--help-all` and the reference show all, under headings.
"""

from __future__ import annotations

import inspect
import os
import re
import sys
import warnings
from collections import UserDict
from collections.abc import Iterator, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from vpem import __version__
from vpem.errors import VpemError, VpemWarning

from . import names, options
from .display import Screen, drop_stdout
from .names import is_flag, key_of, name_of
from .outputs import begin
from .session import TICKET, join_job, join_placed, joined, launched

HEADINGS = (
    "Options", "Data", "Individuals", "Model", "Prior", "Selection", "Bootstrap", "Network",
    "Privacy", "Output",
    "Start", "Method", "Stopping", "Sampler", "Draws at the estimates", "Messages and faults",
    "Running", "Checkpoints", "Study", "Configuration",
)  # fmt: skip
"""In the order of what a person does: say what the data are, what is fitted, between whom, and
what is written; then how it is computed, and where it runs."""

HOMES = dict.fromkeys(("agents", "dataset", "features", "drop-ids", "shuffle"), "Data")
HOMES |= dict.fromkeys(("output", "force", "json", "quiet"), "Output")
HOMES |= {"command": "Study", "as": "Study", "seed": "Start"}
"""Headings of options that are not settings of a record."""

FEW, MANY, EXAMPLES = 9, 14, 2
"""Most options that need no headings, and that `--help` shows all; most examples in brief."""

FIRST = re.compile(r"(?<=[\w)\]'])\.(?= [A-Z])")
"""The end of a sentence that is followed by another."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command by headings, without hidden ones; a short list has one."""
    shown = [one for one in params if one.param_type_name == "option" and not one.hidden]
    if sum(one.rich_help_panel != "Configuration" for one in shown) <= FEW:
        return [("Options", shown)]
    groups: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for one in shown:
        heading = one.rich_help_panel or HOMES.get(key_of(one), "Options")
        groups[heading].append(one)
    return [(heading, group) for heading, group in groups.items() if group]


def in_brief(text: str) -> str:
    """Return the first sentence of a help text, then its default: "Things.  [default: all]"."""
    sentence, default = (
        FIRST.split(part)[0].removesuffix(".") for part in text.partition(" Default: ")[::2]
    )
    return f"{sentence}.{f'  [default: {default}]' * bool(default)}"


def often(command: Any) -> list[Any] | None:
    """Return the options that `--help` of a command shows, in brief; None if it shows all.

    They are settings that are needed often, and all that the command has of its own.
    """
    listed = [one for _, group in grouped(command.params) for one in group]
    if isinstance(command, TyperGroup) or len(listed) <= MANY:
        return None
    known = command.callback.settings
    return [
        one for one in listed
        if (known[one.name].often if one.name in known else one.rich_help_panel is None)
    ]  # fmt: skip


KEPT = "\N{NON-BREAKING HYPHEN}"
"""Replaces hyphens while lines are broken, so that names of options stay whole."""


def _row(option: Any, context: Any, brief: bool) -> tuple[str, str]:
    """Return what an option is called, without --no-FLAG, and its help, or both in brief."""
    called, text = option.get_help_record(context)
    called = called.partition(" / ")[0]
    if brief:
        words = [word for word in option.opts if word[:2] != "--"] + [f"--{key_of(option)}"]
        called = re.sub(r"^-[^\s,]+(, -[^\s,]+)*", ", ".join(words), called)
        text = in_brief(option.help) + text.removeprefix(option.help)
    return called, text.replace("-", KEPT)


def _early(context: typer.Context, param: Any, value: Any) -> Any:
    """Take the options of a file or a study, or print help or the version, where that is all."""
    if not value or context.resilient_parsing:
        return value
    if param.name == "config":
        options.load(context, value)
    elif param.name == "study":
        from .study.options import load_study

        load_study(context, value)
    else:
        if param.name == "help_all":
            context.meta[names.WHOLE] = True
        print(f"vpem {__version__}" if param.name == "version" else context.get_help())
        raise typer.Exit
    return value


class _Manners:
    """What commands and groups of them have in common."""

    help: str | None

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does, and its examples, each in a line that can be copied."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        text = "\n\n".join(part for part in paragraphs if not part.startswith("Example: "))
        examples = [" ".join(part.split()) for part in paragraphs if part.startswith("Example: ")]
        short = names.WHOLE not in ctx.meta and (ctx.parent is None or often(self) is not None)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text((text.partition("\n\n")[0] if short else text).replace("-", KEPT))
            for place, example in enumerate(examples[:EXAMPLES] if short else examples):
                if not short or place == 0:
                    formatter.write_paragraph()
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")

    def get_help(self, ctx: Any) -> str:
        return str(super().get_help(ctx)).replace(KEPT, "-")  # type: ignore[misc]


class Command(_Manners, TyperCommand):
    """A command whose options may come from a file or the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        ctx.meta[names.SHOW] = "--show-config" in args
        names.speak_of(self.params)
        if not ctx.resilient_parsing:
            options.check_environment(ctx)
        rest = super().parse_args(ctx, args)
        if names.STUDY in ctx.meta and not ctx.meta[names.SHOW] and not ctx.resilient_parsing:
            from .study.options import check_data

            check_data(ctx)
        return rest

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        """Complete words; --no-FLAG is offered once that much is typed."""
        off = {word for param in self.params for word in param.secondary_opts}
        found = super().shell_complete(ctx, incomplete)
        return [one for one in found if one.value not in off or incomplete[:5] == "--no-"]

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return arguments as sentences name them, in brackets if they may be absent."""
        pieces = ["[OPTIONS]"]
        for one in self.get_params(ctx):
            if one.param_type_name == "argument":
                name = name_of(one) if one.required else f"[{name_of(one)}]"
                pieces.append(f"{name}{'...' * (one.nargs == -1)}")
        return pieces

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the most needed options, or all under headings."""
        params: list[Any] = self.params
        arguments = [
            (f"{name_of(one)}{'...' * (one.nargs == -1)}", (one.help or "").replace("-", KEPT))
            for one in params
            if one.param_type_name == "argument"
        ]
        chosen, groups = None if names.WHOLE in ctx.meta else often(self), grouped(params)
        shown, brief = (groups, False) if chosen is None else ([("Options", chosen)], True)
        sections = [("Arguments", arguments)] * bool(arguments)
        sections += [(name, [_row(one, ctx, brief) for one in group]) for name, group in shown]
        for heading, rows in sections:
            with formatter.section(heading):
                formatter.write_dl(rows)
        if chosen is not None:
            others = sum(len(group) for _, group in groups) - len(chosen)
            formatter.write_paragraph()
            formatter.write(f"{others} more options: {ctx.command_path} --help-all\n")

    def invoke(self, ctx: Any) -> Any:
        """Run the command; sentences about a value say where it came from."""
        joined().agree(ctx)
        if ctx.meta[names.SHOW]:
            return options.show_config(ctx) if joined().speaks else None
        with options.noting_origins(ctx), warnings.catch_warnings(record=True) as early:
            warnings.simplefilter("always", VpemWarning)
            begin(ctx, ctx.command.callback.roles)
            options.running[:] = [ctx]
            options.spare_shared(ctx)
            options.refuse_beside()
            options.warn_of_environment(ctx)
        Screen.early = [one.message for one in early if joined().speaks]
        if names.STUDY in ctx.meta:
            from .study.member import meet

            meet(ctx)
        with options.noting_origins(ctx):
            return super().invoke(ctx)


class Group(_Manners, TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args and not ctx.resilient_parsing:
            print(ctx.get_help(), file=sys.stderr)
            raise typer.Exit(2)
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            raise names.no_such_command(ctx, args[0])
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and first sentences, without loading a command."""
        with formatter.section("Commands"):
            members: Any = self.commands
            formatter.write_dl([*members.listed(() if names.WHOLE in ctx.meta else None)])


def _begun(context: typer.Context, incomplete: str) -> list[str]:
    """Return the commands with which the words so far may continue."""
    node: Any = context.find_root().command
    for word in context.params.get("words") or ():
        node = getattr(node, "commands", {}).get(word)
    return [name for name in getattr(node, "commands", ()) if name.startswith(incomplete)]


def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="COMMAND",
            help="Words that name a command, such as: data import.",
            autocompletion=_begun,
        ),
    ] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every option, as COMMAND --help-all does.")
    ] = False,
) -> None:
    """Show the help of a command.

    Example: vpem help fit

    Example: vpem help data import
    """
    root, flag = context.find_root().command, "--help-all" if everything else "--help"
    with root.make_context("vpem", [*(words or ()), flag]) as again:
        root.invoke(again)


Maker = tuple[Any, ...]
"""A function, or "module:name" of it or of an app; what it does; settings of its parser, if any."""


def _loaded(home: str) -> Any:
    """Return a function or an app by its "module:name"."""
    module, _, name = home.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


class Members(UserDict[str, Any]):
    """Commands and groups by name, each made at its first use."""

    def __init__(self, path: tuple[str, ...], makers: dict[str, Maker]) -> None:
        self.path, self.makers = path, makers
        self.data = dict.fromkeys(makers)

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            home, _, *parsing = self.makers[name]
            home = _loaded(home) if isinstance(home, str) else home
            self.data[name] = _made(home, (*self.path, name), *parsing)
        return self.data[name]

    def listed(self, path: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
        """Yield names of commands and what they do; with a path, also those of subgroups."""
        for name, (home, summary, *_) in self.makers.items():
            yield " ".join((*(path or ()), name)), summary
            if path is not None and str(home).endswith(":app"):
                yield from self[name].commands.listed((*path, name))


def _made(one: Any, path: tuple[str, ...], parsing: dict[str, Any] | None = None) -> Any:
    """Return the command of a function, or the group of an app."""
    if not isinstance(one, typer.Typer):
        maker = typer.Typer(add_completion=False, rich_markup_mode=None)
        maker.command(path[-1], cls=Command, context_settings=parsing, add_help_option=False)(
            options.spread(one, path, ["config", "show_config", "help_all", "help"])
        )
        command: Any = typer.main.get_command(maker)
        for name, param in options.variables(path, command).items():
            param.envvar, param.show_envvar = name, False
        return _settled(command, path)
    group = typer.Typer(
        name=path[-1], cls=Group, help=one.info.help, add_help_option=False, add_completion=False,
        rich_markup_mode=None,
    )  # fmt: skip
    group.callback()(options.spread(lambda: None, path, ["help_all", "help"]))
    makers: dict[str, Maker] = {}
    for info in list[Any](one.registered_commands):
        summary = (inspect.getdoc(info.callback) or "").partition("\n\n")[0].split()
        name = info.name or info.callback.__name__
        makers[name] = info.callback, " ".join(summary), info.context_settings
    return tree(group, makers, path)


def _settled(command: Any, path: tuple[str, ...]) -> Any:
    """Let parameters be read here, and those that all commands have act on their own."""
    kinds = command.callback.__annotations__
    for param in command.params:
        param.help = param.help and param.help.replace("{command}", " ".join(("vpem", *path)))
        # These act before others are read.
        if param.name in ("config", "version", "help_all", "help", "study"):
            param.is_eager, param.callback = True, _early
        if is_flag(param):
            param.default, param.show_default = bool(param.default), False
            if param.expose_value:
                param.secondary_opts = [f"--no-{opt[2:]}" for opt in param.opts if opt[:2] == "--"]
        if param.name in kinds or is_flag(param):
            options.read_here(param, kinds.get(param.name, bool))
    command.params.sort(key=lambda param: param.name == "help")  # after those of completion
    return command


def tree(app: typer.Typer, makers: dict[str, Maker], path: tuple[str, ...] = ()) -> Any:
    """Return the group of an app, whose commands are made at their first use."""
    group = _settled(typer.main.get_command(app), path)
    group.commands = Members(path, makers)
    return group


PRINTERS = {
    "fit": "commands.model:show_fit", "data": "commands.data:show_data",
    "study": "study.study:print_study", "request": "study.party:show_request",
    "certificate": "study.party:show_identity", "log": "study.party:log",
    "budget": "study.party:budget",
}  # fmt: skip
"""What prints each kind of file that `vpem show` knows, which has this table from its context."""

app = typer.Typer(
    name="vpem",
    cls=Group,
    add_help_option=False,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120, "obj": lambda kind: _loaded(PRINTERS[kind])},
    epilog="'vpem demo' shows the main job, 'vpem COMMAND --help' the options of a command.",
    help=(
        "Fit one Gaussian mixture to data whose features are spread over agents that cannot pool "
        "them.\n\n"
        "Exit codes: 0 done, 1 a defect of vpem, 2 input or options that cannot be used, 3 not "
        "converged under --strict, 4 a rank or member did not answer, 130 interrupted by "
        "Ctrl-C, 143 ended by SIGTERM.\n\n"
        "Example: vpem fit data/breast_cancer.h5 --topology cycle --hops 1 --output model.h5"
    ),
)

app.callback()(options.spread(lambda: None, (), ["version", "help_all", "help"]))

COMMANDS = """
fit      commands.fit:fit        Fit a Gaussian mixture to distributed features, or rows.
select   commands.select:select  Fit a grid of models and choose the best by a criterion.
bootstrap commands.bootstrap:bootstrap Find standard errors, or test the number of components.
discriminant commands.select:discriminant  Fit a classifier: a Gaussian mixture of each class.
kmeans   commands.fit:kmeans     Cluster rows by k-means; rows or features are distributed.
fedem    commands.fit:fedem      Fit a mixture to rows of workers by FedEM or VR-FedEM.
impute   commands.impute:impute  Impute a matrix from the parts of it that observers saw.
saem     commands.saem:saem      Fit a model with latent variables by stochastic EM (SAEM).
predict  commands.model:predict  Assign rows to components or centres; predict individuals.
plan     commands.topology:describe Foretell what a fit sends, how long it takes, what it needs.
score    commands.model:score    Compute log-likelihood, BIC and AIC of data under a model.
show     commands.model:show_any Show a model, or another file that vpem has written.
sample   commands.model:sample   Draw rows from a model, each labelled with its component.
outcomes commands.outcomes:outcomes Describe outcomes by class, or predict classes.
evaluate commands.model:evaluate Compare components or clusters with labels.
plot     commands.model:plot     Draw a model: its components, their differences, and the fit.
report   commands.model:report   Write a page on a model: how well it fits, with all pictures.
relay    study.party:relay       Pass sealed messages on between members of a study.
doctor   commands.doctor:doctor  Check this installation: problems, with advice, then facts.
demo     commands.doctor:demo    Show the main job: fit real data, compare, predict, draw.
help     app:show_help           Show the help of a command.
data     commands.data:app       Import, fetch, simulate, split and describe datasets.
model    commands.model:app      Show and export fitted models.
topology commands.topology:app   Look at networks of agents.
party    study.party:app         Take part in studies: keys, requests, policies, logs.
study    study.study:app         Make, sign and show studies: who takes part, and what is run.
"""
"""Names, homes and summaries of commands and groups: the help of vpem loads none of them."""


def command() -> Any:
    lines = (line.split(maxsplit=2) for line in COMMANDS.strip().splitlines())
    return tree(app, {name: (home, summary) for name, home, summary in lines})


def invoke(words: list[str]) -> int:
    """Parse the words, run the command they name, and return its exit code."""
    _join(words)
    parser, code = command(), 0
    if os.environ.get("_VPEM_COMPLETE"):
        # The help has no markup that Rich must remove, and a shell is waiting.
        sys.modules["rich"] = None  # type: ignore[assignment]
        parser.main(args=words, prog_name="vpem")
    # Not `parser.main`, which turns an interrupt into an exit without a word.
    try:
        with parser.make_context("vpem", words.copy()) as context:
            parser.invoke(context)
    except typer.Exit as end:
        code = int(end.exit_code)
    sys.stdout.flush()
    joined().close()
    return code


def ended_by(error: Exception, words: list[str]) -> int:
    """Say what ended a command, and return its exit code; a defect of vpem is raised."""
    where = joined()
    if not isinstance(error, BrokenPipeError):
        return where.fail(error, _sentence_of(error, words))
    # The reader of stdout has gone: there is no one left to report to.
    drop_stdout()
    if where.own_users:
        where.close()
    return 0


def _sentence_of(error: Any, words: list[str]) -> str | None:
    """Say in one sentence what went wrong, or return None if it is a defect of vpem."""
    if isinstance(error, OSError):
        try:
            os.getcwd()
        except OSError:
            gone = "the working folder has been removed: go to one that exists"
            return f"{names.in_options(error)}; {gone}" if isinstance(error, VpemError) else gone
    if isinstance(error, VpemError):
        return names.in_options(error)
    if isinstance(error, MemoryError):
        size = f" ({error})" if str(error) else ""
        return f"not enough memory{size}; try fewer rows or --dtype float32"
    if isinstance(error, ModuleNotFoundError):
        from vpem.pictures.installation import EXTRAS

        for distribution, (module, extra, _) in EXTRAS.items():
            if module.split(".")[0] == str(error.name).split(".")[0]:
                install = f"pip install 'vpem[{extra}]'"
                return f"this needs {distribution}, which is not installed: {install}"
    if isinstance(error, OSError) and error.filename is None:
        # Files are dealt with where they are opened: what has no name is a stream.
        drop_stdout()
        return f"standard output cannot be written: {error.strerror or 'it is closed'}"
    if not hasattr(error, "format_message"):
        return None
    # Typer does not export the errors of its parser: they are known by what they have.
    context, name = getattr(error, "ctx", None), getattr(error, "option_name", None)
    params = context.command.params if context and name else ()
    if context and name and all(name not in (*one.opts, *one.secondary_opts) for one in params):
        return names.in_options(names.no_such_option(context, name, words))
    sentence = " ".join(str(error.format_message()).split()).rstrip(".")
    path = context.command_path if context else " ".join(["vpem", *_path_in(words)])
    return f"{sentence[:1].lower()}{sentence[1:]}; see '{path} --help'"


def _join(words: list[str]) -> None:
    """Join the MPI job of this process if --engine mpi is chosen, before anything is parsed.

    Processes of a job must join it before an option of one of them is refused. A file that cannot
    be read stands for MPI where a launcher started several processes.
    """
    given, joined_words = dict(pairwise(words)), (word.partition("=") for word in words)
    given |= {option: value for option, sign, value in joined_words if sign}
    chosen, file = given.get("--engine"), given.get("--config")
    if chosen is None and (file or any(name[:5] == "VPEM_" for name in os.environ)):
        path = _path_in(words)
        chosen = os.environ.get(options.variable_of(path, "engine"))
        file = file or os.environ.get(options.variable_of(path, "config"))
        if file and not chosen:
            from vpem.files.json_text import read_toml

            try:
                table: Any = read_toml(file)
            except VpemError:
                table, path = {"engine": "mpi"} if launched() else {}, []
            for word in [*path, "engine"]:
                table = table.get(word) if isinstance(table, dict) else None
            chosen = table
    if chosen == "mpi":
        join_job()
    elif TICKET in os.environ:
        join_placed(str(chosen))


def _path_in(words: list[str]) -> list[str]:
    """Return the first words of a command line, which name a command or group."""
    node, place = command(), 0
    while place < len(words) and words[place] in getattr(node, "commands", ()):
        node, place = node.commands[words[place]], place + 1
    return words[:place]
