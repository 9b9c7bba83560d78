"""Values of options from files and the environment, read and checked.

Order: command line, environment, file, default. The parser of the commands does the looking up
(`default_map`, `envvar`); here is what it is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vpem.network.schema import Report


NOT_IN_FILES = ("config", "show-config", "help-all")


FILE = "vpem.file"
"""Under this name a context keeps the file that --config names."""

STUDY = "vpem.study"
"""Under this name a context keeps the study that a member takes part in."""

FILES = "vpem.files"
"""Under this name a context keeps which file values are from, by names of parameters."""


# ---- names --------------------------------------------------------------------------------------


def is_flag(param: Any) -> bool:
    """Whether a parameter is an option without a value."""
    return bool(getattr(param, "is_flag", False))


def leaves(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield every command below a group, with the words that name it."""
    for name, member in group.commands.items():
        if hasattr(member, "commands"):
            yield from leaves(member, (*path, name))
        else:
            yield (*path, name), member


def key_of(param: Any) -> str:
    """Name of an option or argument in files: the first long option without its dashes."""
    long = [opt for opt in param.opts if opt.startswith("--")]
    return str((long or param.opts)[0].lstrip("-").replace("_", "-"))


def variable_of(path: tuple[str, ...], param: Any) -> str:
    """Name of the environment variable of an option of the command with these words."""
    return "_".join(("vpem", *path, key_of(param))).upper().replace("-", "_")


def variables(path: tuple[str, ...], command: Any) -> Report:
    """Options of a command that variables may set, by the names of these."""
    return {
        variable_of(path, param): param
        for param in command.params
        if param.param_type_name == "option" and key_of(param) not in ("show-config", "help-all")
    }


def path_of(context: Any) -> tuple[str, ...]:
    """Words that name the command of a context, without the program's."""
    words: list[str] = []
    while context.parent is not None:
        words.insert(0, str(context.info_name))
        context = context.parent
    return tuple(words)


# ---- files --------------------------------------------------------------------------------------


def read_config(path: Path, context: Any) -> Report:
    """Read a file of options, and return those of the command of a context by names of parameters.

    It is TOML, a table a command: ``[fit]``, ``[data.import]``. InputError if it names what no
    command has.
    """
    from vpem.files.json_text import read_toml

    return options_of(read_toml(path), path, context).get(path_of(context), {})


def options_of(content: Report, path: Path, context: Any) -> dict[tuple[str, ...], Report]:
    """Return the options of every command that has a table, by the words that name it."""
    from vpem.errors import InputError

    try:
        return _tables(content, context.find_root().command, ())
    except InputError as error:
        raise InputError(f"{path}: {error}") from None


def take_defaults(context: Any, path: Path, values: Report, *, last: bool = False) -> None:
    """Take values of options, by names of parameters, from a file, before or after other files.

    If ``last``, what another file says wins.
    """
    known, files = dict(context.default_map or {}), context.meta.setdefault(FILES, {})
    for name, value in values.items():
        if not last or name not in known:
            known[name], files[name] = value, path
    context.default_map = known


def _tables(content: Report, group: Any, path: tuple[str, ...]) -> dict[tuple[str, ...], Report]:
    """Check all tables of a file, and return the values of every command in it."""
    from vpem.errors import InputError, did_you_mean

    found: dict[tuple[str, ...], Report] = {}
    for name, value in content.items():
        table = ".".join((*path, name))
        member = group.commands.get(name)
        if member is None and not isinstance(value, dict):
            home = ".".join((*path, next(iter(group.commands))))
            raise InputError(
                f"{table!r} stands in no command's table; put it below its command's name, such "
                f"as [{home}]"
            )
        if member is None:
            hint = did_you_mean(name, group.commands)
            raise InputError(f"[{table}] is the table of no command{hint}; see 'vpem --help'")
        if not isinstance(value, dict):
            raise InputError(f"{table!r} must be a table, [{table}], got {value!r}")
        if hasattr(member, "commands"):
            found |= _tables(value, member, (*path, name))
        else:
            found[(*path, name)] = _values(value, member, table)
    return found


def _values(content: Report, command: Any, table: str) -> Report:
    """Check the table of one command."""
    from vpem.errors import InputError

    from .naming import nearest

    known = {key_of(param): param for param in command.params}
    known |= {opt[2:]: param for param in command.params for opt in param.opts if opt[:2] == "--"}
    known = {key: param for key, param in known.items() if key not in NOT_IN_FILES}
    found: Report = {}
    for name, value in content.items():
        key = name.replace("_", "-")
        param = known.get(key)
        if param is None:
            near = nearest(key, known)
            hint = f" (did you mean {near!r}?)" if near else ""
            see = f"vpem {table.replace('.', ' ')} --help"
            raise InputError(f"[{table}] has no option {name!r}{hint}; see '{see}'")
        if param.name in found:
            raise InputError(f"[{table}] gives {key!r} twice, once as {name!r}")
        found[param.name] = _value(value, param, f"[{table}] {name}")
    return found


def _value(value: Any, param: Any, where: str) -> Any:
    """Return a value of a file as a command line would have it."""
    from vpem.errors import InputError

    if is_flag(param):
        if not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, got {value!r}")
        return value
    if param.multiple or param.nargs == -1:
        return [_word(item, where) for item in (value if isinstance(value, list) else [value])]
    if isinstance(value, list):
        raise InputError(f"{where} takes one value, written as on the command line, got a list")
    return _word(value, where)


def _word(value: Any, where: str) -> str:
    """Return one value as the word that a command line would have."""
    from vpem.errors import InputError

    if isinstance(value, bool) or not isinstance(value, str | int | float):
        got = {dict: "a table", list: "a list", bool: str(value).lower()}.get(
            type(value), f"a {type(value).__name__}"
        )
        raise InputError(f"{where} must be a number or a string, got {got}")
    return str(value)


# ---- the environment ----------------------------------------------------------------------------


def check_environment(context: Any) -> None:
    """Raise InputError where a variable is named like an option of the command but is none."""
    from vpem.errors import InputError

    from .naming import nearest

    path = path_of(context)
    start = "_".join(("VPEM", *path, "")).upper().replace("-", "_")
    given = [name for name in os.environ if name.startswith(start)]
    if not given:
        return
    root = context.find_root().command
    known = {key_of(param): name for name, param in variables(path, context.command).items()}
    all_known = {name for at, leaf in leaves(root) for name in variables(at, leaf)}
    for name in sorted(given):
        if name not in all_known:
            near = nearest(name.removeprefix(start), known)
            hint = f" (did you mean {known[near]}?)" if near else ""
            raise InputError(
                f"the environment has {name}, but '{context.command_path}' has no such option"
                f"{hint}; unset it"
            )


def engine_asked(words: list[str], root: Any) -> str | None:
    """Return the engine that the environment or a file asks for, before anything is parsed.

    Processes of an MPI job must join it before one of them finds fault with its options. A file
    that cannot be read counts as asking for MPI where a launcher started several processes.
    """
    from vpem.errors import VpemError
    from vpem.files.json_text import read_toml

    from .ranks import launched

    path, node = [], root
    for word in words:
        node = getattr(node, "commands", {}).get(word)
        if node is None:
            break
        path.append(word)
    start = "_".join(("VPEM", *path, "")).upper().replace("-", "_")
    if os.environ.get(f"{start}ENGINE"):
        return os.environ[f"{start}ENGINE"]
    file = os.environ.get(f"{start}CONFIG")
    for place, word in enumerate(words):
        if word == "--config" and place + 1 < len(words):
            file = words[place + 1]
        elif word.startswith("--config="):
            file = word.removeprefix("--config=")
    if not file:
        return None
    try:
        found: Any = read_toml(file)
    except VpemError:
        return "mpi" if launched() else None
    for word in path:
        found = found.get(word) if isinstance(found, dict) else None
    engine = found.get("engine") if isinstance(found, dict) else None
    return engine if isinstance(engine, str) else None
