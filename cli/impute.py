"""`vpem impute`: what no observer saw of a matrix, by federated EM with a matrix of low rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.fits.settings import ImputeSettings
from vpem.records import Settings, changed, setting
from vpem.settings import DEALS, GraphSettings, SumSettings

from .checkpoints import CheckpointSettings
from .driver import Output, Run
from .engine import EngineSettings, describe_engine
from .options import QuoteFormulas, Without
from .output import Progress, Screen
from .roles import READ
from .workers import graph_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpem.fits.imputation import Imputation
    from vpem.network.schema import Report
    from vpem.terms.lowrank.dealing import Hidden
    from vpem.terms.lowrank.observations import Observations

__all__ = ["impute"]

LISTED = 20
"""Columns up to which the trend over them is printed."""


class Dealing(Settings, heading="Data", kept=False):
    """Who saw which entries, and which of them nobody is to see."""

    workers: int | None = setting(
        None,
        "Deal the entries of the one observer there is out to this many. Default: the "
        "observers in the data.",
    )
    split: str | None = setting(
        None,
        "How --workers deals: entries at random (random, the default), or whole rows (rows).",
        choices=DEALS,
        idle=(
            lambda given: given["workers"] is None,
            (" says how --workers deals entries out; give --workers N, or leave --split out",),
        ),
    )
    holdout: float | None = setting(
        None,
        "Hide this share of the entries, and report the error on them against column "
        "means and scikit-learn's IterativeImputer.",
    )
    dataset: str | None = setting(None, "Path of a 2-D dataset inside the HDF5 file, instead of X.")


class ImputeGraph(GraphSettings, heading="Network"):
    """The graph of the observers."""

    topology: str | None = changed(
        GraphSettings,
        "topology",
        help="Graph of the observers: star (a server, as in the paper), cycle, path, complete, "
        "grid, geometric, erdos-renyi, small-world, scale-free, tree; there every observer "
        "keeps a statistic of its own. Default: star.",
    )


class ImputeOutput(Output, heading="Output", kept=False):
    """What is written and printed."""

    output: Path | None = changed(
        Output,
        "output",
        help="Write matrices, factors and trends here (HDF5), or the completed matrix (.csv).",
    )
    plot: Path | None = setting(
        None,
        "Draw trends and convergence: .png, .svg or .pdf (needs matplotlib).",
        file="written",
    )


def impute(
    data: Annotated[
        Path,
        READ,
        typer.Argument(
            help="Entries seen: a .csv table with the columns observer, row, column, value; HDF5 "
            "with the group observers; or a dataset whose X has NaN where nothing was seen."
        ),
    ],
    quote_formulas: QuoteFormulas = False,
    *,
    how: Annotated[ImputeSettings, Without("memory alpha")],
    dealing: Dealing,
    graph: Annotated[ImputeGraph, Without("graph_seed")],
    sums: Annotated[SumSettings, Without("hops eigenvalue consensus compress agent_dropout")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: ImputeOutput,
) -> None:
    """Impute a matrix from the parts of it that observers saw.

    This is FedMissEM. Observers send corrections of a filled matrix to a server, or mix filled
    matrices with their neighbours on a graph.

    Example: vpem impute data/wine.h5 -r 3 --scale standard --workers 5 --holdout 0.1 -o imputed.h5
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.holdouts import score_holdout
        from vpem.fits.imputed import write_imputation
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.imputation import draw_imputation

        run = Run(screen, out, "imputations", engine, checkpoints)
        if out.plot is not None and run.engine.rank == 0:
            check_picture(out.plot, out.force)
        found, hidden = _observed(data, dealing, how, run)
        fit, ran = _fit(found, graph.seeded(how.seed), sums, how, run)
        run.leave_it_to_the_first(fit.converged)
        report = fit.describe()
        report["holdout"] = None
        if hidden is not None and dealing.holdout is not None:
            report["holdout"] = score_holdout(fit, hidden, dealing.holdout, how.seed)
        report |= {"warnings": list(screen.warnings), "seed": how.seed, "data": str(data)} | ran
        if out.output is not None:
            write_imputation(out.output, fit, report, out.force, hidden, quote_formulas)
        if out.plot is not None:
            save_picture(out.plot, draw_imputation(fit), force=out.force)
        report["model"] = None if out.output is None else str(out.output)
        report["plot"] = None if out.plot is None else str(out.plot)
        run.end(report, fit.converged, lambda: _show(report, fit))


def _fit(
    found: Observations, graph: GraphSettings, sums: SumSettings, how: ImputeSettings, run: Run
) -> tuple[Imputation, Report]:
    """Fit; and what there is to report of the engine."""
    from vpem.fits.imputation import fit_imputation
    from vpem.sums.connect import connect_workers
    from vpem.sums.spread import spread_workers

    joined = graph_of(found.n_observers, found.names, graph)
    if not joined.has_server:
        # There the codec is of the rounds; at a server corrections are compressed, not the sum.
        sums, how = sums.changed(compress=how.compress), how.changed(compress=None)
    with run.working(_Progress) as progress:
        network = spread_workers(connect_workers(joined, sums), run.engine)
        fit = fit_imputation(found, how, network=network, callback=progress, saver=run.saver)
        return fit, describe_engine(network)


def _observed(
    data: Path, dealing: Dealing, how: ImputeSettings, run: Run
) -> tuple[Observations, Hidden | None]:
    """Read what this process's observers saw, dealt out as asked for, and what of it is hidden."""
    import warnings

    import numpy as np

    from vpem.engines.placement import Placement
    from vpem.errors import VpemWarning
    from vpem.files.observations import read_observations
    from vpem.fits.observers import hide_entries
    from vpem.terms.lowrank.dealing import split
    from vpem.terms.lowrank.laws import make_law
    from vpem.terms.lowrank.observations import check_law

    law = make_law(how.law, how.variance)
    found = read_observations(data, dealing.dataset)
    check_law(found, law)
    if dealing.workers is not None:
        rng = np.random.default_rng([how.seed, 1])
        found = split(found, dealing.workers, dealing.split or "random", rng)
    holders = Placement.here(found.n_observers)
    n_seen = found.n_seen
    if run.engine.apart:
        holders = Placement.evenly(run.engine, found.n_observers, found.names)
        found = found.part(set(holders.own.tolist()))
    if dealing.holdout is None:
        return found, None
    rng = np.random.default_rng([how.seed, 2])
    found, hidden = hide_entries(found, dealing.holdout, rng, holders)
    if hidden.n_places < round(dealing.holdout * n_seen):
        warnings.warn(
            f"only {hidden.n_places} of {n_seen} entries are held out, not "
            f"{dealing.holdout:g} of them: every row, column and observer keeps one",
            VpemWarning,
            stacklevel=1,
        )
    return found, hidden


class _Progress(Progress):
    """Objective and rate of a long run: a live line in a terminal, a line at times in logs."""

    objective: float | None = None

    def __call__(self, progress: Any) -> None:
        """Take note of one iteration, of which not all tell the objective."""
        self.objective = self.objective if progress.objective is None else progress.objective
        super().__call__(progress)

    def facts(self, progress: Any) -> Iterator[str]:
        """Yield what is told of an iteration (`vpem.steps.fedruns.FedProgress`)."""
        if self.objective is not None:
            yield f"penalized log-likelihood an entry {self.objective:.6f}"


def _show(report: Report, fit: Imputation) -> None:
    """Print what a reader wants to know."""
    from .output import communication, number, plural, show, table

    law = report["law"]
    if report["variance"] is not None:
        law += f" of variance {number(report['variance'])}"
    network = [plural(report["n_workers"], "observer"), report["topology"]]
    if report["server"] is None:
        network.append(plural(report["rounds"], "round"))
        network.append(f"statistics up to {report['disagreement']:.2g} apart")
    iterations = [str(report["n_iter"]), f"{number(report['seconds'], 3)} s"]
    if not report["converged"]:
        iterations.insert(1, "not converged")
    how = [f"participation {report['participation']:g}", f"step {report['step_size']}"]
    if report["compress"] is not None:
        how.append(f"compressed by {report['compress']}")
    if report["projections"]:
        how.append(f"{report['projections']:,} means moved into the law's domain")
    rows, columns = plural(report["n_samples"], "row"), plural(report["n_features"], "column")
    facts = (
        ("matrix", f"{rows} x {columns}, {report['share_seen']:.1%} seen"),
        ("network", ", ".join(network)),
        ("model", f"rank {report['rank']}, ridge {number(report['ridge'])}, {law}"),
        ("FedEM", ", ".join(how)),
        ("log-likelihood", f"{report['log_likelihood']:.6f} an entry seen"),
        ("singular values", ", ".join(number(one, 4) for one in report["singular_values"][:8])),
        ("iterations", ", ".join(iterations)),
        ("communication", communication(report["communication"], report["worker_names"])),
        ("written to", report["model"] or "nothing is kept (give --output)"),
    )
    tables: list[Any] = [table(facts, "", "")]
    if report["holdout"] is not None:
        tables += _holdout(report["holdout"])
    names = fit.observations.column_names
    if len(names) <= LISTED:
        trend = [
            (name, number(mean, 5))
            for name, mean in zip(names, report["column_trend"], strict=True)
        ]
        head = f"mean fitted {fit.law.unit}".replace("fitted mean", "fitted")
        tables.append(table(trend, "column", head, title="Trend over columns", right=(head,)))
    show(*tables)


def _holdout(scores: Report) -> list[Any]:
    """Return the table of errors on hidden entries, and why one was not found."""
    from .output import number, plural, table

    heads = list(scores["model"])
    lines = []
    for name in ("model", "column_means", "iterative_imputer"):
        found = scores[name]
        shown = [number(found.get(head), 5) for head in heads]
        lines.append((name.replace("_", " "), *shown))
    title = f"Error on {plural(scores['n_entries'], 'hidden entry').replace('entrys', 'entries')}"
    head = tuple(head.replace("_", "-") for head in heads)
    made: list[Any] = [table(lines, "", *head, title=title, right=head)]
    if "skipped" in scores["iterative_imputer"]:
        made.append(f"iterative imputer was not run: {scores['iterative_imputer']['skipped']}")
    return made
