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
from collections import UserDict
from collections.abc import Iterator, Sequence
from copy import copy
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from vpem import __version__
from vpem.errors import VpemError

from . import options
from .display import drop_stdout
from .names import SHOW, STUDY, WHOLE, is_flag, key_of, speak_of
from .outputs import Role, begin
from .session import join_job, joined, launched

HEADINGS = (
    "Options", "Data", "Individuals", "Model", "Prior", "Selection", "Network", "Privacy", "Output",
    "Start", "Method", "Stopping", "Sampler", "Draws at the estimates", "Messages and faults",
    "Running", "Checkpoints", "Study", "Configuration",
)  # fmt: skip
"""In the order of what a person does: say what the data are, what is fitted, between whom, and
what is written; then how it is computed, and where it runs."""

HOMES = {
    "Study": ("command", "as"),
    "Data": ("agents", "dataset", "samples", "features", "drop-ids", "shuffle"),
    "Start": ("seed",),
    "Output": ("output", "plot", "force", "json", "quiet"),
    "Configuration": ("config", "show-config", "help", "help-all"),
}
"""Headings of options that are not settings of a record."""

FEW, MANY, EXAMPLES = 9, 13, 2
"""Most options that need no headings, and that `--help` shows all; most examples in brief."""

FIRST = re.compile(r"(?<=[\w)\]'])\.(?= [A-Z])")
"""The end of a sentence that is followed by another."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command by headings, without hidden ones; a short list has one."""
    shown = [one for one in params if one.param_type_name == "option" and not one.hidden]
    if sum(key_of(one) not in HOMES["Configuration"] for one in shown) <= FEW:
        return [("Options", shown)]
    groups: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    homes = {name: heading for heading, names in HOMES.items() for name in names}
    for one in shown:
        heading = getattr(one, "rich_help_panel", None) or homes.get(key_of(one), "Options")
        groups[heading].append(one)
    return [(heading, group) for heading, group in groups.items() if group]


def in_brief(text: str) -> str:
    """Return the first sentence of a help text, and its default.

    "Number of things. They are many. Default: all." becomes "Number of things.  [default: all]".
    """
    sentence, default = (
        FIRST.split(part)[0].removesuffix(".") for part in text.partition(" Default: ")[::2]
    )
    return f"{sentence}.{f'  [default: {default}]' * bool(default)}"


def often(command: Any) -> list[Any] | None:
    """Return the options that `--help` of a command shows, in brief; None if it shows all.

    They are settings that are needed often, and all that the command has of its own.
    """
    listed = [copy(one) for _, group in grouped(command.params) for one in group]
    if isinstance(command, TyperGroup) or len(listed) <= MANY:
        return None
    known, shown = command.callback.settings, []
    for one in listed:
        if known[one.name].often if one.name in known else one.rich_help_panel is None:
            one.help = in_brief(one.help or "")
            one.opts = [word for word in one.opts if word[:2] != "--"] + [f"--{key_of(one)}"]
            shown.append(one)
    return shown


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
        context.meta[WHOLE] = True
        print(f"vpem {__version__}" if param.name == "version" else context.get_help())
        raise typer.Exit
    return value


KEPT = "\N{NON-BREAKING HYPHEN}"
"""Replaces hyphens while lines are broken, so that names of options stay whole."""


class _Manners:
    """What commands and groups of them have in common."""

    help: str | None

    def get_help_option_names(self, ctx: Any) -> list[str]:
        """Return the words for help, also for a command that is parsed without its groups."""
        return ["-h", "--help"]

    def format_help_text(self, ctx: Any, formatter: Any) -> None:
        """Write what the command does, and its examples, each in a line that can be copied."""
        paragraphs = inspect.cleandoc(self.help or "").split("\n\n")
        text = "\n\n".join(part for part in paragraphs if not part.startswith("Example: "))
        examples = [" ".join(part.split()) for part in paragraphs if part.startswith("Example: ")]
        short = WHOLE not in ctx.meta and (ctx.parent is None or often(self) is not None)
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_text((text.partition("\n\n")[0] if short else text).replace("-", KEPT))
            for place, example in enumerate(examples[:EXAMPLES] if short else examples):
                if not short or place == 0:
                    formatter.write_paragraph()
                formatter.write(f"{'':{formatter.current_indent}}{example}\n")

    def get_help(self, ctx: Any) -> str:
        return str(super().get_help(ctx)).replace(KEPT, "-")  # type: ignore[misc]

    def get_params(self, ctx: Any) -> list[Any]:
        """Return flags with the default False, which needs no library to be checked."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if is_flag(param) and param.default is None:
                param.default = False
        return params


class Command(_Manners, TyperCommand):
    """A command whose options may come from a file or the environment."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the words, of which --show-config and a study need no required ones."""
        ctx.meta[SHOW] = "--show-config" in args
        speak_of(self.params)
        if not ctx.resilient_parsing:
            options.check_environment(ctx)
        # Whether data are missing is known once the member of a study is known.
        needed: list[Any] = [param for param in self.params if param.required]
        try:
            for param in needed:
                param.required = False
            rest = super().parse_args(ctx, args)
        finally:
            for param in needed:
                param.required = True
        if ctx.meta[SHOW] or ctx.resilient_parsing:
            return rest
        if STUDY in ctx.meta:
            from .study.options import check_data

            check_data(ctx)
        for param in needed:
            if ctx.params.get(param.name) in (None, [], ()):
                if STUDY in ctx.meta and param.name == "data":
                    ctx.params[param.name] = []
                else:  # this raises what the parser itself does, for which None may be a value
                    param.value_is_missing = lambda value: True
                    type(param).process_value(param, ctx, None)
        return rest

    def make_parser(self, ctx: Any) -> Any:
        """Make a parser with --no-FLAG for every flag."""
        parser: Any = super().make_parser(ctx)
        for param in self.params:
            if is_flag(param) and not param.secondary_opts and param.expose_value:
                off = [f"--no-{opt[2:]}" for opt in param.opts if opt.startswith("--")]
                parser.add_option(param, off, param.name, action="store_const", const=False)
        return parser

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the arguments, and the most needed options, or all under headings."""
        params: list[Any] = self.get_params(ctx)
        arguments = [
            (f"{one.metavar or one.name.upper()}{'...' * (one.nargs == -1)}", one.help or "")
            for one in params
            if one.param_type_name == "argument"
        ]
        chosen = None if WHOLE in ctx.meta else often(self)
        sections = [("Arguments", arguments)] if arguments else []
        for heading, group in grouped(params) if chosen is None else [("Options", chosen)]:
            sections.append((heading, [one.get_help_record(ctx) for one in group]))
        for heading, rows in sections:
            with formatter.section(heading):
                formatter.write_dl([(names, text.replace("-", KEPT)) for names, text in rows])
        if chosen is not None:
            others = sum(len(group) for _, group in grouped(params)) - len(chosen)
            formatter.write_paragraph()
            formatter.write(f"{others} more options: {ctx.command_path} --help-all\n")

    def roles(self) -> dict[str, Role]:
        """Return the roles of the files that options name, by the names of parameters."""
        hints: dict[str, Any] = self.callback.__annotations__  # of `spread`, which are no strings
        marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        return {name: one for name in marks for one in marks[name] if isinstance(one, Role)}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; sentences about a value say where it came from."""
        joined().agree(ctx)
        if ctx.meta[SHOW]:
            return options.show_config(ctx) if joined().speaks else None
        with options.noting_origins(ctx):
            begin(ctx, self.roles())
            options.running[:] = [ctx]
            options.refuse_beside()
        if STUDY in ctx.meta:
            from .study.member import meet

            meet(ctx)
        with options.noting_origins(ctx):
            return super().invoke(ctx)


class Group(_Manners, TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and first sentences, without loading a command."""
        with formatter.section("Commands"):
            members: Any = self.commands
            formatter.write_dl([*members.listed(() if WHOLE in ctx.meta else None)])


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


class Members(UserDict[str, Any]):
    """Commands and groups by name, each made at its first use."""

    def __init__(self, path: tuple[str, ...], makers: dict[str, Maker]) -> None:
        self.path, self.makers = path, makers
        self.data = dict.fromkeys(makers)

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            home, _, *parsing = self.makers[name]
            if isinstance(home, str):
                module, _, attribute = home.partition(":")
                home = getattr(import_module(f".{module}", __package__), attribute)
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
        maker.command(path[-1], cls=Command, context_settings=parsing)(
            options.spread(one, path, ["config", "show_config", "help_all"])
        )
        command: Any = typer.main.get_command(maker)
        for name, param in options.variables(path, command).items():
            param.envvar, param.show_envvar = name, False
        return _settled(command, path)
    group = typer.Typer(
        name=path[-1], cls=Group, help=one.info.help, no_args_is_help=True,
        add_completion=False, rich_markup_mode=None,
    )  # fmt: skip
    group.callback()(options.spread(lambda: None, path, ["help_all"]))
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
        if param.name in ("config", "version", "help_all", "study"):  # before others are read
            param.is_eager, param.callback = True, _early
        if getattr(param, "rich_help_panel", "") == "Configuration":
            param.expose_value = False
            param.metavar = "FILE" if param.name == "config" else None
        if param.name in kinds:
            options.read_here(param, kinds[param.name])
    return command


def tree(app: typer.Typer, makers: dict[str, Maker], path: tuple[str, ...] = ()) -> Any:
    """Return the group of an app, whose commands are made at their first use."""
    group = _settled(typer.main.get_command(app), path)
    group.commands = Members(path, makers)
    return group


app = typer.Typer(
    name="vpem",
    cls=Group,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    context_settings={"max_content_width": 120},
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

app.callback()(options.spread(lambda: None, (), ["version", "help_all"]))

COMMANDS: dict[str, Maker] = {
    "fit": (
        "commands.fit:fit",
        "Fit a Gaussian mixture to features, or rows, that are distributed.",
    ),
    "select": (
        "commands.select:select",
        "Fit a grid of models and choose the best by a criterion.",
    ),
    "kmeans": (
        "commands.fit:kmeans",
        "Cluster rows by k-means, rows or features being distributed.",
    ),
    "fedem": (
        "commands.fit:fedem",
        "Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM.",
    ),
    "impute": (
        "commands.impute:impute",
        "Impute a matrix from the parts of it that observers saw.",
    ),
    "saem": ("commands.saem:saem", "Fit a model with latent variables by stochastic EM (SAEM)."),
    "predict": (
        "commands.use:predict",
        "Assign rows to components or centres; predict individuals.",
    ),
    "score": ("commands.use:score", "Compute log-likelihood, BIC and AIC of data under a model."),
    "show": ("commands.model:show", "Show a model, or another file that vpem has written."),
    "sample": ("commands.use:sample", "Draw rows from a model, each labelled with its component."),
    "evaluate": ("commands.use:evaluate", "Compare components or clusters with labels."),
    "plot": (
        "commands.use:plot",
        "Draw a model: its components, how they differ, how the fit went.",
    ),
    "report": (
        "commands.use:report",
        "Write a page on a model: how well it fits, with all pictures.",
    ),
    "relay": ("study.party:relay", "Pass sealed messages on between members of a study."),
    "doctor": (
        "commands.doctor:doctor",
        "Check this installation: problems, with advice, then facts.",
    ),
    "demo": ("commands.doctor:demo", "Show the main job: fit real data, compare, predict, draw."),
    "help": ("app:show_help", "Show the help of a command."),
    "data": ("commands.data:app", "Import, fetch, simulate, split and describe datasets."),
    "model": ("commands.model:app", "Show and export fitted models."),
    "topology": ("commands.topology:app", "Look at networks of agents."),
    "party": (
        "study.party:app",
        "Take part in studies: keys, requests, policies, logs of messages.",
    ),
    "study": (
        "study.study:app",
        "Make, sign and show studies: who takes part, and what will be run.",
    ),
}
"""Where each command or group is, and what it does: the help of vpem loads none of them."""


def command() -> Any:
    """Return the parser of the whole tree."""
    return tree(app, COMMANDS)


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
    except Exception as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        code = 2
    sys.stdout.flush()
    joined().close()
    return code


def ended_by(error: Exception, words: list[str]) -> int:
    """Say what ended a command, and return its exit code; a defect of vpem is raised."""
    where = joined()
    if not isinstance(error, BrokenPipeError):
        return where.fail(error, options.sentence_of(error, words, _path_in))
    # The reader of stdout has gone: there is no one left to report to.
    drop_stdout()
    if where.own_users:
        where.close()
    return 0


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


def _path_in(words: list[str]) -> list[str]:
    """Return the first words of a command line, which name a command or group."""
    node, place = command(), 0
    while place < len(words) and words[place] in getattr(node, "commands", ()):
        node, place = node.commands[words[place]], place + 1
    return words[:place]
