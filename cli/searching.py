"""What `vpem select` makes of its options, and the model that it writes."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from .choices import StartSettings, tell_of_parameters
from .driver import reminding
from .engine import describe_engine
from .own import heaviest_of
from .parties import FileSettings, gather
from .results import Result
from .tasks import Task

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Cell
    from vpem.network.schema import Report
    from vpem.settings import (
        FitSettings,
        GraphSettings,
        HoldingSettings,
        SelectSettings,
        SumSettings,
    )

    from .driver import Run
    from .options import Given
    from .output import Screen
    from .select import SelectOutput


@dataclass(frozen=True)
class Asked:
    """Settings of the fits of a search."""

    parties: FileSettings
    held: HoldingSettings
    graph: GraphSettings
    how: FitSettings
    sums: SumSettings
    memory_limit: str | None = None


def warn_of(screen: Screen, found: Selection, chosen: int) -> None:
    """Tell what failed, what was passed over, and what was chosen all the same."""
    from .output import number, plural
    from .selecting import NAMES

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

    def __init__(self, data: Sequence[Path], asked: Asked, hops: Sequence[int], run: Run) -> None:
        from vpem.fits.selection.trials import Problem

        how, sums, graph = asked.how, asked.sums, asked.graph.seeded(asked.how.seed)
        if asked.parties.missing_parties:
            how = how.changed(missing="marginalize")
        self.data, self.how, self.graph, self.run = data, how, graph, run
        self.held, limit = asked.held, asked.memory_limit
        source, self.alignment = gather(
            data, asked.parties, self.held, how.missing == "marginalize", limit, run
        )
        self.task = Task(source, self.held, graph, sums.changed(n_threads=1), run, hops)
        run.network = None  # of several there is no one line to say
        told = sums.values("hops", "seed", "n_threads", "n_rounds")
        told |= {"split": self.held.split, "rounds": sums.n_rounds, "graph_seed": graph.graph_seed}
        fits = how.changed(n_threads=1)
        self.problem = self.task.problem(Problem, fits, run.memory(limit), asked=told)

    def fit(self, cell: Cell) -> tuple[Fit, Report]:
        """Fit one of the models as `vpem fit` does, on one thread; also what it ran on."""
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
        from vpem.errors import InputError
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
        """Say what has been kept when the search is ended."""
        if self.out.kept_in is None:
            return "nothing was kept (give --state or --output)"
        if not self._finished():
            return "no fit was over yet"
        return f"{self._so_far()}: give the same command to go on"

    def _so_far(self) -> str:
        from .output import plural

        return f"{self._finished()} of {plural(len(self.wanted), 'fit')} are in {self.out.kept_in}"

    def run(self, given: Given, began: float) -> Result:
        """Fit what is not kept, and choose; the command began at ``began``."""
        from vpem.fits.selection.search import search

        from .selecting import SearchProgress, Stopping

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

    def _result(self, found: Selection, given: Given, began: float) -> Result:
        """Return what there is to tell and to write, once the chosen model is fitted again."""
        from .selecting import show_selection

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
        return Result(
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
