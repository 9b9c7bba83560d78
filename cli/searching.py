"""What `vpem select` makes of its options, and the model that it writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .choices import StartSettings, partition_of, stored_graph
from .engine import describe_engine
from .parties import PartySettings, read_data
from .workers import graph_of, workers_of

if TYPE_CHECKING:
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Cell
    from vpem.network.holdings import Workers
    from vpem.network.schema import Report
    from vpem.settings import (
        FitSettings,
        GraphSettings,
        HoldingSettings,
        SelectSettings,
        SumSettings,
    )
    from vpem.sums.connect import Network

    from .driver import Run
    from .output import Screen
    from .select import SelectOutput

__all__ = ["Asked", "Search", "Task", "warn_of"]


@dataclass(frozen=True)
class Asked:
    """Settings of the fits of a search."""

    parties: PartySettings
    held: HoldingSettings
    graph: GraphSettings
    how: FitSettings
    sums: SumSettings


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
        screen.warn(
            f"{grid[better]} has a better {NAMES[found.criterion]} "
            f"({number(cells[better][found.criterion], 8)}) but did not converge, and was passed "
            "over; try more --max-iter"
        )
    if cells[chosen]["status"] != "converged":
        screen.warn(
            f"no model converged; {grid[chosen]} is the best of what there is, try more --max-iter"
        )


class Task:
    """Data and settings of a search, as a user asked for them.

    Parameters
    ----------
    data : sequence of path
        What the user named.
    asked : Asked
        Settings of the fits.
    hops : sequence of int
        For which there are to be networks.
    run : Run
        Where the command runs.

    Attributes
    ----------
    source : Dataset
        The data.
    problem : Problem
        What is searched.
    names : sequence of str
        Names of agents or workers.
    """

    def __init__(self, data: Sequence[Path], asked: Asked, hops: Sequence[int], run: Run) -> None:
        from vpem.fits.selection.trials import Problem

        how, sums, graph = asked.how, asked.sums, asked.graph.seeded(asked.how.seed)
        if asked.parties.missing_parties:
            how = how.changed(missing="marginalize")
        self.data, self.how, self.graph, self.run = ", ".join(map(str, data)), how, graph, run
        self.split = asked.held.split
        self.source, self.alignment = read_data(
            data, asked.parties, asked.held, how.missing == "marginalize", None, run
        )
        self._warnings: dict[int, list[str]] = {}
        networks, held, self.names = self._networks(asked.held, sums, hops)
        without = ["n_components", "covariance_type", "n_init", "n_threads"]
        options = how.values(*without) | {"feature_names": self.source.feature_names}
        told = sums.values("hops", "seed", "n_threads", "n_rounds")
        told |= {"split": asked.held.split, "rounds": sums.n_rounds, "graph_seed": graph.graph_seed}
        self.problem = Problem(self.source.X, networks, held, options, told)

    def _networks(
        self, held: HoldingSettings, sums: SumSettings, hops: Sequence[int]
    ) -> tuple[dict[int, Network], Workers | None, Sequence[str]]:
        """Make the network for each number of hops; who holds which rows; names of agents."""
        from vpem.sums.connect import connect, connect_workers

        screen = self.run.screen
        sums = sums.changed(seed=self.graph.graph_seed, n_threads=1)
        if held.split == "rows":
            workers = workers_of(self.source, held, screen)
            graph = graph_of(workers.n_workers, workers.names, self.graph)
            networks = {0: connect_workers(graph, sums)}
            self._warnings[0] = list(screen.warnings)
            return networks, workers, workers.names
        parts = partition_of(self.source, held)
        graph = stored_graph(self.source, parts, self.graph)
        networks = {}
        read = list(screen.warnings)
        for number in sorted(set(hops)):
            before = len(screen.warnings)
            networks[number] = connect(graph, parts, sums, hops=number)
            self._warnings[number] = read + screen.warnings[before:]
        return networks, None, parts.names

    def write(self, found: Selection, chosen: int, record: Report) -> None:
        """Fit one of the models as `vpem fit` does, on one thread, and write it."""
        from vpem.files.models import write_model

        screen, out, cell = self.run.screen, self.run.out, found.grid[chosen]
        assert out.output is not None
        before = len(screen.warnings)
        fit: Any = self.problem.fit(cell, n_init=self.how.n_init, n_threads=1)
        features = self.source.feature_names
        report = fit.describe(features, self.names)
        heard = self._warnings[cell.hops] + screen.warnings[before:]
        report |= {"warnings": heard, "seed": self.how.seed, "data": self.data}
        report["sample_weight"] = None
        if self.alignment is not None:
            report["alignment"] = self.alignment
        report |= describe_engine(fit.network)
        options = (
            record
            | StartSettings().values()
            | {
                "components": cell.n_components,
                "hops": cell.hops,
                "covariance": cell.covariance_type,
                "threads": 1,
                "missing": self.how.missing,
                "sample_weight": None,
                "graph_seed": self.graph.graph_seed,
                "data": self.data,
            }
        )
        write_model(out.output, fit.kept(features, report, options), out.force)


class Search:
    """A search in its processes, what is kept of it, and what there is to say of it.

    Parameters
    ----------
    task : Task
        Data and settings of the fits.
    cells : sequence of Cell
        The grid.
    asked : SelectSettings
        How models are judged.
    out : SelectOutput
        Where results go.
    """

    def __init__(
        self, task: Task, cells: list[Cell], asked: SelectSettings, out: SelectOutput
    ) -> None:
        from vpem._core.threads import processors
        from vpem.fits.selection.record import Record, facts_of
        from vpem.fits.selection.search import trials_of

        self.task, self.cells, self.asked, self.out = task, cells, asked, out
        self.n_jobs = processors() if asked.n_jobs is None else asked.n_jobs
        self.record = Record(out.kept_in, facts_of(task.problem), out.force)
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

    def run(self, options: Report) -> Selection:
        """Fit what is not kept, choose, and write what is asked for.

        Parameters
        ----------
        options : dict
            What the model keeps of how it was asked for.
        """
        from vpem.fits.selection.search import search

        from .selecting import SearchProgress, Stopping

        asked, out = self.asked, self.out
        if self.n_kept:
            self.task.run.screen.say(f"{self._so_far()} already")
        kept = out.kept_in or out.output or out.json
        progress = SearchProgress(out.quiet, None if kept else "--state FILE or --output FILE")
        with Stopping(self._kept) as stopping:
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
            warn_of(self.task.run.screen, found, self.chosen(found))
            if out.output is not None:
                self.task.write(found, self.chosen(found), options)
            if out.plot is not None:
                from vpem.pictures.figure import save_picture
                from vpem.pictures.selection import draw_selection

                save_picture(out.plot, draw_selection(found), force=out.force)
        return found

    def chosen(self, found: Selection) -> int:
        """Return which model is taken: the best, or a smaller one that is as good."""
        small = found.choice.one_standard_error
        return found.choice.best if small is None or not self.asked.one_standard_error else small

    def describe(self, found: Selection) -> Report:
        """Return what there is to say, but for the model, warnings and time."""
        asked, out, choice, source = self.asked, self.out, found.choice, self.task.source
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
            "split": self.task.split,
            "data": self.task.data,
            "n_samples": source.n_samples,
            "n_features": source.n_features,
            "seed": self.task.how.seed,
            "n_fits": len(self.wanted),
            "n_kept": self.n_kept,
            "jobs": self.n_jobs,
            "state": None if out.kept_in is None else str(out.kept_in),
            "plot": None if out.plot is None else str(out.plot),
        }
