"""k-means over data that cannot be pooled: Lloyd's algorithm over rows and over features."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.files.matrix import FileMatrix
from vpem.fits.clustering import (
    Clustering,
    KMeansProgress,
    Wanted,
    check_network,
    prepare,
    warn_of_outcome,
)
from vpem.fits.fingerprint import checksum, describe_run
from vpem.fits.local_rows import LocalRows, check_alone
from vpem.fits.one_shot import one_shot
from vpem.fits.rows import charge_scaling, n_columns
from vpem.network.holdings import Workers
from vpem.network.ledger import Ledger
from vpem.settings import KmeansSettings
from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.held_rows import share_rows, take_rows
from vpem.steps.lloyd import Lloyd, LloydRuns
from vpem.steps.restarts import Restart, Restarts
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.saver import Saver
from vpem.steps.seeding import seed_features, seed_rows
from vpem.steps.streams import PlacedStream, RowStream
from vpem.sums.connect import Network
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms
from vpem.terms.nearest import distances_within, nearest, weighed
from vpem.terms.scaling import Scaling

__all__ = ["kmeans_features", "kmeans_rows"]

Callback = Callable[[KMeansProgress], None]


def kmeans_rows(
    X: NDArray[Any],
    workers: Workers,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: NDArray[Any] | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> Clustering:
    """Lloyd's algorithm over rows that workers hold.

    Each iteration every worker assigns its rows to the nearest centre and sends the weight and the
    sum of its rows in each cluster. At a server it is Lloyd's algorithm over all rows, from the
    same start; by consensus every worker has centres of its own, which differ by consensus error.

    Parameters
    ----------
    X : ndarray of shape (M, d)
        The data.
    workers : Workers
        Who holds which rows.
    network : Network
        From `vpem.sums.connect.connect_workers`.
    settings : KmeansSettings, optional
        None: the defaults.
    sample_weight : ndarray of shape (M,), optional
        Weight of each row. Zero has no effect, an integer equals as many copies.
    feature_names : sequence of str, optional
        For messages.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from; not with "grid".
    **changes
        Settings that differ: see `vpem.KmeansSettings`. Besides the names of starts ``init`` takes
        row indices (K,) or centres (K, d).

    Returns
    -------
    Clustering

    Raises
    ------
    InputError
        If the data or an option cannot be used.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If clusters are empty.
    """
    began = time.perf_counter()
    how = KmeansSettings.of(settings, **changes)
    check_network(network)
    if how.method == "grid":
        raise InputError(
            Setting("method", "grid"), " joins clusterings of different features: it needs ",
            Setting("split", "features"),
        )  # fmt: skip
    if not isinstance(workers, Workers):
        raise InputError(f"workers must be vpem.Workers, got {type(workers).__name__}")
    if isinstance(X, FileMatrix):
        raise InputError(
            "k-means over rows keeps the rows of every worker in memory, but the data are read "
            "from disk; raise the memory limit"
        )
    holders = network.total.holders
    check_alone(holders, sample_weight=sample_weight)
    here = LocalRows(holders, workers.counts)
    if holders.apart:
        here.check(X)
    asked = prepare(
        X, n_columns(X), how, sample_weight, feature_names, here if holders.apart else None
    )
    n_samples = here.n_samples if holders.apart else len(asked.X)
    if workers.n_samples != n_samples:
        raise InputError(
            f"the workers hold {workers.n_samples} rows, the data have {n_samples}; make them anew"
        )
    if network.graph.n_agents != workers.n_workers:
        raise InputError(
            f"the graph joins {network.graph.n_agents} workers, the rows are held by "
            f"{workers.n_workers}; give a graph of as many workers"
        )
    order = workers.order
    in_order = holders.apart or bool((np.diff(order) > 0).all())
    rows = asked.scaling.apply(asked.X if in_order else asked.X[order])
    rows = np.ascontiguousarray(rows, dtype=asked.dtype)
    weights = asked.row_weights if asked.row_weights is None else asked.row_weights[order]
    parts = [rows[run] for run in here.own_runs]
    place = np.empty_like(order)
    place[order] = np.arange(n_samples)
    threads, n_clusters, max_iter = thread_count(how.n_threads), how.n_clusters, how.max_iter
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, n_samples, asked.dtype.itemsize)
    if how.scale == "standard":
        charge_scaling(network.total.on(ledger), rows.shape[1])
    if saver is not None:
        facts = _facts("kmeans-rows", asked, network, how)
        saver.begin({**facts, "who holds which rows": checksum(workers.order, workers.counts)})
    shape, n_here = (n_clusters, rows.shape[1]), sum(map(len, parts))
    kept = LloydRuns(shape, n_samples, network.total, n_here)

    def attempt(restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        total, stream = restart.total, PlacedStream(restart.rng, weights, order)
        chosen = None if asked.rows is None else place[asked.rows]
        if restart.saved is not None:
            chosen, start = restart.drawn(), restart.loop["centres"][0]
        elif asked.centres is not None:
            start = asked.scaling.apply(asked.centres)
        elif asked.init == "k-means++":
            # Each row was told to all when it was drawn.
            chosen = seed_rows(parts, total, n_clusters, stream, n_threads=threads)
            start = take_rows(parts, total, chosen)
        else:
            chosen = stream.draw_distinct(n_clusters) if chosen is None else chosen
            start = share_rows(parts, total, chosen)
        run = lloyd_rows(
            parts, total, start, stream,
            max_iter=max_iter, n_threads=threads, callback=_telling(callback),
            saver=restart.saver(rows=chosen),
        )  # fmt: skip
        return run, chosen

    with one_blas_thread():
        restarts = Restarts(saver, ledger, range(asked.restarts), how.seed, max_iter, kept)
        best = restarts.best(network.total, attempt)
    run, chosen = best.run, best.rows
    roots = _all_centres(run, network.total)
    if network.whole.total.n_roots == 1:
        # On a graph that mixes in one round too all have the same.
        roots, run.inertia = roots[:1], run.inertia[:1]
    centres = roots.mean(axis=0)
    assigned, off = run.labels, run.distances
    assert off is not None
    disagreement = 0.0
    if len(roots) > 1:
        # By the centres that are returned, not by those of each worker.
        by_worker = assigned
        assigned, off = nearest(rows, centres, Scaling.none(rows.shape[1]), threads)
        differing = holders.allreduce(np.array([(assigned != by_worker).sum()]))
        disagreement = float(differing[0] / n_samples)
    counts = np.bincount(assigned, weights, n_clusters).astype(np.float64)
    labels, distances = _by_row(holders, order, assigned, off)
    inertia = weighed(distances, asked.row_weights)
    found = Clustering(
        centres=asked.scaling.undo(centres),
        labels=labels,
        distances=distances,
        inertia=float(holders.bcast(inertia, 0)),
        root_inertia=run.inertia,
        counts=holders.allreduce(counts),
        history=run.history,
        converged=run.converged,
        split="rows",
        method="lloyd",
        network=network.whole,
        root_centres=asked.scaling.undo(roots) if len(roots) > 1 else None,
        disagreement=disagreement,
        scaling=asked.kept_scaling,
        reseeded=[(at, cluster, int(order[row])) for at, cluster, row in run.reseeded],
        init_rows=None if chosen is None else tuple(int(order[row]) for row in chosen),
        best_restart=best.restart,
        total_iterations=restarts.iterations,
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
    )
    found.seconds = time.perf_counter() - began + restarts.seconds
    warn_of_outcome(found, max_iter)
    return found


def _all_centres(run: Lloyd, total: Sum) -> NDArray[np.float64]:
    """Centres of all roots of all processes, (R, K, d)."""
    if total.roots.n_agents == 1 or not total.holders.apart:
        return run.centres
    found: NDArray[np.float64] = total.holders.allreduce(total.holders.padded(run.centres))
    return found


def _by_row(
    holders: Placement,
    order: NDArray[np.intp],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Put what is worker by worker in the user's order; at processes but the first it stays."""
    own = {"labels": labels, "distances": distances}
    parts = holders.engine.gather(own) or [own]
    labels, distances = (
        np.concatenate([part[name] for part in parts]) for name in ("labels", "distances")
    )
    if len(labels) != len(order):
        return labels, distances
    found, off = np.empty_like(labels), np.empty_like(distances)
    found[order], off[order] = labels, distances
    return found, off


def kmeans_features(
    X: NDArray[Any] | FileMatrix,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: NDArray[Any] | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    **changes: Any,
) -> Clustering:
    """k-means over features that agents hold: Lloyd's algorithm, or in one shot.

    Each iteration of "lloyd" sums squared distances over the hubs, as the terms of VP-EM's E-step
    are; every hub's root assigns the rows by the sum that it finds, and places its own part of the
    centres. "grid" is one-shot clustering (Ding et al. 2016; `vpem.fits.one_shot`).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root.
    network : Network
        From `vpem.connect`; a star for "grid".
    settings, sample_weight, feature_names, **changes
        As for `kmeans_rows`. For "grid" ``init`` must be "k-means++", and ``n_init`` counts the
        starts of each party and of the server.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from; not with "grid".

    Returns
    -------
    Clustering

    Raises
    ------
    InputError
        If the data or an option cannot be used.

    Warns
    -----
    NotConvergedWarning
        If the iterations ran out.
    VpemWarning
        If clusters are empty.
    """
    began = time.perf_counter()
    how = KmeansSettings.of(settings, **changes)
    check_network(network)
    if network.total.holders.apart:
        raise InputError("k-means over features runs in one process; leave MPI out, or split rows")
    if network.blocks.n_features == 0:
        raise InputError("the network's agents hold no features; make it with vpem.connect")
    asked = prepare(X, network.blocks.n_features, how, sample_weight, feature_names)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, len(asked.X), asked.dtype.itemsize)
    if saver is not None and how.method == "grid":
        raise InputError(
            "one-shot clustering has no iterations, and so no checkpoints; leave them out, or take "
            "method lloyd"
        )
    if saver is not None:
        saver.begin(_facts("kmeans-features", asked, network, how))
    if how.method == "grid":
        found = one_shot(asked, network, ledger, how)
    else:
        found = _features(asked, network, ledger, how, callback, saver)
    found.seconds += time.perf_counter() - began
    warn_of_outcome(found, how.max_iter)
    return found


def _features(
    asked: Wanted,
    network: Network,
    ledger: Ledger,
    how: KmeansSettings,
    callback: Callback | None,
    saver: Saver | None,
) -> Clustering:
    """Lloyd's algorithm over features."""
    blocks, threads = network.blocks, thread_count(how.n_threads)
    n_clusters, max_iter = how.n_clusters, how.max_iter
    shape = (n_clusters, blocks.n_features)

    def attempt(restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        total, stream = (
            restart.total, RowStream(restart.rng, asked.row_weights, terms.n_samples)
        )  # fmt: skip
        chosen = asked.rows
        if restart.saved is not None:
            chosen, start = restart.drawn(), restart.loop["centres"]
        elif asked.centres is not None:
            start = asked.scaling.apply(asked.centres)[:, blocks.order]
        else:
            if asked.init == "k-means++":
                chosen = seed_features(terms, total, n_clusters, stream)
            elif chosen is None:
                chosen = stream.draw_distinct(n_clusters)
            start = terms.at_rows(chosen)
        saver = restart.saver(rows=chosen)
        run = lloyd_features(
            terms, total, start, stream, max_iter=max_iter, callback=_telling(callback), saver=saver
        )
        return run, chosen

    with one_blas_thread():
        terms = FeatureTerms(
            asked.X,
            blocks,
            "spherical",
            scaling=asked.scaling,
            row_weights=asked.row_weights,
            n_threads=threads,
            dtype=asked.dtype,
        )
        kept = LloydRuns(shape, terms.n_samples, network.total)
        restarts = Restarts(saver, ledger, range(asked.restarts), how.seed, max_iter, kept)
        best = restarts.best(network.total, attempt)
        run, chosen = best.run, best.rows
        centres = np.empty_like(run.centres)
        centres[:, blocks.order] = run.centres
        centres = asked.scaling.undo(centres)
        if len(run.labels) > 1:
            # By the centres that are returned, not as some root finds it.
            labels, distances = nearest(asked.X, centres, asked.scaling, threads)
            counts = np.bincount(labels, asked.row_weights, n_clusters).astype(np.float64)
        else:
            labels, counts = run.labels[0], run.counts[0]
            distances = distances_within(terms, run.centres, labels)
    return Clustering(
        centres=centres,
        labels=labels,
        distances=distances,
        inertia=weighed(distances, asked.row_weights),
        root_inertia=run.inertia,
        counts=counts,
        history=run.history,
        converged=run.converged,
        split="features",
        method="lloyd",
        network=network,
        scaling=asked.kept_scaling,
        disagreement=float((run.labels != run.labels[0]).any(axis=0).mean()),
        reseeded=run.reseeded,
        init_rows=None if chosen is None else tuple(int(row) for row in chosen),
        best_restart=best.restart,
        total_iterations=restarts.iterations,
        seconds=restarts.seconds,
        communication={**ledger.summary(), "bytes_by_iteration": run.bytes_sent},
    )


def _facts(name: str, asked: Wanted, network: Network, how: KmeansSettings) -> dict[str, Any]:
    """Describe a run by what must be the same when it goes on."""
    how = how.changed(dtype=asked.dtype.name, n_threads=thread_count(how.n_threads))
    return describe_run(name, asked.X, asked.row_weights, network, **how.values("method"))


def _telling(callback: Callback | None) -> Callable[[int, float, int], None] | None:
    """Tell what an iteration found in the words of a callback."""
    if callback is None:
        return None
    return lambda iteration, inertia, changed: callback(KMeansProgress(iteration, inertia, changed))
