"""How a file is damaged: as bytes, as text, or replaced by what is no file of data."""

from __future__ import annotations

import gzip
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Change = Callable[[Path, np.random.Generator], str]
"""Damages the file at a path, and says how."""


def pick(rng: np.random.Generator, things: Any) -> Any:
    """Return one of several things, of whatever types."""
    return things[int(rng.integers(len(things)))]


# ---- bytes --------------------------------------------------------------------------------------


def flip_bits(path: Path, rng: np.random.Generator) -> str:
    """Turn some bits over, as a bad disk does."""
    content = bytearray(path.read_bytes())
    count = int(pick(rng, (1, 1, 2, 3, 8, 30, 200)))
    for _ in range(count):
        content[int(rng.integers(len(content)))] ^= 1 << int(rng.integers(8))
    path.write_bytes(content)
    return f"{count} bits turned over"


def overwrite(path: Path, rng: np.random.Generator) -> str:
    """Write something else over a run of bytes."""
    content = bytearray(path.read_bytes())
    length = int(pick(rng, (1, 2, 4, 8, 16, 64, 512, 4096)))
    begin = int(rng.integers(len(content)))
    fill = pick(rng, (b"\x00", b"\xff", b"\x7f", b"\x80", None))
    new = rng.bytes(length) if fill is None else fill * length
    content[begin : begin + length] = new[: len(content) - begin]
    path.write_bytes(content)
    return f"{length} bytes from {begin} overwritten with {'noise' if fill is None else fill}"


def cut(path: Path, rng: np.random.Generator) -> str:
    """Cut the file short."""
    length = int(rng.integers(path.stat().st_size))
    os.truncate(path, length)
    return f"cut to {length} bytes"


def move_bytes(path: Path, rng: np.random.Generator) -> str:
    """Take a run of bytes out, or repeat it somewhere else."""
    content = path.read_bytes()
    begin, end = sorted(rng.integers(len(content), size=2).tolist())
    to = int(rng.integers(len(content)))
    if rng.random() < 0.5:
        path.write_bytes(content[:begin] + content[end:])
        return f"bytes {begin} to {end} taken out"
    path.write_bytes(content[:to] + content[begin:end] + content[to:])
    return f"bytes {begin} to {end} repeated at {to}"


def other_number(path: Path, rng: np.random.Generator) -> str:
    """Put a number that lengths and addresses are tried with at a place of theirs."""
    content = bytearray(path.read_bytes())
    width = int(pick(rng, (2, 4, 8)))
    begin = int(rng.integers(max(1, len(content) - width)))
    value = int(pick(rng, (0, 1, 2**15, 2**16 - 1, 2**31 - 1, 2**32 - 1, 2**40, 2**63, 2**64 - 1)))
    content[begin : begin + width] = (value % 2 ** (8 * width)).to_bytes(width, "little")
    path.write_bytes(content)
    return f"{value} in {width} bytes at {begin}"


BYTES: tuple[Change, ...] = (flip_bits, flip_bits, overwrite, cut, move_bytes, other_number)

# ---- text ---------------------------------------------------------------------------------------

ODD_CELLS = (
    "", "-1", "0", "1e308", "-1e308", "1e999", "nan", "inf", "-inf", "9" * 400, "9" * 20, "0x10",
    "1_000", "1,5", '"', '"a', "'", "\0", "\x1b]0;x\x07", "\r", "\u202ex", "=1+1", "a" * 5000, "é",
    "\ud800", "٣", "true", "None", "[" * 3000, "{", "}", "\\", "../../etc/passwd", "/dev/zero",
    "label", "id", "1e-400", "18446744073709551616", "-9223372036854775809", "1.0.0", "$x$", "<b>",
)  # fmt: skip
CODES = ("utf-16", "utf-8-sig", "latin-1", "utf-32", "utf-7", "shift_jis")


def _decoded(path: Path) -> str:
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return content.decode("utf-8", "surrogateescape")


def _encoded(path: Path, text: str, code: str = "utf-8") -> None:
    content = text.encode(code, "surrogatepass" if code.startswith("utf") else "replace")
    path.write_bytes(gzip.compress(content, 1, mtime=0) if path.suffix == ".gz" else content)


def other_cell(path: Path, rng: np.random.Generator) -> str:
    """Put something odd in place of a word."""
    text = _decoded(path)
    marks = [i for i, c in enumerate(text) if c in ",\t\n \"'[]{}:=<>"]
    place = int(rng.integers(max(1, len(marks) - 1)))
    new = pick(rng, ODD_CELLS)
    if len(marks) > 1:
        text = text[: marks[place] + 1] + new + text[marks[place + 1] :]
    _encoded(path, text if len(marks) > 1 else new)
    return f"{new[:20]!r} for a word"


def other_lines(path: Path, rng: np.random.Generator) -> str:
    """Repeat, drop, mix, join or empty lines."""
    lines = _decoded(path).splitlines(keepends=True) or [""]
    how = pick(rng, ("repeated", "dropped", "mixed", "all dropped but one", "joined", "many times"))
    place = int(rng.integers(len(lines)))
    if how == "repeated":
        lines.insert(int(rng.integers(len(lines))), lines[place])
    elif how == "dropped":
        del lines[place]
    elif how == "mixed":
        lines = [lines[number] for number in rng.permutation(len(lines))]
    elif how == "all dropped but one":
        lines = [lines[place]]
    elif how == "joined":
        lines = ["".join(lines).replace("\n", pick(rng, (" ", "\r", "\x0b", "\u2028", "")))]
    else:
        lines[place:place] = [lines[place]] * 20_000
    _encoded(path, "".join(lines))
    return f"line {place} {how}"


def other_code(path: Path, rng: np.random.Generator) -> str:
    """Write the text in another encoding."""
    code = pick(rng, CODES)
    _encoded(path, _decoded(path), code)
    return f"written in {code}"


def huge_text(path: Path, rng: np.random.Generator) -> str:
    """Put a very long run of one thing somewhere."""
    text = _decoded(path)
    what = pick(
        rng, ("9", "a", "[", '{"a":', ",", "\n", "(", '"', "\0", "a,b\n", "&a;", "<a>", "- ")
    )
    times = int(pick(rng, (300, 20_000, 400_000)))
    place = int(rng.integers(len(text) + 1))
    _encoded(path, text[:place] + what * times + text[place:])
    return f"{times} times {what!r} at {place}"


def only(path: Path, rng: np.random.Generator) -> str:
    """Put one odd thing in place of the whole."""
    what = pick(rng, (*ODD_CELLS, "{}", "[]", "null", "[[]]", "0", "\n", "[" * 100_000, "\ufeff"))
    _encoded(path, what)
    return f"nothing but {what[:20]!r}"


def many_entities(path: Path, rng: np.random.Generator) -> str:
    """Make XML whose entities grow when they are put in, or stand for a file."""
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 9))
    outer = pick(rng, (f'<!ENTITY e0 "ha">{levels}', '<!ENTITY e8 SYSTEM "file:///etc/passwd">'))
    head = f'<?xml version="1.0"?><!DOCTYPE graphml [{outer}]>'
    path.write_text(f'{head}<graphml><graph edgedefault="&e8;"><node id="&e8;"/></graph></graphml>')
    return "entities that grow or name a file"


TEXT: tuple[Change, ...] = (other_cell, other_cell, other_lines, other_code, huge_text, only)


# ---- JSON ---------------------------------------------------------------------------------------

ODD_VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.5, 1e308, float("nan"),
    float("inf"), "", "x", "nan", "a" * 5000, "\x1b[31m", "\ud800", [], {}, [[]], {"": 0}, [None],
)  # fmt: skip


def nested(depth: int, of_objects: bool = False) -> Any:
    """Return lists, or objects, one inside the other."""
    value: Any = 1
    for _ in range(depth):
        value = {"a": value} if of_objects else [value]
    return value


def change_json(value: Any, rng: np.random.Generator) -> Any:
    """Return a value with one thing in it changed, added or gone."""
    if isinstance(value, dict) and value and rng.random() < 0.85:
        key = pick(rng, list(value))
        what = rng.random()
        if what < 0.1:
            return {name: item for name, item in value.items() if name != key}
        if what < 0.2:
            return {**value, pick(rng, ("", "x", key + " ", "\x1b[0m")): value[key]}
        return {**value, key: change_json(value[key], rng)}
    if isinstance(value, list) and value and rng.random() < 0.85:
        place = int(rng.integers(len(value)))
        what = rng.random()
        if what < 0.1:
            return value[:place] + value[place + 1 :]
        if what < 0.2:
            return value[:place] + value[place:] * 2
        return [*value[:place], change_json(value[place], rng), *value[place + 1 :]]
    if rng.random() < 0.1:
        return nested(int(pick(rng, (5, 200, 900))), bool(rng.random() < 0.5))
    return pick(rng, ODD_VALUES)


def as_text(value: Any) -> str:
    """Write JSON, NaN and lone halves of characters included."""
    return json.dumps(value, ensure_ascii=False)


def other_json(path: Path, rng: np.random.Generator) -> str:
    """Change values of a file of JSON."""
    value = json.loads(path.read_text())
    for _ in range(int(pick(rng, (1, 1, 2, 5)))):
        value = change_json(value, rng)
    path.write_bytes(as_text(value).encode("utf-8", "surrogatepass"))
    return "values of JSON changed"


# ---- what is no file of data --------------------------------------------------------------------


def _special(make: Callable[[Path], None], what: str) -> Change:
    def change(path: Path, rng: np.random.Generator) -> str:
        path.unlink()
        make(path)
        return what

    return change


def _socket(path: Path) -> None:
    # The name of a socket may be of some hundred bytes only.
    here = os.getcwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)
    os.chdir(here)


SPECIAL: tuple[Change, ...] = (
    _special(os.mkfifo, "a pipe"),
    _special(lambda path: path.mkdir(), "a folder"),
    _special(lambda path: path.symlink_to("/dev/zero"), "/dev/zero"),
    _special(lambda path: path.symlink_to("/dev/full"), "/dev/full"),
    _special(lambda path: path.symlink_to("/dev/null"), "/dev/null"),
    _special(lambda path: path.symlink_to("/dev/urandom"), "/dev/urandom"),
    _special(lambda path: path.symlink_to("/proc/self/mem"), "/proc/self/mem"),
    _special(lambda path: path.symlink_to(path.name), "a link to itself"),
    _special(lambda path: path.symlink_to("nowhere"), "a link to nothing"),
    _special(lambda path: path.touch(), "an empty file"),
    _special(_socket, "a socket"),
)


def changes_of(family: str, name: str) -> list[tuple[Change, ...]]:
    """Return the groups of changes that suit a file, each as likely as the others."""
    groups = [BYTES]
    if family in ("hdf5", "state"):
        from .hdf5_mutations import HDF5

        groups += [HDF5] * 3
    if family == "state":
        from .state_mutations import STATES

        groups += [STATES] * 8
    if family in ("text", "json") and not name.endswith(".parquet"):
        groups += [TEXT] * 2
    if name.endswith(".json"):
        groups += [(other_json,)] * 3
    if name.endswith(".graphml"):
        groups += [(many_entities,)]
    return groups


def change_file(path: Path, family: str, rng: np.random.Generator) -> str:
    """Damage a file in a way that suits it, and return how."""
    if rng.random() < 0.03:
        return str(pick(rng, SPECIAL)(path, rng))
    whole = path.read_bytes()
    while True:
        try:
            return str(pick(rng, pick(rng, changes_of(family, path.name)))(path, rng))
        except Exception:
            # Not everything can be done to every file: then it is something else.
            path.write_bytes(whole)
