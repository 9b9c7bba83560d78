"""`vpem fedem`: a mixture from rows that workers hold, by compressed and partial corrections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from vpem.errors import InputError
from vpem.records import changed, setting
from vpem.settings import FedMixtureSettings, GraphSettings, SumSettings, WorkerSettings

from ..data import (
    DataFiles,
    RowParties,
    StartSettings,
    gather,
    graph_of,
    heaviest_of,
    own_rows,
    own_weights,
    started,
    workers_of,
)
from ..display import (
    ProgressLine,
    Screen,
    answer,
    communication,
    each,
    number,
    plural,
    show,
    size,
    table,
)
from ..options import Given, MemoryLimit, Without
from ..outputs import LabelFile, LabelledOutput, of_workers
from ..runner import CheckpointSettings, CommandRun, FitOutcome
from ..session import EngineSettings, describe_engine

if TYPE_CHECKING:
    from vpem.files.datasets import Dataset
    from vpem.fits.fedem import FedFit
    from vpem.network.partition import Workers
    from vpem.network.schema import Report


class FedWorkers(WorkerSettings, heading="Data"):
    """Who holds which rows."""

    sort_by_label: bool = setting(
        False, "Sort rows by label before they are dealt out, so that workers differ."
    )


class FedGraph(GraphSettings, heading="Network"):
    """The graph of the workers."""

    topology: str | None = changed(
        GraphSettings,
        "topology",
        help="Graph of the workers: star (a server, as in the paper), cycle, path, complete, "
        "grid, geometric, erdos-renyi, small-world, scale-free, tree; there every worker "
        "keeps a statistic of its own, or with --sum tree one is added up along a tree. Default: "
        "star.",
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
    graph: Annotated[FedGraph, Without("graph_seed")],
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
        from vpem.pictures.figure import check_picture, save_picture
        from vpem.pictures.history import draw_histories

        run = CommandRun(screen, out, "models", engine, checkpoints)
        run.labels = LabelFile.begin(out, run.where, parties.parties)
        if out.plot is not None and run.where.speaks:
            check_picture(out.plot, out.force)
        if out.strict and settings.tol == 0:
            raise InputError("--strict needs a --tol above 0: without it nothing can converge")
        missing = settings.missing == "marginalize"
        source, _ = gather(data, parties, holding, missing, memory_limit, run)
        workers = workers_of(source, holding, screen, holding.sort_by_label)
        settings = started(settings, begin, source, given)
        limit = run.memory(memory_limit)
        weighted = holding.sample_weight is not None
        fit, ran = _fit(
            source, limit, workers, weighted, graph.seeded(settings.seed), sums, settings, run
        )
        options = run.options(
            given, data=", ".join(map(str, data)), components=settings.n_components
        )

        def tell() -> Report:
            report = fit.describe(source.feature_names, workers.names)
            report["components"] = fit.answer(source.feature_names).describe()
            report |= {"seed": settings.seed, **run.facts(data)}
            report["sample_weight"] = holding.sample_weight
            return report | ran

        def draw(report: Report) -> Report:
            if out.plot is not None:
                name = _name(report)
                picture = draw_histories([(name, [fit.run.history])], title=name)
                save_picture(out.plot, picture, force=out.force)
            assert run.labels is not None
            plot = None if out.plot is None else str(out.plot)
            return {"labels_files": run.labels.written, "plot": plot}

        names = source.feature_names
        run.finish(FitOutcome(
            fit.converged, tell,
            lambda path, report: write_model(path, fit.kept(names, report, options), out.force),
            _show, own=draw, found=fit, heaviest=heaviest_of(source, holding.sample_weight),
        ))  # fmt: skip


def _fit(
    source: Dataset,
    limit: int,
    workers: Workers,
    weighted: bool,
    graph: GraphSettings,
    sums: SumSettings,
    settings: FedMixtureSettings,
    run: CommandRun,
) -> tuple[FedFit, Report]:
    """Fit with ``limit`` bytes of data in memory, and describe the engine for the report."""
    from vpem.fits.fedem import fit_fedem
    from vpem.sums.connect import connect_workers
    from vpem.sums.exchanges import way_of

    joined = graph_of(workers.n_workers, workers.names, graph)
    if way_of(joined, sums) == "consensus":
        # By consensus the codec compresses rounds; elsewhere corrections, not the sum.
        sums, settings = sums.changed(compress=settings.compress), settings.changed(compress=None)
    with run.working(ProgressLine, source.X) as progress:
        progress.most = settings.max_iter
        network = run.spread_network(connect_workers(joined, sums), workers=True)
        X = own_rows(source, workers, network, limit)
        fit = fit_fedem(
            X, workers, network, settings, feature_names=source.feature_names, callback=progress,
            sample_weight=own_weights(source, workers, network) if weighted else None,
            saver=run.saver,
        )  # fmt: skip
    ran = describe_engine(network)
    labels, agents = run.labels, network.agents
    assert labels is not None
    labels_found = of_workers(labels, X, workers, [fit.mixture], agents, settings.missing)
    labels.write(source, labels_found, agents, run.screen)
    return fit, ran


def _name(report: Report) -> str:
    parts = ["VR-FedEM" if report["variance_reduction"] else "FedEM"]
    parts.append(f"step {report['step_size']}")
    if report["compress"] is not None:
        parts.append(str(report["compress"]))
    if report["participation"] < 1:
        parts.append(f"participation {report['participation']:g}")
    if report["batch_size"] is not None:
        parts.append(f"batches of {report['batch_size']}")
    parts.append("no memories" if report["memory"] == "none" else f"memory {report['memory']}")
    return ", ".join(parts)


def _show(report: Report) -> None:
    network = [plural(report["n_workers"], "worker"), report["topology"]]
    network.append(each(report["worker_rows"], "row"))
    if report["sum"] == "tree":
        network.append("corrections added along a tree")
    elif report["server"] is None:
        network.append(plural(report["rounds"], "round"))
        network.append(f"statistics up to {report['disagreement']:.2g} apart")
    if report["secure_sum"]:
        network.append("sums under masks")
    mixture = [
        plural(report["n_components"], "component"),
        f"{report['covariance_type']} covariance",
        plural(report["n_parameters"], "parameter"),
    ]
    seconds = number(report["seconds"], 3)
    iterations = [str(report["n_iter"]), f"{report['n_epochs']:.4g} epochs", f"{seconds} s"]
    if report["tol"] > 0:
        rest = "converged to within noise" if report["in_noise"] else "converged"
        iterations.insert(1, rest if report["converged"] else "not converged")
    noise = f"codec omega {number(report['omega'], 3)}, participation {report['participation']:g}"
    most = number(min(report["step_ceiling"], 1.0), 3)
    steps = f"at most {most}, safe {number(report['safe_step'], 3)} ({noise}"
    steps += f", alpha {number(report['alpha'], 3)})"  # the steps that this noise allows
    if report["inner"] is not None:
        steps += f", outer loops of {report['inner']}"
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    field = f"{number(report['mean_field'][0], 3)} at first, {number(report['mean_field'][-1], 3)}"
    facts = [
        ("data", f"{rows} x {features}"),
        ("mixture", ", ".join(mixture)),
        ("log-likelihood", f"{report['log_likelihood']:.6f} per sample"),
        ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}"),
        ("algorithm", _name(report)),
        ("steps", steps),
        ("iterations", ", ".join(iterations)),
        ("squared mean field", f"{field} at last"),
        ("projections", plural(report["projections"], "weight or covariance")
         if report["projections"] == 1 else f"{report['projections']} weights or covariances"),
        ("network", ", ".join(network)),
        ("sent by workers", size(report["bytes_up"][-1])),
        ("communication", communication(report["communication"], report["worker_names"])),
        ("model", report["model"] or "not kept (give --output)"),
    ]  # fmt: skip
    if report["sample_weight"] is not None:
        total = f"{report['sample_weight']}, {number(report['total_weight'])} in all"
        facts.insert(1, ("sample weights", total))
    show(answer(report), table(facts, "", ""))
