"""`vpem select`: how many components, how many hops, and which covariance; `vpem fit -k 2-6`."""

from __future__ import annotations

import signal
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError, Setting, VpemError, VpemWarning, printable
from vpem.fits.settings import parse_covariances, parse_numbers
from vpem.pictures.contents import number, plural
from vpem.records import changed, unless, unset
from vpem.settings import (
    MAP,
    DiscriminantSettings,
    FitSettings,
    GraphSettings,
    HoldingSettings,
    SelectSettings,
    SumSettings,
)

from .. import runner
from ..data import ClassFiles, DataFiles, FileSettings, StartSettings
from ..display import ProgressLine, Screen, span
from ..names import in_options
from ..options import Given, MemoryLimit, Without
from ..outputs import WRITTEN, Output, Role
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.fits.selection.search import Selection
    from vpem.fits.selection.trials import Cell, Outcome, Trial
    from vpem.network.schema import Report


@contextmanager
def stopping(what: Callable[[], str]) -> Iterator[None]:
    """End the block with an error at Ctrl-C or SIGTERM."""
    from vpem.files.checkpoints import handling

    caught: list[int] = []

    def note(number: int, _: Any) -> None:
        caught.append(number)
        raise KeyboardInterrupt

    try:
        with handling(note):
            yield
    except KeyboardInterrupt:
        if not caught:
            raise
        name = "Ctrl-C" if caught[0] == signal.SIGINT else "SIGTERM"
        stopped = VpemError(f"interrupted by {name}; {what()}")
        stopped.exit_code = 128 + caught[0]  # type: ignore[attr-defined]
        raise stopped from None


class SearchProgress(ProgressLine):
    def start(self, to_do: int) -> None:
        self.to_do, self.ended = to_do, Counter[str]()
        self.began = self.last_line = time.monotonic()

    def __call__(self, trial: Trial, result: Outcome) -> None:  # type: ignore[override]
        self.ended[result["status"]] += 1
        self.remind()
        if not self.is_due():
            return
        done = self.ended.total()
        left = (time.monotonic() - self.began) / done * (self.to_do - done)
        said = (f"{self.ended[one]} {one}" for one in ("failed", "not converged")
                if self.ended[one])  # fmt: skip
        about = f"about {span(left)} to go"
        self.tell(f"{done} of {plural(self.to_do, 'fit')} done", *said, about, f"last: {trial}")


def warn_of(screen: Screen, selection: Selection, chosen: int) -> None:
    """Warn of models that failed or were passed over, and of a choice that is not sound."""
    from vpem.pictures.planning import CRITERIA

    cells, grid, passed = selection.cells, selection.grid, selection.choice.passed_over

    def warn_of_some(key: str, sentence: str) -> None:
        some = [place for place, cell in enumerate(cells) if key in cell]
        if some:
            many = f"{len(some)} of {plural(len(cells), 'model')}"
            screen.warn(f"{many} {sentence.format(grid[some[0]], cells[some[0]][key])}")

    warn_of_some("reason", "failed; the first, {}: {}")
    for better in passed[:1]:
        why, what = "did not converge", "try more --max-iter"
        if cells[better]["degenerate"]:
            why, what = "has degenerate components", "--floor-fits keep counts it like others"
        value = number(cells[better][selection.criterion], 8)
        screen.warn(
            f"{grid[better]} has a better {CRITERIA[selection.criterion]} ({value}) but {why}, and "
            f"was passed over; {what}"
        )
    warn_of_some(
        "below",
        "ended less likely than one of fewer components; the first, {}, below K = {}: try more "
        "starts, --n-init 10",
    )
    if cells[chosen].get("degenerate"):
        screen.warn(
            f"{grid[chosen]} is chosen although it has degenerate components, as have all models "
            "that converged; try fewer features, or --prior map"
        )
    if cells[chosen]["status"] != "converged":
        screen.warn(f"no model converged; {grid[chosen]} is the best; try more --max-iter")


class Search(runner.Task):
    """A search over the cells of a grid: its trials, and the record of those that are done."""

    out: SearchSettings

    def plan(self, sums: SumSettings, cells: list[Cell]) -> None:
        """Find out which fits the search needs, and which of them are kept."""
        from vpem._core.threads import processors
        from vpem.files.matrix import FileMatrix
        from vpem.fits.selection.search import Record, facts_of, trials_of, without_repeats
        from vpem.fits.selection.trials import Problem

        out, fits = self.out, self.settings
        self.settings = fits.changed(n_threads=1)
        self.connect(sums.changed(n_threads=1), [cell.hops for cell in cells])
        self.network = None  # there are several: none of them is compared with a tree
        self.split = "features" if self.workers is None else "rows"
        facts = sums.values("hops", "seed", "n_threads", "n_rounds")
        facts |= {"split": self.split, "rounds": sums.n_rounds, "graph_seed": self.seed_of_graph}
        self.problem = self.problem_of(Problem, self.data(), network_options=facts)
        self.cells = without_repeats(cells, self.problem)
        stored, n_jobs = isinstance(self.problem.X, FileMatrix), out.n_jobs
        if stored and n_jobs not in (None, 1):
            raise InputError(
                f"--jobs {n_jobs} is for data in memory, but these are read from disk; leave it "
                "out, or raise --memory-limit"
            )
        alone = stored or self.engine.apart
        self.n_jobs = 1 if alone else processors() if n_jobs is None else n_jobs
        if self.n_jobs > 1 and not stored:
            self.problem = self.problem.mapped()
            self.source.X = self.problem.X
        self.record = Record(out.kept_in, facts_of(self.problem), out.force, self.engine)
        self.trials = [
            trial.key
            for cell in self.cells
            for trial in trials_of(cell, out.criterion, fits.n_init, out.n_folds)
        ]
        self.unkept = None if out.kept_in else "--state FILE or --output FILE"

    @property
    def n_finished(self) -> int:
        return len(self.record.results.keys() & set(self.trials))

    def _kept(self, then: str = "") -> str:
        if self.out.kept_in is None:
            return "nothing was kept (give --state or --output)"
        fits = plural(len(self.trials), "fit")
        kept = f"{self.n_finished} of {fits} are in {self.out.kept_in}{then}"
        return kept if self.n_finished else "no fit was finished yet"

    def run(self, given: Given, began: float) -> None:
        """Run the trials that are not kept, and choose; the command began at ``began``."""
        from vpem.fits.answer import note_of_parameters
        from vpem.fits.selection.search import search
        from vpem.pictures.history import draw_selection
        from vpem.pictures.planning import tables_of_selection

        out, screen, n_init, n_kept = self.out, self.screen, self.settings.n_init, self.n_finished
        source = self.source
        if n_kept:
            screen.say(self._kept(" already"))
        with stopping(lambda: self._kept(": give the same command to go on")):
            with self.working(SearchProgress) as progress:
                progress.start(len(self.trials) - n_kept)
                selection = search(
                    self.problem, self.cells, criterion=out.criterion, n_init=n_init,
                    n_folds=out.n_folds, n_jobs=self.n_jobs, record=self.record, tell=progress,
                )  # fmt: skip
            self.in_data_units(*selection.cells)
            choice, held_out = selection.choice, selection.criterion == "heldout"
            small = choice.one_standard_error if out.one_standard_error else None
            chosen = choice.best if small is None else small
            best, n_parameters = selection.grid[chosen], selection.cells[chosen].get("n_parameters")
            warn_of(screen, selection, chosen)
            counted = n_parameters or 0, source.n_samples
            screen.print_note(*note_of_parameters(self.settings, best, *counted))
            n_heard, fit = len(screen.warnings), None
            ran: Report = {}
            if out.output is not None or self.where.own_users:
                fit = self.whole(self.problem.fit(best, n_init=n_init))
                self.in_data_units(fit)
                ran = describe_engine(self.networks[best.hops])
        heard = self.warnings[best.hops] + screen.warnings[n_heard:]

        def tell() -> Report:
            return {
                **selection.describe(chosen),
                "n_init": n_init,
                "folds": out.n_folds if held_out else None,
                "split": self.split,
                "n_samples": source.n_samples,
                "n_features": source.n_features,
                "seed": self.settings.seed,
                "n_fits": len(self.trials),
                "n_kept": n_kept,
                "jobs": self.n_jobs,
                **self.where.describe(),
                **self.facts(self.files),
                "seconds": time.perf_counter() - began,
            }

        def write(path: Path, report: Report) -> None:
            """Write the model as `vpem fit` does."""
            own = {} if self.where.own_users else {"warnings": heard}
            options = self.options(
                given, fit, **StartSettings().values(), components=best.n_components,
                hops=best.hops, covariance=best.covariance_type, threads=1,
                graph_seed=self.seed_of_graph,
            )  # fmt: skip
            self.keep(fit, options, path, self.describe(fit, ran | own))

        def draw(report: Report) -> Report:
            return {"state": out.kept_in} | self.drawn(lambda: draw_selection(selection))

        converged = all(one["status"] == "converged" for one in selection.cells)
        self.finish(runner.FitOutcome(converged, tell, write, tables_of_selection, draw, found=fit))


def _state_of(state: Path | None, output: Path | None) -> Path | None:
    return state or (output and output.parent / f"{output.stem}.select.h5")


ONE_AFTER_ANOTHER = unless(
    " is for one process: those of an engine share each fit, one after another; leave it out",
    engine="simulator",
)


class SearchSettings(Output, EngineSettings, SelectSettings, kept=False):
    n_jobs: int | None = changed(idle=ONE_AFTER_ANOTHER)
    output: Path | None = changed(
        help="Write the chosen model here (HDF5), the same as from 'vpem fit'."
    )
    force: bool = changed(
        help="Replace existing outputs, and the state of a search with other options."
    )
    strict: bool = changed(help="Exit with 3 if a model failed or did not converge.")
    state: Path | None = unset(
        "Keep every finished fit here; the same command goes on from it. Default: beside "
        "--output, NAME.select.h5.", heading="Checkpoints",
        file=Role(writes=True, files=lambda state, options: runner.files_kept(
            filter(None, [_state_of(state, options["output"])]), options
        )),
    )  # fmt: skip
    plot: Path | None = unset(
        "Draw the criterion by components (.png, .svg, .pdf).", heading="Output",
        file=WRITTEN,
    )  # fmt: skip

    @property
    def kept_in(self) -> Path | None:
        return _state_of(self.state, self.output)


class SearchedFit(FitSettings, heading="Model"):
    """Settings of all fits of a search."""

    seed: int = changed(help="Seeds starts, folds, and the graph, unless --graph-seed does.")
    weight_concentration_prior_type: str | None = changed(
        choices=(MAP,),
        help="map: EM to the posterior mode under priors of hubs like mclust's, which keep small "
        "components proper; criteria use the likelihood at the mode. Default: none, EM.",
    )


def select(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    settings: Annotated[SearchSettings, Without("shards")],
    parties: FileSettings,
    holding: HoldingSettings,
    graph: GraphSettings,
    fits: Annotated[
        SearchedFit,
        Without("n_components covariance_type n_threads weight_concentration_prior fix"),
    ],
    sums: Annotated[SumSettings, Without("hops hubs n_threads")],
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
    with Screen(settings.quiet) as screen:
        from vpem.fits.selection.search import grid

        cells = grid(
            parse_numbers("--components", settings.n_components, least=1),
            parse_numbers("--hops", settings.hops),
            parse_covariances(settings.covariance_type, fits),
        )
        search = Search(screen, settings, "models", settings)
        networked = graph.is_asked or sums.is_asked or any(cell.hops for cell in cells)
        search.load(data, parties, holding, graph, fits, memory_limit, networked)
        search.plan(sums, cells)
        search.run(given, began)


# ---- discriminant analysis -----------------------------------------------------------------------


class DiscriminantOutput(Output, EngineSettings, DiscriminantSettings, kept=False):
    output: Path | None = changed(help="Write the classifier here (HDF5): a model for 'predict'.")
    n_folds: int | None = unset("Cross-validate: parts of the rows of each class, each held out "
        "once from a choice among the same models.", flags="--folds", least=2)  # fmt: skip


def discriminant(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    out: Annotated[DiscriminantOutput, Without("shards")],
    parties: Annotated[ClassFiles, Without("family")],
    holding: Annotated[HoldingSettings, Without("split workers worker_rows")],
    graph: GraphSettings,
    fits: Annotated[
        SearchedFit,
        Without(
            "n_components covariance_type weight_concentration_prior fix penalty n_factors noise "
            "trim"
        ),
    ],
    sums: Annotated[SumSettings, Without("hubs")],
    given: Given,
) -> None:
    """Fit a classifier: a Gaussian mixture of each class.

    As mclust's MclustDA and EDDA do, over agents that hold features: 'vpem predict' then tells
    classes. Labels are those of the data (--label-column), and all agents know them. With --folds
    the error on rows that were not fitted is found, by rows dealt out class by class.

    Example: vpem discriminant data/wine.h5 -k 1-2 --covariance diag,tied --folds 5

    Example: vpem discriminant data/wine.h5 --type edda --agents 3 -o classes.h5
    """
    with Screen(out.quiet) as screen:
        import numpy as np

        from vpem.files.matrix import select_rows
        from vpem.files.temporaries import check_ending
        from vpem.fits.discriminant import (
            fit_discriminant,
            folds_of_classes,
            held_out_classes,
            labels_of_all,
        )

        if out.output is not None:
            check_ending(out.output, "models")
        task = runner.Task(screen, out, "models", out)
        networked = graph.is_asked or sums.is_asked
        source = task.load(data, parties, holding, graph, fits, memory_limit, networked)
        labels: Any = source.labels
        labelled_by: int | None = None
        if labels is None and not source.is_share:
            raise InputError(
                f"{source.source} has no labels; name their column with --label-column"
            )
        if parties.label_column in source.feature_names:
            raise InputError(
                f"the column {parties.label_column!r} is also a feature of another party; leave it "
                "out there, ", Setting("drop", parties.label_column),
            )  # fmt: skip
        task.connect(sums)
        X, weights, about = task.data()
        if parties.parties:
            labels, labelled_by = labels_of_all(labels, source.labelled_by, task.local)
        if out.n_folds is not None:  # before any fit
            folds_of_classes(np.asarray(labels), out.n_folds, fits.seed)
        choice: Any = {
            "model_type": out.model_type,
            "n_components": parse_numbers("--components", str(out.n_components), least=1),
            "covariance_type": parse_covariances(out.covariance_type, task.settings),
            **about,
        }

        def fit_to(rows: Any = None) -> Any:
            some: list[Any] = [one if rows is None or one is None else select_rows(one, [rows])
                    for one in (X, labels, weights)]  # fmt: skip
            return fit_discriminant(
                some[0], some[1], task.local, task.settings, sample_weight=some[2],
                callback=progress, labelled_by=None if rows is not None else labelled_by, **choice,
            )  # fmt: skip

        held: Report = {}
        with task.working(ProgressLine, source.X) as progress:
            fitted = fit_to()
            own = np.asarray(fitted.classes)[fitted.predict_classes(X, fits.missing).argmax(axis=1)]
            held["training_error"] = float(np.average(own != labels, weights=weights))
            if out.n_folds is not None:
                folds = held_out_classes(fit_to, X, labels, out.n_folds, fits.seed, fits.missing)
                counts = np.ones(len(labels)) if weights is None else np.asarray(weights)
                wrong, sizes = zip(
                    *((counts[fold] @ part, counts[fold].sum()) for fold, part in folds),
                    strict=True,
                )
                if not all(sizes):
                    raise InputError("all rows of a fold weigh 0; give fewer --folds")
                rates = [float(part / size) for part, size in zip(wrong, sizes, strict=True)]
                held["folds"] = rates
                held["held_out_error"] = float(sum(wrong) / sum(sizes))
                held["held_out_standard_error"] = float(np.std(rates, ddof=1) / len(rates) ** 0.5)
        task.in_data_units(fitted)
        for name, one in zip(fitted.classes, fitted.chosen, strict=True):
            many = plural(one["n_components"], "component")
            screen.say(f"class {name}: {many}, {one['covariance_type']}, BIC {one['bic']:.2f}")
        screen.say(
            f"classification error of the rows that were fitted {held['training_error']:.4f}"
        )
        if out.n_folds is not None:
            screen.say(
                f"of held-out rows {held['held_out_error']:.4f}, standard error "
                f"{held['held_out_standard_error']:.4f}, in {out.n_folds} folds"
            )
        options = task.options(given, fitted, covariance=out.covariance_type)
        task.finish_fit(task.whole(fitted), options, classification=held)


# ---- several numbers of components in one fit ----------------------------------------------------


def choose_by_bic(
    task: runner.Task, data: tuple[Any, Any, Report], counts: Sequence[int],
    checkpoints: runner.CheckpointSettings, more: Report,
) -> tuple[Fit, Report]:  # fmt: skip
    """Fit each number of components, with ``more`` arguments; keep the fit of lowest BIC.

    Returns it, and the report of how it ran.
    """
    from vpem.files.checkpoints import own_files
    from vpem.files.temporaries import check_ending
    from vpem.fits.selection.search import choose, search
    from vpem.fits.selection.trials import Cell, Problem

    screen, settings, file = task.screen, task.settings, checkpoints.checkpoint
    if file is not None:
        check_ending(file, "checkpoints")
    paths = [file and runner.each_file(file, count) for count in counts]
    files = [one for path in paths if path for one in own_files(path, task.engine)]
    if checkpoints.resume and any(one.exists() for one in files):
        # The run may have been interrupted before it reached the others.
        checkpoints = checkpoints.changed(resume=False, resume_if_any=True)
    savers = [checkpoints.changed(checkpoint=path).saver(task) for path in paths]
    found: list[Outcome] = []
    kept: list[tuple[Fit, Report, Sequence[VpemWarning]]] = []

    class Each(Problem):
        """A problem whose best fit is kept."""

        def fit(self, cell: Cell, rows: Any = None, **options: Any) -> Fit:
            saver = savers[counts.index(cell.n_components)]
            progress.about = f"{cell.n_components} components, "
            with runner.catching(saver):
                options |= {"callback": progress, "saver": saver, **more}
                return super().fit(cell, rows, **options)

        def keep(self, fit: Fit, outcome: Outcome, heard: Sequence[VpemWarning]) -> None:
            found.append(outcome)
            done = [one for one in found if one["status"] != "failed"]
            if outcome in done and done[choose(done, "bic", self.floor_fits).best] is outcome:
                kept[:] = [(fit, describe_engine(task.local), heard)]

    with task.working(ProgressLine, task.source.X) as progress:
        cells = [Cell(k, min(task.networks), settings.covariance_type) for k in counts]
        problem = task.problem_of(Each, data)
        selection = search(problem, cells, n_init=settings.n_init, n_jobs=None)
        task.in_data_units(*selection.cells)
        ((fit, ran, heard),) = kept
        for one in heard:
            # Warnings of all fits alike have been printed.
            if printable(in_options(one)) not in screen.warnings:
                warnings.warn(one, stacklevel=2)
        best = selection.choice.best
        warn_of(screen, selection, best)
        parts, listed = [], []
        for place, cell in enumerate(selection.cells):
            value = "failed" if cell["status"] == "failed" else f"{cell['bic']:.2f}"
            value += " (not converged)" * (cell["status"] == "not converged")
            value += " (degenerate)" * bool(cell.get("degenerate"))
            parts.append(f"{cell['n_components']}: {value}{', kept' * (place == best)}")
            without = ("restart", "restarts", "stands_for_hops")
            listed.append({name: cell[name] for name in cell if name not in without})
        screen.say(f"BIC by components (lower is better): {'; '.join(parts)}")
    return fit, ran | {"selection": {"criterion": "bic", "best": best, "cells": listed}}
