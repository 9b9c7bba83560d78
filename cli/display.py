"""Everything printed to stdout (data) and to stderr (messages).

Tables are laid out for the available width: no number is cut, and no word is lost. Progress of a
long run is a live line in a terminal, and an occasional line in pipes and logs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Sequence
from contextlib import closing, suppress
from typing import Any, ClassVar

from vpem.errors import Setting, VpemWarning, printable
from vpem.pictures.contents import size
from vpem.records import Table

from .names import in_options

LEAST, LONGEST_NAME, GAP = 16, 24, 3
"""Columns of the pieces of longer words, most of names of facts that are not broken, and between
the texts of neighbouring cells."""


def _drawn(contents: Table, width: int) -> Any:
    """Return a table as it is shown in ``width`` columns, or in a pipe, which gets all columns.

    In a narrow terminal columns that it can spare are left out; then text is broken at its words;
    and if that is not enough, every cell that is not empty takes a line of its own.
    """
    from rich import box
    from rich import table as rich_table

    rows = [[*map(printable, row)] for row in contents.rows]
    heads = [*map(printable, contents.heads or [""] * max(map(len, rows), default=1))]
    right = [*map(printable, contents.aligned)] if contents.heads else []
    columns = [*zip(heads, *rows, strict=True)]
    whole = bool(contents.spare) and not sys.stdout.isatty()
    for name in () if whole else contents.spare:
        if _total([longest for _, longest in _room(columns, right)]) > width:
            columns = [one for one in columns if one[0] != name]
    upright = not whole and any(heads) and len(columns[0]) > 1
    if upright and _total([least for least, _ in _room(columns, right)]) > width:
        names, *others = zip(*columns, strict=True)
        lines = [("", "")]
        for row in others:
            lines += [(head, cell) for head, cell in zip(names, row, strict=True) if head or cell]
            lines += [("", "")]
        columns = [*zip(*lines[:-1], strict=True)]
    room = _room(columns, right)
    widths = [max(min(longest, width), least) for least, longest in room]
    while not whole and _total(widths) > max(width, _total([1] * len(widths))):
        spare = [one * (one > least) for one, (least, _) in zip(widths, room, strict=True)]
        widest = spare if any(spare) else widths
        widths[widest.index(max(widest))] -= 1
    drawn = rich_table.Table(
        title=contents.caption or None, caption=contents.note or None, box=box.SIMPLE_HEAD,
        width=_total(widths), pad_edge=False, title_justify="left", caption_justify="left",
        show_header=any(one[0] for one in columns),
    )  # fmt: skip
    for (head, *_), taken in zip(columns, widths, strict=True):
        justify: Any = "right" if head in right else "left"
        drawn.add_column(head, justify=justify, width=taken, overflow="fold")
    for row in [*zip(*columns, strict=True)][1:]:
        drawn.add_row(*map(_between_items, row, widths))
    return drawn


def _room(columns: Sequence[Sequence[str]], right: Collection[str]) -> list[tuple[int, int]]:
    """Return the least and the longest width of each column, by its words and its texts.

    Cells of columns in ``right`` are not broken.
    """
    from rich.cells import cell_len

    room, facts = [], not any(one[0] for one in columns)
    for place, column in enumerate(columns):
        longest = max(map(cell_len, column))
        broken = 1 if column[0] in right else len(column)
        words = map(cell_len, " ".join(column[:broken]).split())
        least = max([min(max(words, default=0), LEAST), *map(cell_len, column[broken:])])
        # In a list of facts the names stay in one line, unless they are long.
        stays = facts and place == 0 and longest <= LONGEST_NAME
        room.append((longest if stays else least, longest))
    return room


def _between_items(text: str, width: int) -> str:
    """Break a list of items between them, where that leaves no line nearly empty."""
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
    """Break a word longer than a line, after a mark as in paths if there is one."""
    pieces = []
    while len(word) > width:
        marks = re.finditer(r"[/_:,-]", word[:width])
        end = max((mark.end() for mark in marks if mark.end() > width // 3), default=width)
        pieces.append(word[:end])
        word = word[end:]
    return [*pieces, word]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * len(widths) - 1


BETWEEN, DOTS = "  ", "..."

TICK = 0.5
"""Seconds between updates of the time of a live line."""

_length = 0
"""Of the live line: the last one of a terminal, which is overwritten; the cursor stays visible.

A process that is killed leaves the terminal usable.
"""

alone = threading.RLock()
"""Held while a thread writes to a terminal: a live line has one that updates its time."""


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line can be overwritten."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def take_away(text: str = "") -> None:
    """Take the live line away, if there is one, so that a message begins there; or replace it."""
    global _length
    with alone, suppress(OSError):
        if not text and not _length:
            return
        # It takes more rows if the terminal got narrower.
        up = max(_length - 1, 0) // _columns()
        _length = len(text)  # before writing, which may be interrupted
        sys.stderr.write((f"\x1b[{up}A" if up else "") + "\r\x1b[J" + text)
        sys.stderr.flush()


def fitting(parts: Sequence[str], width: int, tail: Sequence[str] = ()) -> str:
    """Return as many parts of a line as fit in its width; no word or number is cut.

    The last part, the least important, is left out first; the first is broken at a word at worst.
    The ``tail`` is left out only once the first part is alone.
    """
    left, end = list(parts), list(tail)
    while len(line := BETWEEN.join([*left, *end])) > width and (end or len(left) > 1):
        (left if len(left) > 1 else end).pop()
    if len(line) <= width:
        return line
    words = line.split(" ")
    while words and len(" ".join([*words, DOTS])) > width:
        words.pop()
    return " ".join([*words, DOTS])[: max(width, 0)]


def in_rows(line: str) -> str:
    """Return a message with breaks between words where a terminal would break it anywhere."""
    columns = _columns() if is_terminal() else 0
    if not 0 < columns < len(line):
        return line
    return textwrap.fill(line, columns, break_long_words=False, break_on_hyphens=False)


def _columns() -> int:
    from vpem.checks import read_int

    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        width = 0
    return width or read_int(os.environ.get("COLUMNS", "")) or 80


class ProgressLine:
    """Progress of a long run: iterations out of the most, their results, time and rate.

    Nothing is shown in the first second. Without a terminal a line with the time is printed every
    ten seconds, and ever less often: a run of a day leaves some 200 lines. ``unkept`` names options
    that would keep the result, where none does: a note says so in time.
    """

    DRAW_EVERY = 0.1
    LOG_EVERY = 10.0
    MOST_BETWEEN = 600.0

    def __init__(self, quiet: bool, unkept: str | None = None, most: int | None = None) -> None:
        self.quiet, self.unkept, self.most = quiet, unkept, most
        self.began = self.last_line = self._first = time.monotonic()
        self.iterations = 0
        self.latest: Any = None
        self.known: Sequence[str] = ()
        self.trace: Any = None  # that the run keeps
        self.about = self._restart = ""
        self._shown: Sequence[str] = ()
        self._over = threading.Event()
        # A start, or first iteration, may take minutes before it prints a line of its own.
        if not quiet and (unkept or is_terminal()):
            threading.Thread(target=self._tick, daemon=True).start()

    def __call__(self, progress: Any) -> None:
        self.iterations += 1
        if self.iterations == 1:
            self._first = time.monotonic()
        self.latest = progress
        if (known := self.facts(progress)) is not None:
            self.known = [*known]
        self.remind()
        if self.is_due():
            self.tell(self.place(progress), *self.known)

    @property
    def tracing(self) -> Any:
        """What gets iterates, if anything does."""
        return None if self.trace is None else self.trace.tracing

    def restarting(self, number: int, count: int, most: int) -> None:
        """Count restarts from 1 to ``count``, each with ``most`` iterations at most."""
        if self.trace is not None:
            self.trace.restarting(number, count, most)
        self.most, self.latest = most, None
        self._restart = f"restart {number}/{count}, " if count > 1 else ""

    def reading(self, path: str, part: float) -> None:
        """Show which part of the rows of a file was read; logs do not."""
        self.remind()
        if is_terminal() and self.is_due():
            parts = [f"reading {os.path.basename(path)}: {100 * part:.0f} %{_of_size(path)}"]
            if self.latest is not None:
                parts = [self.place(self.latest), *parts, *self.known]
            self.tell(*parts)

    def starting(self, step: str) -> None:
        self.remind()
        self.tell(f"{self._restart}start: {step}")

    def place(self, progress: Any) -> str:
        """Return the number of the iteration, and of the restart if there are several."""
        most = "" if self.most is None else f"/{self.most}"
        return f"{self.about}{self._restart}iteration {progress.iteration}{most}"

    def facts(self, progress: Any) -> Iterable[str] | None:
        """Return the results of an iteration, most important first; None: those before hold."""
        facts: list[str] | None = progress.facts()
        return facts

    def remind(self) -> None:
        """Note once, after a second, that the result of a run will not be kept."""
        with alone:  # the run or the clock, whichever is first
            if self.unkept and not self.quiet and time.monotonic() - self.began >= 1.0:
                tell(f"note: the result will not be kept; to keep it give {self.unkept}")
                self.unkept = None

    def is_due(self) -> bool:
        now = time.monotonic()
        wait = self.DRAW_EVERY
        if not is_terminal():
            wait = min(max(self.LOG_EVERY, (now - self.began) / 10), self.MOST_BETWEEN)
        return not self.quiet and now - self.began >= 1.0 and now - self.last_line >= wait

    def tell(self, *parts: str) -> None:
        """Show a line if it is time for one; in a terminal it replaces the last."""
        self._shown = parts
        if self.is_due():
            self._show()

    def announce(self, line: str) -> None:
        """Show at once what a run does now, unless it is in its first second."""
        self._shown, self.iterations = (line,), 0
        if not self.quiet and time.monotonic() - self.began >= 1.0:
            self._show()

    def _show(self) -> None:
        now, done = time.monotonic(), self.iterations - 1
        self.last_line, spent, rate = now, now - self.began, list[str]()
        if done >= 1:
            a_second = done / max(now - self._first, 1e-9)
            slow = f"{1 / a_second:.3g} s/it"
            rate = [f"{a_second:.3g} it/s" if a_second >= 1 else slow]
        with alone, suppress(OSError):
            if is_terminal():
                take_away(fitting(self._shown, _columns() - 1, [clock(spent), *rate]))
                return
            stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S')} (after {span(spent)})"
            print(BETWEEN.join([stamp, *self._shown, *rate]), file=sys.stderr, flush=True)

    def _tick(self) -> None:
        """Remind in time, and in a terminal update the time while a step takes long."""
        while not self._over.wait(TICK) and (self.unkept or is_terminal()):
            self.remind()
            with alone:
                idle = is_terminal() and time.monotonic() - self.last_line >= TICK
                if not self._over.is_set() and self._shown and idle and self.is_due():
                    self._show()

    def close(self) -> None:
        with alone:
            self._over.set()
            take_away()


def _of_size(path: object, before: str = " of ") -> str:
    name = str(path)  # a folder, or an address, may be none
    return f"{before}{size(os.path.getsize(name))}" if os.path.isfile(name) else ""


def clock(seconds: float) -> str:
    """Write a time in few columns: 0:12, 3:05, 2:07:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def span(seconds: float) -> str:
    """Write a time for a reader: 12 s, 3 min 05 s, 2 h 07 min."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def tell(line: str) -> None:
    """Print one line on stderr; a stderr that cannot be written stops no work."""
    with alone, suppress(OSError):
        take_away()
        print(in_rows(printable(line)), file=sys.stderr, flush=True)


def fail(message: str, code: int = 2) -> int:
    tell(f"vpem: error: {message}")
    return code


def drop_stdout() -> None:
    """Discard what stdout still holds, so that it fails only once."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def as_plain(value: Any) -> Any:
    """Replace arrays by lists, paths by words, and numbers that JSON lacks (nan, inf) by None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): as_plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    return value


def plain(facts: Any, *names: str) -> dict[str, Any]:
    """Return those facts, of these names or all, that are words and numbers."""
    known = facts if isinstance(facts, dict) else {}
    chosen = {name: known.get(name) for name in names or known}
    return {name: one for name, one in chosen.items() if isinstance(one, str | int | float)}


def print_json(value: Any) -> None:
    """Write ``value`` as one JSON object on stdout."""
    sys.stdout.write(json.dumps(as_plain(value), allow_nan=False) + "\n")


def show(*items: Table | list[str] | str) -> None:
    """Print tables, warnings and lines of a result on stdout."""
    from rich.console import Console

    console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)
    # Not printed by Rich, which would end the process if the reader of a pipe has gone.
    with console.capture() as printed:
        for item in items:
            lines: list[Any] = item if isinstance(item, list) else [item]
            for one in lines:
                console.print(one if isinstance(one, str) else _drawn(one, console.width))
    # Cells are padded with blanks; at the end of a line they go, colours between them stay.
    trailing = re.compile(r"(?: |\x1b\[[0-9;]*m)+$", re.MULTILINE)
    sys.stdout.write(trailing.sub(lambda end: end[0].replace(" ", ""), printed.get()))


class Screen:
    """Messages of one command on stderr; warnings of the library are printed and kept.

    If ``quiet``, only errors are printed; warnings are still kept, for --json and models.
    """

    early: ClassVar[Sequence[Warning | str]] = ()
    """Warnings from before the screen."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.silent = False
        """Whether warnings are only kept: another process will print them."""
        self.warnings: list[str] = []
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Screen:
        self._caught.__enter__()
        warnings.simplefilter("always", VpemWarning)
        if self.quiet:
            import logging

            # It warns where it cannot write to its home.
            logging.getLogger("matplotlib").setLevel(logging.ERROR)

        warnings.showwarning = lambda message, *_, **__: self.warn(
            printable(in_options(message) if isinstance(message, VpemWarning) else message)
        )
        for one in Screen.early:
            warnings.warn(one, stacklevel=2)
        Screen.early = ()
        return self

    def __exit__(self, *error: Any) -> None:
        self._caught.__exit__(*error)

    def warn(self, text: str, where: str = "") -> None:
        """Keep a warning, and print it unless quiet."""
        self.warnings.append(where + text)
        if not self.silent and not self.quiet:
            tell(f"vpem: warning: {where}{text}")

    def reading(self, files: Sequence[object]) -> closing[ProgressLine]:
        """Show in a terminal that files are read, if that takes longer than a second."""
        progress, what = ProgressLine(self.quiet or self.silent), f"{len(files)} files"
        if len(files) == 1:
            what = os.path.basename(str(files[0])) + _of_size(files[0], ", ")
        progress.announce(f"reading {what}")
        return closing(progress)

    def print_note(self, *parts: str | Setting) -> None:
        """Print a sentence, if it has parts."""
        if parts:
            self.say(f"note: {in_options(VpemWarning(*parts))}")

    def say(self, message: str) -> None:
        if not self.quiet and not self.silent:
            tell(message)
