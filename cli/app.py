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
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from importlib import import_module
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from vpem import __version__
from vpem.errors import VpemError, brief

from .display import drop_stdout
from .names import (
    ELSE,
    SHOW,
    STUDY,
    WHOLE,
    hint,
    in_options,
    is_flag,
    key_of,
    leaves,
    meant,
    name_of,
    speak_of,
)
from .options import (
    check_environment,
    load,
    noting_origins,
    origin_of,
    refuse_idle,
    show_config,
    spread,
    variable_of,
    variables,
    why_refused,
)
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

FEW, MANY = 9, 13
"""Most options that need no headings, and most that `--help` shows all."""

FIRST = re.compile(r"(?<=[\w)\]'])\.(?= [A-Z])")
"""The end of a sentence that is followed by another."""


def grouped(params: Sequence[Any]) -> list[tuple[str, list[Any]]]:
    """Return the options of a command by headings, without hidden ones; a short list has one."""
    options = [one for one in params if one.param_type_name == "option" and not one.hidden]
    if sum(key_of(one) not in HOMES["Configuration"] for one in options) <= FEW:
        return [("Options", options)]
    groups: dict[str, list[Any]] = {heading: [] for heading in HEADINGS}
    for one in options:
        home = (heading for heading, names in HOMES.items() if key_of(one) in names)
        groups[getattr(one, "rich_help_panel", None) or next(home, "Options")].append(one)
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
    options = [copy(one) for _, group in grouped(command.params) for one in group]
    if isinstance(command, TyperGroup) or len(options) <= MANY:
        return None
    known, shown = command.callback.settings, []
    for one in options:
        if known[one.name].often if one.name in known else one.rich_help_panel is None:
            one.help = in_brief(one.help or "")
            one.opts = [word for word in one.opts if word[:2] != "--"] + [f"--{key_of(one)}"]
            shown.append(one)
    return shown


def _say(context: typer.Context, param: Any, value: bool) -> None:
    """Print the version or the whole help, which `vpem_cli.run` does where that is all."""
    if value and not context.resilient_parsing:
        context.meta[WHOLE] = True
        print(f"vpem {__version__}" if param.name == "version" else context.get_help())
        raise typer.Exit


def _study(context: typer.Context, param: Any, value: Path | None) -> Path | None:
    if value is None:
        return None
    from .study.options import load_study

    return load_study(context, value)


EAGER = {"config": load, "version": _say, "help_all": _say, "study": _study}
"""What is done with values of parameters before others are read."""

EXAMPLES = 2
"""Most examples in the brief help of a command."""

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
            check_environment(ctx)
        known, kinds = self.params, get_type_hints(self.callback)
        self.params = [_read_here(param, kinds[param.name]) for param in known]
        try:
            rest = super().parse_args(ctx, args)
        finally:
            self.params = known
        if ctx.meta[SHOW] or ctx.resilient_parsing:
            return rest
        if STUDY in ctx.meta:
            from .study.options import check_data

            check_data(ctx)
        for param in known:
            if param.required and ctx.params.get(param.name) in (None, [], ()):
                if STUDY in ctx.meta and param.name == "data":
                    ctx.params[param.name] = []
                else:
                    param.process_value(ctx, None)  # raises what the parser itself does
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
        hints: Any = get_type_hints(self.callback, include_extras=True)
        marks = {name: getattr(hint, "__metadata__", ()) for name, hint in hints.items()}
        return {name: one for name in marks for one in marks[name] if isinstance(one, Role)}

    def invoke(self, ctx: Any) -> Any:
        """Run the command; sentences about a value say where it came from."""
        joined().agree(ctx)
        if ctx.meta[SHOW]:
            return show_config(ctx) if joined().speaks else None
        with noting_origins(ctx):
            begin(ctx, self.roles())
            refuse_idle(ctx)
        if STUDY in ctx.meta:
            from .study.member import meet

            meet(ctx)
        with noting_origins(ctx):
            return super().invoke(ctx)


class Group(_Manners, TyperGroup):
    """A group of commands."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write names and first sentences, without loading a command."""
        with formatter.section("Commands"):
            members: Any = self.commands
            formatter.write_dl([*members.listed(() if WHOLE in ctx.meta else None)])


def _read_here(param: Any, kind: Any) -> Any:
    """Return a parameter that is not required, and whose values are read here.

    Whether data are missing is known once the member of a study is known. Typer would read values
    by a library that takes as long to load as NumPy.
    """
    while get_args(kind):
        kind = next(one for one in get_args(kind) if one is not NoneType)

    def process_value(context: Any, value: Any) -> Any:
        try:
            value = _value_of(value, kind, several=param.multiple or param.nargs == -1)
        except ValueError as error:
            if not context.resilient_parsing:
                raise typer.BadParameter(str(error), ctx=context, param=param) from None
        skipped = param.callback is None or context.resilient_parsing
        return value if skipped else param.callback(context, param, value)

    read = copy(param)
    read.required, read.process_value = False, process_value
    return read


WORDS_OF_FLAGS = ("0 false f no n off", "1 true t yes y on")


def _value_of(value: Any, kind: Any, several: bool = False) -> Any:
    """Return a word as a value of this type; ValueError if it is none."""
    if several:
        return [_value_of(one, kind) for one in value or ()]
    if not isinstance(value, str) or kind is str:
        return value
    if kind is Path:
        if "\0" in value or (os.path.exists(value) and not os.access(value, os.R_OK)):
            raise ValueError(f"file {value!r} is not readable")
        return Path(value)
    if kind is bool:
        for truth, words in enumerate(WORDS_OF_FLAGS):
            if value.strip().lower() in words.split():
                return bool(truth)
        raise ValueError(f"must be a valid boolean, got {value!r}")
    from vpem.checks import read_float, read_int

    number = read_int(value) if kind is int else read_float(value)
    if number is None:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"must be {what}, got {brief(value)}")
    return number


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


Maker = tuple[Callable[..., Any] | str, str, dict[str, Any] | None]
"""A function, or "module:name" of one or of an app; what it does; settings of its parser."""


class Members(UserDict[str, Any]):
    """Commands and groups by name, each made at its first use."""

    def __init__(self, path: tuple[str, ...], makers: dict[str, Maker]) -> None:
        self.path, self.makers = path, makers
        self.data = dict.fromkeys(makers)

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            home, _, parsing = self.makers[name]
            if isinstance(home, str):
                module, _, attribute = home.partition(":")
                home = getattr(import_module(f".{module}", __package__), attribute)
            self.data[name] = _made(home, parsing, (*self.path, name))
        return self.data[name]

    def listed(self, path: tuple[str, ...] | None) -> Iterator[tuple[str, str]]:
        """Yield names of commands and what they do; with a path, also those of subgroups."""
        for name, (home, summary, _) in self.makers.items():
            yield " ".join((*(path or ()), name)), summary
            if path is not None and str(home).endswith(":app"):
                yield from self[name].commands.listed((*path, name))


def _made(one: Any, parsing: dict[str, Any] | None, path: tuple[str, ...]) -> Any:
    """Return the command of a function, or the group of an app."""
    if isinstance(one, typer.Typer):
        group = typer.Typer(
            name=path[-1], cls=Group, help=one.info.help, no_args_is_help=True,
            add_completion=False, rich_markup_mode=None,
        )  # fmt: skip
        group.callback()(spread(lambda: None, path, ["help_all"]))
        makers: dict[str, Maker] = {}
        for info in list[Any](one.registered_commands):
            summary = (inspect.getdoc(info.callback) or "").partition("\n\n")[0].split()
            name = info.name or info.callback.__name__
            makers[name] = info.callback, " ".join(summary), info.context_settings
        return tree(group, makers, path)
    maker = typer.Typer(add_completion=False, rich_markup_mode=None)
    maker.command(path[-1], cls=Command, context_settings=parsing)(
        spread(one, path, ["config", "show_config", "help_all"])
    )
    command: Any = typer.main.get_command(maker)
    for param in command.params:
        if param.help:
            param.help = param.help.replace("{command}", " ".join(("vpem", *path)))
    for name, param in variables(path, command).items():
        param.envvar, param.show_envvar = name, False
    return _settled(command)


def _settled(command: Any) -> Any:
    """Let parameters that all commands have act on their own."""
    for param in command.params:
        if param.name in EAGER:
            param.is_eager, param.callback = True, EAGER[param.name]
        if getattr(param, "rich_help_panel", "") == "Configuration":
            param.expose_value = False
            param.metavar = "FILE" if param.name == "config" else None
    return command


def tree(app: typer.Typer, makers: dict[str, Maker], path: tuple[str, ...] = ()) -> Any:
    """Return the group of an app, whose commands are made at their first use."""
    group = _settled(typer.main.get_command(app))
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

app.callback()(spread(lambda: None, (), ["version", "help_all"]))

COMMANDS = {
    "fit": ("commands.fit", "Fit a Gaussian mixture to features, or rows, that are distributed."),
    "select": ("commands.select", "Fit a grid of models and choose the best by a criterion."),
    "kmeans": ("commands.fit", "Cluster rows by k-means, rows or features being distributed."),
    "fedem": ("commands.fit", "Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM."),
    "impute": ("commands.impute", "Impute a matrix from the parts of it that observers saw."),
    "saem": ("commands.saem", "Fit a model with latent variables by stochastic EM (SAEM)."),
    "predict": ("commands.use", "Assign rows to components or centres; predict individuals."),
    "score": ("commands.use", "Compute log-likelihood, BIC and AIC of data under a model."),
    "show": ("commands.model", "Show a model, or another file that vpem has written."),
    "sample": ("commands.use", "Draw rows from a model, each labelled with its component."),
    "evaluate": ("commands.use", "Compare components or clusters with labels."),
    "plot": ("commands.use", "Draw a model: its components, how they differ, how the fit went."),
    "report": ("commands.use", "Write a page on a model: how well it fits, with all pictures."),
    "relay": ("study.party", "Pass sealed messages on between members of a study."),
    "doctor": ("commands.doctor", "Check this installation: problems, with advice, then facts."),
    "demo": ("commands.doctor", "Show the main job: fit real data, compare, predict, draw."),
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
    makers: dict[str, Maker] = {}
    for name, (home, summary) in COMMANDS.items():
        makers[name] = home if ":" in home else f"{home}:{name}", summary, None
    return tree(app, makers)


def invoke(words: list[str]) -> int:
    """Parse the words, run the command they name, and return its exit code."""
    _join(words)
    parser = command()
    if os.environ.get("_VPEM_COMPLETE"):
        # The help has no markup that Rich must remove, and a shell is waiting.
        sys.modules["rich"] = None  # type: ignore[assignment]
        parser.main(args=words, prog_name="vpem")
    # Not `parser.main`, which turns an interrupt into an exit without a word.
    try:
        with parser.make_context("vpem", words.copy()) as context:
            parser.invoke(context)
    except typer.Exit as end:
        return int(end.exit_code)
    except Exception as error:
        if type(error).__name__ != "NoArgsIsHelpError":
            raise
        print(error.format_message(), file=sys.stderr)  # type: ignore[attr-defined]
        return 2
    return 0


def _join(words: list[str]) -> None:
    """Join the MPI job of this process if --engine mpi is chosen, before anything is parsed.

    Processes of a job must join it before an option of one of them is refused. A file that cannot
    be read stands for MPI where a launcher started several processes.
    """

    def value_in(option: str) -> str | None:
        values = [words[at] for at, word in enumerate(words[:-1], 1) if word == option]
        values += [word.partition("=")[2] for word in words if word.startswith(f"{option}=")]
        return values[-1] if values else None

    chosen, file = value_in("--engine"), value_in("--config")
    if chosen is None and (file or any(name[:5] == "VPEM_" for name in os.environ)):
        path = _path_in(words)
        chosen = os.environ.get(variable_of(path, "engine"))
        file = file or os.environ.get(variable_of(path, "config"))
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


def sentence_of(error: Exception, words: list[str]) -> str | None:
    """Say in one sentence what went wrong, or return None if it is a defect of vpem."""
    said = in_options(error) if isinstance(error, VpemError) else None
    if isinstance(error, OSError):
        try:
            os.getcwd()
        except OSError:
            gone = "the working folder has been removed: go to one that exists"
            return f"{said}; {gone}" if said else gone
    if said is not None:
        return said
    if isinstance(error, MemoryError):
        size = f" ({error})" if str(error) else ""
        return f"not enough memory{size}; try fewer rows or --dtype float32"
    if isinstance(error, OSError) and error.filename is None:
        # Files are dealt with where they are opened: what has no name is a stream.
        drop_stdout()
        return f"standard output cannot be written: {error.strerror or 'it is closed'}"
    return _usage(error, words) if hasattr(error, "format_message") else None


def _usage(error: Any, words: list[str]) -> str:
    """One sentence for options and arguments that the parser refuses, with the nearest name."""
    context, param = getattr(error, "ctx", None), getattr(error, "param", None)
    name, what = getattr(error, "option_name", None), ""
    near: list[str] = []
    path = context.command_path if context else " ".join(["vpem", *_path_in(words)])
    if type(error).__name__ == "NoSuchOption" and name and context:
        why = why_refused(context.info_name, name)
        if why is not None:
            return in_options(why)
        options = context.command.get_params(context)
        known = {word.lstrip("-"): name_of(option) for option in options for word in option.opts}
        # A long option with one dash is read as short ones: search for the word as typed.
        typed = [word for word in words if word.startswith(name) and name[1] != "-"]
        what, word = "option", next(iter(typed), name)
        near = [known[one] for one in meant(word, known)]
    elif "No such command" in str(error) and context:
        what, word = "command", str(error).split("'")[1] if "'" in str(error) else ""
        name, near = word, _commands(word, context)
    if what:
        advice = (f"; {advice}" for words, advice in ELSE if word.strip("-") in words)
        sentence = f"no such {what}: {name}{hint(near) or next(advice, '')}"
    else:
        sentence = " ".join(str(error.format_message()).split()).rstrip(".")
        sentence = sentence[:1].lower() + sentence[1:]
    origin = origin_of(context, param) if context and param else None
    return f"{'; '.join(filter(None, (sentence, origin)))}; see '{path} --help'"


def _commands(word: str, context: Any) -> list[str]:
    """Return the commands that a word may stand for: of this group, or of others by full name."""
    below = [path for path, _ in leaves(context.find_root().command) if len(path) > 1]
    names, in_group = [path[-1] for path in below], meant(word, context.command.commands)
    found = [] if in_group and word not in names else meant(word, dict.fromkeys(names))
    return [" ".join(("vpem", *path)) for path in below if path[-1] in found] or in_group
