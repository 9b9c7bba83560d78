"""`vpem fedem`: a mixture from rows that workers hold, by compressed and partial corrections."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vpem.settings import GraphSettings, WorkerSettings

from .checkpoints import CheckpointSettings, catching, saver_of
from .engine import EngineSettings
from .options import (
    Acceleration,
    ConsensusTol,
    DatasetPath,
    Force,
    GraphFile,
    InitModel,
    InitRows,
    Json,
    LinkFailure,
    MeanDegree,
    Quiet,
    Radius,
    RegCovar,
    Rounds,
    Stragglers,
    Strict,
    Weights,
    Without,
)
from .roles import READ, WRITTEN
from .workers import WorkerFile, WorkersOption, graph_of, workers_of

if TYPE_CHECKING:
    from vpem.fits.fedem import FedFit
    from vpem.network.schema import Report

__all__ = ["fedem"]


def fedem(
    data: Annotated[Path, READ, typer.Argument(help="Dataset (HDF5; see 'vpem data import').")],
    components: Annotated[
        int | None,
        typer.Option(
            "-k", "--components", help="Number of components. Default: 2, or the --init-model's."
        ),
    ] = None,
    workers: WorkersOption = None,
    worker_rows: WorkerFile = None,
    sort_by_label: Annotated[
        bool,
        typer.Option(
            "--sort-by-label", help="Sort rows by label before they are dealt out: unlike workers."
        ),
    ] = False,
    compress: Annotated[
        str | None,
        typer.Option(
            help="Codec of what workers send. Recommended, with --step-size 1: qsgd:6bits:32, or "
            "qsgd:4bits:32 with a shared covariance (tied). Others: qsgd:8bits, natural:12bits, "
            "blockp:64, randk:0.1, topk:0.1 (with error feedback), float32. The setup is then sent "
            "in few bits too. Default: numbers as they are."
        ),
    ] = None,
    step_size: Annotated[
        str,
        typer.Option(
            help="G or constant:G; or decreasing:G,A: G k^-A in iteration k, A 0.5 if not given; "
            "0 < G <= 1."
        ),
    ] = "constant:0.5",
    participation: Annotated[
        float, typer.Option(help="Probability that a worker takes part in an iteration.")
    ] = 1.0,
    batch_size: Annotated[
        int | None,
        typer.Option(
            help="Rows a worker draws of its own in an iteration. Default: all; with "
            "--variance-reduction the square root of the mean number of rows."
        ),
    ] = None,
    variance_reduction: Annotated[
        bool, typer.Option("--variance-reduction", help="VR-FedEM.")
    ] = False,
    inner: Annotated[
        int | None,
        typer.Option(
            help="Iterations of an outer loop of VR-FedEM. Default: as many as cost one pass."
        ),
    ] = None,
    memory: Annotated[
        str,
        typer.Option(
            help="What the workers' memories start from: first (their first corrections), zero, "
            "or none: there are none."
        ),
    ] = "first",
    alpha: Annotated[
        float | None,
        typer.Option(help="Step of the memories. Default: 1/(1 + omega) of the codec."),
    ] = None,
    weighting: Annotated[
        str, typer.Option(help="What a mean over workers counts alike: rows, or workers.")
    ] = "rows",
    topology: Annotated[
        str | None,
        typer.Option(
            help="Graph of the workers: star (a server, as in the paper), cycle, path, complete, "
            "grid, geometric, erdos-renyi, small-world, scale-free, tree; there every worker "
            "keeps a statistic of its own. Default: star."
        ),
    ] = None,
    graph: GraphFile = None,
    radius: Radius = None,
    mean_degree: MeanDegree = None,
    rounds: Rounds = "auto",
    acceleration: Acceleration = None,
    consensus_tol: ConsensusTol = 1e-6,
    weights: Weights = "metropolis",
    link_failure: LinkFailure = 0.0,
    stragglers: Stragglers = 0.0,
    covariance: Annotated[
        str,
        typer.Option(
            help="full, diag, spherical; tied, tied-diag, tied-spherical for one shared by all "
            "components, with far smaller messages."
        ),
    ] = "full",
    reg_covar: RegCovar = 1e-6,
    scale: Annotated[
        str, typer.Option(help="none, or standard: features are standardized, undone in outputs.")
    ] = "none",
    dataset: DatasetPath = None,
    init: Annotated[str, typer.Option(help="Start: random, k-means++, kmeans.")] = "kmeans",
    init_rows: InitRows = None,
    init_model: InitModel = None,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 1000,
    epochs: Annotated[
        float | None,
        typer.Option(
            help="Stop after the iteration that reaches so many epochs; as many conditional "
            "expectations as rows are one, and the start takes one."
        ),
    ] = None,
    tol: Annotated[
        float,
        typer.Option(
            help="Stop when the squared norm of the mean correction is at most this part of the "
            "statistic's, several times in a row where anything is drawn or quantized; 0: never."
        ),
    ] = 1e-10,
    strict: Strict = False,
    record_every: Annotated[
        int,
        typer.Option(
            help="Iterations from one record of objective and mean field to the next; a record "
            "takes a pass over all rows, which counts as no epoch."
        ),
    ] = 1,
    plot: Annotated[
        Path | None,
        WRITTEN,
        typer.Option(help="Draw mean field and objective against epochs and bytes here."),
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Threads of the kernels. Default: all processors.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seeds start, workers, batches, codec, and random graphs.")
    ] = 0,
    output: Annotated[
        Path | None, WRITTEN, typer.Option("-o", "--output", help="Write the model here (HDF5).")
    ] = None,
    force: Force = False,
    json: Json = False,
    quiet: Quiet = False,
    *,
    checkpoints: CheckpointSettings,
    place: Annotated[EngineSettings, Without("shards")],
) -> None:
    """Fit a Gaussian mixture to rows of workers by FedEM or VR-FedEM.

    Workers send quantized corrections of their mean statistics to a server, not all of them in
    every iteration and not of all their rows; memories make up for workers unlike each other.

    Example: vpem fedem data/wine.h5 -k 3 --workers 10 --compress qsgd:6bits:32 --step-size 1
    """
    from .choices import rounds_of, rows_of, start_model
    from .engine import describe_engine, engine_of, own_rows, tell_warnings
    from .output import Progress, Screen, print_json

    with Screen(quiet) as screen:
        from vpem.checks import check_int
        from vpem.errors import InputError
        from vpem.files.datasets import read_dataset
        from vpem.files.hdf5 import check_writable
        from vpem.fits.fedem import fit_fedem
        from vpem.sums.connect import connect_workers
        from vpem.sums.spread import spread_workers

        run_on = engine_of(place, screen)
        if output is not None and run_on.rank == 0:
            check_writable(output, force, "models")
        if plot is not None and run_on.rank == 0:
            from vpem.pictures.figure import check_picture

            check_picture(plot, force)
        saver = saver_of(checkpoints, force, run_on)
        seed = check_int("--seed", seed, least=0)
        if strict and tol == 0:
            raise InputError("--strict needs a --tol above 0: without it nothing can converge")
        if init_rows is not None and init_model is not None:
            raise InputError("give --init-rows or --init-model, not both")
        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in locals().items()
            if name in _OPTIONS
        }
        options["rounds"] = rounds_of(rounds)
        # Each rank reads its own rows.
        limit = 0 if run_on.apart else None
        source = read_dataset(data, dataset, memory_limit=limit)
        held = workers_of(
            source,
            WorkerSettings(workers=workers, worker_rows=worker_rows),
            screen,
            sort_by_label,
        )
        joined = graph_of(
            held.n_workers,
            held.names,
            GraphSettings(
                topology=topology,
                graph=graph,
                radius=radius,
                mean_degree=mean_degree,
                graph_seed=seed,
            ),
        )
        network = connect_workers(
            joined,
            n_rounds=options["rounds"],
            weights=weights,
            acceleration=acceleration,
            consensus_tol=consensus_tol,
            # Of the rounds; at a server corrections are compressed, and not the sum.
            compress=None if joined.has_server else compress,
            link_failure=link_failure,
            stragglers=stragglers,
            seed=seed,
            n_threads=threads,
        )
        start: Any = init
        n_components = 2 if components is None else components
        if init_rows is not None:
            start = rows_of(init_rows)
        elif init_model is not None:
            start = start_model(init_model, source)
            n_components = start.n_components if components is None else components
        unkept = None if output or json else "--output FILE"
        progress = Progress(quiet or run_on.rank > 0, unkept)
        try:
            with catching(saver):
                network = spread_workers(network, run_on)
                X = own_rows(source, held, network)
                found = fit_fedem(
                    X,
                    held,
                    network,
                    n_components=n_components,
                    covariance_type=covariance,
                    init=start,
                    max_iter=max_iter,
                    n_epochs=epochs,
                    tol=tol,
                    compress=compress if joined.has_server else None,
                    step_size=step_size,
                    alpha=alpha,
                    participation=participation,
                    batch_size=batch_size,
                    variance_reduction=variance_reduction,
                    inner=inner,
                    weighting=weighting,
                    memory=memory,
                    reg_covar=reg_covar,
                    scale=scale,
                    record_every=record_every,
                    seed=seed,
                    n_threads=threads,
                    feature_names=source.feature_names,
                    callback=progress,
                    saver=saver,
                )
                ran = describe_engine(network)
        finally:
            progress.close()
        if run_on.apart:
            tell_warnings(run_on, screen)
            if run_on.rank > 0:
                raise typer.Exit(3 if strict and not found.converged else 0)
        report = found.describe(source.feature_names, held.names)
        report["warnings"] = list(screen.warnings)
        report["seed"] = seed
        report["data"] = str(data)
        report.update(ran)
        if plot is not None:
            from vpem.pictures.fedem import draw_histories
            from vpem.pictures.figure import save_picture

            name = _name(report)
            picture = draw_histories([(name, [found.run.history])], title=name)
            save_picture(plot, picture, force=force)
        if output is not None:
            _write(output, found, report, options, source.feature_names, force)
        report["model"] = None if output is None else str(output)
        report["plot"] = None if plot is None else str(plot)
        if json:
            print_json(report)
        elif not quiet:
            _show(report)
        if strict and not found.converged:
            raise typer.Exit(3)


_OPTIONS = (
    "data", "components", "workers", "worker_rows", "sort_by_label", "compress", "step_size",
    "participation", "batch_size", "variance_reduction", "inner", "memory", "alpha", "weighting",
    "topology", "graph", "radius", "mean_degree", "rounds", "acceleration", "consensus_tol",
    "weights", "link_failure", "stragglers", "covariance", "reg_covar", "scale", "dataset", "init",
    "init_rows", "init_model", "max_iter", "epochs", "tol", "record_every", "threads", "seed",
)  # fmt: skip


def _write(
    output: Path,
    found: FedFit,
    report: Report,
    options: Report,
    names: tuple[str, ...],
    force: bool,
) -> None:
    """Write the model; its history is the total log-likelihood of the iterations recorded."""
    from vpem.files.models import write_model

    write_model(output, found.kept(names, report, options), force)


def _name(report: Report) -> str:
    """Say in a line which algorithm this was."""
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
    """Print what a reader wants to know."""
    from .output import communication, each, number, plural, show, size, table

    network = [
        plural(report["n_workers"], "worker"),
        report["topology"],
        each(report["worker_rows"], "row"),
    ]
    if report["server"] is None:
        network.append(plural(report["rounds"], "round"))
        network.append(f"statistics up to {report['disagreement']:.2g} apart")
    mixture = [
        plural(report["n_components"], "component"),
        f"{report['covariance_type']} covariance",
        plural(report["n_parameters"], "parameter"),
    ]
    iterations = [
        str(report["n_iter"]),
        f"{report['n_epochs']:.4g} epochs",
        f"{number(report['seconds'], 3)} s",
    ]
    if report["tol"] > 0:
        iterations.insert(1, "converged" if report["converged"] else "not converged")
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    field = f"{number(report['mean_field'][0], 3)} at first, {number(report['mean_field'][-1], 3)}"
    facts = (
        ("data", f"{rows} x {features}"),
        ("network", ", ".join(network)),
        ("algorithm", _name(report)),
        ("mixture", ", ".join(mixture)),
        ("log-likelihood", f"{report['log_likelihood']:.6f} per sample"),
        ("squared mean field", f"{field} at last"),
        ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}"),
        ("iterations", ", ".join(iterations)),
        ("projections", plural(report["projections"], "weight or covariance")
         if report["projections"] == 1 else f"{report['projections']} weights or covariances"),
        ("sent by workers", size(report["bytes_up"][-1])),
        ("communication", communication(report["communication"], report["worker_names"])),
        ("model", report["model"] or "not kept (give --output)"),
    )  # fmt: skip
    heads = ("component", "mixing weight")
    weights = [(k, f"{weight:.4f}") for k, weight in enumerate(report["mixing_weights"])]
    show(table(facts, "", ""), table(weights, *heads, title="Components", right=heads))
