"""What `vpem select` shows while it works and when it is done, and how it is ended."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from vpem.errors import VpemError

from .output import number, plural, show
from .progress import Progress, span
from .tables import table

if TYPE_CHECKING:
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Outcome, Trial
    from vpem.network.schema import Report


NAMES = {"bic": "BIC", "aic": "AIC", "icl": "ICL", "heldout": "held-out log-likelihood"}


class Stopped(VpemError):
    """A search that somebody wanted to end."""

    def __init__(self, which: int, what: str) -> None:
        self.exit_code = 128 + which
        name = "Ctrl-C" if which == signal.SIGINT else "SIGTERM"
        super().__init__(f"interrupted by {name}; {what}")


class _Signal(KeyboardInterrupt):
    """A signal, on its way out of whatever was being done."""


class Stopping:
    """Ends what is inside with `Stopped` at Ctrl-C and SIGTERM, but nothing inside `whole`.

    Parameters
    ----------
    what : callable
        Says what has been kept.
    """

    def __init__(self, what: Callable[[], str]) -> None:
        self._what = what
        self._busy = False
        self._pending: int | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stopping:
        for caught in (signal.SIGINT, signal.SIGTERM):
            self._before[caught] = signal.signal(caught, self._note)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        for caught, handler in self._before.items():
            signal.signal(caught, handler)
        if isinstance(error, _Signal):
            raise Stopped(error.args[0], self._what()) from None

    def _note(self, caught: int, _: FrameType | None) -> None:
        if self._busy:
            self._pending = caught
        else:
            raise _Signal(caught)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Do what is inside to its end before a signal is heeded."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._pending is not None:
            raise _Signal(self._pending)


class SearchProgress(Progress):
    """How far a search is: a live line in a terminal, a line at times in logs.

    Parameters
    ----------
    quiet : bool
        Show nothing.
    """

    def __init__(self, quiet: bool, unkept: str | None = None) -> None:
        super().__init__(quiet, unkept)
        self.done = self.failed = self.went_on = 0
        self.to_do = 0

    def start(self, to_do: int) -> None:
        """Begin to count time and trials."""
        self.to_do = to_do
        self.began = self.last_line = time.monotonic()

    def __call__(self, trial: Trial, result: Outcome) -> None:  # type: ignore[override]
        """Take note of a trial that is over."""
        self.done += 1
        self.failed += result["status"] == "failed"
        self.went_on += result["status"] == "not converged"
        self.remind()
        if self.is_due():
            self.tell(*self._parts(trial))

    def _parts(self, trial: Trial) -> list[str]:
        left = (time.monotonic() - self.began) / self.done * (self.to_do - self.done)
        parts = [f"{self.done} of {plural(self.to_do, 'fit')} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.went_on:
            parts.append(f"{self.went_on} not converged")
        return [*parts, f"about {span(left)} to go", f"last: {trial}"]


def cell_name(cell: Report, over_rows: bool) -> str:
    """Name a model of the grid."""
    from vpem.fits.selection.trials import name_hops

    hops = "" if over_rows else f", {name_hops(cell['stands_for_hops'])}"
    return f"K = {cell['n_components']}{hops}, {cell['covariance_type']}"


def _status(cell: Report) -> str:
    """Say in a few words how a model came out."""
    parts = [cell["status"]]
    if cell["status"] != "failed" and cell["recoveries"]:
        parts.append(plural(cell["recoveries"], "collapse"))
    if cell["status"] != "failed" and cell["given_up"]:
        parts.append(f"{cell['given_up']} given up")
    if cell["status"] != "failed" and cell["degenerate"]:
        parts.append(f"{cell['degenerate']} degenerate")
    if "below" in cell:
        parts.append(f"below K = {cell['below']}")
    return ", ".join(parts)


def show_selection(found: Selection, report: Report) -> None:
    """Print the table of all models, and what was chosen."""
    from vpem.fits.settings import as_ranges

    criterion, choice = found.criterion, found.choice
    held = criterion == "heldout"
    worst = f"worst {NAMES[criterion]}"
    rows = []
    for place, cell in enumerate(found.cells):
        told = {
            "choice": "best" if place == choice.best else "",
            "K": str(cell["n_components"]),
            "hops": ", ".join(as_ranges(cell["stands_for_hops"])),
            "covariance": cell["covariance_type"],
            "hubs": str(cell["n_hubs"]),
            "status": _status(cell),
        }
        if place == choice.one_standard_error:
            told["choice"] = "best, 1 s.e." if told["choice"] else "1 s.e."
        if cell["status"] != "failed":
            told |= _numbers(cell, held)
            if not held:
                told[worst] = f"{max(one[criterion] for one in cell['restarts']):.2f}"
        rows.append(told)
    heads = ["choice", "K", "hops", "covariance", "hubs", "params"]
    heads += ["held-out", "s.e.", "to best, s.e."] if held else ["log-lik.", "BIC", "AIC", "ICL"]
    heads += ["iterations", "status"] if held else [worst, "iterations", "status"]
    # From what can best be done without; all of it is in the JSON.
    spare = ["iterations", "hubs", "log-lik.", "params", "to best, s.e."]
    spare += [name for name in ("AIC", "ICL", "BIC") if name != NAMES[criterion]]
    without = ["hops", "hubs"] if report["split"] == "rows" else []
    if held or report["n_init"] == 1:
        without.append(worst)
    better = "higher" if held else "lower"
    title = f"Models by {NAMES[criterion]} ({better} is better)"
    heads = [head for head in heads if head not in without]
    right = [head for head in heads if head not in ("choice", "covariance", "status")]
    cells = [[row.get(head, "-") for head in heads] for row in rows]
    models = table(cells, *heads, title=title, right=right, spare=spare)
    show(models, table(_facts(found, report), "", ""))


def _numbers(cell: Report, held: bool) -> dict[str, str]:
    told = {"params": str(cell["n_parameters"]), "iterations": str(cell["n_iter"])}
    if held:
        return {
            **told,
            "held-out": f"{cell['heldout']:.4f}",
            "s.e.": f"{cell['standard_error']:.4f}",
            "to best, s.e.": f"{cell['difference']:+.4f}, {cell['difference_error']:.4f}",
        }
    return {
        **told,
        "log-lik.": f"{cell['log_likelihood']:.4f}",
        **{NAMES[name]: f"{cell[name]:.2f}" for name in ("bic", "aic", "icl")},
    }


def _facts(found: Selection, report: Report) -> list[tuple[str, str]]:
    """What is said below the table."""
    cells, choice, criterion = found.cells, found.choice, found.criterion
    over_rows, held = report["split"] == "rows", criterion == "heldout"

    def judged(place: int) -> str:
        cell = cells[place]
        error = f" (standard error {cell['standard_error']:.4f})" if held else ""
        value = f"{cell[criterion]:.4f}" if held else f"{cell[criterion]:.2f}"
        return f"{cell_name(cell, over_rows)}: {NAMES[criterion]} {value}{error}"

    facts = [("best", judged(choice.best))]
    if choice.one_standard_error is not None:
        facts.append(("fewest parameters within 1 s.e.", judged(choice.one_standard_error)))
    if held:
        facts.append(("folds", f"{report['folds']}, of {plural(report['n_samples'], 'row')}"))
    kept = f", {report['n_kept']} of them from the state" if report["n_kept"] else ""
    facts += [
        ("fits", f"{report['n_fits']}{kept}"),
        ("time", f"{number(report['seconds'], 3)} s, {plural(report['jobs'], 'job')}"),
        ("state", report["state"] or "not kept (give --state or --output)"),
        ("picture", report["plot"] or "not drawn (give --plot)"),
    ]
    model = report["model"] or "not kept (give --output)"
    if report["model"] and report["chosen"] != choice.best:
        model = f"{model}: {cell_name(cells[report['chosen']], over_rows)}"
    return [*facts, ("model", model)]
