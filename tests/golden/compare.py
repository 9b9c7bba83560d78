"""Shorten what commands have left behind, and find where two such values differ."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

TOLERANCE = 1e-8
"""Of numbers that are not whole, relative to the larger of 1 and the number."""

LONGEST = 6
"""Lists of numbers beyond that are shortened."""

LINES = 24
"""Texts beyond that are shortened."""

NUMBER = re.compile(r"(?<![\w.])[-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?![\w])")


# ---- shortening ---------------------------------------------------------------------------------


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of a list of numbers, or of equal lists of them; None of anything else."""
    if isinstance(value, bool) or not isinstance(value, list | int | float):
        return None if value not in ("nan", "inf", "-inf") else ()
    if not isinstance(value, list):
        return ()
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


def _numbers(value: list[Any], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return an array's shape, its first numbers, and two sums, of which one knows the order."""
    flat = list(_flat(value))
    finite = [(place, one) for place, one in enumerate(flat) if not isinstance(one, str)]
    return {
        "shape": list(shape),
        "first": flat[:3],
        "sum": sum(one for _, one in finite),
        "ramp": float(sum(one * (place + 1) / len(flat) for place, one in finite)),
    }


def shorten(value: Any) -> Any:
    """Return a value in which long lists and texts are a few entries, and sums of all."""
    if isinstance(value, dict):
        return {name: shorten(one) for name, one in value.items() if name != "sha256"}
    if not isinstance(value, list):
        return value
    shape = _shape(value)
    if shape is not None and shape:
        size = sum(1 for _ in _flat(value))
        return value if size <= LONGEST else _numbers(value, shape)
    if value and all(isinstance(one, str) for one in value):
        return _lines(value)
    if len(value) > LONGEST:
        return {"length": len(value), "first": shorten(value[:2]), "last": shorten(value[-1])}
    return [shorten(one) for one in value]


def _lines(value: list[str]) -> Any:
    """Return lines, or if they are many the first and the last, and the sum of all numbers."""
    if len(value) <= LINES and sum(map(len, value)) <= 2500:
        return value
    numbers = [float(one) for line in value for one in NUMBER.findall(line)]
    return {
        "lines": len(value),
        "first": [line[:300] for line in value[:8]],
        "last": [line[:300] for line in value[-2:]],
        "numbers": len(numbers),
        "sum": float(sum(numbers)),
        "letters": sum(len(NUMBER.sub("", line)) for line in value),
    }


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
