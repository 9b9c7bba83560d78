"""Options of commands from the fields of records of settings, and where their values come from.

A command names the records that it takes in its annotations. `spread` makes an option of every
field, and a record of the values before the command runs. A parameter of the command itself with
the name of a field replaces that field's option. Bounds are those of fields: values are read here,
not by Typer, whose ``min`` and ``max`` have no effect.

Values are taken from the command line, the environment, a file, or defaults, in this order. The
parser of the commands looks them up (`default_map`, `envvar`); this module provides them, and the
source of each value: for errors, for the comparison of ranks, and for `--show-config`.
"""

from __future__ import annotations

import inspect
import os
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import Field
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from vpem.errors import FileError, InputError, VpemWarning, brief, did_you_mean, printable
from vpem.records import MILD, Rule, Settings, describe_field, off, refuse, spared, unset
from vpem.rules import OF_ONE_FILE, RANDOM_GRAPHS, algorithm_of, of_command

from . import names
from .display import print_json
from .names import hint, in_options, is_flag, key_of, meant, misuse, name_of
from .outputs import READ, WRITTEN, Role

if TYPE_CHECKING:
    from vpem.network.schema import Report

    Fields = list[Field[Any]]


KINDS: Report = {"list[str]": list[str], "bool": bool, "Path": Path, "str": str, "Any": str}
KINDS |= {"int": int, "float": float}
"""Types of options, by the types of a setting: the first that it has."""

OFFERED: dict[str, tuple[str, ...]] = {
    "plot kind": (
        "profile", "projection", "history", "graph", "sparsity", "communication", "marginals",
        "pairs", "boundaries", "responsibilities", "confusion", "trace", "traces", "curves",
        "observed", "residuals", "vpc", "effects", "topics", "shares", "spreads", "trends",
    ),
    "data copy name": ("breast_cancer", "wine", "heart", "oxford_boys", "theophylline", "notices"),
    "data fetch name": ("htru2",),
    "model best criterion": ("log-likelihood", "bic", "aic"),
    "topology describe source": ("star", "cycle", "path", "complete", "grid", *RANDOM_GRAPHS),
    "study change if_lost": ("wait", "without"),
}  # fmt: skip
"""Words that a shell offers for parameters that are no settings of records.

The library, which knows most of them, takes long to load; a test compares the two.
"""

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY

ROLES = {"read": READ, "written": WRITTEN}


class Common(Settings, heading="Configuration", kept=False):
    """What all commands and groups have some of; their functions do not see it."""

    config: Path | None = unset(
        "Take options from this TOML file, with a table for each command, where neither the "
        "command line nor the environment gives them.",
        file="read",
    )
    show_config: bool = off(
        "Print every option's value and where it comes from, as TOML or, where there is --json, "
        "with that as JSON, and do nothing else.",
    )
    version: bool = off("Print the version.", flags="-V --version")
    help_all: bool = off("Show every option, or every command, and exit.")
    help: bool = off("Show this message and exit.", flags="-h --help")


class Without(str):
    """Marks a record of which a command lacks these settings, separated by blanks."""


class Given:
    """How the options of a command were given; `spread` fills parameters of this kind.

    ``names`` are those of parameters that a user set. ``record`` is what models keep: values of
    settings by the words of their options. Of these ``files`` are local to one member, or name
    files.
    """

    def __init__(self, context: typer.Context, records: Iterable[tuple[Settings, Fields]]) -> None:
        self.record, self.files = dict[str, Any](), list[str]()
        params = context.command.params
        self.names = {param.name for param in params if is_given(context, param)}
        for settings, fields in records:
            for one in settings.fields() if settings.kept else ():
                value, known = getattr(settings, one.name), describe_field(one)
                if one in fields:
                    self.record[word_of(one)] = str(value) if isinstance(value, Path) else value
                if known.local or known.file:
                    self.files.append(word_of(one))


def spread(
    function: Callable[..., Any], path: Sequence[str], common: Sequence[str]
) -> Callable[..., Any]:
    """Return a command with options in place of the parameters that are records of settings.

    ``path`` are the words that name it; ``common`` are the settings of `Common` that it has.
    """
    own: dict[str, inspect.Parameter] = {}
    records: dict[str, tuple[type[Settings], Fields]] = {}
    as_given = ""
    for param in inspect.signature(function, eval_str=True).parameters.values():
        record, *marks = get_args(param.annotation) or (param.annotation,)
        if record is Given:
            as_given = param.name
        elif isinstance(record, type) and issubclass(record, Settings):
            left_out = [name for one in marks if isinstance(one, Without) for name in one.split()]
            records[param.name] = record, [f for f in record.fields() if f.name not in left_out]
        else:
            own[param.name] = param
            if words := OFFERED.get(" ".join((*path, param.name))):
                marks[-1].autocompletion = offering(words)
    settings: dict[str, Field[Any]] = {}
    for one in (one for _, fields in records.values() for one in fields if one.name not in own):
        settings.setdefault(one.name, one)
    merged = [*own.values(), *(_option(one) for one in settings.values())]
    merged += [_option(Common.settings_by_name[name]) for name in common]
    if as_given:
        merged.append(inspect.Parameter("context", KEYWORD_ONLY, annotation=typer.Context))

    def made_of(values: Report) -> Report:
        return {
            name: record(**{one.name: _read(one, values[one.name]) for one in fields})
            for name, (record, fields) in records.items()
        }

    @wraps(function)
    def command(**values: Any) -> Any:
        made = made_of(values)
        if as_given:
            kept = [(made[name], fields) for name, (_, fields) in records.items()]
            made[as_given] = Given(values["context"], kept)
        for name, param in own.items():
            made[name] = values[name]
            # A member that only serves in a study has no data.
            if param.default is param.empty and get_args(param.annotation)[:1] == (list[Path],):
                made[name] = made[name] or []
        return function(**made)

    done: Any = command
    done.__signature__ = inspect.Signature(merged)
    done.__annotations__ = {param.name: param.annotation for param in merged}
    done.records = made_of
    done.settings = {name: describe_field(one) for name, one in settings.items()}
    marked = ((param.name, mark) for param in merged for mark in get_args(param.annotation))
    done.roles = {name: mark for name, mark in marked if isinstance(mark, Role)}
    return command


def offering(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Return the function by which a shell completes one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def flags_of(one: Field[Any]) -> list[str]:
    return describe_field(one).flags.split() or [f"--{one.name.replace('_', '-')}"]


def word_of(one: Field[Any]) -> str:
    """Return the name under which models keep a setting: its first long option."""
    long = next(flag for flag in flags_of(one) if flag.startswith("--"))
    return long[2:].replace("-", "_")


def _option(one: Field[Any]) -> inspect.Parameter:
    known, kinds = describe_field(one), str(one.type).split(" | ")
    kind = next(option_type for word, option_type in KINDS.items() if word in kinds)
    words = tuple(dict.fromkeys([*(known.choices or known.words), *known.also]))
    option = typer.Option(
        *flags_of(one),
        help=known.help,
        rich_help_panel=known.heading,
        hidden=known.hidden,
        autocompletion=offering(words) if words else None,
        metavar="<str>" if kind == list[str] else "FILE" if one.name == "config" else None,
        expose_value=known.heading != "Configuration",
    )
    hinted: Any = kind | None if one.default is None else kind
    role = ROLES.get(known.file, known.file)
    hinted = Annotated[hinted, option] if role is None else Annotated[hinted, role, option]
    default = str(one.default) if kind is str and type(one.default) is int else one.default
    return inspect.Parameter(one.name, KEYWORD_ONLY, default=default, annotation=hinted)


def _read(one: Field[Any], value: Any) -> Any:
    """Return a word as a number if the setting may be either and the word is one."""
    kinds = str(one.type).split(" | ")
    if not isinstance(value, str) or not {"int", "float"} & set(kinds):
        return value
    from vpem.checks import read_float, read_int

    number = read_int(value) if "int" in kinds else read_float(value)
    return value if number is None else number


MemoryLimit = Annotated[
    str | None,
    typer.Option(
        help="Read data that would take more memory than this from disk in every iteration: "
        "600MB, 2G; with --engine mpi it limits each rank and its own part. Default: half of the "
        "machine's memory, which the ranks on it share.",
        rich_help_panel="Running",
    ),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print only errors, and the output of --json.")
]

NOT_IN_FILES = ("config", "show-config", "help-all", "help")


def variable_of(path: Sequence[str], key: str = "") -> str:
    """Return the environment variable of an option, or what those of a command begin with."""
    return "_".join(("vpem", *path, key)).upper().replace("-", "_")


def variables(path: tuple[str, ...], command: Any) -> Report:
    """Options of a command that environment variables may set, by variable."""
    return {
        variable_of(path, key_of(param)): param
        for param in command.params
        if param.param_type_name == "option" and key_of(param) not in NOT_IN_FILES[1:]
    }


def path_of(context: Any) -> tuple[str, ...]:
    above = context.parent
    return () if above is None else (*path_of(above), str(context.info_name))


def take_defaults(context: Any, path: Path, values: Report, *, last: bool = False) -> None:
    """Take values of options, by names of parameters, from a file.

    They replace those of earlier files; if ``last``, those of earlier files stay.
    """
    known = context.default_map or {}
    taken = {name: value for name, value in values.items() if not last or name not in known}
    context.default_map = {**known, **taken}
    context.meta.setdefault(names.FILES, {}).update(dict.fromkeys(taken, path))


def options_of(content: Report, file: Path, context: Any) -> dict[tuple[str, ...], Report]:
    """Return the options of every command with a table, by the words of the command.

    Tables are called ``[fit]``, ``[data.import]``; options come by names of parameters. InputError
    if a file names commands or options that do not exist.
    """
    try:
        found = _tables(content, context.find_root().command, ())
        return {path: _values(table, command, ".".join(path)) for path, command, table in found}
    except InputError as error:
        raise InputError(f"{file}: {error}") from None


def load(context: Any, file: Path) -> None:
    from vpem.files.json_text import read_toml

    tables = options_of(read_toml(file), file, context)
    take_defaults(context, file, tables.get(path_of(context), {}))
    context.meta[names.FILE] = file


def _tables(
    content: Report, group: Any, path: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], Any, Report]]:
    for name, value in content.items():
        table, member = ".".join((*path, name)), group.commands.get(name)
        if not isinstance(value, dict):
            home = ".".join((*path, next(iter(group.commands))))
            raise InputError(
                f"{table!r} is not in the table of a command; put it below its command's name, "
                f"such as [{home}]"
                if member is None
                else f"{table!r} must be a table, [{table}], got {value!r}"
            )
        if member is None:
            near = did_you_mean(name, group.commands)
            raise InputError(f"[{table}] is not a table of a command{near}; see 'vpem --help'")
        if hasattr(member, "commands"):
            yield from _tables(value, member, (*path, name))
        else:
            yield (*path, name), member, value


def _values(content: Report, command: Any, table: str) -> Report:
    known = {key_of(param): param for param in command.params}
    known |= {opt[2:]: param for param in command.params for opt in param.opts if opt[:2] == "--"}
    known = {key: param for key, param in known.items() if key not in NOT_IN_FILES}
    values: Report = {}
    for name, value in content.items():
        key, where = name.replace("_", "-"), f"[{table}] {name}"
        param = known.get(key)
        if param is None:
            see = f"{hint(meant(key, known))}; see 'vpem {table.replace('.', ' ')} --help'"
            raise InputError(f"[{table}] has no option {name!r}{see}")
        if param.name in values:
            raise InputError(f"[{table}] gives {key!r} twice, once as {name!r}")
        several = param.multiple or param.nargs == -1
        items = value if isinstance(value, list) else [value]
        if is_flag(param) and not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, got {value!r}")
        if items is value and not several:
            raise InputError(f"{where} takes one value, written as on the command line, got a list")
        for item in items:
            if type(item) not in (str, int, float) and not is_flag(param):
                kinds = {dict: "a table", list: "a list", bool: str(item).lower()}
                got = kinds.get(type(item), f"a {type(item).__name__}")
                raise InputError(f"{where} must be a number or a string, got {got}")
        words = items if is_flag(param) else list(map(str, items))
        values[param.name] = words if several else words[0]
    return values


def check_environment(context: Any) -> None:
    """Raise InputError where a variable is named like an option that the command does not have."""
    path = path_of(context)
    start, known = variable_of(path), variables(path, context.command)
    for name in sorted(one for one in os.environ if one.startswith(start) and one not in known):
        keys = {key_of(param): variable for variable, param in known.items()}
        near = meant(name.removeprefix(start), keys)
        raise InputError(
            f"the environment has {name}, but '{context.command_path}' has no such option"
            f"{hint(keys[one] for one in near)}; unset it"
        )


def warn_of_environment(context: Any) -> None:
    """Warn of a variable that lacks the words of the command, where it may have been meant.

    It may as well be a script's own, so it is no reason to stop. Those of the library are checked.
    """
    chosen = os.environ.get("VPEM_INSTRUCTIONS")
    if chosen and context.command.name != "doctor":  # which says so, and more
        from vpem._core.threads import INSTRUCTIONS

        if chosen not in INSTRUCTIONS:
            raise InputError(
                "the environment variable VPEM_INSTRUCTIONS must be base, avx2 or avx512, got "
                f"{chosen!r}; unset it for the best that the processor has"
            )
    for name, param in variables(path_of(context), context.command).items():
        bare = variable_of((), key_of(param))
        if not os.environ.get(bare) or source_of(context, param)[0] != "default":
            continue
        from vpem.pictures.installation import LIBRARY_VARIABLES

        if bare not in LIBRARY_VARIABLES:
            warnings.warn(
                f"the environment has {bare}, which sets no option; that of "
                f"'{context.command_path}' is {name}",
                VpemWarning,
                stacklevel=1,
            )


def in_files(context: Any) -> list[Any]:
    """Options and arguments of a command that a file may set."""
    return [param for param in context.command.params if key_of(param) not in NOT_IN_FILES]


def source_of(context: Any, param: Any) -> tuple[str, str | None]:
    """Source of a parameter's value, and the name of the variable or file."""
    source = getattr(context.get_parameter_source(param.name), "name", "")
    if source == "ENVIRONMENT":
        return "environment", str(param.envvar)
    if source == "DEFAULT_MAP":
        return "file", str(context.meta[names.FILES][param.name])
    return "command line" if source == "COMMANDLINE" else "default", None


def is_given(context: Any, param: Any) -> bool:
    """Whether a user set a parameter.

    Values from files and the environment count where they are not the default, so that the output
    of --show-config can be used as a file.
    """
    typed = source_of(context, param)[0] == "command line"
    return typed or context.params.get(param.name) not in (param.default, [])


def origin_of(context: Any, param: Any) -> str | None:
    """Say which file or variable a value is from; None for one from the command line."""
    kind, place = source_of(context, param)
    return None if place is None else f"{name_of(param)} is from {kind} {place}"


@contextmanager
def noting_origins(context: Any) -> Iterator[None]:
    """Let errors about values say which files or variables these came from."""
    try:
        yield
    except (InputError, FileError) as error:
        sentence, sure, perhaps = in_options(error), list[str](), list[str]()

        def mentions(what: str) -> bool:
            return re.search(rf"(?<![\w-]){what}(?![\w-])", sentence) is not None

        for param in context.command.params:
            origin, value = origin_of(context, param), context.params.get(param.name)
            values = value if isinstance(value, list | tuple) else [value]
            if mentions(name_of(param)) or any(repr(str(each)) in sentence for each in values):
                sure += [origin] if origin else []
            elif mentions("[-_ ]".join(key_of(param).split("-"))):
                perhaps += [origin] if origin else []
        if missing := re.fullmatch(r"'(.+)' does not exist", str(error)):
            from vpem.files.examples import hint_for

            sure = [*filter(None, [hint_for(Path(missing[1]))]), *(sure or perhaps)]
        for note in sure or perhaps:
            error.add_note(note)
        raise


def show_config(context: Any) -> None:
    """Print the value of every option with its source, as TOML or, with --json, as JSON."""
    from vpem.files.json_text import as_toml

    options, lines = {}, []
    for param in in_files(context):
        name, value = key_of(param), context.params.get(param.name)
        value = [*map(str, value)] if isinstance(value, list | tuple) else value
        value = str(value) if isinstance(value, Path) else value
        kind, place = source_of(context, param)
        options[name] = {"value": value, "source": kind, "from": place}
        comment = f"{kind} {place}" if place else kind
        if value not in (None, []):
            lines.append((f"{name} = {as_toml(value)}", comment))
        else:
            unset = "missing: it must be given" if param.required else f"{comment}: not set"
            lines.append((f"# {name} =", unset))
    if context.params.get("json") and options["json"]["source"] == "command line":
        print_json({"command": context.command_path, "options": options})
        return
    width, path = min(44, max((len(line) for line, _ in lines), default=0)), path_of(context)
    words = " ".join(("vpem", *path))
    print(f"# {words}: every option, and where its value is from.")
    print(f"# To use it: {words} --config FILE\n[{'.'.join(path)}]")
    for line, comment in lines:
        print(f"{line:{width}}  # {printable(comment)}")


def rules_of(command: Any) -> dict[str, list[Rule]]:
    known = command.callback.settings.items()
    rules = {"memory_limit": [OF_ONE_FILE]} | {name: one.rules for name, one in known}
    return of_command(command.name, rules)


def refuse_idle(context: Any, **facts: Any) -> None:
    """Raise InputError where an option was given that a rule excludes beside the others.

    ``facts`` are what else is known, or the values of options that others will give.
    """
    rules = rules_of(context.command)
    values = {**context.params, "algorithm": algorithm_of(context.info_name, context.params)}
    values |= facts
    for param in context.command.params:
        for when, why in rules.get(param.name, ()) if is_given(context, param) else ():
            changed = values[param.name] != param.default
            if when(values) and (changed or why not in MILD):
                refuse(param.name, why, name_of(param))


def spare_shared(context: Any) -> None:
    """Let how text is read be idle where a file or variable for several runs says it."""
    from vpem.files.table_settings import OF_SEVERAL_RUNS, TableSettings

    spared.clear()
    rules, of_tables = rules_of(context.command), TableSettings.settings_by_name
    for param in context.command.params:
        origin = origin_of(context, param)
        for _, why in rules.get(param.name, ()) if origin else ():
            if param.name == "digits" or (param.name in of_tables and why in OF_SEVERAL_RUNS):
                spared[param.name, why] = str(origin)


running: list[Any] = []
"""The context of the command that runs."""


def refuse_beside(**facts: Any) -> None:
    """Check the rules of the command that runs again, given facts of its data or its model."""
    for context in running:
        refuse_idle(context, **facts)


def read_here(param: Any, kind: Any) -> None:
    """Let the value of a parameter be read, and missed, by `process_value` here.

    Typer has no public way to do without the library by which it reads values, which takes as long
    to load as NumPy; and whether DATA is missing depends on the study.
    """
    while get_args(kind):
        kind = next(one for one in get_args(kind) if one is not NoneType)

    def process_value(context: Any, value: Any) -> Any:
        served = names.STUDY in context.meta and param.name == "data"  # `check_data` follows
        excused = served or context.meta.get(names.SHOW)
        if param.required and not excused and value in (None, (), []):
            raise misuse(context, f"missing {param.param_type_name} '{name_of(param)}'")
        try:
            value = _value_of(value, kind, several=param.multiple or param.nargs == -1)
            if isinstance(param.default, float) and isinstance(value, str):  # a number, or text
                from vpem.checks import read_float

                number = read_float(value)
                value = value if number is None else number
        except ValueError as error:
            sentence = f"{name_of(param)} {error}"
            raise misuse(context, sentence, origin_of(context, param)) from None
        return value if param.callback is None else param.callback(context, param, value)

    param.process_value = process_value


WORDS_OF_FLAGS = ("0 false f no n off", "1 true t yes y on")


def _value_of(value: Any, kind: Any, several: bool = False) -> Any:
    """Return a word as a value of this type; ValueError if it is none."""
    if several:
        return [_value_of(one, kind) for one in value or ()]
    if not isinstance(value, str) or kind is str:
        return value
    if kind is Path:
        if "\0" in value or (os.path.exists(value) and not os.access(value, os.R_OK)):
            raise ValueError(f"must be a file that can be read, got {value!r}")
        return Path(value)
    if kind is bool:
        for truth, words in enumerate(WORDS_OF_FLAGS):
            if value.strip().lower() in words.split():
                return bool(truth)
        raise ValueError(f"must be true or false, got {value!r}")
    from vpem.checks import read_float, read_int

    number = read_int(value) if kind is int else read_float(value)
    if number is None:
        what = "an integer" if kind is int else "a number"
        raise ValueError(f"must be {what}, got {brief(value)}")
    return number
