"""`vpem impute`: entries of a matrix that no observer saw, by low rank or by a mixture."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.fits.settings import OF_LOWRANK, Dealing, ImputeSettings
from vpem.pictures.contents import HOW_WELL, communication, how_summed, lines_of, number, plural
from vpem.records import changed, stated, unset
from vpem.rules import summing
from vpem.settings import HolderGraph, SumSettings

from ..data import (
    BY_POSITION,
    STDIN,
    NumberFiles,
    check_parties,
    graph_of,
    refuse_shared_stdin,
    refuse_unused,
    teller,
)
from ..display import ProgressLine, Screen, show, table
from ..options import Without
from ..outputs import READ, TableOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.fits.observers import Completed
    from vpem.network.schema import Report
    from vpem.pictures.contents import Lines
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import Observations

    from ..display import PrintedTable


class ObserverFiles(NumberFiles, heading="Data"):
    """Whether files are parties', each of them an observer's."""

    parties: bool = changed(
        help="Each file is what one observer saw: a .csv table with the columns row, column, "
        "value, or a matrix with gaps of any format; or one .toml file names them all "
        "(docs/reference/parties.md)."
    )
    align: str | None = changed(
        help="How the same rows are found in all files: ids, by their names, or none, by their "
        "places. Default: by names; by places if no party has names, and no column that several "
        "have says that rows differ.",
        choices=("none", "ids"),
    )


def observed(
    files: Sequence[Path],
    file_settings: ObserverFiles,
    dealing: Dealing,
    settings: ImputeSettings,
    run: CommandRun,
) -> tuple[Observations, Hidden | None]:
    """Read and deal out what this process's observers saw, and hold out entries of it.

    The first process knows which are held out.
    """
    import numpy as np

    from vpem.engines.placement import Placement
    from vpem.files.observations import read_observations
    from vpem.files.parties.observing import observe_parties
    from vpem.fits.observers import check_laws, deal, hide_entries
    from vpem.terms.lowrank.observations import check_law, make_law

    law, weight = make_law(settings.law, settings.variance), dealing.sample_weight
    check_parties(files, file_settings)
    formats, table = set[str](), file_settings.table
    tell = teller(run.screen.say, formats=formats)
    if file_settings.parties:
        parties = run.where.parties(files, table, columns=False)
        holders = run.where.place(parties)
        observations = observe_parties(parties, weight, holders, tell, file_settings.align)
        refuse_unused(table, {"entries"} if observations.long else formats, run.where)
        if observations.by_position and file_settings.align is None:
            run.screen.say(BY_POSITION)
        run.where.watch(observations.shape[0], True)
        check_laws(observations, law, holders)
    else:
        refuse_shared_stdin(files[0], run.where)
        observations = read_observations(
            files[0], dealing.dataset, weight, table=table, tell=lambda data: tell(data, table)
        )
        check_law(observations, law)
        usual = "rows" if settings.method == "mixture" else "random"
        observations = deal(observations, dealing, usual, settings.seed)
        holders = Placement.here(observations.n_observers)
        if run.engine.apart:
            holders = Placement.evenly(run.engine, observations.n_observers, observations.names)
            observations = observations.seen_by(set(holders.own.tolist()))
    if dealing.holdout is None:
        return observations, None
    rng = np.random.default_rng([settings.seed, 2])
    return hide_entries(observations, dealing.holdout, rng, holders)


MOST_COLUMNS = 20
"""Columns up to which the trend over them is printed."""


class ImputeOutput(TableOutput, heading="Output", kept=False):
    """What is written and printed."""

    output: Path | None = changed(
        help="Write matrices, factors and trends here (HDF5), or the completed matrix: .csv or "
        ".parquet."
    )
    plot: Path | None = unset(
        "Draw trends and convergence: .png, .svg or .pdf.", file="written", idle=OF_LOWRANK
    )


def impute(
    data: Annotated[
        list[Path],
        READ,
        typer.Argument(
            help="Entries seen: a .csv table with the columns observer, row, column, value; HDF5 "
            "with the group observers; or a dataset whose X has NaN where nothing was seen. With "
            "--parties a file each, or a manifest."
        ),
    ],
    *,
    settings: Annotated[ImputeSettings, Without("memory alpha")],
    parties: Annotated[ObserverFiles, Without("family align_key missing_parties")],
    dealing: Dealing,
    graph: Annotated[HolderGraph, Without("graph_seed")],
    sums: Annotated[SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout")],
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: Annotated[ImputeOutput, Without("publish_anyway")],
) -> None:
    """Impute a matrix from the parts of it that observers saw.

    FedMissEM: observers send corrections of a filled matrix to a server, or mix filled matrices
    with neighbours. With --method mixture they fit a Gaussian mixture to rows, or columns. By
    default method, rank and ridge are those that predict held-out entries best.

    Example: vpem impute data/wine.h5 --workers 5 --holdout 0.1 -o imputed.h5

    Example: vpem impute data/wine.h5 --method mixture --holdout 0.1 --draws 20 -o imputations.csv
    """
    with Screen(out.quiet) as screen:
        from vpem.fits.imputation import fit_imputation
        from vpem.fits.mixture_imputation import write_imputation
        from vpem.fits.observers import Imputation, score_holdout
        from vpem.pictures.assignments import draw_imputation
        from vpem.sums.connect import connect_workers, move_codec

        run = CommandRun(screen, out, "imputations", engine, checkpoints)
        if out.plot is not None:
            settings = settings.changed(method="lowrank")
        observations, hidden = observed(data, parties, dealing, settings, run)
        names, seeded = observations.names, graph.seeded(settings.seed)
        joined = graph_of(observations.n_observers, names, seeded)
        sums, settings = move_codec(joined, sums, settings)
        with run.working(ProgressLine) as progress:
            progress.most = settings.max_iter
            network = run.spread_network(connect_workers(joined, sums), workers=True)
            fit: Any = fit_imputation(
                observations, settings, network=network, callback=progress, saver=run.saver
            )
        ran = describe_engine(getattr(fit, "ran_on", network))

        def tell() -> Report:
            report: Report = fit.describe()
            unscaled = report["law"] == "gaussian" and settings.scale == "none"
            if report["share_seen"] == 1:
                screen.print_note(
                    "every entry was seen, so nothing is imputed; --holdout holds some of them out"
                )
            elif unscaled and isinstance(fit, Imputation):
                screen.print_note(*fit.note_of_scale())
            report |= {"sample_weight": dealing.sample_weight, "holdout": None}
            if hidden is not None and dealing.holdout is not None:
                report["holdout"] = score_holdout(fit, hidden, dealing.holdout, settings.seed)
            return report | {"seed": settings.seed, **run.facts(data)} | ran

        def write(path: Path, report: Report) -> None:
            again = not parties.parties and str(data[0]) != STDIN
            table = parties.table if again else None
            write_imputation(path, fit, report, out.force, hidden, out.quote_formulas, table)

        # Each member of a study writes its own entries, and the fit of all.
        run.finish(FitOutcome(
            fit.converged, tell, write, partial(_show_completed, fit), apart=True,
            own=lambda _: run.drawn(lambda: draw_imputation(fit)),
        ))  # fmt: skip


def _steps(report: Report) -> str:
    line = "participation {participation:g}, step {step_size}"
    if summing(report["sum"], "server").needs_server and report["compress"] is not None:
        line += ", compressed by {compress}"
    if report["projections"]:
        line += ", {projections:,} means moved into the law's domain"
    return stated(line, report.__getitem__)


def _chosen(report: Report) -> str:
    choice = report["choice"]
    line = f"{choice['error']:.4g} on held-out entries, column means "
    line += f"{number(choice['column_means'], 4)}; {len(choice['candidates'])} fits compared"
    known = choice["mixture"] in ("tried", "the method was given")
    return line if known else f"{line}; no mixture: {choice['mixture']}"


def _network(report: Report) -> str:
    parts = [plural(report["n_workers"], "observer"), report["topology"]]
    way = summing(report["sum"], "server")
    if not way.needs_server or report["secure_sum"]:
        parts.append(how_summed(report))
    if way.has_rounds and "mixing_weights" not in report:
        parts.append(f"statistics up to {report['disagreement']:.2g} apart")
    return ", ".join(parts)


FACTS: Lines = {
    "matrix": lambda report: stated(
        "{n_samples:row} x {n_features:column}, {share_seen:.1%} seen"
        + ", weighed by {sample_weight}" * bool(report["sample_weight"]), report.__getitem__,
    ),
    "mixture": lambda report: stated(
        "{n_components:component}, {covariance_type} covariance"
        + " of columns of one observer" * (report["n_workers"] != 1 and report["split"] != "rows")
        + ", {n_parameters:parameter}", report.__getitem__,
    ),
    "model": lambda report: stated(
        "rank {rank}, ridge {ridge:.6g}, {law}"
        + " of variance {variance:.6g}" * (report["variance"] is not None), report.__getitem__,
    ),
    "log-likelihood": lambda report: stated(
        "{log_likelihood:.6f} per sample, BIC {bic:.2f}" if "bic" in report
        else "{log_likelihood:.6f} an entry seen", report.__getitem__,
    ),
    "draws": "{draws[n_draws]}, each of a fit to weighed rows: {draws[n_iter]} iterations",
    "singular values": lambda report: ", ".join(f"{v:.4g}" for v in report["singular_values"][:8]),
    "iterations": HOW_WELL["iterations"],
    "FedEM": _steps,
    "chosen by": _chosen,
    "network": _network,
    "communication": lambda report: communication(report["communication"], report["worker_names"]),
    "written to": lambda report: report["model"] or "nothing is kept (give --output)",
}  # fmt: skip
"""How a matrix was completed, by a mixture or by one of low rank."""


def _show_completed(fit: Completed, report: Report) -> None:
    names, choice = fit.observations.column_names, report["choice"]
    tables = [] if report["holdout"] is None else _held_out(report["holdout"])
    tables.append(table(lines_of(report, FACTS), "", ""))
    if choice is not None:
        lines = [
            (one["column"], one["error"], one["column_means"],
             "column mean" if one["column_means"] < one["error"] else "fit")
            for one in choice["by_column"]
        ]  # fmt: skip
        title = "Entries held out to choose, in units of the fit"
        tables.append(_by_column(title, choice["loss"].replace("_", "-"), "better", lines))
    if len(names) <= MOST_COLUMNS:
        trend = zip(names, (number(mean, 5) for mean in report["column_trend"]), strict=True)
        head = f"mean fitted {fit.law.unit}".replace("fitted mean", "fitted")
        tables.append(table(trend, "column", head, title="Trend over columns", right=(head,)))
    show(*tables)


def _by_column(title: str, loss: str, more: str, lines: list[tuple[Any, ...]]) -> PrintedTable:
    """A line a column: of many those whose error is largest beside the column mean's."""
    if len(lines) > MOST_COLUMNS:
        title += f": the {MOST_COLUMNS} worst of {len(lines)} columns, beside column means"
        lines = sorted(lines, key=lambda line: -line[1] / line[2] if line[2] > 0 else 0.0)[
            :MOST_COLUMNS
        ]
    cells = [(name, number(error, 4), number(means, 4), last) for name, error, means, last in lines]
    heads = (loss, f"{loss} of column means", more)
    return table(cells, "column", *heads, title=title, right=(*heads[:2], "hidden"))


def _held_out(scores: Report) -> list[Any]:
    heads, other, count = list(scores["model"]), scores["iterative_imputer"], scores["n_entries"]
    lines = [
        (name.replace("_", " "), *(number(scores[name].get(head), 5) for head in heads))
        for name in ("model", "column_means", "iterative_imputer")
    ]
    title = f"Error on {count} hidden {'entry' if count == 1 else 'entries'}"
    named = {"standardized_rmse": "in standard deviations"}
    head = tuple(named.get(head, head.replace("_", "-")) for head in heads)
    skipped = [f"iterative imputer was not run: {other['skipped']}"] if "skipped" in other else []
    errors = [
        (one["column"], one["model"]["rmse"], one["column_means"]["rmse"], one["n_entries"])
        for one in scores["by_column"]
    ]
    whole = table(lines, "", *head, title=title, right=head)
    return [whole, *skipped, _by_column("Error by column", "rmse", "hidden", errors)]
