"""What there is to say of a fit: sections of tables and sentences, for pages and for terminals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vpem.pictures.style import said_bytes
from vpem.pictures.traffic import MEANINGS

Fact = tuple[str, object]


@dataclass(frozen=True)
class Table:
    """A table whose first column names its rows; ``numbers``: whether the others are numbers."""

    rows: Sequence[Sequence[object]]
    heads: Sequence[str] = ()
    caption: str = ""
    numbers: bool = True


@dataclass(frozen=True)
class Listing:
    """Sentences that a reader must know."""

    lines: Sequence[str]


@dataclass(frozen=True)
class Section:
    """Part of what is said: its name and heading, tables and sentences, and kinds of pictures."""

    name: str
    heading: str
    items: Sequence[Table | Listing | str]
    pictures: Sequence[str] = ()


@dataclass(frozen=True)
class Contents:
    """All that is said of a fit; a section without items is none."""

    title: str
    lead: str
    sections: Sequence[Section]


def facts(listed: Sequence[Fact], caption: str = "") -> Table:
    """Return a table of facts."""
    return Table(listed, caption=caption, numbers=False)


def sent_by_phase(kinds: Mapping[str, Mapping[str, float]]) -> Table | str:
    """Return messages, bytes and rounds by kind, with their sums."""
    if not kinds:
        return "Nothing was sent."
    made = [
        (
            MEANINGS.get(kind, kind),
            f"{counted['messages']:,.0f}",
            said_bytes(counted["bytes"]),
            f"{counted['rounds']:,.0f}",
        )
        for kind, counted in kinds.items()
    ]
    totals = [sum(counted[name] for counted in kinds.values())
              for name in ("messages", "bytes", "rounds")]  # fmt: skip
    made.append(("all", f"{totals[0]:,.0f}", said_bytes(totals[1]), f"{totals[2]:,.0f}"))
    return Table(made, ("phase", "messages", "payload", "rounds"), "By phase")
