"""Readers and writers of JSON, in a file of its own or in HDF5, and of TOML.

JSON is what the standard allows and no more: no NaN or infinity, no key twice, and no deeper
nesting than anybody would write. Python's parser of TOML takes time and memory that grow with the
square of how deep a text is nested, so the text is looked over, in one pass, before it is parsed.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections import Counter
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.errors import FileError
from vpem.files.hdf5 import describe_element, find, read_array
from vpem.files.opening import PathLike, advice, read_limit, read_text
from vpem.network.schema import Report

if TYPE_CHECKING:
    import h5py


DEEPEST = 16
JSON_TIMES = 8
"""Memory that parsed JSON is taken to need, in units of its text; the worst there is needs 30."""

VERSION = "0.1.0"


def parse_json(text: str, deepest: int = DEEPEST) -> Any:
    """Return what JSON text is; ValueError for NaN or infinity, repeated keys, deep nesting."""
    too_deep = ValueError(f"lists and objects are nested more than {deepest} deep")
    try:
        value = json.loads(
            text, parse_constant=_finite, parse_float=_finite, object_pairs_hook=_unique
        )
    except RecursionError:
        raise too_deep from None
    except ValueError as error:
        if "digits" in str(error):  # Python reads no integer of more than 4300
            raise ValueError("a number has too many digits") from None
        raise
    inside = [value]
    for _ in range(deepest):
        nested = [one for one in inside if isinstance(one, dict | list)]
        items = (one.values() if isinstance(one, dict) else one for one in nested)
        inside = list(chain.from_iterable(items))
    if any(isinstance(one, dict | list) for one in inside):
        raise too_deep
    return value


def _finite(word: str) -> float:
    """Read a number of JSON text, which has no word for one that is not finite."""
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(f"{word[:40]} is not finite")
    return number


def _unique(pairs: list[tuple[str, object]]) -> Report:
    """Make a dictionary of an object and refuse a repeated key, which JSON would lose."""
    report = dict(pairs)
    if len(report) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"{twice[:40]!r} appears more than once")
    return report


def read_json_file(path: PathLike) -> Any:
    """Return what a JSON file of at most `read_limit` / `JSON_TIMES` bytes holds."""
    try:
        return parse_json(read_text(path, JSON_TIMES))
    except ValueError as error:
        raise FileError(f"{path} is not a JSON file: {error}") from error


def read_json_bytes(group: h5py.Group, name: str) -> NDArray[np.uint8]:
    """Return the bytes of JSON text in HDF5, no more of them than may be parsed."""
    values = read_array(group, name, ndim=1, kinds="u")
    where = f"{group.file.filename}: {name}"
    if values.dtype != np.uint8:
        raise FileError(f"{where} is not JSON text (it is stored as something else)")
    if values.nbytes > max(
        read_limit() // JSON_TIMES, 2 * int(find(group, name).id.get_storage_size())
    ):
        raise FileError(
            f"{where} unpacks to {values.nbytes} bytes; {advice(JSON_TIMES * values.nbytes)}"
        )
    return values


def read_json_element(group: h5py.Group, name: str, deepest: int = DEEPEST) -> Report:
    """Read an object that `write_json_element` has written, lists and objects nested no deeper."""
    values = read_json_bytes(group, name)
    try:
        report = parse_json(values.tobytes().decode("utf-8"), deepest)
        if not isinstance(report, dict):
            raise ValueError("it is no object")
    except ValueError as error:
        raise FileError(f"{group.file.filename}: {name} is not JSON text ({error})") from error
    return report


def write_json_element(group: h5py.Group, name: str, value: object) -> None:
    """Write what JSON can hold, without NaN and infinity, as a dataset of bytes."""
    data = np.frombuffer(json.dumps(value, allow_nan=False).encode("utf-8"), dtype=np.uint8)
    describe_element(group.create_dataset(name, data=data, track_times=False), "json-utf8", VERSION)


TOML_TIMES = 64
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
    """Return what a UTF-8 TOML file holds, of at most `read_limit` / `TOML_TIMES` bytes."""
    return parse_toml(read_text(path, TOML_TIMES), path)


def parse_toml(text: str, path: PathLike) -> Report:
    """Return what TOML text, with lines ended by newlines, is: nested `DEEPEST` deep at most."""
    depth = dots = 0
    for part in PARTS.finditer(text):
        mark = part["mark"]
        if mark is None:
            continue
        dots = dots + 1 if mark == "." else 0
        depth = max(0, depth + STEPS.get(mark, 0))
        if max(depth, dots) > DEEPEST:
            line = text.count("\n", 0, part.start()) + 1
            raise FileError(
                f"{path} is nested more than {DEEPEST} deep, by brackets or by dots, in line {line}"
            )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        # Python reads no integer of more than 4300 digits.
        reason = "a number has too many digits" if "digits" in str(error) else str(error)
        raise FileError(f"{path} is not TOML: {reason[:1].lower()}{reason[1:]}") from None


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
