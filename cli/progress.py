"""How far a long run is: a live line in a terminal, a line now and then in pipes and logs."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

__all__ = ["Progress", "fitting", "is_terminal", "span", "take_away"]

APART = "  "
DOTS = "..."

_line: LiveLine | None = None
"""The live line there is, which other messages take away before they are printed."""


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

    def draw(self, *parts: str) -> None:
        """Write over what is there, in one row; see `fitting`."""
        columns = _columns()
        shown = fitting(parts, columns - 1)
        back = self._back(columns)
        # Known first: an interrupt may come in the middle.
        self.length = len(shown)
        self._write(back + shown)

    def clear(self) -> None:
        """Leave an empty line, on which the next message begins."""
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


def fitting(parts: Sequence[str], width: int) -> str:
    """Return as many parts of a line as it is wide, the first ones; no word or number is cut."""
    left = list(parts)
    while len(left) > 1 and len(APART.join(left)) > width:
        left.pop()
    words = APART.join(left).split(" ")
    if len(" ".join(words)) <= width:
        return " ".join(words)
    while words and len(" ".join([*words, DOTS])) > width:
        words.pop()
    return " ".join([*words, DOTS])[: max(width, 0)]


def _columns() -> int:
    try:
        found = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        found = 0
    wanted = os.environ.get("COLUMNS", "")
    return found or (int(wanted) if wanted.isdecimal() and int(wanted) else 80)


class Progress:
    """Log-likelihood and rate of a long fit.

    Nothing is shown in the first second. Where there is no terminal a line with the time is
    printed every ten seconds, and ever less often: a run of a day leaves some 200 lines.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    unkept : str, optional
        Options that would keep the result, where none does: that is said in time.
    """

    DRAW_EVERY = 0.1
    LOG_EVERY = 10.0
    MOST_BETWEEN = 600.0

    def __init__(self, quiet: bool, unkept: str | None = None) -> None:
        self.quiet = quiet
        self.unkept = unkept
        self.began = time.monotonic()
        self.iterations = 0
        self.last_line = self.began
        self.latest: Any = None

    def __call__(self, progress: Any) -> None:
        """Take note of one iteration."""
        self.iterations += 1
        self.latest = progress
        self.remind()
        if self.is_due():
            self.tell(self.place(progress), *self.facts(progress), self.rate())

    def reading(self, path: str, part: float) -> None:
        """Take note of which part of the rows of a file was read; logs do not say so."""
        self.remind()
        if is_terminal() and self.is_due():
            parts = [f"reading {os.path.basename(path)}: {100 * part:.0f} %"]
            if self.latest is not None:
                parts = [self.place(self.latest), *parts, *self.facts(self.latest)]
            self.tell(*parts)

    def starting(self, step: str) -> None:
        """Take note of a step of a start."""
        self.remind()
        self.tell(f"start: {step}")

    def place(self, progress: Any) -> str:
        """Say how far a run is."""
        return f"iteration {progress.iteration}"

    def facts(self, progress: Any) -> Iterator[str]:
        """Yield what an iteration found (`vpem.steps.runs.Progress`), most important first."""
        yield f"log-likelihood per sample {progress.log_likelihood:.6f}"
        if progress.change is not None:
            yield f"change {progress.change:+.2e}"

    def rate(self) -> str:
        """Say how many iterations there are in a second."""
        return f"{self.iterations / max(time.monotonic() - self.began, 1e-9):.3g}/s"

    def remind(self) -> None:
        """Say of a run that takes longer, once, that nothing of it will be kept."""
        if self.unkept and not self.quiet and time.monotonic() - self.began >= 1.0:
            # Whoever comes first: the run, or the clock (`driver.reminding`).
            unkept, self.unkept = self.unkept, None
            take_away()
            with suppress(OSError):
                told = f"note: the result will not be kept; to keep it give {unkept}"
                print(told, file=sys.stderr, flush=True)

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
        if self.is_due():
            self._show(*parts)

    def _show(self, *parts: str) -> None:
        global _line
        self.last_line = time.monotonic()
        if is_terminal():
            if _line is None:
                _line = LiveLine()
            _line.draw(*parts)
        else:
            spent = span(self.last_line - self.began)
            with suppress(OSError):
                print(
                    f"{time.strftime('%Y-%m-%d %H:%M:%S')} (after {spent})  {APART.join(parts)}",
                    file=sys.stderr,
                    flush=True,
                )

    def announce(self, line: str) -> None:
        """Show at once what a run does now, if it has been long enough to be shown at all."""
        if not self.quiet and time.monotonic() - self.began >= 1.0:
            self._show(line)

    def close(self) -> None:
        """Take the live line away."""
        global _line
        take_away()
        _line = None


def span(seconds: float) -> str:
    """Write a time for a reader: 12 s, 3 min 05 s, 2 h 07 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
