"""`vpem select`: how many components, how many hops, and which covariance."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.records import changed
from vpem.settings import FitSettings, GraphSettings, HoldingSettings, SumSettings

from .driver import Output, Run
from .options import Given, Without
from .output import Screen, plural
from .parties import DataFiles, PartySettings
from .roles import WRITTEN, Role

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["select"]


def _kept(value: Path | None, options: Mapping[str, Any]) -> list[Path]:
    """Return where a search is kept: the file asked for, or one beside the model."""
    output = options["output"]
    if value is None and output is not None:
        value = output.parent / f"{output.stem}.select.h5"
    return [] if value is None else [value]


class SelectOutput(Output, heading="Output", kept=False):
    """What a search writes and prints, and its exit code."""

    output: Path | None = changed(
        Output, "output", help="Write the chosen model here, as 'vpem fit' would fit it."
    )
    force: bool = changed(
        Output, "force", help="Replace existing outputs, and a state of other options."
    )
    strict: bool = changed(
        Output, "strict", help="Exit with 3 if a model failed or did not converge."
    )


def select(
    data: DataFiles,
    components: Annotated[
        str,
        typer.Option(
            "-k", "--components", help="Numbers of components: 1-8, 1,2,5, 2-20:3 (steps of 3)."
        ),
    ] = "1-8",
    hops: Annotated[
        str,
        typer.Option(
            help="Numbers of hops, as of components: 0-2. Agents at most this many hops from a "
            "root send it their features."
        ),
    ] = "0",
    covariance: Annotated[
        str,
        typer.Option(
            help="Covariance types, with commas: full,diag,spherical,tied,tied-diag,tied-spherical."
        ),
    ] = "full",
    criterion: Annotated[
        str,
        typer.Option(
            help="bic, aic or icl (BIC and the entropy of the responsibilities): lower is better; "
            "or heldout: log-likelihood per sample of rows not fitted to, higher is better."
        ),
    ] = "bic",
    folds: Annotated[
        int, typer.Option(help="With --criterion heldout: parts of the rows, each held out once.")
    ] = 5,
    one_standard_error: Annotated[
        bool,
        typer.Option(
            "--one-standard-error",
            help="With --criterion heldout: choose the model of fewest parameters that is at most "
            "one standard error worse than the best.",
        ),
    ] = False,
    jobs: Annotated[
        int | None,
        typer.Option(
            "-j",
            "--jobs",
            help="Processes, a thread each, which do not change the results. "
            "Default: all processors.",
        ),
    ] = None,
    state: Annotated[
        Path | None,
        Role(writes=True, files=_kept),
        typer.Option(
            help="Keep every finished fit here; the same command goes on from it. Default: beside "
            "--output, NAME.select.h5."
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(help="Draw the criterion by components (.png, .svg, .pdf; needs matplotlib)."),
    ] = None,
    *,
    parties: PartySettings,
    held: HoldingSettings,
    graph: GraphSettings,
    how: Annotated[FitSettings, Without("n_components covariance_type n_threads")],
    sums: Annotated[SumSettings, Without("hops n_threads")],
    out: SelectOutput,
    given: Given,
) -> None:
    """Fit a grid of models and choose the best by a criterion.

    The grid has numbers of components, numbers of hops, and kinds of covariance. All other options
    are those of 'vpem fit'. Diagonal covariances are the same models whatever the hops, and are
    fitted once. A search that is ended goes on when the command is given again.

    Example: vpem select data/wine.h5 -k 1-4 --scale standard --jobs 1 -o best.h5

    Example: vpem select data/wine.h5 -k 1-3 --hops 0-1 --jobs 1 --criterion heldout --folds 3
    """
    import time

    from .searching import Asked, Task, warn_of
    from .selecting import SearchProgress, Stopping, show_selection

    began = time.perf_counter()
    with Screen(out.quiet) as screen:
        from vpem._core.threads import processors
        from vpem.checks import check_int
        from vpem.errors import check_choice
        from vpem.fits.selection.criteria import CRITERIA
        from vpem.fits.selection.lists import parse_names, parse_numbers
        from vpem.fits.selection.record import Record, facts_of
        from vpem.fits.selection.search import grid, search, trials_of, without_repeats
        from vpem.settings import COVARIANCE_TYPES

        check_choice("--criterion", criterion, CRITERIA)
        if jobs is not None:
            check_int("--jobs", jobs, least=1, most=1024)
        check_int("--folds", folds, least=2)
        cells = grid(
            parse_numbers("--components", components, least=1),
            parse_numbers("--hops", hops),
            parse_names("--covariance", covariance, COVARIANCE_TYPES),
        )
        state = next(iter(_kept(state, {"output": out.output})), None)
        run = Run(screen, out, "models")
        if plot is not None:
            from vpem.pictures.figure import check_picture

            check_picture(plot, out.force)
        asked = Asked(parties, held, graph, how, sums)
        task = Task(data, asked, [cell.hops for cell in cells], run)
        problem, source = task.problem, task.source
        cells = without_repeats(cells, problem)
        record = Record(state, facts_of(problem), out.force)
        wanted = [t for cell in cells for t in trials_of(cell, criterion, how.n_init, folds)]
        kept = sum(trial.key in record.results for trial in wanted)
        if kept:
            screen.say(f"{kept} of {plural(len(wanted), 'fit')} are in {state} already")
        unkept = None if state or out.output or out.json else "--state FILE or --output FILE"
        progress = SearchProgress(out.quiet, unkept)

        def what() -> str:
            if state is None:
                return "nothing was kept (give --state or --output)"
            count = sum(trial.key in record.results for trial in wanted)
            if not count:
                return "no fit was over yet"
            return (
                f"{count} of {plural(len(wanted), 'fit')} are in {state}: give the same command "
                "to go on"
            )

        n_jobs = processors() if jobs is None else jobs
        with Stopping(what) as stopping:
            progress.start(len(wanted) - kept)
            try:
                found = search(
                    problem,
                    cells,
                    criterion=criterion,
                    n_init=how.n_init,
                    n_folds=folds,
                    n_jobs=n_jobs,
                    record=record,
                    tell=progress,
                    whole=stopping.whole,
                )
            finally:
                progress.close()
            choice = found.choice
            chosen = choice.best
            if one_standard_error and choice.one_standard_error is not None:
                chosen = choice.one_standard_error
            warn_of(screen, found, chosen)
            if out.output is not None:
                task.write(found, chosen, given.record)
            if plot is not None:
                from vpem.pictures.figure import save_picture
                from vpem.pictures.selection import draw_selection

                save_picture(plot, draw_selection(found), force=out.force)
        report = {
            "criterion": criterion,
            "better": "higher" if criterion == "heldout" else "lower",
            "best": choice.best,
            "one_standard_error": choice.one_standard_error,
            "chosen": chosen,
            "passed_over": choice.passed_over,
            "cells": found.cells,
            "n_init": how.n_init,
            "folds": folds if criterion == "heldout" else None,
            "split": held.split,
            "data": ", ".join(map(str, data)),
            "n_samples": source.n_samples,
            "n_features": source.n_features,
            "seed": how.seed,
            "n_fits": len(wanted),
            "n_kept": kept,
            "jobs": n_jobs,
            "state": None if state is None else str(state),
            "plot": None if plot is None else str(plot),
            "model": None if out.output is None else str(out.output),
            "warnings": list(screen.warnings),
            "seconds": time.perf_counter() - began,
        }
        converged = all(cell["status"] == "converged" for cell in found.cells)
        run.end(report, converged, lambda: show_selection(found, report))
