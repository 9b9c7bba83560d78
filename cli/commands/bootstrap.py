"""`vpem bootstrap`: standard errors and intervals, and tests of the number of components."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError
from vpem.fits.settings import parse_numbers
from vpem.pictures.contents import plural
from vpem.records import Table
from vpem.settings import BootstrapSettings, GraphSettings, HoldingSettings, SumSettings

from .. import runner
from ..data import DataFiles, FileSettings
from ..display import ProgressLine, Screen, span
from ..options import Given, MemoryLimit, Without
from ..outputs import Output
from ..session import EngineSettings
from .select import SearchedFit, stopping

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.fits.selection.bootstrap import Errors
    from vpem.fits.selection.trials import Problem
    from vpem.network.schema import Report


@dataclass
class _Refit:
    """Fits other rows as a problem's are."""

    problem: Problem
    hops: int
    covariance_type: str
    n_init: int

    def __call__(self, X: Any, weights: Any, n_components: int, **more: Any) -> Fit:
        from vpem.fits.selection.trials import Cell

        problem = replace(self.problem, X=X, sample_weight=weights)
        cell = Cell(n_components, self.hops, self.covariance_type)
        return problem.fit(cell, **{"n_init": self.n_init, **more})


class _Drawn(ProgressLine):
    def start(self) -> None:
        self.done, self.began = 0, time.monotonic()
        self.last_line = self.began

    def __call__(self, n_replicates: int) -> None:
        self.done += 1
        self.remind()
        if self.is_due():
            done = (self.done - 1) % n_replicates + 1
            left = (time.monotonic() - self.began) / self.done * (n_replicates - done)
            self.tell(
                f"{done} of {plural(n_replicates, 'replicate')}", f"at most {span(left)} to go"
            )


def _rows(report: Report) -> Iterator[tuple[str, ...]]:
    """Yield a row for each weight, mean and variance, or covariance between features."""
    import numpy as np

    names = report["feature_names"]
    parts = [report[one] for one in ("estimates", "standard_errors", "lower", "upper")]
    for kind in ("weights", "means", "covariances"):
        arrays = [np.asarray(part[kind]) for part in parts]
        for place in np.ndindex(*arrays[0].shape):
            of_component = arrays[0].shape[0] == report["n_components"]
            component, *features = place if of_component else ("all", *place)
            if len(features) == 2 and features[0] > features[1]:
                continue
            numbers = [f"{array[place]:.6g}" for array in arrays]
            said = kind[:-1] if kind != "weights" else "mixing weight"
            if len(set(features)) < 2 and kind == "covariances":
                said = "variance"
            label = ", ".join(names[j] for j in dict.fromkeys(features)) if features else ""
            if said != "covariance" or float(arrays[0][place]):
                yield (str(component), f"{said} {label}".strip(), *numbers)


def _tables_of_errors(report: Report) -> Iterator[Table]:
    heads = ("component", "parameter", "estimate", "s.e.", "lower", "upper")
    caption = f"Standard errors and {100 * report['level']:g} % intervals ({report['kind']})"
    note = (
        "every refit began at the fit, and its components were matched with the fit's by shared "
        f"rows: the order of {report['n_relabelled']} had changed"
    )
    yield Table(list(_rows(report)), heads, caption, heads[2:], note=note)
    yield Table([
        ("replicates", f"{report['n_replicates']}, and {report['n_left_out']} left out that failed "
         "or were degenerate"),
        ("time", f"{report['seconds']:.3g} s, {plural(report['jobs'], 'job')}"),
    ])  # fmt: skip


def _tables_of_tests(report: Report) -> Iterator[Table]:
    heads = ("null", "other", "ratio", "p", "drawn", "as large", "left out", "")
    rows = [
        (f"K = {one['n_components']}", f"{one['n_components'] + 1}", f"{one['statistic']:.6f}",
         f"{one['p_value']:.4g}", str(one["n_replicates"]), str(one["n_larger"]),
         str(one["n_left_out"]), "stopped" * one["stopped_early"])
        for one in report["tests"]
    ]  # fmt: skip
    note = "drawing stops once 20 statistics are as large as the observed one (Besag and Clifford)"
    yield Table(rows, heads, "Bootstrap likelihood ratio tests", heads[2:7], note=note)
    chosen = report["n_components"]
    found = f"K = {chosen}" if chosen else "more than were tested"
    yield Table([
        ("components", f"{found}, at level {report['significance']:g}"),
        ("time", f"{report['seconds']:.3g} s, {plural(report['jobs'], 'job')}"),
    ])  # fmt: skip


def bootstrap(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    settings: BootstrapSettings,
    out: Annotated[Output, Without("output force publish_anyway strict")],
    parties: FileSettings,
    holding: HoldingSettings,
    graph: GraphSettings,
    fits: Annotated[SearchedFit, Without("n_components n_threads weight_concentration_prior fix")],
    sums: Annotated[SumSettings, Without("n_threads")],
    given: Given,
) -> None:
    """Find standard errors, or test the number of components.

    The model is fitted as by 'vpem fit', then again to rows that are weighed at random, or drawn
    from it: component labels from the seed, by each agent its own features. All agents are in one
    process: members of a study would have to agree on hundreds of fits.

    Example: vpem bootstrap data/wine.h5 -k 3 --covariance diag --replicates 99 --jobs 1

    Example: vpem bootstrap data/wine.h5 -k 1-4 --test --covariance diag --replicates 99 --jobs 1
    """
    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem._core.threads import processors
        from vpem.fits.selection.bootstrap import Resampling, bootstrap_errors, check_components
        from vpem.fits.selection.trials import Problem

        counts = parse_numbers("--components", settings.n_components, least=1)
        if len(counts) > 1 and not settings.test:
            raise InputError(
                f"standard errors are of one model, got -k {settings.n_components}; give one "
                "number of components, or --test"
            )
        task = runner.Task(screen, out, "models", EngineSettings())
        networked = graph.is_asked or sums.is_asked
        source = task.load(data, parties, holding, graph, fits, memory_limit, networked)
        task.connect(sums.changed(n_threads=1))
        task.settings = fits.changed(n_threads=1)
        task.network, task.unkept = None, None
        problem = task.problem_of(Problem, task.data())
        refit = _Refit(problem, min(task.networks), fits.covariance_type, fits.n_init)
        n_jobs = processors() if settings.n_jobs is None else settings.n_jobs
        X, weights = problem.X, problem.sample_weight
        with stopping(lambda: "nothing was kept"), task.working(_Drawn) as progress:
            progress.start()
            if settings.test:
                if weights is not None:
                    raise InputError("rows drawn from a model have no weights: leave them out")
                tests = check_components(
                    refit, X, counts, seed=fits.seed, n_replicates=settings.n_replicates,
                    significance=settings.significance, n_jobs=n_jobs, tell=progress,
                )  # fmt: skip
                last = tests[-1]
                kept = not last["p_value"] <= settings.significance
                found: Report = {
                    "tests": tests, "significance": settings.significance,
                    "n_components": last["n_components"] if kept else None,
                }  # fmt: skip
            else:
                fit = refit(X, weights, counts[0])
                resampling = Resampling(refit, X, weights, fit.mixture, settings.kind, fits.seed)
                errors: Errors = bootstrap_errors(
                    resampling, settings.n_replicates, settings.level, n_jobs, progress
                )
                found = {"n_components": counts[0], **vars(errors)}

        def tell() -> Report:
            return {
                **found, "feature_names": list(source.feature_names), "seed": fits.seed,
                "covariance_type": fits.covariance_type, "jobs": n_jobs,
                "seconds": time.perf_counter() - began,
            }  # fmt: skip

        tables = _tables_of_tests if settings.test else _tables_of_errors
        task.finish(runner.FitOutcome(True, tell, lambda path, report: None, tables))
