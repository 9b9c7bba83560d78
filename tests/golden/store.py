"""The kept results: run a group of cases, and read and write what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from .cases import CASES, NEEDED, ROUGH, UNSETTLED
from .compare import TOLERANCE, differences, shortened
from .inputs import MADE, TEXTS
from .runner import Workshop, quick

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "data"
KEPT = HERE / "files"


def workshop(home: Path) -> Workshop:
    """Return where cases of this checkout are run."""
    quick()
    return Workshop(home, DATA, TEXTS, MADE, KEPT)


def lines_of(case: str | tuple[str, ...]) -> list[str]:
    """Return the command lines of a case."""
    return [case] if isinstance(case, str) else list(case)


def left_out() -> set[str]:
    """Return the cases that need a package which is not installed."""
    return {case for case, package in NEEDED.items() if find_spec(package) is None}


def found(shop: Workshop, group: str) -> dict[str, Any]:
    """Run the cases of a group, and return what each left behind, shortened."""
    return {
        name: shortened(shop.run(lines_of(case)))
        for name, case in CASES[group].items()
        if f"{group}/{name}" not in left_out()
    }


def changes(group: str, before: dict[str, Any], now: dict[str, Any]) -> list[Any]:
    """Return where the results of a group differ: path, what was there, and what is."""
    there = [name for name in before if f"{group}/{name}" not in left_out()]
    wrong = list(differences(there, list(now), path="cases"))
    for name, one in now.items():
        near = ROUGH.get(f"{group}/{name}", ROUGH.get(group, TOLERANCE))
        unsettled = UNSETTLED.get(f"{group}/{name}", ())
        wrong += [
            found
            for found in differences(before.get(name, "(absent)"), one, near, f"/{name}")
            if not any(f"/{part}" in found[0] for part in unsettled)
        ]
    return wrong


def path_of(group: str) -> Path:
    """Return where the results of a group are kept."""
    return HERE / f"{group}.json"


# ---- files --------------------------------------------------------------------------------------


def delta(base: dict[str, Any], value: dict[str, Any]) -> dict[str, Any]:
    """Return what of a value is not as in another one, and under ``-`` the names that it lacks."""
    found: dict[str, Any] = {}
    for name, one in value.items():
        other = base.get(name, ...)
        if isinstance(one, dict) and isinstance(other, dict) and one and other:
            if inner := delta(other, one):
                found[name] = inner
        elif type(one) is not type(other) or one != other or repr(one) != repr(other):
            found[name] = {"=": one} if isinstance(one, dict) else one
    lacks = [name for name in base if name not in value]
    return found | ({"-": lacks} if lacks else {})


def applied(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return the value of which these are the changes."""
    found = {name: one for name, one in base.items() if name not in changes.get("-", ())}
    for name, one in changes.items():
        if name == "-":
            continue
        if isinstance(one, dict):
            found[name] = one["="] if "=" in one else applied(found[name], one)
        else:
            found[name] = one
    return found


def packed(values: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return cases as changes of earlier ones, where that is shorter."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        found[name] = value
        for other in list(values)[: list(values).index(name)]:
            shorter = {"like": other, "but": delta(values[other], value)}
            if len(json.dumps(shorter)) < len(json.dumps(found[name])):
                found[name] = shorter
    return found


def unpacked(kept: dict[str, Any]) -> dict[str, Any]:
    """Return the cases that were packed."""
    found: dict[str, Any] = {}
    for name, one in kept.items():
        found[name] = applied(found[one["like"]], one["but"]) if "like" in one else one
    return found


def expected(group: str) -> dict[str, Any]:
    """Return the kept results of a group."""
    return unpacked(json.loads(path_of(group).read_text(encoding="utf-8")))


def _written(value: Any, depth: int, room: int) -> Iterator[str]:
    """Write a value as JSON, in one line where it is short or lies deep."""
    plain = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if not value or depth == 0 or len(plain) <= room or not isinstance(value, dict | list):
        yield plain
        return
    marks = "{}" if isinstance(value, dict) else "[]"
    yield marks[0]
    pairs = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for number, (name, one) in enumerate(pairs):
        head = "" if name is None else f"{json.dumps(name, ensure_ascii=False)}: "
        first, *rest = _written(one, depth - 1, room)
        inner = [f" {head}{first}", *(f" {line}" for line in rest)]
        yield from inner[:-1]
        yield inner[-1] + ("," if number < len(value) - 1 else "")
    yield marks[1]


def keep(group: str, value: dict[str, Any]) -> None:
    """Write the results of a group, a line for each short value."""
    text = "\n".join(_written(packed(value), 9, 240)) + "\n"
    path_of(group).write_text(text, encoding="utf-8")
