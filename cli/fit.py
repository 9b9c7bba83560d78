"""`vpem fit`: a mixture from data split by features over agents on a graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .checkpoints import (
    CheckpointEvery,
    CheckpointFile,
    Resume,
    ResumeIfAny,
    catching,
    saver_of,
)
from .choices import how_summed, partition_of, rounds_of, rows_of, stored_graph
from .engine import EngineName, RankCount, Shards, Timeout
from .options import (
    Acceleration,
    AgentDropout,
    BatchSize,
    Compress,
    ConsensusTol,
    DatasetPath,
    Eigenvalue,
    Force,
    GraphFile,
    GraphSeed,
    InitModel,
    InitRows,
    Json,
    LinkFailure,
    MeanDegree,
    Missing,
    Quiet,
    Radius,
    RegCovar,
    Rounds,
    Stragglers,
    Strict,
    Weights,
)
from .parties import Align, AlignKey, DataFiles, MissingParties, PartiesFlag
from .roles import READ, Role
from .workers import WorkerFile, WorkersOption, graph_of, workers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from vpem.files.datasets import Dataset
    from vpem.terms.mixture import Mixture

__all__ = ["fit"]

MODEL_FILE = Role(
    writes=True,
    # Names of shards are known later: see `Ranks.check_shards`.
    files=lambda value, options: () if value is None or options["shards"] else (value,),
)


def fit(
    data: DataFiles,
    parties: PartiesFlag = False,
    align: Align = None,
    align_key: AlignKey = None,
    missing_parties: MissingParties = False,
    split: Annotated[
        str,
        typer.Option(
            help="What each agent holds: features of all rows, or all features of its rows "
            "(workers; distributed EM)."
        ),
    ] = "features",
    components: Annotated[
        int | None,
        typer.Option(
            "-k", "--components", help="Number of components. Default: 2, or the --init-model's."
        ),
    ] = None,
    topology: Annotated[
        str | None,
        typer.Option(
            help="Graph of the agents: star (exact sum at a server), cycle, path, complete, grid, "
            "geometric, erdos-renyi, small-world, scale-free, tree. Default: the graph stored in "
            "the dataset, or else star.",
        ),
    ] = None,
    graph: GraphFile = None,
    radius: Radius = None,
    mean_degree: MeanDegree = None,
    hops: Annotated[
        int,
        typer.Option(
            help="Agents at most this many hops from a root send it their features, once; "
            "0: no agent shows its data.",
        ),
    ] = 0,
    rounds: Rounds = "auto",
    acceleration: Acceleration = None,
    eigenvalue: Eigenvalue = "computed",
    consensus_tol: ConsensusTol = 1e-6,
    weights: Weights = "metropolis",
    consensus: Annotated[
        str,
        typer.Option(
            help="Compute the rounds one by one (rounds), as the equal small matrix (operator), "
            "or whichever is cheaper (auto).",
        ),
    ] = "auto",
    compress: Compress = None,
    link_failure: LinkFailure = 0.0,
    agent_dropout: AgentDropout = 0.0,
    stragglers: Stragglers = 0.0,
    agents: Annotated[
        int | None,
        typer.Option(
            help="Split the features into this many contiguous, nearly equal parts. Default: the "
            "partition stored in the dataset, or else one feature an agent.",
        ),
    ] = None,
    partition: Annotated[
        Path | None,
        READ,
        typer.Option(help='Features of each agent, JSON: {"name": [feature, ...], ...}.'),
    ] = None,
    workers: WorkersOption = None,
    worker_rows: WorkerFile = None,
    dataset: DatasetPath = None,
    init: Annotated[
        str, typer.Option(help="Start: random (shared rows), k-means++, kmeans.")
    ] = "kmeans",
    init_rows: InitRows = None,
    init_model: InitModel = None,
    n_init: Annotated[
        int, typer.Option("--n-init", "--restarts", help="Restarts; the best is kept.")
    ] = 1,
    covariance: Annotated[
        str,
        typer.Option(
            help="Covariance inside a hub: full, diag, spherical; tied, tied-diag, tied-spherical "
            "for one shared by all components.",
        ),
    ] = "full",
    reg_covar: RegCovar = 1e-6,
    scale: Annotated[
        str,
        typer.Option(
            help="none, or standard: each agent standardizes its features, undone in outputs."
        ),
    ] = "none",
    missing: Missing = "refuse",
    batch_size: BatchSize = None,
    step_size: Annotated[
        float | None,
        typer.Option(
            help="With --batch-size, stochastic EM: the statistics move by t^-A toward those "
            "of the t-th batch, 0.5 < A <= 1.",
        ),
    ] = None,
    tol: Annotated[
        float,
        typer.Option(help="Stop when the log-likelihood per sample changes by less at all roots."),
    ] = 1e-7,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 1000,
    strict: Strict = False,
    dtype: Annotated[str, typer.Option(help="Precision: float64 or float32.")] = "float64",
    threads: Annotated[
        int | None, typer.Option(help="Threads of the kernels. Default: all processors.")
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Read data that would take more memory than this from disk in every iteration: "
            "600MB, 2G. Default: half of the machine's memory."
        ),
    ] = None,
    every_weight: Annotated[
        bool,
        typer.Option(
            "--every-weight",
            help="Count even responsibilities that together are below rounding (slower).",
        ),
    ] = False,
    seed: Annotated[
        int, typer.Option(help="Seeds the start, and the graph unless --graph-seed is given.")
    ] = 0,
    graph_seed: GraphSeed = None,
    output: Annotated[
        Path | None, MODEL_FILE, typer.Option("-o", "--output", help="Write the model here (HDF5).")
    ] = None,
    checkpoint: CheckpointFile = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    resume_if_any: ResumeIfAny = False,
    force: Force = False,
    engine: EngineName = "simulator",
    ranks: RankCount = None,
    timeout: Timeout = None,
    shards: Shards = False,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian mixture to features, or rows, that are spread.

    Features are spread over agents (VP-EM), rows over workers (--split rows). Hubs of agents share
    features within --hops; nothing else leaves an agent but terms of one sum, taken at a server
    (star) or by consensus rounds between neighbours. With --split rows every worker sends sums over
    its rows; what the star then fits is what pooled rows would give.

    Example: vpem fit data/breast_cancer.h5 --topology cycle --hops 1 -o model.h5

    Example: vpem fit data/breast_cancer.h5 --split rows --workers 7
    """
    from .engine import Ranks, engine_of, refuse_for_rows
    from .output import Progress, Screen, print_json
    from .parties import Asked, read_data

    with Screen(quiet) as screen:
        from vpem.checks import available_memory, check_int, parse_bytes
        from vpem.errors import InputError, check_choice
        from vpem.files.endings import check_ending
        from vpem.files.hdf5 import check_writable
        from vpem.files.models import write_model
        from vpem.fits.rows import fit_em
        from vpem.sums.connect import connect, connect_workers

        run_on = engine_of(engine, ranks, timeout, shards, screen)
        if output is not None and run_on.speaks:
            check_ending(output, "models")
            if not shards:
                check_writable(output, force)
        saver = saver_of(
            checkpoint, checkpoint_every, resume, resume_if_any, force, **run_on.processes()
        )
        check_choice("--dtype", dtype, ("float64", "float32"))
        check_choice("--split", split, ("features", "rows"))
        over_rows = split == "rows"
        if missing_parties:
            missing = "marginalize"
        if over_rows:
            refuse_for_rows(
                run_on, memory_limit=memory_limit, shards=shards,
                missing=missing != "refuse",
            )  # fmt: skip
        elif isinstance(run_on, Ranks):
            _refuse_what_ranks_cannot(memory_limit, shards, output)
        seed = check_int("--seed", seed, least=0)
        graph_seed = seed if graph_seed is None else check_int("--graph-seed", graph_seed, least=0)
        if init_rows is not None and init_model is not None:
            raise InputError("give --init-rows or --init-model, not both")
        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in locals().items()
            if name in _OPTIONS
        }
        options["rounds"] = rounds_of(rounds)
        options["data"] = ", ".join(map(str, data))
        limit = available_memory() if memory_limit is None else parse_bytes(memory_limit)
        if isinstance(run_on, Ranks):
            limit = 0  # Each rank reads its own columns.
        source, alignment = read_data(
            data,
            Asked(parties, align, align_key, missing_parties),
            over_rows,
            missing == "marginalize",
            dataset,
            {"agents": agents, "partition": partition, "workers": workers,
             "worker-rows": worker_rows, "memory-limit": memory_limit},
            limit,
            output,
            screen,
            run_on,
        )  # fmt: skip
        sums: dict[str, Any] = {
            "n_rounds": options["rounds"],
            "weights": weights,
            "acceleration": acceleration,
            "consensus_tol": consensus_tol,
            "eigenvalue": eigenvalue,
            "compress": compress,
            "link_failure": link_failure,
            "agent_dropout": agent_dropout,
            "stragglers": stragglers,
            "path": consensus,
            "seed": graph_seed,
            "n_threads": threads,
        }
        held: Any
        if over_rows:
            held = workers_of(source, workers, worker_rows, screen)
            network = connect_workers(
                graph_of(
                    held.n_workers, held.names, topology, graph, radius, mean_degree, graph_seed
                ),
                **sums,
            )
        else:
            held = partition_of(source, agents, partition)
            network = connect(
                stored_graph(source, held, topology, graph, radius, mean_degree, graph_seed),
                held,
                hops=hops,
                **sums,
            )
        if isinstance(run_on, Ranks) and shards and output is not None:
            run_on.check_shards(output, network, held, force)
        start: Any = init
        if init_rows is not None:
            start = rows_of(init_rows)
        elif init_model is not None:
            start = _start_model(init_model, source)
        n_components = components
        if n_components is None:
            n_components = start.n_components if init_model is not None else 2
        unkept = None if output or json else "--output FILE"
        progress = Progress(quiet or not run_on.speaks, unkept)
        try:
            common: dict[str, Any] = {
                "n_components": n_components,
                "covariance_type": covariance,
                "init": start,
                "n_init": n_init,
                "tol": tol,
                "max_iter": max_iter,
                "reg_covar": reg_covar,
                "scale": scale,
                "seed": seed,
                "n_threads": threads,
                "dtype": dtype,
                "skip_negligible": not every_weight,
                "missing": missing,
                "feature_names": source.feature_names,
                "callback": progress,
                "saver": saver,
            }
            with catching(saver):
                if over_rows:
                    X, network = run_on.over_rows(source, held, network)
                    found: Any = fit_em(X, held, network, **common)
                    ran: dict[str, Any] = run_on.ran(network)
                else:
                    found, ran = run_on.fit_vpem(
                        source, held, network, batch_size=batch_size, step_size=step_size, **common
                    )
        finally:
            progress.close()
        if isinstance(run_on, Ranks):
            run_on.tell_warnings(screen)
            if shards and output is not None:
                found = run_on.write_shards(output, found, held, source, options, force)
            if not run_on.speaks:
                raise typer.Exit(3 if strict and not found.converged else 0)
        report = found.describe(source.feature_names, held.names)
        report["warnings"] = list(screen.warnings)
        report["seed"] = seed
        report["data"] = options["data"]
        if alignment is not None:
            report["alignment"] = alignment
        report.update(ran)
        if output is not None and not shards:
            write_model(output, found.kept(source.feature_names, report, options), force)
        report["model"] = None if output is None else str(output)
        if shards and output is not None:
            report["model"] = f"{output.with_name(output.stem)}.*{output.suffix}, a shard a hub"
        if json:
            print_json(report)
        elif not quiet:
            _show(report, held.names)
        if strict and not found.converged:
            raise typer.Exit(3)


_OPTIONS = (
    "data", "parties", "align", "align_key", "missing_parties", "split",
    "workers", "worker_rows", "components", "topology", "graph", "radius",
    "mean_degree", "hops", "rounds",
    "acceleration", "consensus_tol", "eigenvalue", "compress", "link_failure", "agent_dropout",
    "stragglers", "batch_size", "step_size", "weights", "consensus", "agents", "partition",
    "dataset", "init", "init_rows", "init_model",
    "n_init", "covariance", "reg_covar", "scale", "missing", "tol", "max_iter", "dtype", "threads",
    "every_weight", "seed",
    "graph_seed",
)  # fmt: skip


def _refuse_what_ranks_cannot(memory_limit: str | None, shards: bool, output: Path | None) -> None:
    """Raise InputError where an option cannot be had with --engine mpi, saying why."""
    from vpem.errors import InputError

    if memory_limit is not None:
        raise InputError(
            "with --engine mpi every rank keeps its own columns in memory; leave --memory-limit "
            "out, or take more ranks"
        )
    if shards and output is None:
        raise InputError("--shards are named after --output; give it")


def _start_model(file: Path, source: Dataset) -> Mixture:
    """Read a model to start from, its features matched with the data's by name."""
    from vpem.errors import InputError
    from vpem.files.models import match_features, read_model

    model = read_model(file)
    columns = match_features(model, source.feature_names)
    if columns is None:
        return model.mixture
    if len(columns) != source.n_features:
        raise InputError(
            f"the starting model has {len(columns)} features, the data {source.n_features}"
        )
    return model.mixture.renumbered(columns)


def _show(report: dict[str, Any], names: Sequence[str]) -> None:
    """Print what a reader wants to know."""
    from .output import communication, each, number, plural, show, table

    over_rows = report["algorithm"] == "em-rows"
    hubs = len(report["hubs"])
    how = how_summed(report)
    network = [
        plural(report["n_agents"], "worker" if over_rows else "agent"),
        report["topology"],
        f"{plural(hubs, 'hub')} of {plural(report['hops'], 'hop')}",
    ]
    mixture = [
        plural(report["n_components"], "component"),
        f"{report['covariance_type']} covariance{'' if over_rows else ' in hubs'}",
        plural(report["n_parameters"], "parameter"),
    ]
    if over_rows:
        network[-1] = each(report["worker_rows"], "row")
    iterations = [str(report["n_iter"]), f"{number(report['seconds'], 3)} s"]
    if not report["converged"]:
        iterations.insert(1, "not converged")
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    facts = (
        ("data", f"{rows} x {features}"),
        ("network", ", ".join(network)),
        ("sum", how),
        ("mixture", ", ".join(mixture)),
        ("log-likelihood", f"{report['log_likelihood']:.6f} per sample"),
        ("BIC, AIC", f"{report['bic']:.2f}, {report['aic']:.2f}"),
        ("iterations", ", ".join(iterations)),
        ("communication", communication(report["communication"], names)),
        ("model", report["model"] or "not kept (give --output)"),
    )
    heads = ("component", "mixing weight")
    weights = [(k, f"{weight:.4f}") for k, weight in enumerate(report["mixing_weights"])]
    tables = [table(facts, "", ""), table(weights, *heads, title="Components", right=heads)]
    if hubs <= 20 and not over_rows:
        listing = [
            (
                place,
                "server" if hub["root"] == report["server"] else names[hub["root"]],
                ", ".join(names[agent] for agent in hub["agents"]),
                len(hub["features"]),
            )
            for place, hub in enumerate(report["hubs"])
        ]
        right = ("hub", "features")
        tables.append(
            table(listing, "hub", "root", "agents", "features", title="Hubs", right=right)
        )
    show(*tables)
