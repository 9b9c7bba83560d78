"""Options of commands from the fields of records of settings.

A command names the records that it takes in its annotations. `spread` makes an option of every
field, and a record of the values before the command runs. A parameter of the command itself with
the name of a field replaces that field's option.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import Field
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from vpem.errors import brief
from vpem.records import Rule, Settings, about, setting

from .config import is_given
from .files import READ, WRITTEN, Role

if TYPE_CHECKING:
    from vpem.network.schema import Report

NAMED_OUTPUTS = (
    "output", "plot", "state", "checkpoint", "individuals", "topics", "traces", "labels_file",
)  # fmt: skip


def _writes_csv(options: Any) -> bool:
    files = (options.get("output"), options.get("individuals"), options.get("labels_file"))
    return any(file is not None and str(file).lower().endswith(".csv") for file in files)


NO_CSV: Rule = (
    lambda given: not _writes_csv(given),
    (" is for CSV, and none is written; leave it out",),
)

NOTHING_REPLACED: Rule = (
    # A record of outputs alone has no input, and no checkpoint either.
    lambda given: (
        not {"data", "model", "topology"}.isdisjoint(given)
        and not any(given.get(name) for name in NAMED_OUTPUTS)
    ),
    (" replaces existing files, but nothing is to be written; leave it out",),
)

NO_CSV_AT_ALL: Rule = (
    lambda given: (
        not _writes_csv(given) and (given.get("output") is not None or bool(given.get("json")))
    ),
    NO_CSV[1],
)
"""Where CSV goes to standard output by default."""

FEW_VARY: Rule = (
    lambda given: given["covariance"] == "full" and "," not in (given["random"] or ","),
    (" is for two or more that vary; let more of them vary, or leave it out",),
)

KINDS: Report = {
    "list[str]": list[str],
    "bool": bool,
    "Path": Path,
    "str": str,
    "Any": str,
    "int": int,
    "float": float,
}
"""Types of options, by the types of a setting: the first that it has."""

KEYWORD_ONLY = inspect.Parameter.KEYWORD_ONLY

ROLES = {"read": READ, "written": WRITTEN}


class Without:
    """Marks a record of which a command lacks some settings: ``names``, separated by blanks."""

    def __init__(self, names: str) -> None:
        self.names = names.split()


class Given:
    """How the options of a command were given; `spread` fills parameters of this kind.

    ``record`` is what models keep: values of settings by the words of their options. Of these
    ``files`` are local to one member, or name files.
    """

    def __init__(self, context: typer.Context, record: Report, files: Sequence[str]) -> None:
        self._context = context
        self.record = record
        self.files = files

    def has(self, name: str) -> bool:
        params = {param.name: param for param in self._context.command.params}
        return name in params and is_given(self._context, params[name])


class Printing(Settings, heading="Output", kept=False):
    """What a command prints."""

    json: bool = setting(False, "Print one JSON object instead of tables.", local=True)
    quiet: bool = setting(
        False, "Print only errors, and the output of --json.", flags="-q --quiet", local=True
    )


def spread(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with options in place of the parameters that are records of settings."""
    params: list[inspect.Parameter] = []
    records: dict[str, tuple[type[Settings], list[str]]] = {}
    options: dict[str, inspect.Parameter] = {}
    for param in inspect.signature(function, eval_str=True).parameters.values():
        record, *marks = get_args(param.annotation) or (param.annotation,)
        if not (isinstance(record, type) and issubclass(record, Settings)):
            params.append(param)
            continue
        left_out = [name for mark in marks if isinstance(mark, Without) for name in mark.names]
        fields = [one for one in record.fields() if one.name not in left_out]
        records[param.name] = (record, [one.name for one in fields])
        for one in fields:
            options.setdefault(one.name, _option(one))
    names = {param.name for param in params}
    as_given = [param.name for param in params if param.annotation is Given]
    params = [param for param in params if param.annotation is not Given]
    required = [param for param in params if param.default is param.empty]
    lists = [p.name for p in required if get_args(p.annotation)[:1] == (list[Path],)]
    files = [
        word_of(one) for record, _ in records.values() for one in record.fields()
        if record.kept and (about(one).local or about(one).file)
    ]  # fmt: skip
    if as_given:
        params.append(inspect.Parameter("context", KEYWORD_ONLY, annotation=typer.Context))
    merged = [*params, *(one for name, one in options.items() if name not in names)]

    def made_of(values: Report) -> Report:
        return {
            name: record(**{one: _read(record, one, values[one]) for one in field_names})
            for name, (record, field_names) in records.items()
        }

    @wraps(function)
    def command(**values: Any) -> Any:
        arguments = made_of(values)
        # A member that only serves in a study has no data.
        values |= {name: [] for name in lists if values[name] is None}
        recorded = {
            word_of(record.settings_by_name[one]): getattr(arguments[name], one)
            for name, (record, field_names) in records.items()
            for one in (field_names if record.kept else ())
        }
        recorded = {
            word: str(value) if isinstance(value, Path) else value
            for word, value in recorded.items()
        }
        for name in as_given:
            arguments[name] = Given(values.pop("context"), recorded, files)
        return function(**{name: values[name] for name in names if name in values}, **arguments)

    for param in merged:
        _read_number(param)
    command.__signature__ = inspect.Signature(merged)  # type: ignore[attr-defined]
    command.__annotations__ = {param.name: param.annotation for param in merged}
    command.records = made_of  # type: ignore[attr-defined]
    command.settings = {  # type: ignore[attr-defined]
        one.name: about(one)
        for record, _ in records.values() for one in record.fields() if one.name not in names
    }  # fmt: skip
    return command


def _read_number(param: inspect.Parameter) -> None:
    """Let the library read the numbers of an option, in place of the parser."""
    kind, *marks = get_args(param.annotation) or (param.annotation,)
    kinds = {kind, *get_args(kind)}

    def parse(value: Any) -> Any:
        if not isinstance(value, str):  # a default
            return value
        from vpem.checks import read_float, read_int

        parsed = read_int(value) if int in kinds else read_float(value)
        if parsed is None:
            number = "an integer" if int in kinds else "a number"
            raise typer.BadParameter(f"must be {number}, got {brief(value)}")
        return parsed

    for mark in marks if kinds & {int, float} else ():
        if hasattr(mark, "parser"):
            mark.parser = parse


def flags_of(one: Field[Any]) -> list[str]:
    """Return the options of a setting."""
    return about(one).flags.split() or [f"--{one.name.replace('_', '-')}"]


def word_of(one: Field[Any]) -> str:
    """Return the name under which models keep a setting: its first long option."""
    long = next(flag for flag in flags_of(one) if flag.startswith("--"))
    return long[2:].replace("-", "_")


def _option(one: Field[Any]) -> inspect.Parameter:
    """Return the option of a setting as a parameter of a command."""
    known, kinds = about(one), str(one.type).split(" | ")
    kind = next(option_type for word, option_type in KINDS.items() if word in kinds)
    option = typer.Option(
        *flags_of(one),
        help=known.help,
        rich_help_panel=known.heading,
        hidden=known.hidden,
        metavar="<str>" if kind == list[str] else None,
    )
    hint: Any = kind | None if one.default is None else kind
    role = ROLES.get(known.file, known.file)
    hint = Annotated[hint, option] if role is None else Annotated[hint, role, option]
    default = str(one.default) if kind is str and type(one.default) is int else one.default
    return inspect.Parameter(one.name, KEYWORD_ONLY, default=default, annotation=hint)


def _read(record: type[Settings], name: str, value: Any) -> Any:
    """Return a word as a number if the setting may be either and the word is one."""
    kinds = str(record.settings_by_name[name].type).split(" | ")
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
InitModel = Annotated[
    Path | None,
    # A model may be continued in its own file.
    Role(writes=False, goes_on_in="--output"),
    typer.Option(help="Start from the parameters of a model."),
]
