"""`vpem impute`: entries of a matrix that no observer saw, by low rank or by a mixture."""

from __future__ import annotations

import warnings
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError, Setting, VpemWarning
from vpem.fits.settings import ImputeSettings
from vpem.records import Settings, changed, refuse_both, setting
from vpem.settings import DEALS, GraphSettings, HoldingSettings, SumSettings, WorkerSettings

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
from ..display import (
    ProgressLine,
    Screen,
    communication,
    how_summed,
    note_of_one_column,
    number,
    plural,
    show,
    table,
    took,
)
from ..options import Without
from ..outputs import READ, TableOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine, place_parties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from vpem.engines.placement import Placement
    from vpem.fits.observers import Completed
    from vpem.network.schema import Report
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import EntryLaw, Observations

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

    workers: int | None = setting(
        None,
        "Deal the entries of the single observer out to this many. Default: the observers in the "
        "data.",
    )
    split: str | None = setting(
        None,
        "How --workers deals: entries at random (random), whole rows (rows) or whole columns "
        "(features). Default: random; of a mixture rows; with --agents or --partition features.",
        choices=DEALS,
        idle=[
            (
                lambda given: all(given[one] is None for one in ("workers", "agents", "partition")),
                (" says how --workers deals entries out; give --workers N, or leave --split out",),
            ),
            (
                lambda given: given["workers"] is None and given["split"] != "features",
                (" is for --workers; --agents and --partition deal out columns: leave it out",),
            ),
        ],
    )
    agents: int | None = setting(
        None,
        "Deal the columns out to this many, in order: as --workers N --split features.",
        least=1,
    )
    partition: Path | None = changed(HoldingSettings, "partition", idle=None)
    holdout: float | None = setting(
        None,
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
    dataset: str | None = setting(None, "Path of a 2-D dataset inside the HDF5 file, instead of X.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for one, other in combinations(("workers", "agents", "partition"), 2):
            refuse_both(self, one, other)


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

    from vpem.fits.observers import check_laws, hide_entries
    from vpem.terms.lowrank.observations import make_law

    law = make_law(settings.law, settings.variance)
    check_parties(files, file_settings)
    if file_settings.parties:
        observations, holders = _of_parties(files, file_settings, dealing, run)
        check_laws(observations, law, holders)
    else:
        observations, holders = _of_one_file(files[0], file_settings, dealing, settings, law, run)
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


def _of_one_file(
    path: Path,
    file_settings: ObserverFiles,
    dealing: Dealing,
    settings: ImputeSettings,
    law: EntryLaw,
    run: CommandRun,
) -> tuple[Observations, Placement]:
    import numpy as np

    from vpem.engines.placement import Placement
    from vpem.files.networks import read_partition
    from vpem.files.observations import read_observations
    from vpem.terms.lowrank.entries import split, split_columns
    from vpem.terms.lowrank.observations import check_law

    refuse_shared_stdin(path, run.where)
    tell = teller(run.screen.say)
    observations = read_observations(
        path,
        dealing.dataset,
        dealing.sample_weight,
        table=file_settings.table,
        tell=lambda data: tell(data, file_settings.table),
    )
    check_law(observations, law)
    if dealing.partition is not None:
        partition = read_partition(
            dealing.partition, observations.shape[1], observations.column_names
        )
        observations = split_columns(observations, partition)
    elif (count := dealing.agents if dealing.workers is None else dealing.workers) is not None:
        rng = np.random.default_rng([settings.seed, 1])
        usual = "rows" if settings.method == "mixture" else "random"
        by = "features" if dealing.agents else dealing.split or usual
        observations = split(observations, count, by, rng)
    if not run.engine.apart:
        return observations, Placement.here(observations.n_observers)
    holders = Placement.evenly(run.engine, observations.n_observers, observations.names)
    return observations.seen_by(set(holders.own.tolist())), holders


def _of_parties(
    files: Sequence[Path], settings: ObserverFiles, dealing: Dealing, run: CommandRun
) -> tuple[Observations, Placement]:
    from vpem.files.parties.observing import observe_parties

    for name, value in dealing.values("sample_weight", "holdout").items():
        if value is not None:
            raise InputError(Setting(name), " is for one file; with --parties leave it out")
    parties = run.where.parties(files, settings.table, columns=False)
    holders = place_parties(parties, run.out.output, run.shards, run.where)
    tell = teller(run.screen.say)
    observations = observe_parties(parties, dealing.sample_weight, holders, tell, settings.align)
    if observations.by_position and settings.align is None:
        run.screen.say(BY_POSITION)
    run.where.watch(observations.shape[0], True, run.screen)
    return observations, holders


LISTED = 20
"""Columns up to which the trend over them is printed."""


class ImputeGraph(GraphSettings, heading="Network"):
    """The graph of the observers."""

    topology: str | None = changed(
        GraphSettings,
        "topology",
        help="Graph of the observers: star (a server, as in the paper), cycle, path, complete, "
        "grid, geometric, erdos-renyi, small-world, scale-free, tree; there every observer "
        "keeps a statistic of its own. Default: star.",
    )


class ImputeOutput(TableOutput, heading="Output", kept=False):
    """What is written and printed."""

    output: Path | None = changed(
        TableOutput,
        "output",
        help="Write matrices, factors and trends here (HDF5), or the completed matrix: .csv or "
        ".parquet.",
    )
    plot: Path | None = setting(
        None, "Draw trends and convergence: .png, .svg or .pdf.", file="written"
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
    graph: Annotated[ImputeGraph, Without("graph_seed")],
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
        from vpem.fits.mixture_imputation import write_imputation
        from vpem.fits.observers import Imputation, score_holdout
        from vpem.pictures.assignments import draw_imputation
        from vpem.pictures.figure import check_picture, save_picture

        run = CommandRun(screen, out, "imputations", engine, checkpoints)
        of_mixture = settings.method == "mixture"
        if out.plot is not None and of_mixture:
            raise InputError(
                Setting("plot"), " draws what FedMissEM found; leave it out, or take ",
                Setting("method", "lowrank"),
            )  # fmt: skip
        if out.plot is not None:
            settings = settings.changed(method="lowrank")
            if run.where.speaks:
                check_picture(out.plot, out.force)
        observations, hidden = observed(data, parties, dealing, settings, run)
        fit, ran = _fit(observations, graph.seeded(settings.seed), sums, settings, run)
        of_mixture = not isinstance(fit, Imputation)

        def tell() -> Report:
            report = fit.describe()
            if report["share_seen"] == 1:
                screen.print_note(
                    "every entry was seen, so nothing is imputed; --holdout holds some of them out"
                )
            free = report["law"] == "gaussian" and settings.scale == "none" and not of_mixture
            unseen = report["share_seen"] < 1
            if free and unseen and (note := note_of_one_column(fit)) is not None:
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


def _fit(
    observations: Observations,
    graph: GraphSettings,
    sums: SumSettings,
    settings: ImputeSettings,
    run: CommandRun,
) -> tuple[Completed, Report]:
    """Fit, and describe the engine for the report."""
    from vpem.fits.imputation import fit_imputation
    from vpem.sums.connect import connect_workers
    from vpem.sums.exchanges import way_of

    joined = graph_of(observations.n_observers, observations.names, graph)
    if way_of(joined, sums) == "consensus":
        # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
        sums, settings = sums.changed(compress=settings.compress), settings.changed(compress=None)
    with run.working(ProgressLine if settings.method == "mixture" else _Progress) as progress:
        progress.most = settings.max_iter
        network = run.spread_network(connect_workers(joined, sums), workers=True)
        fit = fit_imputation(
            observations, settings, network=network, callback=progress, saver=run.saver
        )
        return fit, describe_engine(getattr(fit, "ran_on", network))


class _Progress(ProgressLine):
    """Objective and rate of a long run."""

    objective: float | None = None

    def __call__(self, progress: Any) -> None:
        objective = getattr(progress, "objective", None)  # not every iteration has one
        self.objective = self.objective if objective is None else objective
        super().__call__(progress)

    def facts(self, progress: Any) -> Iterator[str]:
        if not hasattr(progress, "objective"):
            yield from super().facts(progress)
        elif self.objective is not None:
            yield f"penalized log-likelihood an entry {self.objective:.6f}"


def _show(report: Report, fit: Completed) -> None:
    law = report["law"]
    if report["variance"] is not None:
        law += f" of variance {number(report['variance'])}"
    rows, columns = plural(report["n_samples"], "row"), plural(report["n_features"], "column")
    seen = f"{report['share_seen']:.1%} seen"
    network = [plural(report["n_workers"], "observer"), report["topology"]]
    of_mixture = report["algorithm"] == "mixture-imputation"
    if report["sum"] != "server" or report["secure_sum"]:
        network.append(how_summed(report | {"compress": report.get("compress")}))
    if report["sum"] == "consensus" and not of_mixture:
        network.append(f"statistics up to {report['disagreement']:.2g} apart")
    if report["sample_weight"] is not None:
        seen += f", weighed by {report['sample_weight']}"
    iterations = took(report)
    if not report["converged"]:
        iterations.insert(1, "not converged")
    elif report.get("in_noise"):
        iterations.insert(1, "converged to within noise")
    facts = [("matrix", f"{rows} x {columns}, {seen}")]
    if of_mixture:
        alone = report["n_workers"] == 1 or report["split"] == "rows"
        covariance = "covariance" if alone else "covariance of columns of one observer"
        parts = [
            plural(report["n_components"], "component"),
            f"{report['covariance_type']} {covariance}",
            plural(report["n_parameters"], "parameter"),
        ]
        log_likelihood = f"{report['log_likelihood']:.6f} per sample, BIC {report['bic']:.2f}"
        facts += [("mixture", ", ".join(parts)), ("log-likelihood", log_likelihood)]
        if (draws := report["draws"]) is not None:
            text = (
                f"{draws['n_draws']}, each of a fit to weighed rows: {draws['n_iter']} iterations"
            )
            facts.append(("draws", text))
    else:
        singular = ", ".join(number(one, 4) for one in report["singular_values"][:8])
        facts += [
            ("model", f"rank {report['rank']}, ridge {number(report['ridge'])}, {law}"),
            ("log-likelihood", f"{report['log_likelihood']:.6f} an entry seen"),
            ("singular values", singular),
        ]
    facts.append(("iterations", ", ".join(iterations)))
    if not of_mixture:
        steps = [f"participation {report['participation']:g}", f"step {report['step_size']}"]
        if report["compress"] is not None and report["sum"] == "server":
            steps.append(f"compressed by {report['compress']}")
        if report["projections"]:
            steps.append(f"{report['projections']:,} means moved into the law's domain")
        facts.append(("FedEM", ", ".join(steps)))
    choice = report["choice"]
    if choice is not None and choice["error"] is not None:
        text = f"{number(choice['error'], 4)} on held-out entries, column means"
        text += f" {number(choice['column_means'], 4)}; {len(choice['candidates'])} fits compared"
        if choice["mixture"] not in ("tried", "the method was given"):
            text += f"; no mixture: {choice['mixture']}"
        facts.append(("chosen by", text))
    facts += [
        ("network", ", ".join(network)),
        ("communication", communication(report["communication"], report["worker_names"])),
        ("written to", report["model"] or "nothing is kept (give --output)"),
    ]
    tables: list[Any] = [] if report["holdout"] is None else _holdout(report["holdout"])
    tables.append(table(facts, "", ""))
    if choice is not None:
        tables.append(_held_out(choice))
    names = fit.observations.column_names
    if len(names) <= LISTED:
        trend = zip(names, (number(mean, 5) for mean in report["column_trend"]), strict=True)
        head = f"mean fitted {fit.law.unit}".replace("fitted mean", "fitted")
        tables.append(table(trend, "column", head, title="Trend over columns", right=(head,)))
    show(*tables)


def _worst(
    scores: Sequence[Report], errors: Callable[[Report], tuple[float, float]]
) -> Sequence[Report]:
    """Return scores of columns: of many those whose error is largest beside the column mean's."""

    def relative(one: Report) -> float:
        error, of_means = errors(one)
        return float(error / of_means) if of_means > 0 else 0.0

    return scores if len(scores) <= LISTED else sorted(scores, key=relative, reverse=True)[:LISTED]


def _held_out(choice: Report) -> PrintedTable:
    columns = _worst(choice["by_column"], lambda one: (one["error"], one["column_means"]))
    name = choice["loss"].replace("_", "-")
    lines = [
        (one["column"], number(one["error"], 4), number(one["column_means"], 4),
         "column mean" if one["column_means"] < one["error"] else "fit")
        for one in columns
    ]  # fmt: skip
    heads = (name, f"{name} of column means", "better")
    title = "Entries held out to choose, in units of the fit"
    if len(columns) < len(choice["by_column"]):
        title += f": the {LISTED} worst of {len(choice['by_column'])} columns"
    return table(lines, "column", *heads, title=title, right=heads[:2])


def _holdout(scores: Report) -> list[Any]:
    heads = list(scores["model"])
    lines = []
    for name in ("model", "column_means", "iterative_imputer"):
        errors = scores[name]
        shown = [number(errors.get(head), 5) for head in heads]
        lines.append((name.replace("_", " "), *shown))
    title = f"Error on {plural(scores['n_entries'], 'hidden entry').replace('entrys', 'entries')}"
    named = {"standardized_rmse": "in standard deviations"}
    head = tuple(named.get(head, head.replace("_", "-")) for head in heads)
    tables: list[Any] = [table(lines, "", *head, title=title, right=head)]
    if "skipped" in scores["iterative_imputer"]:
        tables.append(f"iterative imputer was not run: {scores['iterative_imputer']['skipped']}")
    columns, title = scores["by_column"], "Error by column"
    if len(columns) > LISTED:
        title += f", the largest {LISTED} of {len(columns)} beside those of column means"
    worst = _worst(columns, lambda one: (one["model"]["rmse"], one["column_means"]["rmse"]))
    errors = [
        (one["column"], one["n_entries"],
         *(number(one[of]["rmse"], 4) for of in ("model", "column_means")))
        for one in worst
    ]  # fmt: skip
    heads = ["hidden", "rmse", "rmse of column means"]
    return [*tables, table(errors, "column", *heads, title=title, right=heads)]
