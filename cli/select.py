"""`vpem select`: how many components, how many hops, and which covariance."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, VpemError
from vpem.fits.settings import as_ranges, parse_names, parse_numbers
from vpem.records import Rule, changed, setting
from vpem.settings import (
    COVARIANCE_TYPES,
    MAP,
    FitSettings,
    GraphSettings,
    HoldingSettings,
    SelectSettings,
    SumSettings,
)

from .choices import StartSettings, Task, heaviest_of, tell_of_parameters
from .driver import CommandRun, Output, reminding
from .engine import EngineSettings, describe_engine
from .files import WRITTEN, Role
from .options import Given, MemoryLimit, Without
from .output import ProgressLine, Screen, number, plural, show, span, table
from .parties import DataFiles, FileSettings, gather
from .results import FitOutcome

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.fits.results import Fit
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Cell, Outcome, Trial
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

    ``what`` says what has been kept.
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


class SearchProgress(ProgressLine):
    """How far a search is: a live line in a terminal, a line at times in logs."""

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


def warn_of(screen: Screen, found: Selection, chosen: int) -> None:
    """Tell what failed, what was passed over, and what was chosen all the same."""
    cells, grid = found.cells, found.grid
    failed = [place for place, cell in enumerate(cells) if cell["status"] == "failed"]
    if failed:
        first = failed[0]
        screen.warn(
            f"{len(failed)} of {plural(len(cells), 'model')} failed; the first, {grid[first]}: "
            f"{cells[first]['reason']}"
        )
    if found.choice.passed_over:
        better = found.choice.passed_over[0]
        why, what = "did not converge", "try more --max-iter"
        if cells[better]["degenerate"]:
            why, what = "has degenerate components", "--floor-fits keep counts it like others"
        screen.warn(
            f"{grid[better]} has a better {NAMES[found.criterion]} "
            f"({number(cells[better][found.criterion], 8)}) but {why}, and was passed over; {what}"
        )
    below = [place for place, cell in enumerate(cells) if "below" in cell]
    if below:
        first = below[0]
        screen.warn(
            f"{len(below)} of {plural(len(cells), 'model')} ended less likely than one of fewer "
            f"components; the first, {grid[first]}, below K = {cells[first]['below']}: try more "
            "starts, --n-init 10"
        )
    if cells[chosen].get("degenerate"):
        screen.warn(
            f"{grid[chosen]} is chosen although it has degenerate components, as all that "
            "converged do; try fewer features, or --prior map"
        )
    if cells[chosen]["status"] != "converged":
        screen.warn(
            f"no model converged; {grid[chosen]} is the best of what there is, try more --max-iter"
        )


class SearchTask:
    """Data and settings of a search, as a user asked for them, with a network for each of ``hops``.

    ``task`` are the data and their networks, ``problem`` is what is searched.
    """

    def __init__(
        self,
        data: Sequence[Path],
        run: CommandRun,
        hops: Sequence[int],
        *,
        parties: FileSettings,
        held: HoldingSettings,
        graph: GraphSettings,
        how: FitSettings,
        sums: SumSettings,
        memory_limit: str | None,
    ) -> None:
        from vpem.fits.selection.trials import Problem

        graph = graph.seeded(how.seed)
        if parties.missing_parties:
            how = how.changed(missing="marginalize")
        self.data, self.how, self.graph, self.run = data, how, graph, run
        self.held = held
        source, self.alignment = gather(
            data, parties, held, how.missing == "marginalize", memory_limit, run
        )
        self.task = Task(source, self.held, graph, sums.changed(n_threads=1), run, hops)
        run.network = None  # of several there is no one line to say
        told = sums.values("hops", "seed", "n_threads", "n_rounds")
        told |= {"split": self.held.split, "rounds": sums.n_rounds, "graph_seed": graph.graph_seed}
        fits = how.changed(n_threads=1)
        self.problem = self.task.problem(
            Problem, fits, run.memory(memory_limit), network_options=told
        )

    def fit(self, cell: Cell) -> tuple[Fit, Report]:
        found = self.problem.fit(cell, n_init=self.how.n_init)
        return self.task.whole(found), describe_engine(self.task.networks[cell.hops])

    def write(self, path: Path, cell: Cell, fit: Fit, told: Report, given: Given) -> None:
        """Write one of the models as `vpem fit` does, with what else its report says."""
        from vpem.files.models import write_model

        features = self.task.source.feature_names
        report = fit.describe(features, self.task.names)
        report |= {"seed": self.how.seed, **self.run.facts(self.data)}
        report["sample_weight"] = self.held.sample_weight
        if self.alignment is not None:
            report["alignment"] = self.alignment
        own = {
            "components": cell.n_components,
            "hops": cell.hops,
            "covariance": cell.covariance_type,
            "threads": 1,
            "missing": self.how.missing,
            "graph_seed": self.graph.graph_seed,
            "data": ", ".join(map(str, self.data)),
        }
        options = self.run.options(given, **StartSettings().values(), **own)
        write_model(path, fit.kept(features, report | told, options), self.run.out.force)


class Search:
    """A search in its processes, what is kept of it, and what there is to say of it.

    ``cells`` are the grid, ``asked`` says how models are judged.
    """

    def __init__(
        self, task: SearchTask, cells: list[Cell], asked: SelectSettings, out: SelectOutput
    ) -> None:
        from vpem._core.threads import processors
        from vpem.files.matrix import FileMatrix
        from vpem.fits.selection.search import Record, facts_of, trials_of

        self.task, self.cells, self.asked, self.out = task, cells, asked, out
        problem, engine = task.problem, task.run.engine
        stored = isinstance(problem.X, FileMatrix)
        if stored and asked.n_jobs not in (None, 1):
            raise InputError(
                f"--jobs {asked.n_jobs} is for data in memory, but these are read from disk; leave "
                "it out, or raise --memory-limit"
            )
        alone = stored or engine.apart
        self.n_jobs = 1 if alone else processors() if asked.n_jobs is None else asked.n_jobs
        self.record = Record(out.kept_in, facts_of(problem), out.force, engine)
        restarts = task.how.n_init
        self.wanted = [
            t for cell in cells for t in trials_of(cell, asked.criterion, restarts, asked.n_folds)
        ]
        self.n_kept = self._finished()

    def _finished(self) -> int:
        return sum(trial.key in self.record.results for trial in self.wanted)

    def _kept(self) -> str:
        if self.out.kept_in is None:
            return "nothing was kept (give --state or --output)"
        if not self._finished():
            return "no fit was over yet"
        return f"{self._so_far()}: give the same command to go on"

    def _so_far(self) -> str:
        return f"{self._finished()} of {plural(len(self.wanted), 'fit')} are in {self.out.kept_in}"

    def run(self, given: Given, began: float) -> FitOutcome:
        """Fit what is not kept, and choose; the command began at ``began``."""
        from vpem.fits.selection.search import search

        asked, out, run = self.asked, self.out, self.task.run
        if self.n_kept:
            run.screen.say(f"{self._so_far()} already")
        kept = out.kept_in or out.output or out.json
        quiet = out.quiet or not run.where.speaks
        progress = SearchProgress(quiet, None if kept else "--state FILE or --output FILE")
        with Stopping(self._kept) as stopping, reminding(progress):
            progress.start(len(self.wanted) - self.n_kept)
            try:
                found = search(
                    self.task.problem,
                    self.cells,
                    criterion=asked.criterion,
                    n_init=self.task.how.n_init,
                    n_folds=asked.n_folds,
                    n_jobs=self.n_jobs,
                    record=self.record,
                    tell=progress,
                    whole=stopping.whole,
                )
            finally:
                progress.close()
            warn_of(run.screen, found, self.chosen(found))
            best, cell = found.grid[self.chosen(found)], found.cells[self.chosen(found)]
            tell_of_parameters(
                run.screen, self.task.how, best.covariance_type, best.n_components,
                int(cell.get("n_parameters") or 0), self.task.task.source.n_samples,
            )  # fmt: skip
            return self._result(found, given, began)

    def _result(self, found: Selection, given: Given, began: float) -> FitOutcome:
        """Return what there is to tell and to write, once the chosen model is fitted again."""
        task, run, screen = self.task, self.task.run, self.task.run.screen
        cell, before = found.grid[self.chosen(found)], len(screen.warnings)
        fitted: tuple[Fit, Report] | None = None
        if self.out.output is not None or run.where.own_users:
            fitted = task.fit(cell)
        heard = task.task.warnings[cell.hops] + screen.warnings[before:]

        def tell() -> Report:
            report = self.describe(found) | run.facts(task.data)
            return report | {"seconds": time.perf_counter() - began}

        def write(path: Path, report: Report) -> None:
            assert fitted is not None
            fit, ran = fitted
            told = ran if run.where.own_users else ran | {"warnings": heard}
            task.write(path, cell, fit, told, given)

        converged = all(one["status"] == "converged" for one in found.cells)
        show = partial(show_selection, found)
        chosen = None if fitted is None else fitted[0]
        return FitOutcome(
            converged, tell, write, show, own=partial(self._own, found), found=chosen,
            heaviest=heaviest_of(task.task.source, task.held.sample_weight),
        )  # fmt: skip

    def _own(self, found: Selection, report: Report) -> Report:
        """Draw the picture, if it is wanted; what a report says of a user's own files."""
        out = self.out
        if out.plot is not None:
            from vpem.pictures.figure import save_picture
            from vpem.pictures.history import draw_selection

            save_picture(out.plot, draw_selection(found), force=out.force)
        return {
            "state": None if out.kept_in is None else str(out.kept_in),
            "plot": None if out.plot is None else str(out.plot),
        }

    def chosen(self, found: Selection) -> int:
        """Return which model is taken: the best, or a smaller one that is as good."""
        small = found.choice.one_standard_error
        return found.choice.best if small is None or not self.asked.one_standard_error else small

    def describe(self, found: Selection) -> Report:
        """Return what there is to say, but for the model, warnings and time."""
        asked, choice, source = self.asked, found.choice, self.task.task.source
        held_out = asked.criterion == "heldout"
        return {
            "criterion": asked.criterion,
            "better": "higher" if held_out else "lower",
            "best": choice.best,
            "one_standard_error": choice.one_standard_error,
            "chosen": self.chosen(found),
            "passed_over": choice.passed_over,
            "cells": found.cells,
            "n_init": self.task.how.n_init,
            "folds": asked.n_folds if held_out else None,
            "split": self.task.held.split,
            "n_samples": source.n_samples,
            "n_features": source.n_features,
            "seed": self.task.how.seed,
            "n_fits": len(self.wanted),
            "n_kept": self.n_kept,
            "jobs": self.n_jobs,
            **self.task.run.where.describe(),
        }


def _state(state: Path | None, output: Path | None) -> Path | None:
    """Return where a search is kept: the file asked for, or one beside the model."""
    beside = output.parent / f"{output.stem}.select.h5" if output else None
    return state or beside


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return the files that a search is kept in, one a process."""
    value = _state(value, options["output"])
    if value is None:
        return []
    from vpem.files.checkpoints import files_of

    from .ranks import joined

    at_home = options.get("study") is not None
    return files_of(value, joined().engine.size, at_home=at_home)


class SelectOutput(Output, heading="Output", kept=False):
    """What a search writes and prints, and its exit code."""

    output: Path | None = changed(
        Output,
        "output",
        help="Write the chosen model here (HDF5). It is what 'vpem fit' would give.",
    )
    force: bool = changed(
        Output, "force", help="Replace existing outputs, and a state of other options."
    )
    strict: bool = changed(
        Output, "strict", help="Exit with 3 if a model failed or did not converge."
    )
    state: Path | None = setting(
        None, "Keep every finished fit here; the same command goes on from it. Default: beside "
        "--output, NAME.select.h5.", heading="Checkpoints", file=Role(writes=True, files=_kept),
    )  # fmt: skip
    plot: Path | None = setting(
        None, "Draw the criterion by components (.png, .svg, .pdf).",
        file=WRITTEN,
    )  # fmt: skip

    @property
    def kept_in(self) -> Path | None:
        return _state(self.state, self.output)


TOGETHER: Rule = (
    lambda given: given.get("engine", "simulator") != "simulator",
    (" is for one process: those of an engine do one fit after another together; leave it out",),
)


class GridSettings(SelectSettings, heading="Selection", kept=False):
    """A grid of models, and how they are judged."""

    n_jobs: int | None = changed(SelectSettings, "n_jobs", idle=TOGETHER)


class SearchedFit(FitSettings, heading="Model"):
    """What all fits of a search are told."""

    seed: int = changed(
        FitSettings,
        "seed",
        help="Seeds starts, folds, and the graph. For that alone there is --graph-seed.",
    )
    weight_concentration_prior_type: str | None = changed(
        FitSettings,
        "weight_concentration_prior_type",
        choices=(MAP,),
        help="map: EM to the mode under a prior of hubs, as mclust's, which keeps small components "
        "proper; criteria are of the likelihood there. Default: none, EM.",
    )


def select(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    asked: GridSettings,
    parties: FileSettings,
    held: HoldingSettings,
    graph: GraphSettings,
    how: Annotated[
        SearchedFit, Without("n_components covariance_type n_threads weight_concentration_prior")
    ],
    sums: Annotated[SumSettings, Without("hops hubs n_threads")],
    engine: Annotated[EngineSettings, Without("shards")],
    out: SelectOutput,
    given: Given,
) -> None:
    """Fit a grid of models and choose the best by a criterion.

    The grid has numbers of components, numbers of hops, and kinds of covariance. All other options
    are those of 'vpem fit'. A model that is the same for several numbers of hops (the same
    hubs, or a diagonal covariance) is fitted once. A search that is ended goes on when the command
    is given again.

    Example: vpem select data/wine.h5 -k 1-4 --scale standard --jobs 1 -o best.h5

    Example: vpem select data/wine.h5 -k 1-3 --hops 0-1 --jobs 1 --criterion heldout --folds 3
    """
    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem.fits.selection.search import grid, without_repeats

        cells = grid(
            parse_numbers("--components", asked.n_components, least=1),
            parse_numbers("--hops", asked.hops),
            parse_names("--covariance", asked.covariance_type, COVARIANCE_TYPES),
        )
        run = CommandRun(screen, out, "models", engine)
        if out.plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(out.plot, out.force)
        task = SearchTask(
            data, run, [cell.hops for cell in cells], parties=parties, held=held, graph=graph,
            how=how, sums=sums, memory_limit=memory_limit,
        )  # fmt: skip
        search = Search(task, without_repeats(cells, task.problem), asked, out)
        found = search.run(given, began)
        run.finish(found)
