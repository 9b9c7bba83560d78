"""How far a long run is: a live line in a terminal, a line now and then in pipes and logs."""

from __future__ import annotations

import os
import sys
import textwrap
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

APART = "  "
DOTS = "..."
TICK = 0.5
"""Seconds from one look at the clock to the next, where nothing else is to be told."""

_line: LiveLine | None = None
"""The live line there is, which other messages take away before they are printed."""

alone = threading.RLock()
"""Held by whoever writes to a terminal: a live line has a thread that keeps its time going."""


def is_terminal() -> bool:
    """Whether stderr is a terminal on which a line can be written over."""
    return sys.stderr.isatty() and os.environ.get("TERM", "") not in ("", "dumb")


def take_away() -> None:
    """Take the live line away, if there is one."""
    if _line is not None:
        _line.clear()


class LiveLine:
    """One line at the end of a terminal that is written over; the cursor stays visible.

    A process that is killed leaves the terminal as it should be.
    """

    def __init__(self) -> None:
        self.length = 0

    def draw(self, parts: Sequence[str], tail: Sequence[str] = ()) -> None:
        """Write over what is there, in one row; see `fitting`."""
        columns = _columns()
        shown = fitting(parts, columns - 1, tail)
        with alone:
            back = self._back(columns)
            # Known first: an interrupt may come in the middle.
            self.length = len(shown)
            self._write(back + shown)

    def clear(self) -> None:
        """Leave an empty line, on which the next message begins."""
        with alone:
            if self.length:
                self._write(self._back(_columns()))
                self.length = 0

    def _back(self, columns: int) -> str:
        """To the beginning of the line, which takes more rows where the terminal got narrower."""
        up = max(self.length - 1, 0) // columns
        return f"\x1b[{up}A\r\x1b[J" if up else "\r\x1b[J"

    def _write(self, text: str) -> None:
        with suppress(OSError):
            sys.stderr.write(text)
            sys.stderr.flush()


def fitting(parts: Sequence[str], width: int, tail: Sequence[str] = ()) -> str:
    """Return as many parts of a line as it is wide; no word or number is cut.

    The most important part is first: the last goes first, the first is broken at a word at worst.
    The ``tail`` goes only once the first part is alone.
    """
    left, end = list(parts), list(tail)
    while len(left) > 1 and len(APART.join([*left, *end])) > width:
        left.pop()
    while end and len(APART.join([*left, *end])) > width:
        end.pop()
    words = APART.join([*left, *end]).split(" ")
    if len(" ".join(words)) <= width:
        return " ".join(words)
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
        found = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        found = 0
    return found or read_int(os.environ.get("COLUMNS", "")) or 80


class Progress:
    """How far a long run is: iterations of the most there may be, what they found, time and rate.

    Nothing is shown in the first second. Where there is no terminal a line with the time is printed
    every ten seconds, and ever less often: a run of a day leaves some 200 lines. ``unkept`` names
    options that would keep the result, where none does: that is said in time.
    """

    DRAW_EVERY = 0.1
    LOG_EVERY = 10.0
    MOST_BETWEEN = 600.0

    def __init__(self, quiet: bool, unkept: str | None = None, most: int | None = None) -> None:
        self.quiet = quiet
        self.unkept = unkept
        self.most = most
        self.began = time.monotonic()
        self.iterations = 0
        self.last_line = self.began
        self.latest: Any = None
        self._restart: tuple[int, int] | None = None
        self._first = self.began
        self._shown: Sequence[str] = ()
        self._over = threading.Event()
        if not quiet and is_terminal():
            threading.Thread(target=self._tick, daemon=True).start()

    def __call__(self, progress: Any) -> None:
        """Take note of one iteration."""
        self.iterations += 1
        if self.iterations == 1:
            self._first = time.monotonic()
        self.latest = progress
        self.remind()
        if self.is_due():
            self.tell(self.place(progress), *self.facts(progress))

    def restarting(self, number: int, count: int, most: int) -> None:
        """Take note of a restart, from 1, of how many, and of the most iterations of each."""
        self.most = most
        self._restart = (number, count) if count > 1 else None
        self.latest = None

    def reading(self, path: str, part: float) -> None:
        """Take note of which part of the rows of a file was read; logs do not say so."""
        self.remind()
        if is_terminal() and self.is_due():
            parts = [f"reading {os.path.basename(path)}: {100 * part:.0f} %{_of_size(path)}"]
            if self.latest is not None:
                parts = [self.place(self.latest), *parts, *self.facts(self.latest)]
            self.tell(*parts)

    def starting(self, step: str) -> None:
        """Take note of a step of a start."""
        self.remind()
        self.tell(f"{self._which()}start: {step}")

    def place(self, progress: Any) -> str:
        """Say how far a run is."""
        most = "" if self.most is None else f"/{self.most}"
        return f"{self._which()}iteration {progress.iteration}{most}"

    def _which(self) -> str:
        """Say which restart it is, where there are several."""
        return "" if self._restart is None else "restart {}/{}, ".format(*self._restart)

    def facts(self, progress: Any) -> Iterator[str]:
        """Yield what an iteration found (`vpem.steps.runs.Progress`), most important first."""
        yield f"log-likelihood {progress.log_likelihood:.6f}"
        if progress.change is not None:
            yield f"change {progress.change:+.0e}"

    def rate(self) -> str:
        """Say how many iterations there are in a second, or how long one takes."""
        now, done = time.monotonic(), self.iterations - 1
        a_second = done / max(now - self._first, 1e-9)
        if done < 1:
            return ""
        return f"{a_second:.3g} it/s" if a_second >= 1 else f"{1 / a_second:.3g} s/it"

    def remind(self) -> None:
        """Say of a run that takes longer, once, that nothing of it will be kept."""
        if self.unkept and not self.quiet and time.monotonic() - self.began >= 1.0:
            # Whoever comes first: the run, or the clock (`driver.reminding`).
            with alone, suppress(OSError):
                unkept, self.unkept = self.unkept, None
                if unkept:
                    take_away()
                    told = f"note: the result will not be kept; to keep it give {unkept}"
                    print(in_rows(told), file=sys.stderr, flush=True)

    def is_due(self) -> bool:
        """Whether it is time for a line."""
        now = time.monotonic()
        if self.quiet or now - self.began < 1.0:
            return False
        wait = self.DRAW_EVERY
        if not is_terminal():
            wait = min(max(self.LOG_EVERY, (now - self.began) / 10), self.MOST_BETWEEN)
        return now - self.last_line >= wait

    def tell(self, *parts: str) -> None:
        """Show a line, in place of the last one in a terminal, if it is time for one."""
        self._shown = parts
        if self.is_due():
            self._show()

    def _show(self) -> None:
        global _line
        self.last_line = time.monotonic()
        spent = self.last_line - self.began
        rate = [self.rate()] if self.rate() else []
        with alone:
            if is_terminal():
                if _line is None:
                    _line = LiveLine()
                _line.draw(self._shown, [clock(spent), *rate])
                return
        stamp = f"{time.strftime('%Y-%m-%d %H:%M:%S')} (after {span(spent)})"
        with suppress(OSError):
            print(APART.join([stamp, *self._shown, *rate]), file=sys.stderr, flush=True)

    def announce(self, line: str) -> None:
        """Show at once what a run does now, if it has been long enough to be shown at all."""
        self._shown = (line,)
        self.iterations = 0
        if not self.quiet and time.monotonic() - self.began >= 1.0:
            self._show()

    def _tick(self) -> None:
        """Keep the time going while a step takes long."""
        while not self._over.wait(TICK):
            with alone:
                idle = time.monotonic() - self.last_line >= TICK
                if not self._over.is_set() and self._shown and idle and self.is_due():
                    self._show()

    def close(self) -> None:
        """Take the live line away."""
        global _line
        with alone:
            self._over.set()
            take_away()
            _line = None


def _of_size(path: object, before: str = " of ") -> str:
    """Say how large a file is, where that is known."""
    from .output import size

    try:
        return f"{before}{size(os.path.getsize(str(path)))}"
    except OSError:
        return ""


def what_is_read(files: Sequence[object]) -> str:
    """Say that files are read, which, and how large one is."""
    if len(files) != 1:
        return f"reading {len(files)} files"
    return f"reading {os.path.basename(str(files[0]))}{_of_size(files[0], ', ')}"


def clock(seconds: float) -> str:
    """Write a time in few columns: 0:12, 3:05, 2:07:00."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def span(seconds: float) -> str:
    """Write a time for a reader: 12 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
