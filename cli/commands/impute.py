"""`vpem impute`: entries of a matrix that no observer saw, by low rank or by a mixture."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting, VpemWarning
from vpem.fits.settings import OF_LOWRANK, ImputeSettings
from vpem.pictures.contents import communication, how_summed, number, plural, took
from vpem.records import Settings, changed, not_both, rule, unset
from vpem.settings import DEALS, HolderGraph, HoldingSettings, SumSettings, WorkerSettings

from ..data import (
    BY_POSITION,
    STDIN,
    NumberFiles,
    PartySettings,
    check_parties,
    graph_of,
    refuse_shared_stdin,
    teller,
)
from ..display import ProgressLine, Screen, note_of_one_column, show, table
from ..options import Without
from ..outputs import READ, TableOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine, place_parties

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.fits.observers import Completed
    from vpem.network.schema import Report
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import Observations

    from ..display import PrintedTable


class ObserverFiles(NumberFiles, heading="Data"):
    """Whether files are parties', each of them an observer's."""

    parties: bool = changed(
        PartySettings,
        "parties",
        help="Each file is what one observer saw: a .csv table with the columns row, column, "
        "value, or a matrix with gaps of any format; or one .toml file names them all "
        "(docs/reference/parties.md).",
    )
    align: str | None = changed(
        PartySettings,
        "align",
        help="How the same rows are found in all files: ids, by their names, or none, by their "
        "places. Default: by names; by places if no party has names, and no column that several "
        "have says that rows differ.",
        choices=("none", "ids"),
    )


class Dealing(Settings, heading="Data", kept=False):
    """Who saw which entries, and which of them are held out."""

    workers: int | None = unset(
        "Deal the entries of the single observer out to this many. Default: the observers in the "
        "data.",
    )
    split: str | None = unset(
        "How --workers deals: entries at random (random), whole rows (rows) or whole columns "
        "(features). Default: random; of a mixture rows; with --agents or --partition features.",
        choices=DEALS,
        idle=[
            rule(
                lambda given: all(given[one] is None for one in ("workers", "agents", "partition")),
                " says how --workers deals entries out; give --workers N, or leave --split out",
            ),
            rule(
                lambda given: given["workers"] is None and given["split"] != "features",
                " is for --workers; --agents and --partition deal out columns: leave it out",
            ),
        ],
    )
    agents: int | None = unset(
        "Deal the columns out to this many, in order: as --workers N --split features.",
        least=1,
        idle=not_both("workers", "agents"),
    )
    partition: Path | None = changed(
        HoldingSettings, "partition",
        idle=[not_both("workers", "partition"), not_both("agents", "partition")],
    )  # fmt: skip
    holdout: float | None = unset(
        "Hide this share of the entries, and report the error on them beside those of column "
        "means and scikit-learn's IterativeImputer.",
        idle=(
            lambda given: bool(given.get("secure_sum")) and given.get("engine") != "simulator",
            (
                " shows the first process what observers held out, and all of them who saw which "
                "entry, but ",
                Setting("secure_sum", True),
                " is to show totals alone; leave one of the two out",
            ),
        ),
    )
    sample_weight: str | None = changed(
        WorkerSettings,
        "sample_weight",
        help="Weights of the entries: a column of a .csv table; in HDF5 a member of each "
        "observer's list, a group with a matrix an observer, or beside a dataset's X the path of "
        "weights of its rows.",
    )
    dataset: str | None = unset("Path of a 2-D dataset inside the HDF5 file, instead of X.")


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
    from vpem.files.networks import read_partition
    from vpem.files.observations import read_observations
    from vpem.files.parties.observing import observe_parties
    from vpem.fits.observers import check_laws, hide_entries
    from vpem.terms.lowrank.entries import split, split_columns
    from vpem.terms.lowrank.observations import check_law, make_law

    law = make_law(settings.law, settings.variance)
    check_parties(files, file_settings)
    tell, weight = teller(run.screen.say), dealing.sample_weight
    if file_settings.parties:
        for name, value in dealing.values("sample_weight", "holdout").items():
            if value is not None:
                raise InputError(Setting(name), " is for one file; with --parties leave it out")
        parties = run.where.parties(files, file_settings.table, columns=False)
        holders = place_parties(parties, run.out.output, run.shards, run.where)
        observations = observe_parties(parties, weight, holders, tell, file_settings.align)
        if observations.by_position and file_settings.align is None:
            run.screen.say(BY_POSITION)
        run.where.watch(observations.shape[0], True, run.screen)
        check_laws(observations, law, holders)
    else:
        refuse_shared_stdin(files[0], run.where)
        table = file_settings.table
        observations = read_observations(
            files[0], dealing.dataset, weight, table=table, tell=lambda data: tell(data, table)
        )
        check_law(observations, law)
        count = dealing.agents if dealing.workers is None else dealing.workers
        if dealing.partition is not None:
            names = observations.column_names
            partition = read_partition(dealing.partition, observations.shape[1], names)
            observations = split_columns(observations, partition)
        elif count is not None:
            usual = "rows" if settings.method == "mixture" else "random"
            by = "features" if dealing.agents else dealing.split or usual
            rng = np.random.default_rng([settings.seed, 1])
            observations = split(observations, count, by, rng)
        holders = Placement.here(observations.n_observers)
        if run.engine.apart:
            holders = Placement.evenly(run.engine, observations.n_observers, observations.names)
            observations = observations.seen_by(set(holders.own.tolist()))
    if dealing.holdout is None:
        return observations, None
    rng = np.random.default_rng([settings.seed, 2])
    observations, hidden = hide_entries(observations, dealing.holdout, rng, holders)
    if hidden.n_places < round(dealing.holdout * hidden.n_seen):
        warnings.warn(
            f"only {hidden.n_places} of {hidden.n_seen} entries are held out, not "
            f"{dealing.holdout:g} of them: every row, column and observer keeps one",
            VpemWarning,
            stacklevel=1,
        )
    return observations, hidden


LISTED = 20
"""Columns up to which the trend over them is printed."""


class ImputeOutput(TableOutput, heading="Output", kept=False):
    """What is written and printed."""

    output: Path | None = changed(
        TableOutput,
        "output",
        help="Write matrices, factors and trends here (HDF5), or the completed matrix: .csv or "
        ".parquet.",
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
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.sums.connect import connect_workers, way_of

        run = CommandRun(screen, out, "imputations", engine, checkpoints)
        if out.plot is not None:
            settings = settings.changed(method="lowrank")
            if run.where.speaks:
                check_picture(out.plot, out.force)
        observations, hidden = observed(data, parties, dealing, settings, run)
        graph_settings = graph.seeded(settings.seed)
        joined = graph_of(observations.n_observers, observations.names, graph_settings)
        if way_of(joined, sums) == "consensus":
            # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
            sums, settings = (
                sums.changed(compress=settings.compress),
                settings.changed(compress=None),
            )
        with run.working(ProgressLine) as progress:
            progress.most = settings.max_iter
            network = run.spread_network(connect_workers(joined, sums), workers=True)
            fit = fit_imputation(
                observations, settings, network=network, callback=progress, saver=run.saver
            )
        ran = describe_engine(getattr(fit, "ran_on", network))

        def tell() -> Report:
            report = fit.describe()
            unscaled = report["law"] == "gaussian" and settings.scale == "none"
            if report["share_seen"] == 1:
                screen.print_note(
                    "every entry was seen, so nothing is imputed; --holdout holds some of them out"
                )
            elif unscaled and isinstance(fit, Imputation) and (note := note_of_one_column(fit)):
                screen.print_note(note)
            report |= {"sample_weight": dealing.sample_weight, "holdout": None}
            if hidden is not None and dealing.holdout is not None:
                report["holdout"] = score_holdout(fit, hidden, dealing.holdout, settings.seed)
            return report | {"seed": settings.seed, **run.facts(data)} | ran

        def write(path: Path, report: Report) -> None:
            again = not parties.parties and str(data[0]) != STDIN
            table = parties.table if again else None
            write_imputation(path, fit, report, out.force, hidden, out.quote_formulas, table)

        def draw(report: Report) -> Report:
            if out.plot is not None and isinstance(fit, Imputation):
                save_picture(out.plot, draw_imputation(fit), force=out.force)
            return {"plot": None if out.plot is None else str(out.plot)}

        # Each member of a study writes its own entries, and the fit of all.
        run.finish(FitOutcome(
            fit.converged, tell, write, lambda report: _show(report, fit), draw, apart=True
        ))  # fmt: skip


def _show(report: Report, fit: Completed) -> None:
    of_mixture, holdout, choice = "mixing_weights" in report, report["holdout"], report["choice"]
    rows, columns = plural(report["n_samples"], "row"), plural(report["n_features"], "column")
    seen, weight = f"{report['share_seen']:.1%} seen", report["sample_weight"]
    facts = {"matrix": f"{rows} x {columns}, {seen}{f', weighed by {weight}' if weight else ''}"}
    facts |= _mixture(report) if of_mixture else _low_rank(report)
    if choice is not None and choice["error"] is not None:
        facts["chosen by"] = (
            f"{number(choice['error'], 4)} on held-out entries, column means "
            f"{number(choice['column_means'], 4)}; {len(choice['candidates'])} fits compared"
        )
        if choice["mixture"] not in ("tried", "the method was given"):
            facts["chosen by"] += f"; no mixture: {choice['mixture']}"
    network = [plural(report["n_workers"], "observer"), report["topology"]]
    if report["sum"] != "server" or report["secure_sum"]:
        network.append(how_summed(report))
    if report["sum"] == "consensus" and not of_mixture:
        network.append(f"statistics up to {report['disagreement']:.2g} apart")
    facts |= {
        "network": ", ".join(network),
        "communication": communication(report["communication"], report["worker_names"]),
        "written to": report["model"] or "nothing is kept (give --output)",
    }
    tables: list[Any] = [] if holdout is None else _held_out(holdout)
    tables.append(table(facts.items(), "", ""))
    if choice is not None:
        lines = [
            (one["column"], one["error"], one["column_means"],
             "column mean" if one["column_means"] < one["error"] else "fit")
            for one in choice["by_column"]
        ]  # fmt: skip
        title = "Entries held out to choose, in units of the fit"
        tables.append(_by_column(title, choice["loss"].replace("_", "-"), "better", lines))
    names = fit.observations.column_names
    if len(names) <= LISTED:
        trend = zip(names, (number(mean, 5) for mean in report["column_trend"]), strict=True)
        head = f"mean fitted {fit.law.unit}".replace("fitted mean", "fitted")
        tables.append(table(trend, "column", head, title="Trend over columns", right=(head,)))
    show(*tables)


def _iterations(report: Report) -> str:
    count, *seconds = took(report)
    ended = ["converged to within noise"] if report.get("in_noise") else []
    return ", ".join([count, *(ended if report["converged"] else ["not converged"]), *seconds])


def _mixture(report: Report) -> dict[str, str]:
    alone, draws = report["n_workers"] == 1 or report["split"] == "rows", report["draws"]
    covariance = "covariance" if alone else "covariance of columns of one observer"
    facts = {
        "mixture": f"{plural(report['n_components'], 'component')}, {report['covariance_type']} "
        f"{covariance}, {plural(report['n_parameters'], 'parameter')}",
        "log-likelihood": f"{report['log_likelihood']:.6f} per sample, BIC {report['bic']:.2f}",
    }
    if draws is not None:
        facts["draws"] = (
            f"{draws['n_draws']}, each of a fit to weighed rows: {draws['n_iter']} iterations"
        )
    return facts | {"iterations": _iterations(report)}


def _low_rank(report: Report) -> dict[str, str]:
    law, variance = report["law"], report["variance"]
    law += "" if variance is None else f" of variance {number(variance)}"
    steps = [f"participation {report['participation']:g}", f"step {report['step_size']}"]
    if report["compress"] is not None and report["sum"] == "server":
        steps.append(f"compressed by {report['compress']}")
    if report["projections"]:
        steps.append(f"{report['projections']:,} means moved into the law's domain")
    return {
        "model": f"rank {report['rank']}, ridge {number(report['ridge'])}, {law}",
        "log-likelihood": f"{report['log_likelihood']:.6f} an entry seen",
        "singular values": ", ".join(number(one, 4) for one in report["singular_values"][:8]),
        "iterations": _iterations(report),
        "FedEM": ", ".join(steps),
    }


def _by_column(title: str, loss: str, more: str, lines: list[tuple[Any, ...]]) -> PrintedTable:
    """A line a column: of many those whose error is largest beside the column mean's."""
    if len(lines) > LISTED:
        title += f": the {LISTED} worst of {len(lines)} columns, beside column means"
        lines = sorted(lines, key=lambda line: -line[1] / line[2] if line[2] > 0 else 0.0)[:LISTED]
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
