"""How objects show themselves: a line where they are printed, a small table in a notebook."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import Formatter
from typing import Any, ClassVar

from vpem.errors import printable


class _Facts(Formatter):
    """Formats numbers of things, ``{n_hubs:hub}``, and what is or is not, ``{is_here:yes|no}``."""

    def format_field(self, value: Any, format_spec: str) -> str:
        """Format one fact."""
        if "|" in format_spec:
            return format_spec.split("|")[0 if value else 1]
        if format_spec.isalpha() and len(format_spec) > 1:
            return f"{value} {format_spec}{'' if value == 1 else 's'}"
        return str(super().format_field(value, format_spec))


class _Of(Mapping[str, Any]):
    """Attributes of an object, by their names."""

    def __init__(self, shown: Shown) -> None:
        self.shown = shown

    def __getitem__(self, name: str) -> Any:
        return getattr(self.shown, name)

    def __iter__(self) -> Any:
        return iter(vars(self.shown))

    def __len__(self) -> int:
        return len(vars(self.shown))


class Shown:
    """What shows itself by a few facts, and never by its arrays.

    A class says which: ``class Graph(Shown, facts="{n_agents:agent}, {n_edges:edge}")``.
    """

    _facts: ClassVar[str] = ""

    def __init_subclass__(cls, facts: str = "", **others: Any) -> None:
        super().__init_subclass__(**others)
        cls._facts = facts or cls._facts
        cls.__repr__ = Shown.__repr__  # type: ignore[method-assign]  # before a dataclass makes one

    def _told(self) -> str:
        return printable(_Facts().vformat(self._facts, (), _Of(self)))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._told()})"

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        from html import escape

        rows = [[escape(fact)] for fact in self._told().split(", ")]
        return html_table(rows, [escape(type(self).__name__)])


def table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Return cells in columns, two blanks apart, and no blanks at the end of lines."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [heads, *rows]]
    return "\n".join(lines)


def html_table(rows: Sequence[Sequence[str]], heads: Sequence[str]) -> str:
    """Return a table of cells that are HTML already."""
    left = ' style="text-align: left"'
    head = "".join(f"<th{left}>{one}</th>" for one in heads)
    lines = ("".join(f"<td{left}>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
