"""What goes to stdout (data) and what goes to stderr (messages), in one place."""

from __future__ import annotations

import json
import sys
import time
import warnings
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

__all__ = ["Progress", "Screen", "fail", "number", "out", "plural", "print_json", "table"]


def fail(message: str, code: int = 2) -> int:
    """Print one sentence on stderr and return the exit code."""
    print(f"vpem: error: {message}", file=sys.stderr)
    return code


def _plain(value: Any) -> Any:
    """Replace arrays by lists and numbers JSON has no word for (nan, inf) by None."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else None
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def print_json(value: Any) -> None:
    """Write ``value`` as one JSON object on stdout."""
    sys.stdout.write(json.dumps(_plain(value), allow_nan=False) + "\n")


def out() -> Console:
    """Return the Rich console of stdout: tables of a command's result."""
    from rich.console import Console

    return Console(highlight=False, markup=False, soft_wrap=True)


def table(*columns: str, title: str | None = None, right: tuple[str, ...] = ()) -> Table:
    """Return an empty Rich table in the house style; ``right`` names right-aligned columns."""
    from rich import box
    from rich.table import Table

    made = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    for column in columns:
        made.add_column(column, justify="right" if column in right else "left")
    return made


def plural(count: int, noun: str) -> str:
    """Write "1 hub", "3 hubs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float | None, digits: int = 6) -> str:
    """Write a number for a reader."""
    return "-" if value is None else f"{value:.{digits}g}"


class Screen:
    """Messages of one command on stderr; warnings of the library are printed and kept.

    Parameters
    ----------
    quiet : bool
        Print warnings and errors only.
    """

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.warnings: list[str] = []
        self._caught = warnings.catch_warnings()

    def __enter__(self) -> Screen:
        from vpem.errors import VpemWarning

        self._caught.__enter__()
        warnings.simplefilter("always", VpemWarning)
        usual = warnings.showwarning

        def show(message: Any, category: Any, *where: Any, **more: Any) -> None:
            if issubclass(category, VpemWarning):
                self.warnings.append(str(message))
                print(f"vpem: warning: {message}", file=sys.stderr)
            else:
                usual(message, category, *where, **more)

        warnings.showwarning = show
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._caught.__exit__(kind, error, trace)

    def say(self, message: str) -> None:
        """Print a message unless quiet."""
        if not self.quiet:
            print(message, file=sys.stderr)


class Progress:
    """Log-likelihood and rate of a long fit: a live line in a terminal, a line at times in logs.

    Nothing is shown in the first second.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    """

    LOG_EVERY = 10.0

    def __init__(self, quiet: bool) -> None:
        self.quiet = quiet
        self.began = time.monotonic()
        self.iterations = 0
        self.last_line = self.began
        self._live: Any = None

    def __call__(self, progress: Any) -> None:
        """Take note of one iteration (`vpem.em.Progress`)."""
        self.iterations += 1
        now = time.monotonic()
        if self.quiet or now - self.began < 1.0:
            return
        change = "" if progress.change is None else f"  change {progress.change:+.2e}"
        rate = self.iterations / (now - self.began)
        line = (
            f"iteration {progress.iteration}  log-likelihood per sample "
            f"{progress.log_likelihood:.6f}{change}  {rate:.3g} iterations/s"
        )
        if sys.stderr.isatty():
            self._status(line)
        elif now - self.last_line >= self.LOG_EVERY:
            self.last_line = now
            print(line, file=sys.stderr, flush=True)

    def _status(self, line: str) -> None:
        if self._live is None:
            from rich.console import Console
            from rich.status import Status

            self._live = Status(line, console=Console(stderr=True, highlight=False))
            self._live.start()
        self._live.update(line)

    def close(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None
