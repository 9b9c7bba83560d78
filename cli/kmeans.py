"""`vpem kmeans`: clusters of rows or features that cannot be pooled."""

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
from .engine import EngineName, RankCount, Timeout
from .options import (
    Acceleration,
    ConsensusTol,
    DatasetPath,
    Eigenvalue,
    Force,
    GraphFile,
    GraphSeed,
    Json,
    MeanDegree,
    Quiet,
    Radius,
    Rounds,
    Strict,
    Weights,
)
from .output import Progress, plural
from .roles import READ, WRITTEN
from .workers import WorkerFile, WorkersOption, graph_of, workers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["kmeans"]


def kmeans(
    data: Annotated[Path, READ, typer.Argument(help="Dataset (HDF5; see 'vpem data import').")],
    clusters: Annotated[int, typer.Option("-k", "--clusters", help="Number of clusters.")] = 2,
    split: Annotated[
        str,
        typer.Option(help="What is spread: rows (over workers) or features (over agents)."),
    ] = "rows",
    method: Annotated[
        str,
        typer.Option(
            help="lloyd: iterations until no row changes its cluster; grid: one shot over "
            "features, one message of each agent (Ding et al. 2016).",
        ),
    ] = "lloyd",
    workers: WorkersOption = None,
    worker_rows: WorkerFile = None,
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
    topology: Annotated[
        str | None,
        typer.Option(
            help="Graph of the workers or agents: star (exact sum at a server), cycle, path, "
            "complete, grid, geometric, erdos-renyi, small-world, scale-free, tree. Default: "
            "star; for lloyd over features the graph stored in the dataset, if there is one.",
        ),
    ] = None,
    graph: GraphFile = None,
    radius: Radius = None,
    mean_degree: MeanDegree = None,
    hops: Annotated[
        int,
        typer.Option(
            help="Over features: agents at most this many hops from a root send it their "
            "features, once; 0: no agent shows its data.",
        ),
    ] = 0,
    rounds: Rounds = "auto",
    acceleration: Acceleration = None,
    eigenvalue: Eigenvalue = "computed",
    consensus_tol: ConsensusTol = 1e-6,
    weights: Weights = "metropolis",
    dataset: DatasetPath = None,
    init: Annotated[
        str, typer.Option(help="Start: k-means++ (greedy), or random (shared rows).")
    ] = "k-means++",
    init_rows: Annotated[
        str | None,
        typer.Option(help="Start with centres at these rows, counted from 0: 3,77,120."),
    ] = None,
    n_init: Annotated[
        int, typer.Option("--n-init", "--restarts", help="Restarts; the best is kept.")
    ] = 1,
    max_iter: Annotated[int, typer.Option(help="Most iterations.")] = 300,
    scale: Annotated[
        str,
        typer.Option(
            help="none, or standard: features are standardized first; centres are written in the "
            "data's units, distances and inertia are of standardized features."
        ),
    ] = "none",
    strict: Strict = False,
    dtype: Annotated[str, typer.Option(help="Precision: float64 or float32.")] = "float64",
    threads: Annotated[
        int | None,
        typer.Option(
            help="Threads of the kernels; results do not depend on it. Default: all processors."
        ),
    ] = None,
    memory_limit: Annotated[
        str | None,
        typer.Option(
            help="Over features: read data that would take more memory than this from disk in "
            "every iteration: 600MB, 2G. Default: half of the machine's memory."
        ),
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seeds the start, and the graph unless --graph-seed is given.")
    ] = 0,
    graph_seed: GraphSeed = None,
    output: Annotated[
        Path | None,
        WRITTEN,
        typer.Option("-o", "--output", help="Write centres and labels here (HDF5)."),
    ] = None,
    checkpoint: CheckpointFile = None,
    checkpoint_every: CheckpointEvery = None,
    resume: Resume = False,
    resume_if_any: ResumeIfAny = False,
    force: Force = False,
    engine: EngineName = "simulator",
    ranks: RankCount = None,
    timeout: Timeout = None,
    json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Cluster rows by k-means, rows or features being spread.

    Over rows every worker sends the size and the sum of its part of each cluster; over features the
    squared distances are summed. At a server (star) either is Lloyd's algorithm on pooled data,
    from the same start; on any other graph the sums are taken by consensus rounds.

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --workers 7 -o clusters.h5

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --topology cycle

    Example: vpem kmeans data/breast_cancer.h5 -k 2 --split features --method grid --n-init 10
    """
    from .engine import Ranks, engine_of, refuse_for_rows
    from .output import Screen, print_json

    with Screen(quiet) as screen:
        from vpem.checks import available_memory, check_int, parse_bytes
        from vpem.errors import InputError, check_choice
        from vpem.files.clusterings import write_clustering
        from vpem.files.datasets import read_dataset
        from vpem.files.hdf5 import check_writable
        from vpem.fits.kmeans import METHODS, kmeans_features, kmeans_rows
        from vpem.sums.connect import connect, connect_workers

        run_on = engine_of(engine, ranks, timeout, False, screen)
        if output is not None and run_on.speaks:
            check_writable(output, force, "clusterings")
        given = dict(locals())
        saver = saver_of(
            checkpoint, checkpoint_every, resume, resume_if_any, force, **run_on.processes()
        )
        check_choice("--split", split, ("rows", "features"))
        check_choice("--method", method, METHODS)
        check_choice("--dtype", dtype, ("float64", "float32"))
        check_int("--clusters", clusters, least=1)
        check_int("--seed", seed, least=0)
        over_rows = split == "rows"
        _refuse_what_makes_no_sense(given, over_rows)
        graph_seed = seed if graph_seed is None else check_int("--graph-seed", graph_seed, least=0)
        options = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in given.items()
            if name in _OPTIONS
        }
        options["rounds"] = rounds_of(rounds)
        refuse_for_rows(run_on, memory_limit=memory_limit)
        limit = available_memory() if memory_limit is None else parse_bytes(memory_limit)
        if isinstance(run_on, Ranks):
            if not over_rows:
                raise InputError(
                    "--split features runs in one process; leave --engine mpi out, or split rows"
                )
            limit = 0  # Each rank reads its own rows.
        source = read_dataset(data, dataset, memory_limit=limit)
        start: Any = init if init_rows is None else rows_of(init_rows)
        if init_rows is not None and len(start) != clusters:
            raise InputError(
                f"--clusters {clusters} needs as many --init-rows, got {len(start)} of them"
            )
        sums: dict[str, Any] = {
            "n_rounds": options["rounds"],
            "weights": weights,
            "acceleration": acceleration,
            "consensus_tol": consensus_tol,
            "eigenvalue": eigenvalue,
            "seed": graph_seed,
            "n_threads": threads,
        }
        unkept = None if output or json else "--output FILE"
        progress = _Progress(quiet or not run_on.speaks, unkept)
        ran: dict[str, Any] = {"engine": "simulator"}
        common: dict[str, Any] = {
            "n_clusters": clusters,
            "init": start,
            "n_init": n_init,
            "max_iter": max_iter,
            "scale": scale,
            "seed": seed,
            "n_threads": threads,
            "dtype": dtype_of(dtype),
            "feature_names": source.feature_names,
            "callback": progress,
            "saver": saver,
        }
        held: Any
        try:
            with catching(saver):
                if over_rows:
                    held = workers_of(source, workers, worker_rows, screen)
                    joined = graph_of(
                        held.n_workers, held.names, topology, graph, radius, mean_degree, graph_seed
                    )
                    X, network = run_on.over_rows(source, held, connect_workers(joined, **sums))
                    found = kmeans_rows(X, held, network, **common)
                    ran = run_on.ran(network)
                else:
                    held = partition_of(source, agents, partition)
                    if method == "grid" and topology is None and graph is None:
                        topology = "star"
                    joined = stored_graph(
                        source, held, topology, graph, radius, mean_degree, graph_seed
                    )
                    network = connect(joined, held, hops=hops, **sums)
                    found = kmeans_features(source.X, network, method=method, **common)
        finally:
            progress.close()
        if isinstance(run_on, Ranks):
            run_on.tell_warnings(screen)
            if not run_on.speaks:
                raise typer.Exit(3 if strict and not found.converged else 0)
        report = found.describe(source.feature_names, held.names)
        report["warnings"] = list(screen.warnings)
        report["seed"] = seed
        report["data"] = str(data)
        report.update(ran)
        if output is not None:
            stored = found.kept(source.feature_names, report, options, source.ids)
            write_clustering(output, stored, force)
        report["model"] = None if output is None else str(output)
        if json:
            print_json(report)
        elif not quiet:
            _show(report, held.names)
        if strict and not found.converged:
            raise typer.Exit(3)


_OPTIONS = (
    "data", "clusters", "split", "method", "workers", "worker_rows", "agents", "partition",
    "topology", "graph", "radius", "mean_degree", "hops", "rounds", "acceleration", "eigenvalue",
    "consensus_tol", "weights", "dataset", "init", "init_rows", "n_init", "max_iter",
    "scale", "dtype",
    "threads", "seed", "graph_seed",
)  # fmt: skip


def dtype_of(name: str) -> Any:
    """Return the precision of this name."""
    import numpy as np

    return np.float32 if name == "float32" else np.float64


def _refuse_what_makes_no_sense(given: dict[str, Any], over_rows: bool) -> None:
    """Raise InputError where options cannot be had together, saying why."""
    from vpem.errors import InputError

    if over_rows and given["method"] == "grid":
        raise InputError(
            "--method grid joins clusterings of different features: it needs --split features"
        )
    if given["method"] == "grid" and given["init_rows"] is not None:
        raise InputError(
            "--method grid starts each agent's own clustering by k-means++: --init-rows are for "
            "--method lloyd"
        )


class _Progress(Progress):
    """Inertia and rate of a long run: a live line in a terminal, a line at times in logs."""

    def facts(self, progress: Any) -> Iterator[str]:
        """Yield what is told of an iteration (`vpem.fits.clustering.KMeansProgress`)."""
        yield f"inertia {progress.inertia:.6g}"
        yield f"{plural(progress.changed, 'row')} changed"


def _show(report: dict[str, Any], names: Sequence[str]) -> None:
    """Print what a reader wants to know."""
    from .output import communication, number, show, table

    over_rows = report["split"] == "rows"
    one_shot = report["one_shot"]
    rows, features = plural(report["n_samples"], "row"), plural(report["n_features"], "feature")
    network = [plural(len(names), "worker" if over_rows else "agent"), report["topology"]]
    if not over_rows:
        network.append(f"{plural(len(report['hubs']), 'hub')} of {plural(report['hops'], 'hop')}")
    iterations = [str(report["n_iter"]), f"{number(report['seconds'], 3)} s"]
    if not report["converged"]:
        iterations.insert(1, "not converged")
    units = " (of standardized features)" if report["scale"] == "standard" else ""
    facts = [
        ("data", f"{rows} x {features}"),
        ("network", ", ".join(network)),
        ("sum", how_summed({**report, "compress": None, "faults": None})),
        ("inertia", number(report["inertia"], 10) + units),
        ("iterations", ", ".join(iterations)),
        ("communication", communication(report["communication"], names)),
        ("model", report["model"] or "not kept (give --output)"),
    ]
    if one_shot is not None:
        ratio = one_shot["inertia_over_lower_bound"]
        facts[2:5] = [
            ("method", f"one shot, {plural(one_shot['n_cells'], 'cell')}"),
            ("inertia", number(report["inertia"], 10) + units),
            ("proven", f"at most {one_shot['factor']:g} times the least inertia there is, where "
             "each k-means of the shot is solved"),
            ("agents' own", f"{number(one_shot['lower_bound'], 10)}, a lower bound where each is "
             f"solved: the inertia is {number(ratio, 4)} times that"),
            ("time", f"{number(report['seconds'], 3)} s"),
        ]  # fmt: skip
    sizes = [(k, number(size, 10)) for k, size in enumerate(report["cluster_sizes"])]
    heads = ("cluster", "size")
    show(table(facts, "", ""), table(sizes, *heads, title="Clusters", right=heads))
