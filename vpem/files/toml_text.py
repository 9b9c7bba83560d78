"""One reader of TOML, for options of commands, who the parties are, and studies; and a writer.

The parser of Python takes time and memory that grow with the square of how deep a text is nested;
so the text is looked over, in one pass, before it is parsed.
"""

from __future__ import annotations

import re
import tomllib
from typing import Any

from vpem.errors import FileError
from vpem.files.opening import PathLike, read_text
from vpem.network.schema import Report

DEEPEST = 16
TIMES = 64
"""Memory that parsed TOML takes, in units of its text."""

# Every part takes what it can and gives nothing back: one pass, whatever the text is.
PARTS = re.compile(
    r'"""(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5})?+'
    r"|'''(?:[^']|'(?!''))*+(?:'{3,5})?+"
    r'|"(?:[^"\\\n]|\\[^\n])*+"?+'
    r"|'[^'\n]*+'?+"
    r"|\#[^\n]*+"
    r"|(?P<mark>[.,=\[\]{}\n])",
    re.DOTALL,
)
STEPS = {"[": 1, "{": 1, "]": -1, "}": -1}


def read_toml(path: PathLike) -> Report:
    """Return what a UTF-8 TOML file holds, of at most `read_limit` / `TIMES` bytes."""
    return parse_toml(read_text(path, TIMES), path)


def parse_toml(text: str, path: PathLike) -> Report:
    """Return what TOML text stands for, brackets and keys nested at most `DEEPEST` deep.

    Lines end with newlines; messages name ``path``.
    """
    place = _too_deep(text)
    if place is not None:
        line = text.count("\n", 0, place) + 1
        raise FileError(
            f"{path} is nested more than {DEEPEST} deep, by brackets or by dots, in line {line}"
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Python reads no integer of more than 4300 digits.
        reason = "a number has too many digits" if "digits" in str(error) else str(error)
        raise FileError(f"{path} is not TOML: {reason[:1].lower()}{reason[1:]}") from None


def _too_deep(text: str) -> int | None:
    """Return where brackets, or a key of parts with dots between them, go too deep."""
    depth = dots = 0
    for part in PARTS.finditer(text):
        mark = part["mark"]
        if mark is None:
            continue
        dots = dots + 1 if mark == "." else 0
        depth = max(0, depth + STEPS.get(mark, 0))
        if max(depth, dots) > DEEPEST:
            return part.start()
    return None


def as_toml(value: Any) -> str:
    """Write a truth value, a number, text, or a list of these as TOML."""
    if isinstance(value, list):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return repr(value)
    written = "".join(
        f"\\{c}" if c in '\\"' else c if c.isprintable() else f"\\U{ord(c):08X}" for c in value
    )
    return f'"{written}"'
