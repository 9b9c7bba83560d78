"""Shorten what commands have left behind, and find where two such values differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TOLERANCE = 1e-8
"""Of numbers that are not whole, relative to the larger of 1 and the number."""

LONGEST = 6
"""Lists of numbers beyond that are shortened."""

LINES = 16
"""Texts beyond that are shortened."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


DIGITS = 10
"""That are kept of numbers."""

# ---- shortening ---------------------------------------------------------------------------------


def _is_number(value: Any) -> bool:
    """Whether a value is a number, or stands where there is none."""
    return value in (None, "nan", "inf", "-inf") or (
        isinstance(value, int | float) and not isinstance(value, bool)
    )


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a list of numbers, or of equal lists of them; None of anything else."""
    if not isinstance(value, list):
        return () if _is_number(value) else None
    shapes = {_shape(one) for one in value}
    if len(shapes) != 1 or None in shapes:
        return None
    return (len(value), *shapes.pop())  # type: ignore[misc]


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for one in value:
            yield from _flat(one)
    else:
        yield value


def _rounded(value: Any) -> Any:
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def _numbers(value: list[Any]) -> Any:
    """Return an array's shape, its first numbers, and two sums, of which one knows the order."""
    flat = list(_flat(value))
    if len(flat) <= LONGEST:
        return value
    there = [(place, one) for place, one in enumerate(flat, 1) if isinstance(one, int | float)]
    found = {
        "shape": list(_shape(value) or ()),
        "first": flat[:2],
        "sum": sum(one for _, one in there),
        "ramp": float(sum(one * place / len(flat) for place, one in there)),
    }
    return found if len(there) == len(flat) else found | {"others": len(flat) - len(there)}


def _columns(values: list[Any]) -> list[str] | None:
    """Return the names of the columns that values are the rows of a table of, if they are."""
    if len(values) < 2 or not all(isinstance(one, dict) and one for one in values):
        return None
    names = list(values[0])
    alike = all(list(one) == names for one in values)
    plain = all(not isinstance(cell, dict | list) for one in values for cell in one.values())
    return names if alike and plain else None


def _table(names: list[str], rows: list[Any], columns: list[str]) -> dict[str, Any]:
    """Return rows that have names as a table, or the numbers in it if there are many."""
    cells = [list(row.values()) for row in rows]
    if _shape(cells) and len(rows) > LONGEST:
        return {"columns": columns, "names": names[:2]} | _numbers(cells)
    return {"columns": columns} | dict(zip(names, cells, strict=True))


def _of_dict(value: dict[str, Any]) -> dict[str, Any]:
    """Shorten what has names."""
    columns = _columns(list(value.values()))
    if columns is not None:
        return _table(list(value), list(value.values()), columns)
    shape = _shape(list(value.values()))
    if shape and len(value) > 1 and (len(shape) > 1 or len(value) > 2 * LONGEST):
        return (
            {"names": list(value)[:2]} | _numbers(list(value.values()))
            if (sum(1 for _ in _flat(list(value.values()))) > LONGEST)
            else value
        )
    return {name: _short(one) for name, one in value.items() if name != "sha256"}


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return _of_dict(value)
    if not isinstance(value, list):
        return value
    if _shape(value):
        return _numbers(value)
    columns = _columns(value)
    if columns is not None and len(value) <= LONGEST:
        return {"columns": columns, "rows": [list(one.values()) for one in value]}
    if len(value) > LONGEST:
        return {"length": len(value), "first": _short(value[0]), "last": _short(value[-1])}
    if any(isinstance(one, dict) for one in value):
        return {str(place): _short(one) for place, one in enumerate(value)}
    return [_short(one) for one in value]


def _round(value: Any) -> Any:
    """Return a value whose numbers have as many digits as are kept."""
    if isinstance(value, dict):
        return {name: _round(one) for name, one in value.items()}
    return [_round(one) for one in value] if isinstance(value, list) else _rounded(value)


def shorten(value: Any) -> Any:
    """Return a value in which long lists are a few entries and sums, and alike things a table."""
    return _round(_short(value))


def _told(value: Any) -> Any:
    """Shorten what was printed, or stands in a file."""
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return _lines(value)
    if isinstance(value, dict) and "/@encoding-type" in value:
        return _elements(value)
    return shorten(value)


def _elements(value: dict[str, Any]) -> dict[str, Any]:
    """Shorten what is in a file of HDF5: of types and encodings how many there are."""
    kept: dict[str, Any] = {}
    kinds: dict[str, int] = {}
    for name, one in value.items():
        path, mark, kind = name.rpartition("@" if "@" in name else ":")
        if path != "/" and mark and kind in ("type", "encoding-type", "encoding-version"):
            kinds[f"{kind} {one}"] = kinds.get(f"{kind} {one}", 0) + 1
        else:
            kept[name] = shorten(one)
    return _round(kept) | {"kinds": dict(sorted(kinds.items()))}


def shortened(found: dict[str, Any]) -> dict[str, Any]:
    """Shorten what a case has left behind: each step by its number, and files."""
    steps = {
        str(number): step | {"out": _told(step["out"]), "err": _told(step["err"])}
        for number, step in enumerate(found["steps"], 1)
    }
    # What a later step reads is on the way: results are of that.
    later = " ".join(step["line"] for step in found["steps"][1:]).split()
    files = {name: _told(one) for name, one in found.get("files", {}).items() if name not in later}
    return steps | ({"files": files} if files else {})


def _lines(value: list[str]) -> Any:
    """Return lines, or if they are many the first and the last, and the sum of all numbers."""
    plain = [NUMBER.sub(_in_words, line) for line in value]
    if len(plain) <= LINES and sum(map(len, plain)) <= 2500:
        return plain
    numbers = [float(one) for line in value for one in NUMBER.findall(line)]
    return {
        "lines": len(plain),
        "first": [_cut(line) for line in plain[:6]],
        "last": [_cut(line) for line in plain[-2:]],
        "numbers": len(numbers),
        "sum": float(sum(numbers)),
        "letters": sum(len(NUMBER.sub("", line)) for line in value),
    }


def _in_words(found: re.Match[str]) -> str:
    """Return a number in text with as many digits as are kept."""
    word = found[0]
    whole = not re.search("[.e]", word)
    return word if whole or len(word) <= DIGITS + 2 else f"{float(word):.{DIGITS}g}"


def _cut(line: str) -> str:
    """Cut a line where a word, or a number, ends."""
    return line if len(line) <= 200 else re.sub(r"[-+.\w]*$", "", line[:200])


# ---- comparing ----------------------------------------------------------------------------------


def differences(
    expected: Any, found: Any, tolerance: float = TOLERANCE, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yield where two values differ: the path, and what each has there.

    Text and whole numbers are compared exactly, numbers within text as numbers; a tolerance of 0
    compares all to the bit.
    """
    if isinstance(expected, dict) and isinstance(found, dict):
        for name in [*expected, *(name for name in found if name not in expected)]:
            one, other = (some.get(name, "(absent)") for some in (expected, found))
            yield from differences(one, other, tolerance, f"{path}/{name}")
    elif isinstance(expected, list) and isinstance(found, list):
        if len(expected) != len(found):
            yield f"{path} (length)", len(expected), len(found)
        for place, (one, other) in enumerate(zip(expected, found, strict=False)):
            yield from differences(one, other, tolerance, f"{path}/{place}")
    elif not _alike(expected, found, tolerance):
        yield path, expected, found


def _alike(expected: Any, found: Any, tolerance: float) -> bool:
    if type(expected) is not type(found):
        return False
    if isinstance(expected, float):
        return bool(abs(expected - found) <= tolerance * max(1.0, abs(expected)))
    if not isinstance(expected, str) or not tolerance or expected == found:
        return bool(expected == found)
    if NUMBER.sub("0", expected) != NUMBER.sub("0", found):
        return False
    pairs = zip(NUMBER.findall(expected), NUMBER.findall(found), strict=True)
    return all(one == other or _near(one, other, tolerance) for one, other in pairs)


def _near(one: str, other: str, tolerance: float) -> bool:
    """Whether two numbers in text are near each other; whole ones must be equal."""
    if not all(re.search("[.e]", word) for word in (one, other)):
        return False
    return abs(float(one) - float(other)) <= tolerance * max(1.0, abs(float(one)))
