"""Tables of results, laid out for the width there is: no number is cut, and no word is lost."""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from vpem.errors import printable

if TYPE_CHECKING:
    from rich.console import Console


LEAST = 16
"""Text may be broken into pieces of so many columns, where words are longer."""

LONGEST_NAME = 24
"""Names of facts of so many columns are not broken."""

APART = 3
"""Blanks from the text of one cell to that of the next."""


@dataclass
class Table:
    """A table of a command's result; see `table`."""

    heads: Sequence[str]
    rows: list[list[str]]
    title: str | None = None
    right: Sequence[str] = ()
    spare: Sequence[str] = ()
    """Heads of columns that a narrow terminal goes without, first those named first."""
    caption: str | None = None
    """Below the table."""

    def fitting(self, width: int) -> Table:
        """Return the table as it is shown in so many columns, or in a pipe.

        In a narrow terminal columns that can be spared are left out; then text is broken at its
        words; and where that does not do either, every row takes lines of its own.
        """
        one = self
        for name in () if self.is_whole else self.spare:
            if one.natural <= width:
                break
            one = one.without(name)
        whole = self.is_whole or not any(one.heads)
        return one if whole or one.least <= width else one.upright()

    @property
    def is_whole(self) -> bool:
        """Whether it goes to a pipe, which gets all columns however wide they are."""
        return bool(self.spare) and not sys.stdout.isatty()

    @property
    def natural(self) -> int:
        """Columns that it takes with every cell in one line."""
        return _total(self._widths(0))

    @property
    def least(self) -> int:
        """Columns that it takes with text broken wherever it may be."""
        return _total(self._least())

    def widths(self, width: int) -> list[int]:
        """Return the width of each column, of those that together take so many at most."""
        found, least = self._widths(0), self._least()
        found = [max(min(one, width), few) for one, few in zip(found, least, strict=True)]
        while not self.is_whole and _total(found) > max(width, _total([1] * len(found))):
            room = [one if one > few else 0 for one, few in zip(found, least, strict=True)]
            if not any(room):
                room = found
            found[room.index(max(room))] -= 1
        return found

    def _widths(self, most: int) -> list[int]:
        """Return the longest text of each column; with ``most`` its longest piece of that size."""
        from rich.cells import cell_len

        def taken(text: str, place: int) -> int:
            number = self.heads[place] in self.right and text is not self.heads[place]
            if not most or number:
                return cell_len(text)
            words = (cell_len(word) for word in text.split())
            return min(max(words, default=0), most)

        lines = [list(self.heads), *self.rows]
        return [max(taken(line[j], j) for line in lines) for j in range(len(self.heads))]

    def _least(self) -> list[int]:
        found = self._widths(LEAST)
        # Of a list of facts the names stay in one line, where that leaves room for them.
        whole = self._widths(0)[0] if self.heads and not any(self.heads) else 0
        return [max(whole, found[0]) if whole <= LONGEST_NAME else found[0], *found[1:]]

    def without(self, name: str) -> Table:
        """Return the table without a column."""
        kept = [j for j, head in enumerate(self.heads) if head != name]
        rows = [[row[j] for j in kept] for row in self.rows]
        return replace(self, heads=[self.heads[j] for j in kept], rows=rows)

    def upright(self) -> Table:
        """Return a table of two columns, with a line for every cell that is not empty."""
        rows: list[list[str]] = []
        for row in self.rows:
            rows += [["", ""]] if rows else []
            named = zip(self.heads, row, strict=True)
            rows += [[head, cell] for head, cell in named if head or cell]
        return replace(self, heads=["", ""], rows=rows, right=())

    def drawn(self, console: Console) -> Any:
        """Return what Rich prints."""
        from rich import box
        from rich.table import Table as Drawn

        one = self.fitting(console.width)
        made = Drawn(title=one.title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
        made.show_header = any(one.heads)
        widths = one.widths(console.width)
        for head, width in zip(one.heads, widths, strict=True):
            justify: Any = "right" if head in one.right else "left"
            made.add_column(head, justify=justify, width=width, overflow="fold")
        for row in one.rows:
            made.add_row(*map(_between_items, row, widths))
        made.width, made.caption, made.caption_justify = _total(widths), one.caption, "left"
        return made


def _between_items(text: str, width: int) -> str:
    """Break text of several items between them, where that leaves no line nearly empty."""
    if len(text) <= width or not text.isascii():
        return text
    lines = [""]
    for item in re.split(r"(?<=[,;]) ", text):
        joined = f"{lines[-1]} {item}" if lines[-1] else item
        if len(joined) <= width:
            lines[-1] = joined
        elif len(item) <= width <= 3 * len(lines[-1]):
            lines.append(item)
        else:
            wrapped = textwrap.wrap(joined, width, break_long_words=False, break_on_hyphens=False)
            lines[-1:] = [piece for line in wrapped for piece in _pieces(line, width)]
    return "\n".join(lines)


def _pieces(word: str, width: int) -> list[str]:
    """Break what is longer than a line, behind a mark such as of a path where there is one."""
    found = []
    while len(word) > width:
        marks = re.finditer(r"[/_:,-]", word[:width])
        end = max((mark.end() for mark in marks if mark.end() > width // 3), default=width)
        found.append(word[:end])
        word = word[end:]
    return [*found, word]


def _total(widths: Sequence[int]) -> int:
    """Columns that a table of such columns takes."""
    return sum(widths) + APART * len(widths) - 1


def table(
    rows: Iterable[Iterable[object]],
    *columns: str,
    title: str | None = None,  # above
    right: Sequence[str] = (),
    spare: Sequence[str] = (),
    caption: str | None = None,  # below
) -> Table:
    """Return a table in the house style; without heads that are not empty there is no line of them.

    Cells of columns in ``right`` are aligned and not broken. A narrow terminal goes without
    ``spare`` columns, the first of them first; where there are any a pipe gets all columns, however
    wide.
    """
    cells = [[printable(cell) for cell in row] for row in rows]
    heads, right = [printable(one) for one in columns], [printable(one) for one in right]
    return Table(heads, cells, title, right, spare, caption)
