"""`vpem fedem`: a mixture from rows that workers hold, by compressed and partial corrections."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vpem.errors import InputError
from vpem.records import changed, setting
from vpem.settings import FedMixtureSettings, HolderGraph, SumSettings, WorkerSettings

from ..data import DataFiles, RowParties, StartSettings, started
from ..display import ProgressLine, Screen
from ..options import Given, MemoryLimit, Without
from ..outputs import LabelledOutput
from ..runner import CheckpointSettings, CommandRun, FitOutcome, Task
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from vpem.network.schema import Report


class FedWorkers(WorkerSettings, heading="Data"):
    """Who holds which rows."""

    workers: int | None = changed(WorkerSettings, "workers", often=True)
    sort_by_label: bool = setting(
        False, "Sort rows by label before they are dealt out, so that workers differ."
    )


class FedOutput(LabelledOutput, heading="Output", kept=False):
    """What is written and printed."""

    plot: Path | None = setting(
        None, "Draw mean field and objective against epochs and bytes here.", file="written"
    )


def fedem(
    data: DataFiles,
    memory_limit: MemoryLimit = None,
    *,
    parties: Annotated[RowParties, Without("family align align_key missing_parties")],
    holding: FedWorkers,
    graph: Annotated[HolderGraph, Without("graph_seed")],
    settings: Annotated[FedMixtureSettings, Without("floor")],
    sums: Annotated[SumSettings, Without("hops hubs eigenvalue consensus compress agent_dropout")],
    begin: StartSettings,
    checkpoints: CheckpointSettings,
    engine: Annotated[EngineSettings, Without("shards")],
    out: FedOutput,
    given: Given,
) -> None:
    """Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM.

    Workers send quantized corrections of their mean statistics to a server, not all of them in
    every iteration and not of all their rows; memories make up for differences between workers.

    Example: vpem fedem data/wine.h5 -k 3 --workers 10 --compress qsgd:6bits:32
    """
    with Screen(out.quiet) as screen:
        from vpem.files.models import write_model
        from vpem.fits.fedem import fit_fedem
        from vpem.fits.labels import columns_of_workers
        from vpem.pictures.contents import name_of_fedem
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.history import draw_histories
        from vpem.sums.exchanges import way_of

        run = CommandRun(screen, out, "models", engine, checkpoints)
        if out.plot is not None and run.where.speaks:
            check_picture(out.plot, out.force)
        if out.strict and settings.tol == 0:
            raise InputError("--strict needs a --tol above 0: without it nothing can converge")
        task = Task(run, data, parties, holding, graph, settings, memory_limit)
        source, workers = task.source, task.parts
        settings = started(settings, begin, source, given)
        if way_of(task.graph, sums) == "consensus":
            # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
            sums = sums.changed(compress=settings.compress)
            settings = settings.changed(compress=None)
        with run.working(ProgressLine, source.X) as progress:
            progress.most = settings.max_iter
            task.connect(sums)
            X, weights, about = task.data()
            fit = fit_fedem(
                X, workers, task.network, settings, sample_weight=weights, callback=progress,
                saver=run.saver, **about,
            )  # fmt: skip
        ran, agents = describe_engine(task.network), task.network.agents
        mixtures, missing = [fit.mixture], settings.missing
        labelled = run.labels and columns_of_workers(X, workers, mixtures, agents, missing)
        task.tell_and_label(fit, labelled or None)

        def write(path: Path, report: Report) -> None:
            options = task.options(given, fit, components=settings.n_components)
            write_model(path, fit.kept(source.feature_names, report, options), out.force)

        def draw(report: Report) -> Report:
            if out.plot is not None:
                name = name_of_fedem(report)
                picture = draw_histories([(name, [fit.run.history])], title=name)
                save_picture(out.plot, picture, force=out.force)
            return {"plot": None if out.plot is None else str(out.plot)}

        tell = partial(task.describe, fit, ran, "component")
        task.finish(fit, FitOutcome(fit.converged, tell, write, own=draw))
