"""`vpem bootstrap`: standard errors and intervals, and tests of the number of components."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vpem.errors import InputError
from vpem.fits.settings import parse_numbers
from vpem.pictures.contents import plural, size
from vpem.records import Table, beside, changed, unset
from vpem.settings import (
    BootstrapSettings,
    FitSettings,
    GraphSettings,
    HoldingSettings,
    SumSettings,
)

from .. import runner
from ..data import DataFiles, FileSettings, StartSettings
from ..display import ProgressLine, Screen, span
from ..options import Given, MemoryLimit, Without, word_of
from ..outputs import Output, Role
from ..session import EngineSettings
from .select import ONE_AFTER_ANOTHER, SearchedFit, stopping

if TYPE_CHECKING:
    from vpem.fits.results import Fit
    from vpem.fits.selection.bootstrap import Errors
    from vpem.fits.selection.search import Record
    from vpem.fits.selection.trials import Cell, Problem
    from vpem.network.schema import Report

OF_MODEL = beside(" is that of {model}, whose standard errors are found; leave it out", model=...)


class BootstrapOutput(Output, EngineSettings, BootstrapSettings, kept=False):
    n_components: str = changed(idle=OF_MODEL)
    model: Path | None = unset(
        "Find standard errors of this model of the data, by fits with its options where others are "
        "not given. Default: the model is fitted first.", file="read", heading="Model",
        idle=beside(" is one model, and {test} fits two; leave it out", test=True),
    )  # fmt: skip
    n_jobs: int | None = changed(idle=ONE_AFTER_ANOTHER)
    force: bool = changed(help="Replace the state of a bootstrap with other options.")
    state: Path | None = unset(
        "Keep every finished replicate here; the same command goes on from it, also to more of "
        "them.", heading="Checkpoints",
        file=Role(writes=True, files=lambda state, options: runner.files_kept(
            filter(None, [state]), options
        )),
    )  # fmt: skip


class BootstrappedFit(
    SearchedFit,
    rows=[("covariance_type init n_init", OF_MODEL[0], OF_MODEL[1])],
):
    """Settings of all fits of a bootstrap."""


def _with_options_of(path: Path, fits: Any, given: Given) -> Any:
    """Return settings with which a model was fitted, but those that are given."""
    from vpem.files.models import read_model

    model = read_model(path)
    for name in ("privacy", "discriminant", "labels_for_fit", "shard"):
        if model.report.get(name):
            raise InputError(
                f"{path} is no plain fit of rows (its report has {name!r}), and refits would be; "
                "take a model of 'vpem fit' without this"
            )
    own = ("n_components", "covariance_type", "init", "n_init", "seed", "n_threads", "fix")
    theirs = {one.name: model.options.get(word_of(one), model.options.get(one.name))
              for one in FitSettings.fields() if one.name not in (*own, *given.names)}  # fmt: skip
    known = {name: value for name, value in theirs.items() if value is not None}
    return fits.changed(covariance_type=model.mixture.covariance_type, **known)


def _fit_of_model(task: runner.Task, problem: Problem, cell: Cell, begun: Any, path: Path) -> Fit:
    """Return a model as the fit of its own problem, without an iteration."""
    from vpem.files.models import read_model
    from vpem.fits.parts import outline
    from vpem.fits.selection.bootstrap import check_rows

    mixture = begun.init
    fit = problem.fit(cell, init=mixture, n_init=1, max_iter=0)
    counted = (outline(fit) if problem.engine.apart else fit).n_parameters
    if counted != mixture.n_parameters:
        raise InputError(
            f"{path} has {mixture.n_parameters} parameters, but a fit like this has {counted}: "
            "its agents shared other features; give the agents and hops of its fit"
        )
    task.in_data_units(fit)
    found = problem.engine.bcast((float(fit.log_likelihood), float(fit.total_weight)))
    report = read_model(path).report
    check_rows(str(path), report.get("log_likelihood"), report.get("total_weight"), *found)
    return fit


class _Drawn(ProgressLine):
    def start(self) -> None:
        self.done, self.began = 0, time.monotonic()
        self.last_line = self.began

    def __call__(self, done: int, n_replicates: int) -> None:  # type: ignore[override]
        self.done += 1
        self.remind()
        if self.is_due():
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
        *_costs(report, report),
    ])  # fmt: skip


def _costs(report: Report, *parts: Report) -> Iterator[tuple[str, str]]:
    messages, sent = (sum(one[name] for one in parts) for name in ("messages", "bytes"))
    if messages:
        yield "sent", f"{plural(messages, 'message')}, {size(sent)}"
    yield "time", f"{report['seconds']:.3g} s, {plural(report['jobs'], 'job')}"


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
        *_costs(report, *report["tests"]),
    ])  # fmt: skip


def _kept(record: Record) -> str:
    if record.path is None:
        return "nothing was kept (give --state)"
    many = plural(len(record.results), "replicate")
    return f"{many} are in {record.path}: give the same command to go on"


def bootstrap(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    out: Annotated[BootstrapOutput, Without("output shards strict")],
    parties: FileSettings,
    holding: HoldingSettings,
    graph: GraphSettings,
    fits: Annotated[
        BootstrappedFit, Without("n_components n_threads weight_concentration_prior fix")
    ],
    sums: Annotated[SumSettings, Without("n_threads")],
    given: Given,
) -> None:
    """Find standard errors, or test the number of components.

    The model is fitted as by 'vpem fit', then again to rows that are weighed at random, or drawn
    from it: component labels from the seed, by each agent its own features, by each worker its own
    rows. With --state an interrupted command goes on when it is given again.

    Example: vpem bootstrap data/wine.h5 -k 3 --covariance diag --replicates 99 --jobs 1

    Example: vpem bootstrap data/wine.h5 -k 1-4 --test --covariance diag --replicates 99 --jobs 1
    """
    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem._core.threads import processors
        from vpem.files.studies.policy import file_digest
        from vpem.fits.selection.bootstrap import (
            Resampling,
            bootstrap_errors,
            check_components,
            check_resampling,
        )
        from vpem.fits.selection.search import Record, facts_of
        from vpem.fits.selection.trials import Cell, Problem

        counts = parse_numbers("--components", out.n_components, least=1)
        if len(counts) > 1 and not out.test:
            raise InputError(
                f"standard errors are of one model, got -k {out.n_components}; give one "
                "number of components, or --test"
            )
        if out.model is not None:
            fits = _with_options_of(out.model, fits, given)
        task = runner.Task(screen, out, "models", out)
        networked = graph.is_asked or sums.is_asked
        source = task.load(data, parties, holding, graph, fits, memory_limit, networked)
        begun = StartSettings(init_model=out.model).begun(fits, source, given)
        task.connect(sums.changed(n_threads=1))
        task.settings = fits.changed(n_threads=1)
        task.network, task.unkept = None, None
        facts = sums.values("seed", "n_threads") | {"graph_seed": task.seed_of_graph}
        problem = task.problem_of(Problem, task.data(), network_options=facts)
        check_resampling(problem, "parametric" if out.test else out.kind)
        cell = Cell(counts[0], min(task.networks), fits.covariance_type)
        n_jobs = 1 if task.engine.apart else out.n_jobs or processors()
        what = "test" if out.test else out.kind
        facts = facts_of(problem) | {"algorithm": "bootstrap", "bootstrap": what}
        facts |= {"covariance": fits.covariance_type, "starts": fits.n_init}
        facts["model"] = out.model and file_digest(out.model)
        if what == "weighted" and problem.sample_weight is not None:
            facts["weights of rows"] = "numbers of copies"  # once they only scaled what was drawn
        record = Record(out.state, facts, out.force, task.engine, "bootstrap")
        fit = None
        if task.engine.apart:
            n, many = out.n_replicates, "for each number of components" * out.test
            screen.say(f"up to {plural(2 * n + 2 if out.test else n + 1, 'fit')} {many}".rstrip())
        with stopping(lambda: _kept(record)), task.working(_Drawn) as progress:
            progress.start()
            how: Any = {"n_jobs": n_jobs, "tell": progress, "record": record}
            if out.test:
                tests = check_components(
                    problem, fits.covariance_type, counts, n_init=fits.n_init,
                    n_replicates=out.n_replicates, significance=out.significance, **how,
                )  # fmt: skip
                last = tests[-1]
                kept = not last["p_value"] <= out.significance
                found: Report = {
                    "tests": tests, "significance": out.significance,
                    "n_components": last["n_components"] if kept else None,
                }  # fmt: skip
            else:
                if out.model is None:
                    fit = first = problem.fit(cell, n_init=fits.n_init)
                else:
                    cell = replace(cell, n_components=begun.n_components)
                    first = _fit_of_model(task, problem, cell, begun, out.model)
                resampling = Resampling(problem, cell, first, out.kind, fits.seed)
                errors: Errors = bootstrap_errors(resampling, out.n_replicates, out.level, **how)
                found = {"n_components": cell.n_components, **vars(errors)}

        def tell() -> Report:
            return {
                **found, "feature_names": list(source.feature_names), "seed": fits.seed,
                "covariance_type": fits.covariance_type, "jobs": n_jobs,
                "seconds": time.perf_counter() - began,
            }  # fmt: skip

        tables = _tables_of_tests if out.test else _tables_of_errors
        task.finish(runner.FitOutcome(True, tell, None, tables, found=fit))
