"""The kept results: run a group of cases, and read and write what is expected of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .cases import CASES
from .compare import shorten
from .inputs import MADE, TEXTS
from .runner import Workshop, quick

HERE = Path(__file__).resolve().parent
DATA = HERE.parents[1] / "data"


def workshop(home: Path) -> Workshop:
    """Return where cases of this checkout are run."""
    quick()
    return Workshop(home, DATA, TEXTS, MADE)


def lines_of(case: str | tuple[str, ...]) -> list[str]:
    """Return the command lines of a case."""
    return [case] if isinstance(case, str) else list(case)


def found(shop: Workshop, group: str) -> dict[str, Any]:
    """Run the cases of a group, and return what each left behind, shortened."""
    return {name: shorten(shop.run(lines_of(case))) for name, case in CASES[group].items()}


def path_of(group: str) -> Path:
    """Return where the results of a group are kept."""
    return HERE / f"{group}.json"


def expected(group: str) -> dict[str, Any]:
    """Return the kept results of a group."""
    return json.loads(path_of(group).read_text(encoding="utf-8"))


def _written(value: Any, depth: int, room: int) -> Iterator[str]:
    """Write a value as JSON, in one line where it is short or lies deep."""
    plain = json.dumps(value, ensure_ascii=False)
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
    text = "\n".join(_written(value, 7, 100)) + "\n"
    path_of(group).write_text(text, encoding="utf-8")
