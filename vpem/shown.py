"""How objects show themselves: a line where they are printed, a small table in a notebook."""

from __future__ import annotations

from html import escape

from vpem.errors import printable

__all__ = ["Shown", "count", "html_table", "table"]


class Shown:
    """What shows itself by a few facts, and never by its arrays."""

    def _facts(self) -> list[str]:
        """Return what there is to say of it, most telling first."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(map(printable, self._facts()))})"

    def _repr_html_(self) -> str:
        """Show it in a notebook."""
        rows = [[escape(printable(fact))] for fact in self._facts()]
        return html_table(rows, [escape(type(self).__name__)])


def count(number: int, noun: str) -> str:
    """Return how many there are: "1 hub", "2 hubs"."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def table(rows: list[list[str]], heads: list[str]) -> str:
    """Return cells in columns, two blanks apart, and no blanks at the end of lines."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in [heads, *rows]]
    return "\n".join(lines)


def html_table(rows: list[list[str]], heads: list[str]) -> str:
    """Return a table of cells that are HTML already."""
    left = ' style="text-align: left"'
    head = "".join(f"<th{left}>{one}</th>" for one in heads)
    lines = ("".join(f"<td{left}>{cell}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
