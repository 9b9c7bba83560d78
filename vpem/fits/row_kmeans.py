"""k-means over rows that workers hold: Lloyd's algorithm by one sum of vectors a pass.

Workers agree on units first, by as few sums as possible. Noisy sums bound what can be learnt of one
row.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, as_matrix, check_kind
from vpem.engines.engine import set_topic
from vpem.engines.placement import Placement
from vpem.errors import InputError, PartitionedError, Setting
from vpem.files.checkpoints import checksum
from vpem.files.matrix import FileMatrix, is_stored
from vpem.fits.clustering import (
    Callback,
    Clustering,
    check_network,
    describe_kmeans,
    lasting,
    pace_of,
    prepare,
    warn_of_outcome,
)
from vpem.fits.local_rows import (
    LocalRows,
    RowStarts,
    UsedRows,
    agree_on_rows,
    charge_weights,
    units_by_reach,
)
from vpem.fits.prepare import Prepared, network_of_all, restart_numbers
from vpem.fits.privacy import bounds_of, check_private, fit_private_rows
from vpem.fits.rows import charge_moments, charge_scaling, n_columns
from vpem.fits.settings import PrivacySettings
from vpem.network.ledger import Ledger
from vpem.network.partition import Blocks, Workers
from vpem.network.schema import Report
from vpem.settings import FitSettings, KmeansSettings
from vpem.steps.lloyd import Lloyd, kept_of_lloyd
from vpem.steps.recovery import Saver
from vpem.steps.restarts import Restart, Restarts
from vpem.steps.row_lloyd import lloyd_rows
from vpem.steps.row_sampling import RowStream
from vpem.steps.runs import DRAWN
from vpem.steps.starts import teller
from vpem.sums.connect import Network, uncompressed
from vpem.sums.private import check_digits
from vpem.terms.missing import nearest, spread_rows, usual_squares, weighed
from vpem.terms.mixture import variances_of
from vpem.terms.rows import MemoryRows, Rows
from vpem.terms.units import Reach, Scaling


def agreed_units(
    inputs: Prepared, used: UsedRows, network: Network, ledger: Ledger, settings: KmeansSettings
) -> tuple[Prepared, Reach | None]:
    """Return the data in units that workers agree on, and where rows lie if sums are masked.

    Counted is what workers send each other of their rows before they start. Clusters can do without
    standard deviations where links fail so often that no sum of all can be had.
    """
    weights = used.weights
    if not used.masked:
        d, total = inputs.X.shape[1], uncompressed(network).counted_on(ledger)
        if settings.scale == "standard":
            charge_scaling(total, d)
        if weights is not None:
            charge_weights(total, used.counts)
        if inputs.misses:
            # Every feature's weight and mean, by which missing values of starts are filled.
            total.begin("setup", 0, 0, 8, 2 * d)
        if settings.scale == "none":
            try:
                charge_moments(total, d)
            except PartitionedError:
                return replace(inputs, deviations=None), None
        return inputs, None
    with one_blas_thread():
        reach = agree_on_rows(
            used.parts(), network.total.counted_on(ledger), used.n_samples, n_columns(used.data),
            misses=inputs.misses, weighted=weights is not None,
        )  # fmt: skip
    deviations = np.where(reach.constant, 0.0, np.sqrt(reach.points.variances))
    scaling = inputs.scaling if settings.scale == "none" else units_by_reach(reach)
    inputs = replace(inputs, scaling=scaling, deviations=deviations)
    reach = reach.scaled(inputs.scaling)
    # The inertia must have digits beside the distance of the farthest row.
    sizes = np.zeros(len(used.own_runs))
    for worker, run in enumerate(used.own_runs):
        some = run.start + spread_rows(run.stop - run.start)
        rows = used.data[some] if isinstance(used.data, np.ndarray) else used.data.take(some)
        squares = usual_squares(rows)
        sizes[worker] = (squares / inputs.scaling.scale**2).sum()
    exponent = int(reach.exponents((reach.radius**2).sum())[0])
    check_digits(used.holders, sizes, exponent, reach.mass)
    return inputs, reach


class ClusteredRows:
    """Rows of the workers of this process, worker by worker, and runs of one restart after another.

    They are in the units of clustering. ``parts`` are rows (m_i, d) of each worker, with missing
    values filled by the mean of what all have of the feature. ``reach`` says where rows lie, if
    sums are masked.
    """

    def __init__(
        self,
        inputs: Prepared,
        used: UsedRows,
        network: Network,
        settings: KmeansSettings,
        callback: Callback | None,
        reach: Reach | None,
    ) -> None:
        self.inputs, self.used, self.reach = inputs, used, reach
        self.network, self.settings, self.callback = network, settings, callback
        self.n_threads = thread_count(settings.n_threads)
        self.n_here = len(inputs.X)
        self.width = inputs.X.shape[1]
        self.runs = kept_of_lloyd(
            (settings.n_clusters, self.width), used.n_samples, network.total, self.n_here,
            undo=inputs.scaling.undo, drawn=reach is not None,
        )  # fmt: skip
        observed: NDArray[np.uint8] | None = None
        data, self.weights = used.data, used.weights
        if is_stored(data):
            rows: Rows = data.arranged(Blocks.one(self.width), inputs.scaling, inputs.precision)
        else:
            values = np.ascontiguousarray(inputs.scaling.apply(data), dtype=inputs.precision)
            if inputs.misses:
                there = ~np.isnan(values)
                means = self._means(values, there) if reach is None else reach.points.centre
                observed = there.astype(np.uint8)
                values = np.where(there, values, means.astype(values.dtype))
            rows = MemoryRows.wrap(values)
        self.parts = used.workers_rows(rows, observed)

    def _means(self, values: Floats, there: NDArray[np.bool_]) -> NDArray[np.float64]:
        """Means (d,) of the observed values of all workers' rows."""
        known = np.where(there, values, 0)
        weights = np.ones(self.n_here) if self.weights is None else self.weights
        sums = [
            [weights[run] @ known[run].astype(np.float64), weights[run] @ there[run]]
            for run in self.used.own_runs
        ]
        sums_of_all = self.used.holders.add_up(np.array(sums).reshape(len(sums), 2 * self.width))
        total, count = sums_of_all.reshape(2, self.width)
        means: NDArray[np.float64] = total / np.where(count > 0, count, 1.0)
        return means

    def nearest(
        self, centres: NDArray[np.float64]
    ) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
        """Nearest of some centres (K, d) to each row, and its squared distance."""
        same = Scaling.none(self.width)
        labels, distances = np.empty(self.n_here, dtype=np.int32), np.empty(self.n_here)
        rows, every = self.parts.rows, self.parts.observed
        for run in rows.runs():
            observed = None if every is None else every[run]
            data = rows.read(run)
            labels[run], distances[run] = nearest(data, centres, same, self.n_threads, observed)
        return labels, distances

    def run(self, restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        """Run one restart; returns also the rows that it started at, worker by worker."""
        stream = self.used.stream(restart.rng, self.reach)
        start, chosen = self._start(restart, stream)
        network, settings = self.network, self.settings
        more = {} if self.reach is None else {"start": start}
        run = lloyd_rows(
            self.parts, lasting(restart.total, network, settings), start, stream,
            pace=pace_of(network, settings, start.size + len(start) + 2),
            max_iter=settings.max_iter, callback=self.callback,
            saver=restart.saver(rows=chosen, **more),
            n_threads=self.n_threads,
        )  # fmt: skip
        return run, chosen

    def _start(
        self, restart: Restart, stream: RowStream
    ) -> tuple[NDArray[np.float64], NDArray[np.intp] | None]:
        inputs, settings = self.inputs, self.settings
        if restart.start is not None:
            return inputs.scaling.apply(self.runs.begun_at(restart.start)), None
        if inputs.centres is not None:
            return inputs.scaling.apply(inputs.centres), None
        starts = RowStarts(
            self.parts,
            restart.total,
            stream,
            settings.n_clusters,
            self.n_threads,
            teller(self.callback),
        )
        if restart.saved is not None and self.reach is not None:
            return restart.drawn("start"), None
        if restart.saved is not None:
            chosen = restart.drawn()
            if chosen is None:  # it began where a run was whose agent was lost
                return self.runs.parameters(restart.loop)[0], None
            return starts.rows(chosen, known=True), chosen
        if inputs.rows is not None:
            chosen = self.used.places(inputs.rows)
            return starts.rows(chosen), chosen
        return starts.draw(settings.init)

    def clustering(
        self, run: Lloyd, chosen: NDArray[np.intp] | None, n_samples: int, outcome: Report
    ) -> Clustering:
        """Return the result of the best run, in the user's rows and units."""
        inputs, order = self.inputs, self.used.workers.order
        network, holders = self.network, self.network.total.holders
        whole = network.whole
        roots, inertia = run.centres, run.inertia
        if network.total.roots.n_agents > 1 and holders.apart:
            with set_topic(holders.engine, "result"):
                roots = holders.allreduce(holders.padded(run.centres), announced=True)
        if whole.total.n_roots == 1:
            # On a graph that mixes in one round too all have the same.
            roots, inertia = roots[:1], inertia[:1]
        centres, disagreement = roots.mean(axis=0), 0.0
        assigned, off = run.labels, run.distances
        if len(roots) > 1:
            # By the centres that are returned, not by those of each worker.
            assigned, off = self.nearest(centres)
            differing = holders.allreduce(np.array([(assigned != run.labels).sum()]))
            disagreement = float(differing[0] / n_samples)
        assert off is not None
        labels, distances = assigned, off
        if holders.engine.open:
            # In the user's order in the first process; elsewhere, and at others', they stay.
            columns = {"labels": labels, "distances": distances}
            with set_topic(holders.engine, "result"):
                parts = holders.engine.gather(columns) or [columns]
            labels, distances = (
                np.concatenate([part[name] for part in parts]) for name in ("labels", "distances")
            )
            if len(labels) == len(order):
                position = np.argsort(order)
                labels, distances = labels[position], distances[position]
        counts, inertia_of_all = self._totals(run, assigned, distances, holders)
        return Clustering(
            centres=inputs.scaling.undo(centres),
            labels=labels,
            distances=np.sqrt(distances),
            inertia=inertia_of_all,
            n_rows=n_samples,
            root_inertia=inertia,
            counts=counts,
            history=run.history,
            split="rows",
            network=whole,
            root_centres=inputs.scaling.undo(roots) if len(roots) > 1 else None,
            disagreement=disagreement,
            scaling=None if inputs.scaling.is_none else inputs.scaling,
            deviations=inputs.deviations,
            partitions=run.partitions,
            reseeded=[
                (at, cluster, row if row == DRAWN else int(order[row]))
                for at, cluster, row in run.reseeded
            ],
            init_rows=None if chosen is None else tuple(int(order[row]) for row in chosen),
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
        counts = np.bincount(assigned, self.weights, self.settings.n_clusters).astype(np.float64)
        whole = None
        if not holders.engine.open:
            inertia = weighed(distances, self.weights)
            whole = float(holders.allreduce(np.array([inertia]))[0])
        elif holders.engine.rank == 0:
            whole = weighed(distances, self.inputs.row_weights)
        return holders.allreduce(counts), float(holders.engine.bcast(whole))


def private_kmeans(
    X: Floats | FileMatrix,
    workers: Workers,
    network: Network,
    settings: KmeansSettings,
    privacy: PrivacySettings,
    *,
    sample_weight: object = None,
    feature_names: Sequence[str] | None = None,
    saver: Saver | None = None,
) -> Clustering:
    """Cluster rows that workers hold by noisy sums.

    k-means is EM with hard assignments and one spread in all directions for all clusters
    (`vpem.fits.privacy`): clusters send noisy sizes, noisy sums about their centres in units
    of that spread, and a noisy spread, by which rows far away are clipped. The result has noisy
    sizes, and neither inertia nor history, which would show something of rows; labels are those of
    this process's rows.
    """
    used = {"weighted": sample_weight is not None, "saved": saver is not None}
    check_private("kmeans-rows", settings, **used)
    n_features = n_columns(X)
    bounds = bounds_of(privacy.bounds, n_features)
    usual = settings.max_iter == KmeansSettings().max_iter
    of_mixture = FitSettings(
        n_components=settings.n_clusters, covariance_type="tied-spherical", seed=settings.seed,
        max_iter=FitSettings().max_iter if usual else settings.max_iter,
        n_threads=settings.n_threads, reg_covar=0.0,
    )  # fmt: skip
    fit = fit_private_rows(
        X, workers, network, of_mixture, privacy, feature_names=feature_names, hard=True,
    )  # fmt: skip
    centres = np.clip(fit.mixture.assembled_means, bounds[0], bounds[1])
    # In one process rows are in the user's order, else worker by worker.
    threads = thread_count(settings.n_threads)
    labels, squares = nearest(as_matrix("data", X), centres, Scaling.none(len(centres[0])), threads)
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(squares),
        inertia=np.nan,
        n_rows=workers.n_samples,
        root_inertia=np.full(1, np.nan),
        counts=fit.mixture.assembled_weights * workers.n_samples,
        history=[],
        split="rows",
        network=network.whole,
        converged=True,
        total_iterations=fit.total_iterations,
        seconds=fit.seconds,
        communication=fit.communication,
        guarantee=fit.guarantee,
        within=variances_of(fit.mixture)[0] * fit.mixture.scaling.scale**2,
        clipped=fit.clipped,
    )


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
    **changes: object,
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
        Called after every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from; not with "grid".
    privacy : PrivacySettings, optional
        With an ``epsilon``: noise in every sum (`vpem.fits.row_kmeans.private_kmeans`).
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
    settings = KmeansSettings.resolve(settings, **changes)
    check_network(network, settings, over_rows=True)
    if settings.method == "grid":
        raise InputError(
            Setting("method", "grid"), " joins clusterings of different features: it needs ",
            Setting("split", "features"),
        )  # fmt: skip
    check_kind("workers must be vpem.Workers", workers, Workers)
    network_of_all(network, workers.n_workers, "workers")
    if privacy is not None and privacy.is_asked:
        return private_kmeans(
            X, workers, network, settings, privacy, sample_weight=sample_weight,
            feature_names=feature_names, saver=saver,
        )  # fmt: skip
    X, local = as_matrix("data", X), LocalRows(network.total.holders, workers)
    inputs = prepare(X, n_columns(X), settings, sample_weight, feature_names, local)
    n_samples, used = inputs.n_samples, inputs.held(local)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, n_samples, inputs.precision.itemsize)
    inputs, reach = agreed_units(inputs, used, network, ledger, settings)
    rows = ClusteredRows(inputs, used, network, settings, callback, reach)
    if saver is not None:
        facts = describe_kmeans("kmeans-rows", inputs, network, settings)
        saver.begin({**facts, "who holds which rows": checksum(workers.order, workers.counts)})
    with one_blas_thread():
        numbers = restart_numbers(settings)
        restarts = Restarts(
            saver, ledger, numbers, settings.seed, settings.max_iter, rows.runs, callback
        )
        run, chosen = restarts.best(network.total, rows.run)
        clustering = rows.clustering(run, chosen, n_samples, restarts.outcome(began))
    warn_of_outcome(clustering, settings.max_iter)
    return clustering
