"""k-means over rows that workers hold: Lloyd's algorithm by one sum of vectors a pass."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats
from vpem.engines.engine import about
from vpem.engines.placement import Placement
from vpem.errors import InputError, Setting
from vpem.files.fingerprint import checksum
from vpem.files.matrix import FileMatrix
from vpem.fits.cluster_data import Wanted, prepare
from vpem.fits.cluster_sums import check_network, lasting, pace_of
from vpem.fits.cluster_units import agreed_units
from vpem.fits.clustered_rows import ClusteredRows
from vpem.fits.clustering import (
    Callback,
    Clustering,
    describe_kmeans,
    progress_of,
    warn_of_outcome,
)
from vpem.fits.local_rows import LocalRows, by_worker
from vpem.fits.private_kmeans import private_kmeans
from vpem.fits.rows import n_columns
from vpem.fits.settings import PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.partition import Workers
from vpem.network.schema import Report
from vpem.settings import KmeansSettings
from vpem.steps.cells import find_cells, tell_of_cells
from vpem.steps.held_rows import HeldRows
from vpem.steps.lloyd import Lloyd, LloydRuns
from vpem.steps.reinitialise import DRAWN
from vpem.steps.restarts import Best, Restart, Restarts
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.saver import Saver
from vpem.steps.seeding import seed_rows
from vpem.steps.starts import teller
from vpem.steps.streams import PlacedStream, PointStream, RowStream
from vpem.sums.connect import Network
from vpem.sums.sum import Sum
from vpem.terms.nearest import weighed
from vpem.terms.reach import Reach


def kmeans_rows(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    privacy: PrivacySettings | None = None,
    **changes: Any,
) -> Clustering:
    """Lloyd's algorithm over rows that workers hold.

    Each iteration every worker assigns its rows to the nearest centre and sends the weight and the
    sum of its rows in each cluster. At a server it is Lloyd's algorithm over all rows, from the
    same start; by consensus every worker has centres of its own, which differ by consensus error.

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; where workers live in several processes (`vpem.sums.connect.spread_workers`) the
        rows of this process's workers, worker by worker, as are sample weights.
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
    privacy : PrivacySettings, optional
        With an ``epsilon``: noise in every sum (`vpem.fits.private_kmeans.private_kmeans`).
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
    check_network(network, how, over_rows=True)
    if how.method == "grid":
        raise InputError(
            Setting("method", "grid"), " joins clusterings of different features: it needs ",
            Setting("split", "features"),
        )  # fmt: skip
    _check_rows(X, workers, network)
    if privacy is not None and privacy.is_asked:
        return private_kmeans(
            X, workers, network, how, privacy, sample_weight=sample_weight,
            feature_names=feature_names, saver=saver,
        )  # fmt: skip
    holders = network.total.holders
    X, sample_weight = by_worker(X, sample_weight, workers, holders)
    here = LocalRows.of(holders, workers, X)
    asked = prepare(X, n_columns(X), how, sample_weight, feature_names, here)
    n_samples = len(asked.X) if here is None else here.n_samples
    if workers.n_samples != n_samples:
        raise InputError(
            f"the workers hold {workers.n_samples} rows, the data have {n_samples}; make them anew"
        )
    here = here or LocalRows(holders, workers.counts)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, n_samples, asked.dtype.itemsize)
    asked, reach = agreed_units(asked, workers, here, network, ledger, how)
    centre = None if reach is None else reach.points.centre
    rows = ClusteredRows(asked, workers, here, thread_count(how.n_threads), centre)
    if saver is not None:
        facts = describe_kmeans("kmeans-rows", asked, network, how)
        saver.begin({**facts, "who holds which rows": checksum(workers.order, workers.counts)})
    shape = (how.n_clusters, rows.width)
    kept = LloydRuns(
        shape, n_samples, network.total, rows.n_here, undo=asked.scaling.undo,
        drawn=reach is not None,
    )  # fmt: skip
    attempts = _OverRows(asked, rows, workers.order, network, how, kept, callback, reach)
    with one_blas_thread():
        restarts = Restarts(
            saver, ledger, range(asked.restarts), how.seed, how.max_iter, kept, callback
        )
        best = restarts.best(network.total, attempts)
        found = attempts.clustering(best, network, n_samples, restarts.outcome(began))
    warn_of_outcome(found, how.max_iter)
    return found


def _check_rows(X: Any, workers: Workers, network: Network) -> None:
    """Raise InputError unless the rows of these workers can be clustered over the network."""
    if not isinstance(workers, Workers):
        raise InputError(f"workers must be vpem.Workers, got {type(workers).__name__}")
    if network.graph.n_agents != workers.n_workers:
        raise InputError(
            f"the graph joins {network.graph.n_agents} workers, the rows are held by "
            f"{workers.n_workers}; give a graph of as many workers"
        )


class _OverRows:
    """Runs of one restart after the other, over the rows of the workers of this process."""

    def __init__(
        self,
        asked: Wanted,
        rows: ClusteredRows,
        order: NDArray[np.intp],
        network: Network,
        how: KmeansSettings,
        kept: LloydRuns,
        callback: Callback | None,
        reach: Reach | None,
    ) -> None:
        self.kept = kept
        self.asked, self.reach = asked, reach
        self.rows = rows
        self.order = order
        self.network = network
        self.how = how
        self.callback = callback
        self.given: Report = {"n_threads": rows.n_threads, "observed": rows.observed}

    def __call__(self, restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        """Run one restart; returns also the rows that it started at, worker by worker."""
        stream: RowStream
        if self.reach is None:
            stream = PlacedStream(restart.rng, self.rows.every_weight, self.order)
        else:
            stream = PointStream(restart.rng, self.reach, self.rows.weights)
        start, chosen = self._start(restart, stream)
        network, how = self.network, self.how
        more = {} if self.reach is None else {"start": start}
        run = lloyd_rows(
            self.rows.parts, lasting(restart.total, network, how), start, stream,
            pace=pace_of(network, how, start.size + len(start) + 2),
            max_iter=how.max_iter, callback=progress_of(self.callback),
            saver=restart.saver(rows=chosen, **more), **self.given,
        )  # fmt: skip
        return run, chosen

    def _start(
        self, restart: Restart, stream: RowStream
    ) -> tuple[NDArray[np.float64], NDArray[np.intp] | None]:
        """Return centres to start from, and the rows that they are at."""
        asked, parts, total, k = self.asked, self.rows.parts, restart.total, self.how.n_clusters
        if restart.start is not None:
            return asked.scaling.apply(self.kept.begun_at(restart.start)), None
        if asked.centres is not None:
            return asked.scaling.apply(asked.centres), None
        if isinstance(stream, PointStream):
            return self._among_cells(restart, stream), None
        if restart.saved is not None:
            chosen = restart.drawn()
            return HeldRows(parts, total).take(chosen), chosen
        if asked.init == "k-means++":
            # Each row was sent to all when it was drawn.
            chosen = seed_rows(parts, total, k, stream, tell=teller(self.callback), **self.given)
            return HeldRows(parts, total).take(chosen), chosen
        if asked.rows is None:
            chosen = stream.draw_distinct(k)
        else:
            chosen = np.argsort(self.order)[asked.rows]
        return HeldRows(parts, total).share(chosen), chosen

    def _among_cells(self, restart: Restart, stream: PointStream) -> NDArray[np.float64]:
        """Return centres drawn among means of cells, since no row may be shown."""
        if restart.saved is not None:
            start: NDArray[np.float64] = restart.drawn("start")
            return start
        k, threads = self.how.n_clusters, self.rows.n_threads
        tell_of_cells(teller(self.callback))
        cells = find_cells(self.rows.parts, restart.total, k, stream, threads)
        return cells.draw(k, stream.rng)

    def clustering(
        self, best: Best[Lloyd], network: Network, n_samples: int, outcome: Report
    ) -> Clustering:
        """Return what the best run comes to, in the user's rows and units."""
        asked, order, run = self.asked, self.order, best.run
        holders, whole = network.total.holders, network.whole
        roots, inertia = _all_centres(run, network.total), run.inertia
        if whole.total.n_roots == 1:
            # On a graph that mixes in one round too all have the same.
            roots, inertia = roots[:1], inertia[:1]
        centres, disagreement = roots.mean(axis=0), 0.0
        assigned, off = run.labels, run.distances
        if len(roots) > 1:
            # By the centres that are returned, not by those of each worker.
            assigned, off = self.rows.nearest(centres)
            differing = holders.allreduce(np.array([(assigned != run.labels).sum()]))
            disagreement = float(differing[0] / n_samples)
        assert off is not None
        labels, distances = _by_row(holders, order, assigned, off)
        counts, found = self._totals(run, assigned, distances, holders)
        return Clustering(
            centres=asked.scaling.undo(centres),
            labels=labels,
            distances=np.sqrt(distances),
            inertia=found,
            n_rows=n_samples,
            root_inertia=inertia,
            counts=counts,
            history=run.history,
            split="rows",
            method="lloyd",
            network=whole,
            root_centres=asked.scaling.undo(roots) if len(roots) > 1 else None,
            disagreement=disagreement,
            scaling=asked.kept_scaling,
            deviations=asked.deviations,
            partitions=run.partitions,
            reseeded=[
                (at, cluster, row if row == DRAWN else int(order[row]))
                for at, cluster, row in run.reseeded
            ],
            init_rows=None if best.rows is None else tuple(int(order[row]) for row in best.rows),
            **outcome,
        )

    def _totals(
        self,
        run: Lloyd,
        assigned: NDArray[np.int32],
        distances: NDArray[np.float64],
        holders: Placement,
    ) -> tuple[NDArray[np.float64], float]:
        """Return the weight of each cluster (K,), and the inertia, over the rows of all."""
        if self.reach is not None:
            # The last sums, under masks, were of these labels.
            return run.counts[0], float(run.inertia[0])
        counts = np.bincount(assigned, self.rows.weights, self.how.n_clusters).astype(np.float64)
        whole = None
        if not holders.engine.open:
            here = weighed(distances, self.rows.weights)
            whole = float(holders.allreduce(np.array([here]))[0])
        elif holders.engine.rank == 0:
            whole = weighed(distances, self.asked.row_weights)
        return holders.allreduce(counts), float(holders.engine.bcast(whole))


def _all_centres(run: Lloyd, total: Sum) -> NDArray[np.float64]:
    """Centres of all roots of all processes, (R, K, d)."""
    if total.roots.n_agents == 1 or not total.holders.apart:
        return run.centres
    with about(total.holders.engine, "result"):
        every = total.holders.padded(run.centres)
        found: NDArray[np.float64] = total.holders.allreduce(every, told=True)
    return found


def _by_row(
    holders: Placement,
    order: NDArray[np.intp],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Put what is worker by worker in the user's order; at processes but the first it stays.

    Where processes are others' it stays at all of them.
    """
    if not holders.engine.open:
        return labels, distances
    own = {"labels": labels, "distances": distances}
    with about(holders.engine, "result"):
        parts = holders.engine.gather(own) or [own]
    labels, distances = (
        np.concatenate([part[name] for part in parts]) for name in ("labels", "distances")
    )
    if len(labels) != len(order):
        return labels, distances
    found, off = np.empty_like(labels), np.empty_like(distances)
    found[order], off[order] = labels, distances
    return found, off
