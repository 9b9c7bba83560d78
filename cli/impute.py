"""`vpem impute`: what no observer saw of a matrix, by federated EM with a matrix of low rank."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .checkpoints import CheckpointSettings, catching, saver_of
from .options import Json, Quiet, QuoteFormulas, Strict
from .output import Progress
from .roles import READ, WRITTEN

if TYPE_CHECKING:
    from collections.abc import Iterator

    from vpem.fits.imputation import Imputation
    from vpem.network.schema import Report

__all__ = ["impute"]

LISTED = 20
"""Columns up to which the trend over them is printed."""


def impute(
    data: Annotated[
        Path,
        READ,
        typer.Argument(
            help="Entries seen: a .csv table with the columns observer, row, column, value; HDF5 "
            "with the group observers; or a dataset whose X has NaN where nothing was seen."
        ),
    ],
    rank: Annotated[
        int, typer.Option("-r", "--rank", help="Rank of the matrix of natural parameters.")
    ] = 2,
    ridge: Annotated[
        float,
        typer.Option(
            help="Penalty of the factors: what each singular value loses. Above 0 unless the law "
            "is gaussian."
        ),
    ] = 1.0,
    law: Annotated[
        str,
        typer.Option(
            help="Law of an entry: gaussian (a mean), poisson (counts, by log intensity), or "
            "bernoulli (0 or 1, by log odds)."
        ),
    ] = "gaussian",
    variance: Annotated[
        float, typer.Option(help="Variance of the gaussian law; divides what the ridge is held to.")
    ] = 1.0,
    workers: Annotated[
        int | None,
        typer.Option(
            help="Deal the entries of the one observer there is out to this many. Default: the "
            "observers in the data."
        ),
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="How --workers deals: entries at random (random, the default), or whole rows "
            "(rows)."
        ),
    ] = None,
    copies: Annotated[
        str,
        typer.Option(
            help="Copies of the matrix that observers saw parts of: one each (observers), as many "
            "as saw any one entry (fewest: converges sooner), or one for parts by --workers and "
            "else one each (auto)."
        ),
    ] = "auto",
    scale: Annotated[
        str,
        typer.Option(
            help="none, or standard: columns are standardized first, undone in outputs (gaussian)."
        ),
    ] = "none",
    compress: Annotated[
        str | None,
        typer.Option(
            help="Codec of what observers send: qsgd:8bits, natural:12bits, blockp:64, topk:0.1, "
            "randk:0.1, float32, float16."
        ),
    ] = None,
    participation: Annotated[
        float,
        typer.Option("-p", "--participation", help="Probability that an observer takes part."),
    ] = 1.0,
    step_size: Annotated[
        str,
        typer.Option(
            help="Steps of the statistic: constant:0.5, decreasing:0.8,0.6 (0.8 k^-0.6), or auto: "
            "1 where nothing is drawn at random, else what the noise allows."
        ),
    ] = "auto",
    batch_size: Annotated[
        int | None,
        typer.Option(help="Entries that an observer draws of its own in an iteration."),
    ] = None,
    variance_reduction: Annotated[
        bool, typer.Option("--variance-reduction", help="VR-FedEM, with small batches.")
    ] = False,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Hide this share of the entries, and report the error on them against column "
            "means and scikit-learn's IterativeImputer."
        ),
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(help="Path of a 2-D dataset inside the HDF5 file, instead of X.")
    ] = None,
    tol: Annotated[
        float,
        typer.Option(
            help="Stop when the statistic's correction is less than this part of its norm; 0: "
            "never."
        ),
    ] = 1e-5,
    max_iter: Annotated[
        int | None,
        typer.Option(
            help="Most iterations. Default: 1000 where steps are whole (constant:1), as many more "
            "as they are shorter."
        ),
    ] = None,
    strict: Strict = False,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the codec. Default: all processors.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seeds the split, the holdout, participation, batches and noise.")
    ] = 0,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(
            "-o",
            "--output",
            help="Write matrices, factors and trends here (HDF5), or the completed matrix (.csv).",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(help="Draw trends and convergence: .png, .svg or .pdf (needs matplotlib)."),
    ] = None,
    quote_formulas: QuoteFormulas = False,
    force: Annotated[bool, typer.Option("--force", help="Replace existing outputs.")] = False,
    json: Json = False,
    quiet: Quiet = False,
    *,
    checkpoints: CheckpointSettings,
) -> None:
    """Impute a matrix from the parts of it that observers saw.

    This is FedMissEM. Entries stay with their observers, who send corrections of a filled matrix to
    a server.

    Example: vpem impute data/wine.h5 -r 3 --scale standard --workers 5 --holdout 0.1 -o imputed.h5
    """
    from .output import Screen, print_json

    with Screen(quiet) as screen:
        import warnings

        import numpy as np

        from vpem.checks import check_int
        from vpem.errors import InputError, VpemWarning
        from vpem.files.hdf5 import check_writable
        from vpem.files.observations import read_observations
        from vpem.fits.holdouts import score_holdout
        from vpem.fits.imputation import fit_imputation
        from vpem.fits.imputed import write_imputation
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.imputation import draw_imputation
        from vpem.terms.lowrank.dealing import hide
        from vpem.terms.lowrank.dealing import split as deal
        from vpem.terms.lowrank.laws import make_law
        from vpem.terms.lowrank.observations import check_law

        seed = check_int("--seed", seed, least=0)
        if output is not None:
            check_writable(output, force, "imputations")
        if plot is not None:
            check_picture(plot, force)
        saver = saver_of(checkpoints, force)
        if split is not None and workers is None:
            raise InputError(
                "--split says how --workers deals entries out; give --workers N, or leave --split "
                "out"
            )
        entry = make_law(law, variance)
        found = read_observations(data, dataset)
        check_law(found, entry)
        if workers is not None:
            found = deal(found, workers, split or "random", np.random.default_rng([seed, 1]))
        hidden = None
        if holdout is not None:
            n_seen = found.n_seen
            found, hidden = hide(found, holdout, np.random.default_rng([seed, 2]))
            if hidden.n_places < round(holdout * n_seen):
                warnings.warn(
                    f"only {hidden.n_places} of {n_seen} entries are held out, not "
                    f"{holdout:g} of them: every row, column and observer keeps one",
                    VpemWarning,
                    stacklevel=1,
                )
        progress = _Progress(quiet, None if output or json else "--output FILE")
        try:
            with catching(saver):
                fit = fit_imputation(
                    found,
                    rank=rank,
                    ridge=ridge,
                    law=law,
                    variance=variance,
                    copies=copies,
                    scale=scale,
                    compress=compress,
                    participation=participation,
                    step_size=step_size,
                    batch_size=batch_size,
                    variance_reduction=variance_reduction,
                    max_iter=max_iter,
                    tol=tol,
                    seed=seed,
                    n_threads=threads,
                    callback=progress,
                    saver=saver,
                )
        finally:
            progress.close()
        report = fit.describe()
        report["holdout"] = None
        if hidden is not None and holdout is not None:
            report["holdout"] = score_holdout(fit, hidden, holdout, seed)
        report["warnings"] = list(screen.warnings)
        report["seed"] = seed
        report["data"] = str(data)
        if output is not None:
            write_imputation(output, fit, report, force, hidden, quote_formulas)
        if plot is not None:
            save_picture(plot, draw_imputation(fit), force=force)
        report["model"] = None if output is None else str(output)
        report["plot"] = None if plot is None else str(plot)
        if json:
            print_json(report)
        elif not quiet:
            _show(report, fit)
        if strict and not fit.converged:
            raise typer.Exit(3)


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
    iterations = [str(report["n_iter"]), f"{number(report['seconds'], 3)} s"]
    if not report["converged"]:
        iterations.insert(1, "not converged")
    how = [f"participation {report['participation']:g}", f"step {report['step_size']}"]
    if report["compress"] is not None:
        how.append(f"compressed by {report['compress']}")
    if report["projections"]:
        how.append(f"{report['projections']:,} means moved into the law's domain")
    rows, columns = plural(report["n_samples"], "row"), plural(report["n_features"], "column")
    seen = f"{report['share_seen']:.1%} seen by {plural(report['n_workers'], 'observer')}"
    facts = (
        ("matrix", f"{rows} x {columns}, {seen}"),
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
