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
from vpem.fits.clustering import (
    Callback,
    Clustering,
    Wanted,
    check_network,
    describe_kmeans,
    prepare,
    progress_of,
    warn_of_outcome,
)
from vpem.fits.one_shot import one_shot
from vpem.network.ledger import Ledger
from vpem.network.schema import Report
from vpem.settings import KmeansSettings
from vpem.steps.feature_lloyd import lloyd_features
from vpem.steps.lloyd import Lloyd, LloydRuns
from vpem.steps.restarts import Best, Restart, Restarts
from vpem.steps.saver import Saver
from vpem.steps.seeding import seed_features
from vpem.steps.streams import RowStream
from vpem.sums.connect import Network
from vpem.terms.features import FeatureTerms
from vpem.terms.nearest import distances_within, nearest, weighed

__all__ = ["kmeans_features"]


def kmeans_features(
    X: Floats | FileMatrix,
    network: Network,
    settings: KmeansSettings | None = None,
    *,
    sample_weight: Floats | None = None,
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
        saver.begin(describe_kmeans("kmeans-features", asked, network, how))
    if how.method == "grid":
        found = one_shot(asked, network, ledger, how)
        found.seconds = time.perf_counter() - began
        warn_of_outcome(found, how.max_iter)
        return found
    threads = thread_count(how.n_threads)
    with one_blas_thread():
        terms = FeatureTerms(
            asked.X,
            network.blocks,
            "spherical",
            scaling=asked.scaling,
            row_weights=asked.row_weights,
            n_threads=threads,
            dtype=asked.dtype,
        )
        shape = (how.n_clusters, network.blocks.n_features)
        kept = LloydRuns(shape, terms.n_samples, network.total)
        restarts = Restarts(saver, ledger, range(asked.restarts), how.seed, how.max_iter, kept)
        best = restarts.best(network.total, _OverFeatures(asked, terms, how, callback))
        found = _clustering(best, asked, terms, network, restarts.outcome(began))
    warn_of_outcome(found, how.max_iter)
    return found


@dataclass(frozen=True)
class _OverFeatures:
    """Runs of one restart after the other, over the features of all hubs."""

    asked: Wanted
    terms: FeatureTerms
    how: KmeansSettings
    callback: Callback | None

    def __call__(self, restart: Restart) -> tuple[Lloyd, NDArray[np.intp] | None]:
        """Run one restart; returns also the rows that it started at."""
        asked, terms, total, k = self.asked, self.terms, restart.total, self.how.n_clusters
        stream = RowStream(restart.rng, asked.row_weights, terms.n_samples)
        chosen = asked.rows
        if restart.saved is not None:
            start, chosen = restart.loop["centres"], restart.drawn()
        elif asked.centres is not None:
            start = asked.scaling.apply(asked.centres)[:, terms.blocks.order]
        else:
            if asked.init == "k-means++":
                chosen = seed_features(terms, total, k, stream)
            elif chosen is None:
                chosen = stream.draw_distinct(k)
            start = terms.at_rows(chosen)
        run = lloyd_features(
            terms, total, start, stream,
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
    run, order = best.run, terms.blocks.order
    centres = np.empty_like(run.centres)
    centres[:, order] = run.centres
    centres = asked.scaling.undo(centres)
    if len(run.labels) > 1:
        # By the centres that are returned, not as some root finds it.
        labels, distances = nearest(asked.X, centres, asked.scaling, terms.n_threads)
        counts = np.bincount(labels, asked.row_weights, len(centres)).astype(np.float64)
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
        split="features",
        method="lloyd",
        network=network,
        scaling=asked.kept_scaling,
        disagreement=float((run.labels != run.labels[0]).any(axis=0).mean()),
        reseeded=run.reseeded,
        init_rows=None if best.rows is None else tuple(int(row) for row in best.rows),
        **outcome,
    )
