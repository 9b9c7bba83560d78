"""Where the values of options are from: told beside errors, agreed on by ranks, shown."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from .config import FILES, NOT_IN_FILES, key_of, path_of
from .naming import name_of

WORDS = "vpem.words"
"""Under this name a context keeps the words that follow the name of its command."""

SOURCES = {
    "COMMANDLINE": "command line",
    "ENVIRONMENT": "environment",
    "DEFAULT_MAP": "file",
    "DEFAULT": "default",
}
"""What the parser calls a source, and what users call it."""


def in_files(context: Any) -> Iterator[Any]:
    """Options and arguments of a command that may stand in a file."""
    for param in context.command.params:
        if key_of(param) not in NOT_IN_FILES:
            yield param


def source_of(context: Any, param: Any) -> tuple[str, str | None]:
    """Source of a parameter's value, and the variable or file that it is from."""
    found = context.get_parameter_source(param.name)
    kind = SOURCES.get(getattr(found, "name", ""), "default")
    if kind == "environment":
        return kind, str(param.envvar)
    return kind, str(context.meta[FILES][param.name]) if kind == "file" else None


def is_given(context: Any, param: Any) -> bool:
    """Whether a user set a parameter.

    Values from files and the environment count where they are not the default, so that what
    --show-config prints can be given back.
    """
    typed = source_of(context, param)[0] == "command line"
    return typed or context.params.get(param.name) != param.default


MOST_FILES = 10_000
"""So many files of a folder are looked at for a name like a missing one."""


def told_by(context: Any, param: Any) -> str | None:
    """Say where a value that is not from the command line is from, or None."""
    kind, place = source_of(context, param)
    return None if place is None else f"{name_of(param)} is from {kind} {place}"


def given(context: Any, param: Any, words: list[str]) -> object:
    """Return the value of a parameter as it was given, before its type was looked at.

    ``words`` are those after the name of the command.
    """
    kind, place = source_of(context, param)
    if kind == "environment" and place is not None:
        return os.environ.get(place)
    if kind == "file":
        return context.default_map.get(param.name)
    return context.command.make_parser(context).parse_args(list(words))[0].get(param.name)


def where_from(context: Any, sentence: str) -> list[str]:
    """Say of the values that a sentence speaks of where they are from, unless they were typed.

    It is what the command said that refused them, in its words.
    """
    found: dict[bool, list[str]] = {True: [], False: []}
    for param in context.command.params:
        said = told_by(context, param)
        if said is None:
            continue
        value = context.params.get(param.name)
        values = value if isinstance(value, list | tuple) else [value]
        plain = "[-_ ]".join(key_of(param).split("-"))
        named = re.search(rf"(?<![\w-]){name_of(param)}(?![\w-])", sentence)
        if named or any(repr(str(each)) in sentence for each in values):
            found[True].append(said)
        elif re.search(rf"(?<![\w-]){plain}(?![\w-])", sentence):
            found[False].append(said)
    return found[True] or found[False]


def near_file(sentence: str) -> list[str]:
    """Return a hint where a file is missing: one of much the same name, or what brings it.

    Only sentences that say of a file that it does not exist get one.
    """
    missing = re.fullmatch(r"'(.+)' does not exist|there is no file (.+)", sentence)
    if missing is None:
        return []
    wanted = Path(missing[1] or missing[2])
    try:
        with os.scandir(wanted.parent) as entries:
            names = [entry.name for entry in islice(entries, MOST_FILES)]
    except OSError:
        names = []
    # An ending that all files have makes no two names alike.
    stems = {name.partition(".")[0]: name for name in sorted(names, reverse=True)}
    near = get_close_matches(wanted.name.partition(".")[0], stems, n=1, cutoff=0.75)
    if near:
        return [f"did you mean {str(wanted.with_name(stems[near[0]]))!r}?"]
    from vpem.files.examples import EXAMPLES

    brought = [name for name, known in EXAMPLES.items() if known.file == wanted.name]
    if wanted.parent == Path("data"):
        return ["'vpem data copy' brings it" for _ in brought]
    if not wanted.parent.is_dir():
        return []
    return [f"'vpem data copy {name} -o {shlex.quote(str(wanted))}' brings it" for name in brought]


def told_apart(context: Any) -> dict[str, tuple[str, str]]:
    """Return the values that are from files or variables, and from which, by names of options."""
    own = {}
    for param in context.command.params:
        kind, place = source_of(context, param)
        if place is not None:
            own[name_of(param)] = (str(context.params.get(param.name)), f"{kind} {place}")
    return own


# ---- showing ------------------------------------------------------------------------------------


def show_config(context: Any) -> None:
    """Print the value of every option with its source: TOML, or with --json JSON."""
    from vpem.files.json_text import as_toml

    from .where import joined

    if not joined().speaks:
        return
    rows = []
    for param in in_files(context):
        value = _plain(context.params.get(param.name))
        rows.append((key_of(param), value, *source_of(context, param), param.required))
    typed = {name for name, _, kind, _, _ in rows if kind == "command line"}
    if context.params.get("json") and "json" in typed:
        from .output import print_json

        options = {
            name: {"value": value, "source": kind, "from": place}
            for name, value, kind, place, _ in rows
        }
        print_json({"command": context.command_path, "options": options})
        return
    from vpem.errors import printable

    lines = []
    for name, value, kind, place, required in rows:
        comment = kind if place is None else f"{kind} {place}"
        if value is None or value == []:
            comment = "missing: it must be given" if required else f"{comment}: not set"
            lines.append((f"# {name} =", comment))
        else:
            lines.append((f"{name} = {as_toml(value)}", comment))
    width = min(44, max((len(line) for line, _ in lines), default=0))
    path = path_of(context)
    print(f"# vpem {' '.join(path)}: every option and where its value is from.")
    print(f"# To use it: vpem {' '.join(path)} --config FILE\n[{'.'.join(path)}]")
    for line, comment in lines:
        sys.stdout.write(f"{line:{width}}  # {printable(comment)}\n")


def _plain(value: Any) -> Any:
    """Return a value as TOML and JSON know them."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)
