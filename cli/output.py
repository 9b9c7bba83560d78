"""What goes to stdout (data) and what goes to stderr (messages), in one place."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any

from vpem.errors import printable

from .naming import in_options
from .progress import Progress, alone, in_rows, take_away
from .tables import Table

if TYPE_CHECKING:
    from vpem.network.schema import Report


_COLOUR = re.compile(r"\x1b\[[0-9;]*m$")
"""The end of colours at the end of a line."""


def _trimmed(line: str) -> str:
    """Return a line without blanks at its end, where colours may stand between them."""
    kept: list[str] = []
    while True:
        line = line.rstrip(" ")
        found = _COLOUR.search(line[-40:])
        if found is None:
            return line + "".join(kept)
        kept.insert(0, found[0])
        line = line[: -len(found[0])]


def tell(line: str) -> None:
    """Print one line on stderr; a stderr that takes nothing stops no work."""
    with alone, suppress(OSError):
        take_away()
        print(in_rows(printable(line)), file=sys.stderr, flush=True)


def fail(message: str, code: int = 2) -> int:
    """Print one sentence on stderr and return the exit code."""
    tell(f"vpem: error: {message}")
    return code


def as_plain(value: Any) -> Any:
    """Replace arrays by lists and numbers JSON has no word for (nan, inf) by None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Write ``value`` as one JSON object on stdout."""
    sys.stdout.write(json.dumps(as_plain(value), allow_nan=False) + "\n")


def show(*items: Table | str) -> None:
    """Print tables and lines of a command's result on stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    # Written by ourselves: Rich would end the process where the reader of a pipe has gone.
    with console.capture() as printed:
        for item in items:
            console.print(item.drawn(console) if isinstance(item, Table) else item)
    # Cells are filled up with blanks, of which none are left at the end of a line.
    sys.stdout.write("\n".join(map(_trimmed, printed.get().split("\n"))))


def plural(count: int, noun: str) -> str:
    """Write "1 hub", "3 hubs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def each(counts: Sequence[int], noun: str) -> str:
    """Write "30 rows each", "28 to 30 rows each"."""
    fewest, most = min(counts), max(counts)
    return f"{plural(most, noun) if fewest == most else f'{fewest} to {most} {noun}s'} each"


def number(value: float | None, digits: int = 6) -> str:
    """Write a number for a reader."""
    return "-" if value is None else f"{value:.{digits}g}"


def size(count: int) -> str:
    """Write a number of bytes for a reader: 912 B, 4.61 MB."""
    for unit, least in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            return f"{count / least:.3g} {unit}"
    return f"{count} B"


def took(report: Report) -> list[str]:
    """Write the iterations of a fit and its time, which nobody is told of noise added to rows."""
    seconds = report["seconds"]
    return [str(report["n_iter"]), *([] if seconds is None else [f"{number(seconds, 3)} s"])]


def communication(sent: Report, names: Sequence[str]) -> str:
    """Write in a line what a fit has sent, and over which link most."""
    if not sent.get("messages"):
        return "nothing was sent"
    line = f"{sent['messages']:,} messages, {size(sent['bytes'])}, {sent['rounds']:,} rounds"
    busiest = sent.get("busiest_link")
    if busiest:
        ends = [names[end] if end < len(names) else "server" for end in busiest["between"]]
        line += f"; busiest link {' - '.join(ends)} with {size(busiest['bytes'])}"
    return line


class Screen:
    """Messages of one command on stderr; warnings of the library are printed and kept.

    If ``quiet``, errors only are printed; warnings are kept all the same, for --json and models.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.silent = False
        """Whether warnings are only kept: another process will print them."""
        self.warnings: list[str] = []
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Screen:
        from vpem.errors import VpemWarning

        self._caught.__enter__()
        warnings.simplefilter("always", VpemWarning)
        if self.quiet:
            import logging

            # It says so where it has no home that it can write to.
            logging.getLogger("matplotlib").setLevel(logging.ERROR)

        def show(message: Any, *_: Any, **__: Any) -> None:
            known = isinstance(message, VpemWarning)
            self.warn(printable(in_options(message) if known else message))

        warnings.showwarning = show
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._caught.__exit__(kind, error, trace)

    def warn(self, text: str, where: str = "") -> None:
        """Print and keep a warning; unless quiet, which prints none."""
        self.warnings.append(where + text)
        if not self.silent and not self.quiet:
            tell(f"vpem: warning: {where}{text}")

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Show in a terminal what takes longer than a second, and how long it has taken."""
        progress = Progress(self.quiet or self.silent)
        progress.announce(what)
        try:
            yield
        finally:
            progress.close()

    def note(self, text: str) -> None:
        """Print what a user may want to know of a result, unless quiet."""
        self.say(f"note: {text}")

    def say(self, message: str) -> None:
        """Print a message unless quiet."""
        if not self.quiet and not self.silent:
            tell(message)
