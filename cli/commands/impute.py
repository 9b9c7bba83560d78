"""`vpem impute`: entries of a matrix that no observer saw, by low rank or by a mixture."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.errors import InputError
from vpem.fits.settings import OF_LOWRANK, Dealing, ImputeSettings
from vpem.records import changed, unset
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
    weighed,
)
from ..display import ProgressLine, Screen, plain
from ..options import Without
from ..outputs import READ, TableOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine
from .use import StoredFile, UseRequest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.results import Imputed
    from vpem.network.schema import Report
    from vpem.pictures.figure import Picture
    from vpem.terms.lowrank.entries import Hidden
    from vpem.terms.lowrank.observations import Observations


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

    law, weight = make_law(settings.law, settings.variance, settings.trials), dealing.sample_weight
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
        if len(files) > 1:
            raise InputError(
                f"give one dataset, got {len(files)} files; add --parties if each is one party's"
            )
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


HELD = "an imputation"


class ImputeOutput(TableOutput, heading="Output", kept=False):
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
        from vpem.fits.mixture_imputation import imputed_of, write_imputation
        from vpem.fits.observers import score_holdout
        from vpem.pictures.assignments import draw_imputation
        from vpem.pictures.contents import tables_of_imputation
        from vpem.pictures.saved import saved_of
        from vpem.sums.connect import connect_workers, move_codec

        run = CommandRun(screen, out, "imputations", engine, checkpoints)
        if out.plot is not None:
            settings = settings.changed(method="lowrank")
        observations, hidden = observed(data, parties, dealing, settings, run)
        names, seeded = observations.names, graph.seeded(settings.seed)
        joined = graph_of(observations.n_observers, names, seeded)
        sums = weighed(sums, joined)
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
            elif unscaled:
                screen.print_note(*fit.note_of_scale())
            report |= {"sample_weight": dealing.sample_weight, "holdout": None}
            if hidden is not None and dealing.holdout is not None:
                report["holdout"] = score_holdout(fit, hidden, dealing.holdout, settings.seed)
            return report | {"seed": settings.seed, **run.facts(data)} | ran

        def write(path: Path, report: Report) -> None:
            again = not parties.parties and str(data[0]) != STDIN
            table = parties.table if again else None
            write_imputation(path, fit, report, out.force, hidden, out.quote_formulas, table)

        def draw() -> Picture:
            return draw_imputation(saved_of("the imputation", imputed_of(fit)))

        # Each member of a study writes its own entries, and the fit of all.
        run.finish(FitOutcome(
            fit.converged, tell, write,
            lambda report: tables_of_imputation(report, fit.observations.column_names),
            apart=True, own=lambda _: run.drawn(draw),
        ))  # fmt: skip


class ImputedFile(StoredFile):
    holds = f"{HELD}, a completed matrix (see 'vpem model export')"
    facts: Report = {"holds": "entries"}  # noqa: RUF012

    @cached_property
    def stored(self) -> Imputed:
        from vpem.files.results import read_imputed

        return read_imputed(self.path)

    def evaluation_data(self, request: UseRequest) -> None:
        """Refuse data: an imputation is shown with its own."""
        if request.files:
            raise InputError(f"{self.path} is {HELD}, which is shown without DATA; leave it out")

    def export(self, output: Path, table: TableOutput) -> None:
        from vpem.files.results import write_imputed

        write_imputed(output, self.stored, table.force, table.quote_formulas)

    def as_json(self) -> Report:
        stored = self.stored
        names = "algorithm law rank n_components n_iter converged log_likelihood"
        about = {"file": str(self.path), "holds": HELD, **stored.describe()}
        return about | plain(stored.report, *names.split()) | {"report": stored.report}
