"""k-means over features that agents hold: Lloyd's algorithm, or in one shot."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats
from vpem.errors import InputError
from vpem.files.matrix import FileMatrix
from vpem.fits.cluster_data import Wanted, prepare
from vpem.fits.cluster_sums import check_network, distances_of_all, lasting, pace_of
from vpem.fits.clustering import (
    Callback,
    Clustering,
    describe_kmeans,
    progress_of,
    warn_of_outcome,
)
from vpem.fits.labels import charge_clusters
from vpem.fits.one_shot import one_shot
from vpem.fits.parts import complete, join_centres, own_columns_of_hubs
from vpem.fits.spread import bring
from vpem.fits.vpem import check_kept
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import KmeansSettings
from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.lloyd import Lloyd, LloydRuns
from vpem.steps.restarts import Best, Restart, Restarts
from vpem.steps.saver import Saver
from vpem.steps.seeding import seed_features
from vpem.steps.starts import teller
from vpem.steps.streams import RowStream
from vpem.steps.summing import agree_on_units
from vpem.sums.connect import Network
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import terms_of
from vpem.terms.nearest import nearest, weighed


def kmeans_features(
    X: Floats | FileMatrix | None,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: Floats | None = None,
    feature_names: Sequence[str] | None = None,
    callback: Callback | None = None,
    saver: Saver | None = None,
    labels: bool = False,
    **changes: Any,
) -> Clustering:
    """k-means over features that agents hold: Lloyd's algorithm, or in one shot.

    Each iteration of "lloyd" sums squared distances over the hubs, as the terms of VP-EM's E-step
    are; every hub's root assigns the rows by the sum that it finds, and places its own part of the
    centres. "grid" is one-shot clustering (Ding et al. 2016; `vpem.fits.one_shot`).

    Parameters
    ----------
    X : ndarray or FileMatrix of shape (M, d)
        The data; column j is seen by the agent that holds feature j and, once, by its root. Where
        agents live in several processes (`vpem.sums.connect.spread`) those of this process's
        agents,
        in the order of `vpem.fits.spread.own_columns`; None where it has none. Every process calls
        with the same options.
    network : Network
        From `vpem.connect`; a star for "grid".
    settings, sample_weight, feature_names, **changes
        As for `kmeans_rows`; names are of the columns of ``X``, and sample weights those of the
        first process. For "grid" ``init`` must be "k-means++", and ``n_init`` counts the
        starts of each party and of the server.
    callback : callable, optional
        Told of every iteration.
    saver : Saver, optional
        Keeps checkpoints, and has the one to go on from; not with "grid".
    labels : bool
        Count what it takes to tell all agents the clusters of rows, and distances.

    Returns
    -------
    Clustering
        Labels and distances are of all rows in every process; centres and units of all features in
        the first, in others of their own hubs' features.

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
    check_network(network, how, over_rows=False)
    n_features = network.whole.blocks.n_features
    if n_features == 0:
        raise InputError("the network's agents hold no features; make it with vpem.connect")
    if network.agents.apart:
        sample_weight = network.agents.bcast(sample_weight)
        X, feature_names = bring(X, network, feature_names, how.missing)
    asked = prepare(
        X, network.blocks.n_features, how, sample_weight, feature_names,
        n_of_centres=n_features, some=network.total.holders.any,
    )  # fmt: skip
    if how.method == "lloyd":
        check_kept(asked.X, network, how.n_clusters, how.batch_size)
    ledger = Ledger(network.graph)
    network.charge_setup(ledger, len(asked.X), asked.dtype.itemsize)
    if saver is not None and how.method == "grid":
        raise InputError(
            "one-shot clustering has no iterations, and so no checkpoints; leave them out, or take "
            "method lloyd"
        )
    if saver is not None:
        saver.begin(describe_kmeans("kmeans-features", asked, network, how))
    if how.method == "grid":
        if labels:
            charge_clusters(network, ledger, len(asked.X))
        found = one_shot(asked, network, ledger, how)
        found.seconds = time.perf_counter() - began
        warn_of_outcome(found, how.max_iter)
        return found
    threads = thread_count(how.n_threads)
    with one_blas_thread():
        terms = terms_of(
            asked.X,
            network.blocks,
            "spherical",
            missing=asked.misses,
            scaling=asked.scaling,
            row_weights=asked.row_weights,
            n_threads=threads,
            dtype=asked.dtype,
        )
        complete(terms, network, in_sums=True)  # which k-means has none of
        agree_on_units(terms, network.total, ledger)
        shape = (how.n_clusters, network.blocks.n_features)
        places = np.argsort(terms.blocks.order)
        kept = LloydRuns(
            shape, terms.n_samples, network.total,
            undo=lambda centres: asked.scaling.undo(centres[:, places]),
        )  # fmt: skip
        attempts = _OverFeatures(asked, terms, network, how, kept, callback)
        numbers = range(asked.restarts)
        restarts = Restarts(saver, ledger, numbers, how.seed, how.max_iter, kept, callback)
        best = restarts.best(network.total, attempts)
        if labels:
            charge_clusters(network, ledger, terms.n_samples)
        found = _clustering(best, asked, terms, network, restarts.outcome(began))
    warn_of_outcome(found, how.max_iter)
    return found


@dataclass(frozen=True)
class _OverFeatures:
    """Runs of one restart after the other, over the features of all hubs."""

    asked: Wanted
    terms: FeatureTerms
    network: Network
    how: KmeansSettings
    kept: LloydRuns
    callback: Callback | None

    def __call__(self, restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        """Run one restart; returns also the rows that it started at."""
        asked, terms, network = self.asked, self.terms, self.network
        total, k, n = restart.total, self.how.n_clusters, terms.n_samples
        stream = RowStream(restart.rng, asked.row_weights, terms.n_samples)
        chosen = asked.rows
        if restart.saved is not None:
            start, chosen = restart.loop["centres"], restart.drawn()
        elif restart.start is not None:
            begun = self.kept.begun_at(restart.start)
            start, chosen = asked.scaling.apply(begun)[:, terms.blocks.order], None
        elif asked.centres is not None:
            own = slice(None) if network.part_of is None else own_columns_of_hubs(network)
            start = asked.scaling.apply(asked.centres[:, own])[:, terms.blocks.order]
        else:
            if asked.init == "k-means++":
                chosen = seed_features(terms, total, k, stream, teller(self.callback))
            elif chosen is None:
                chosen = stream.draw_distinct(k)
            start = terms.at_rows(chosen)
        run = lloyd_features(
            terms, lasting(total, network, self.how), start, stream,
            pace=pace_of(network, self.how, min(self.how.batch_size or n, n) * (k - 1)),
            max_iter=self.how.max_iter, callback=progress_of(self.callback),
            saver=restart.saver(rows=chosen),
        )  # fmt: skip
        return run, chosen


def _clustering(
    best: Best[Lloyd],
    asked: Wanted,
    terms: FeatureTerms,
    network: Network,
    outcome: Report,
) -> Clustering:
    """Return what the best run comes to, in the user's order of features and units."""
    run, holders, roots = best.run, network.total.holders, network.total.roots
    assert asked.deviations is not None
    centres, scaling, deviations = join_centres(
        network, run.centres, asked.scaling, asked.deviations
    )
    inertia, disagreement = run.inertia, 0.0
    if network.whole.total.n_roots > 1:
        # By the centres that are returned, not as some root finds it.
        labels, distances = _nearest(asked, terms, network, run.centres, centres)
        counts = np.bincount(labels, asked.row_weights, len(centres)).astype(np.float64)
        first = roots.bcast(run.labels[0] if roots.mine(0) else None)
        disagreement = float(holders.any((run.labels != first).any(axis=0)).mean())
    else:
        # On a graph that mixes in one round too all have the same.
        some = (run.labels[0], run.counts[0]) if roots.mine(0) else None
        labels, counts = roots.bcast(some)
        distances = distances_of_all(holders, terms, run.centres, labels)
        inertia = inertia[:1]
    return Clustering(
        centres=centres,
        labels=labels,
        distances=np.sqrt(distances),
        inertia=weighed(distances, asked.row_weights),
        root_inertia=inertia,
        counts=counts,
        history=run.history,
        split="features",
        method="lloyd",
        network=network.whole,
        scaling=None if scaling.is_none else scaling,
        deviations=deviations,
        disagreement=disagreement,
        reseeded=run.reseeded,
        partitions=run.partitions,
        init_rows=None if best.rows is None else tuple(int(row) for row in best.rows),
        **outcome,
    )


def _nearest(
    asked: Wanted,
    terms: FeatureTerms,
    network: Network,
    own: NDArray[np.float64],
    centres: NDArray[np.float64],
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Nearest centre of each row and its squared distance, those of all processes added."""
    if not network.agents.apart:
        return nearest(asked.X, centres, asked.scaling, terms.n_threads)
    labels, distances = np.empty(terms.n_samples, np.int32), np.empty(terms.n_samples)
    for rows in terms.chunks(len(own)):
        found = network.agents.allreduce(terms.squares(own, rows).sum(axis=0, dtype=np.float64))
        labels[rows] = found.argmin(axis=1)
        distances[rows] = found.min(axis=1)
    return labels, distances
