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

from ..data import DataFiles, FileSettings, StartSettings, gather, heaviest_of
from ..display import ProgressLine, Screen, number, plural, show, span, table, tell_of_parameters
from ..options import Given, MemoryLimit, Without
from ..outputs import WRITTEN, Output, Role
from ..runner import CommandRun, FitOutcome, Task, reminding
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from vpem.fits.results import Fit
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Cell, Outcome, Trial
    from vpem.network.schema import Report


NAMES = {"bic": "BIC", "aic": "AIC", "icl": "ICL", "heldout": "held-out log-likelihood"}


class Stopped(VpemError):
    """A search that was interrupted."""

    def __init__(self, which: int, what: str) -> None:
        self.exit_code = 128 + which
        name = "Ctrl-C" if which == signal.SIGINT else "SIGTERM"
        super().__init__(f"interrupted by {name}; {what}")


class _Signal(KeyboardInterrupt):
    """A signal, raised out of the work that it interrupts."""


class Stopping:
    """Ends the block with `Stopped` at Ctrl-C or SIGTERM, but never inside `whole`."""

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
        """Finish the block before a signal takes effect."""
        self._busy = True
        try:
            yield
        finally:
            self._busy = False
        if self._pending is not None:
            raise _Signal(self._pending)


class SearchProgress(ProgressLine):
    """Progress of a search: a live line in a terminal, a line from time to time in logs."""

    done = failed = unconverged = to_do = 0

    def start(self, to_do: int) -> None:
        self.to_do = to_do
        self.began = self.last_line = time.monotonic()

    def __call__(self, trial: Trial, result: Outcome) -> None:  # type: ignore[override]
        self.done += 1
        self.failed += result["status"] == "failed"
        self.unconverged += result["status"] == "not converged"
        self.remind()
        if not self.is_due():
            return
        left = (time.monotonic() - self.began) / self.done * (self.to_do - self.done)
        parts = [f"{self.done} of {plural(self.to_do, 'fit')} done"]
        if self.failed:
            parts.append(f"{self.failed} failed")
        if self.unconverged:
            parts.append(f"{self.unconverged} not converged")
        self.tell(*parts, f"about {span(left)} to go", f"last: {trial}")


def _cell_name(cell: Report, over_rows: bool) -> str:
    from vpem.fits.selection.trials import name_hops

    hops = "" if over_rows else f", {name_hops(cell['stands_for_hops'])}"
    return f"K = {cell['n_components']}{hops}, {cell['covariance_type']}"


def show_selection(selection: Selection, report: Report) -> None:
    """Print the table of all models, and the choice."""
    criterion, choice = selection.criterion, selection.choice
    held_out = criterion == "heldout"
    worst = f"worst {NAMES[criterion]}"
    rows = []
    for place, cell in enumerate(selection.cells):
        failed = cell["status"] == "failed"
        status = [cell["status"]]
        if not failed and cell["recoveries"]:
            status.append(plural(cell["recoveries"], "collapse"))
        for name in () if failed else ("given_up", "degenerate"):
            if cell[name]:
                status.append(f"{cell[name]} {name.replace('_', ' ')}")
        if "below" in cell:
            status.append(f"below K = {cell['below']}")
        row = {
            "choice": "best" if place == choice.best else "",
            "K": str(cell["n_components"]),
            "hops": ", ".join(as_ranges(cell["stands_for_hops"])),
            "covariance": cell["covariance_type"],
            "hubs": str(cell["n_hubs"]),
            "status": ", ".join(status),
        }
        if place == choice.one_standard_error:
            row["choice"] = "best, 1 s.e." if row["choice"] else "1 s.e."
        if not failed:
            row |= {"params": str(cell["n_parameters"]), "iterations": str(cell["n_iter"])}
        if not failed and held_out:
            row["held-out"] = f"{cell['heldout']:.4f}"
            row["s.e."] = f"{cell['standard_error']:.4f}"
            row["to best, s.e."] = f"{cell['difference']:+.4f}, {cell['difference_error']:.4f}"
        elif not failed:
            row["log-lik."] = f"{cell['log_likelihood']:.4f}"
            row |= {NAMES[name]: f"{cell[name]:.2f}" for name in ("bic", "aic", "icl")}
            row[worst] = f"{max(one[criterion] for one in cell['restarts']):.2f}"
        rows.append(row)
    heads = ["choice", "K", "hops", "covariance", "hubs", "params"]
    heads += (
        ["held-out", "s.e.", "to best, s.e."] if held_out else ["log-lik.", "BIC", "AIC", "ICL"]
    )
    heads += ["iterations", "status"] if held_out else [worst, "iterations", "status"]
    # The most dispensable first; JSON has them all.
    spare = ["iterations", "hubs", "log-lik.", "params", "to best, s.e."]
    spare += [name for name in ("AIC", "ICL", "BIC") if name != NAMES[criterion]]
    without = ["hops", "hubs"] if report["split"] == "rows" else []
    if held_out or report["n_init"] == 1:
        without.append(worst)
    better = "higher" if held_out else "lower"
    title = f"Models by {NAMES[criterion]} ({better} is better)"
    heads = [head for head in heads if head not in without]
    right = [head for head in heads if head not in ("choice", "covariance", "status")]
    cells = [[row.get(head, "-") for head in heads] for row in rows]
    models = table(cells, *heads, title=title, right=right, spare=spare)
    show(models, table(_facts(selection, report), "", ""))


def _facts(selection: Selection, report: Report) -> list[tuple[str, str]]:
    cells, choice, criterion = selection.cells, selection.choice, selection.criterion
    over_rows, held_out = report["split"] == "rows", criterion == "heldout"

    def judged(place: int) -> str:
        cell = cells[place]
        error = f" (standard error {cell['standard_error']:.4f})" if held_out else ""
        value = f"{cell[criterion]:.4f}" if held_out else f"{cell[criterion]:.2f}"
        return f"{_cell_name(cell, over_rows)}: {NAMES[criterion]} {value}{error}"

    facts = [("best", judged(choice.best))]
    if choice.one_standard_error is not None:
        facts.append(("fewest parameters within 1 s.e.", judged(choice.one_standard_error)))
    if held_out:
        facts.append(("folds", f"{report['folds']}, of {plural(report['n_samples'], 'row')}"))
    from_state = f", {report['n_kept']} of them from the state" if report["n_kept"] else ""
    facts += [
        ("fits", f"{report['n_fits']}{from_state}"),
        ("time", f"{number(report['seconds'], 3)} s, {plural(report['jobs'], 'job')}"),
        ("state", report["state"] or "not kept (give --state or --output)"),
        ("picture", report["plot"] or "not drawn (give --plot)"),
    ]
    model = report["model"] or "not kept (give --output)"
    if report["model"] and report["chosen"] != choice.best:
        model = f"{model}: {_cell_name(cells[report['chosen']], over_rows)}"
    return [*facts, ("model", model)]


def warn_of(screen: Screen, selection: Selection, chosen: int) -> None:
    """Warn of models that failed or were passed over, and of a choice that is not sound."""
    cells, grid = selection.cells, selection.grid
    failed = [place for place, cell in enumerate(cells) if cell["status"] == "failed"]
    if failed:
        first = failed[0]
        screen.warn(
            f"{len(failed)} of {plural(len(cells), 'model')} failed; the first, {grid[first]}: "
            f"{cells[first]['reason']}"
        )
    if selection.choice.passed_over:
        better = selection.choice.passed_over[0]
        why, what = "did not converge", "try more --max-iter"
        if cells[better]["degenerate"]:
            why, what = "has degenerate components", "--floor-fits keep counts it like others"
        screen.warn(
            f"{grid[better]} has a better {NAMES[selection.criterion]} "
            f"({number(cells[better][selection.criterion], 8)}) but {why}, and was "
            f"passed over; {what}"
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
            f"{grid[chosen]} is chosen although it has degenerate components, as have all models "
            "that converged; try fewer features, or --prior map"
        )
    if cells[chosen]["status"] != "converged":
        screen.warn(f"no model converged; {grid[chosen]} is the best; try more --max-iter")


class Search:
    """Data and settings of a search, a network for each number of hops, and its record."""

    def __init__(
        self,
        data: Sequence[Path],
        run: CommandRun,
        cells: list[Cell],
        settings: SelectSettings,
        out: SelectOutput,
        *,
        parties: FileSettings,
        holding: HoldingSettings,
        graph: GraphSettings,
        fits: FitSettings,
        sums: SumSettings,
        memory_limit: str | None,
    ) -> None:
        from vpem._core.threads import processors
        from vpem.files.matrix import FileMatrix
        from vpem.fits.selection.search import Record, facts_of, trials_of, without_repeats
        from vpem.fits.selection.trials import Problem

        self.graph = graph = graph.seeded(fits.seed)
        if parties.missing_parties:
            fits = fits.changed(missing="marginalize")
        self.data, self.fits, self.command, self.held = data, fits, run, holding
        self.settings, self.out = settings, out
        source, self.alignment = gather(
            data, parties, holding, fits.missing == "marginalize", memory_limit, run
        )
        hops = [cell.hops for cell in cells]
        self.task = Task(source, holding, graph, sums.changed(n_threads=1), run, hops)
        run.network = None  # there are several: none of them is compared with a tree
        facts = sums.values("hops", "seed", "n_threads", "n_rounds")
        facts |= {"split": holding.split, "rounds": sums.n_rounds, "graph_seed": graph.graph_seed}
        limit = run.memory(memory_limit)
        self.problem = self.task.problem(
            Problem, fits.changed(n_threads=1), limit, network_options=facts
        )
        self.cells = without_repeats(cells, self.problem)
        stored = isinstance(self.problem.X, FileMatrix)
        if stored and settings.n_jobs not in (None, 1):
            raise InputError(
                f"--jobs {settings.n_jobs} is for data in memory, but these are read from disk; "
                "leave it out, or raise --memory-limit"
            )
        alone = stored or run.engine.apart
        self.n_jobs = 1 if alone else processors() if settings.n_jobs is None else settings.n_jobs
        self.record = Record(out.kept_in, facts_of(self.problem), out.force, run.engine)
        self.trials = [
            trial
            for cell in self.cells
            for trial in trials_of(cell, settings.criterion, fits.n_init, settings.n_folds)
        ]
        self.n_kept = self._finished()

    def _finished(self) -> int:
        return sum(trial.key in self.record.results for trial in self.trials)

    def _kept(self) -> str:
        if self.out.kept_in is None:
            return "nothing was kept (give --state or --output)"
        if not self._finished():
            return "no fit was finished yet"
        return f"{self._so_far()}: give the same command to go on"

    def _so_far(self) -> str:
        return f"{self._finished()} of {plural(len(self.trials), 'fit')} are in {self.out.kept_in}"

    def run(self, given: Given, began: float) -> FitOutcome:
        """Run the trials that are not kept, and choose; the command began at ``began``."""
        from vpem.fits.selection.search import search

        settings, out, run = self.settings, self.out, self.command
        if self.n_kept:
            run.screen.say(f"{self._so_far()} already")
        destination = out.kept_in or out.output or out.json
        quiet = out.quiet or not run.where.speaks
        progress = SearchProgress(quiet, None if destination else "--state FILE or --output FILE")
        with Stopping(self._kept) as stopping, reminding(progress):
            progress.start(len(self.trials) - self.n_kept)
            try:
                selection = search(
                    self.problem,
                    self.cells,
                    criterion=settings.criterion,
                    n_init=self.fits.n_init,
                    n_folds=settings.n_folds,
                    n_jobs=self.n_jobs,
                    record=self.record,
                    tell=progress,
                    whole=stopping.whole,
                )
            finally:
                progress.close()
            warn_of(run.screen, selection, self.chosen(selection))
            best, cell = (
                selection.grid[self.chosen(selection)],
                selection.cells[self.chosen(selection)],
            )
            tell_of_parameters(
                run.screen, self.fits, best.covariance_type, best.n_components,
                int(cell.get("n_parameters") or 0), self.task.source.n_samples,
            )  # fmt: skip
            return self._result(selection, given, began)

    def _result(self, selection: Selection, given: Given, began: float) -> FitOutcome:
        task, run, screen = self.task, self.command, self.command.screen
        cell, before = selection.grid[self.chosen(selection)], len(screen.warnings)
        fitted: tuple[Fit, Report] | None = None
        if self.out.output is not None or run.where.own_users:
            fit = task.whole(self.problem.fit(cell, n_init=self.fits.n_init))
            fitted = fit, describe_engine(task.networks[cell.hops])
        heard = task.warnings[cell.hops] + screen.warnings[before:]

        def tell() -> Report:
            seconds = {"seconds": time.perf_counter() - began}
            return self.describe(selection) | run.facts(self.data) | seconds

        def write(path: Path, report: Report) -> None:
            """Write the model as `vpem fit` does."""
            from vpem.files.models import write_model

            assert fitted is not None
            fit, ran = fitted
            features = task.source.feature_names
            described = fit.describe(features, task.names)
            described |= {"seed": self.fits.seed, **run.facts(self.data)}
            described["sample_weight"] = self.held.sample_weight
            if self.alignment is not None:
                described["alignment"] = self.alignment
            described |= ran if run.where.own_users else ran | {"warnings": heard}
            options = run.options(
                given, **StartSettings().values(), components=cell.n_components, hops=cell.hops,
                covariance=cell.covariance_type, threads=1, missing=self.fits.missing,
                graph_seed=self.graph.graph_seed, data=", ".join(map(str, self.data)),
            )  # fmt: skip
            write_model(path, fit.kept(features, described, options), self.out.force)

        converged = all(one["status"] == "converged" for one in selection.cells)
        return FitOutcome(
            converged, tell, write, partial(show_selection, selection),
            own=partial(self._own, selection), found=None if fitted is None else fitted[0],
            heaviest=heaviest_of(task.source, self.held.sample_weight),
        )  # fmt: skip

    def _own(self, selection: Selection, report: Report) -> Report:
        """Draw the picture, if any; return what the report says of a user's own files."""
        out = self.out
        if out.plot is not None:
            from vpem.pictures.figure import save_picture
            from vpem.pictures.history import draw_selection

            save_picture(out.plot, draw_selection(selection), force=out.force)
        return {
            "state": None if out.kept_in is None else str(out.kept_in),
            "plot": None if out.plot is None else str(out.plot),
        }

    def chosen(self, selection: Selection) -> int:
        """Place of the chosen model: the best, or with --one-standard-error a smaller one."""
        small = selection.choice.one_standard_error
        return (
            selection.choice.best
            if small is None or not self.settings.one_standard_error
            else small
        )

    def describe(self, selection: Selection) -> Report:
        """Return the report, but for the model, warnings and time."""
        settings, choice, source = self.settings, selection.choice, self.task.source
        held_out = settings.criterion == "heldout"
        return {
            "criterion": settings.criterion,
            "better": "higher" if held_out else "lower",
            "best": choice.best,
            "one_standard_error": choice.one_standard_error,
            "chosen": self.chosen(selection),
            "passed_over": choice.passed_over,
            "cells": selection.cells,
            "n_init": self.fits.n_init,
            "folds": settings.n_folds if held_out else None,
            "split": self.held.split,
            "n_samples": source.n_samples,
            "n_features": source.n_features,
            "seed": self.fits.seed,
            "n_fits": len(self.trials),
            "n_kept": self.n_kept,
            "jobs": self.n_jobs,
            **self.command.where.describe(),
        }


def _state(state: Path | None, output: Path | None) -> Path | None:
    beside = output.parent / f"{output.stem}.select.h5" if output else None
    return state or beside


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    value = _state(value, options["output"])
    if value is None:
        return []
    from vpem.files.checkpoints import files_of

    from ..session import joined

    at_home = options.get("study") is not None
    return files_of(value, joined().engine.size, at_home=at_home)


class SelectOutput(Output, heading="Output", kept=False):
    """What a search writes and prints, and its exit code."""

    output: Path | None = changed(
        Output, "output", help="Write the chosen model here (HDF5), the same as from 'vpem fit'."
    )
    force: bool = changed(
        Output,
        "force",
        help="Replace existing outputs, and the state of a search with other options.",
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
    (" is for one process: those of an engine share each fit, one after another; leave it out",),
)


class GridSettings(SelectSettings, heading="Selection", kept=False):
    """A grid of models, and how they are judged."""

    n_jobs: int | None = changed(SelectSettings, "n_jobs", idle=TOGETHER)


class SearchedFit(FitSettings, heading="Model"):
    """Settings of all fits of a search."""

    seed: int = changed(
        FitSettings, "seed", help="Seeds starts, folds, and the graph, unless --graph-seed does."
    )
    weight_concentration_prior_type: str | None = changed(
        FitSettings,
        "weight_concentration_prior_type",
        choices=(MAP,),
        help="map: EM to the posterior mode under priors of hubs like mclust's, which keep small "
        "components proper; criteria use the likelihood at the mode. Default: none, EM.",
    )


def select(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    settings: GridSettings,
    parties: FileSettings,
    holding: HoldingSettings,
    graph: GraphSettings,
    fits: Annotated[
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
    hubs, or a diagonal covariance) is fitted once. An interrupted search goes on when the same
    command is given again.

    Example: vpem select data/wine.h5 -k 1-4 --scale standard --jobs 1 -o best.h5

    Example: vpem select data/wine.h5 -k 1-3 --hops 0-1 --jobs 1 --criterion heldout --folds 3
    """
    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem.fits.selection.search import grid

        cells = grid(
            parse_numbers("--components", settings.n_components, least=1),
            parse_numbers("--hops", settings.hops),
            parse_names("--covariance", settings.covariance_type, COVARIANCE_TYPES),
        )
        run = CommandRun(screen, out, "models", engine)
        if out.plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(out.plot, out.force)
        search = Search(
            data, run, cells, settings, out, parties=parties, holding=holding, graph=graph,
            fits=fits, sums=sums, memory_limit=memory_limit,
        )  # fmt: skip
        run.finish(search.run(given, began))
