"""Lloyd's iterations over split features, by sums of squared distances over hubs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.steps.lloyd_states import lloyd_state, resume_lloyd
from vpem.steps.saver import NoSaver, Saver
from vpem.steps.starts import RowStream
from vpem.sums.sum import Sum
from vpem.terms.features import FeatureTerms

__all__ = ["FeatureLloyd", "lloyd_features"]

RESEEDED_BYTES = 12
"""Of the message that tells which cluster was placed anew, and at which row."""


@dataclass
class FeatureLloyd:
    """What Lloyd's iterations over features end with.

    Attributes
    ----------
    centres : ndarray of shape (K, d)
        In block order; each hub's part as its own root places it.
    labels : ndarray of shape (R, M)
        Cluster of each row as each root finds it; R is 1 where all share one sum.
    counts : ndarray of shape (R, K)
        Weight of each cluster.
    inertia : ndarray of shape (R,)
        Weighted sum of squared distances, as each root finds it.
    history, bytes_sent, converged, reseeded
        As in `vpem.steps.row_starts.Lloyd`.
    """

    centres: NDArray[np.float64]
    labels: NDArray[np.int32]
    counts: NDArray[np.float64]
    inertia: NDArray[np.float64]
    history: list[float] = field(default_factory=list)
    bytes_sent: list[int] = field(default_factory=list)
    converged: bool = False
    reseeded: list[tuple[int, int, int]] = field(default_factory=list)

    @property
    def score(self) -> float:
        """What the best of several runs has most of: less inertia, by the first root."""
        return -float(self.inertia[0])


def lloyd_features(
    terms: FeatureTerms,
    total: Sum,
    centres: NDArray[np.float64],
    stream: RowStream,
    *,
    max_iter: int,
    callback: Callable[[int, float, int], None] | None = None,
    saver: Saver | None = None,
) -> FeatureLloyd:
    """Lloyd's iterations over features that hubs hold.

    The squared distances of the hubs' parts are summed; each root assigns every row by the sum that
    it finds and places its part of the centres at the means of the clusters. A cluster that is
    empty at some root is placed at a random row by all. It stops when no row changes at any root.

    Parameters
    ----------
    terms : FeatureTerms
        The features of each hub; only rows, weights and distances are asked for.
    total : Sum
        Counted sum over the hubs.
    centres : ndarray of shape (K, d)
        Where to start, in block order.
    stream : RowStream
        The stream that all agents share.
    max_iter : int
        Most iterations.
    callback : callable, optional
        Told of the iteration, its inertia as the first root finds it, and the rows that changed.
    saver : Saver, optional
        Is offered the state after every iteration.

    Returns
    -------
    FeatureLloyd
    """
    n_components = len(centres)
    shape = (total.n_roots, n_components)
    labels = np.full((total.n_roots, terms.n_samples), -1, dtype=np.int32)
    run = FeatureLloyd(centres, labels, np.zeros(shape), np.zeros(total.n_roots))
    saver = saver or NoSaver()
    done = 0
    if saver.saved is not None:
        done = resume_lloyd(saver, run, total, max_iter, terms.n_samples)
        if run.converged:
            return run
    for iteration in range(done + 1, max_iter + 1):
        state = partial(lloyd_state, run, total, iteration)
        sums, changed = _pass(terms, total, run)
        run.history.append(float(run.inertia[0]))
        run.bytes_sent.append(total.bytes_sent)
        total.agree("stopping")
        if callback is not None:
            callback(iteration, run.history[-1], changed)
        if not changed:
            run.converged = True
            saver.offer(state, last=True)
            return run
        counts = terms.blocks.of_feature(run.counts)
        run.centres = sums / np.where(counts > 0, counts, 1.0)
        empty = np.flatnonzero((run.counts <= 0).any(axis=0))
        for component in empty:
            row = stream.draw()
            run.centres[component] = terms.at_rows(np.array([row], dtype=np.intp))[0]
            run.reseeded.append((iteration, int(component), row))
        if len(empty):
            total.agree("flooding", RESEEDED_BYTES)
        saver.offer(state, last=iteration == max_iter)
    _pass(terms, total, run)
    return run


def _pass(terms: FeatureTerms, total: Sum, run: FeatureLloyd) -> tuple[NDArray[np.float64], int]:
    """Assign all rows: sums of the clusters (K, d), and how many rows changed at some root."""
    n_components, width = run.centres.shape
    run.counts = np.zeros_like(run.counts)
    run.inertia = np.zeros_like(run.inertia)
    sums = np.zeros((n_components, width))
    offsets = terms.blocks.offsets
    changed = 0
    total.begin("estep", terms.n_samples, n_components, terms.itemsize)
    for rows in terms.chunks(total.values_per_item * n_components):
        found = np.maximum(total.reduce(terms.distances(run.centres, rows), rows), 0)
        nearest = found.argmin(axis=2).astype(np.int32)
        least = np.take_along_axis(found, nearest[:, :, None], axis=2)[:, :, 0]
        weights = np.ones(nearest.shape[1])
        if terms.row_weights is not None:
            weights = terms.row_weights[rows]
        run.inertia += least.astype(np.float64) @ weights
        changed += int((nearest != run.labels[:, rows]).any(axis=0).sum())
        run.labels[:, rows] = nearest
        data = terms.rows.read(rows)
        for root, own in enumerate(nearest):
            columns = slice(0, width)
            if len(nearest) > 1:
                columns = slice(int(offsets[root]), int(offsets[root + 1]))
            run.counts[root] += np.bincount(own, weights, n_components)
            sums[:, columns] += _by_cluster(own, weights, n_components) @ data[:, columns]
    return sums, changed


def _by_cluster(labels: NDArray[np.int32], weights: NDArray[np.float64], n: int) -> Any:
    """The sparse matrix (K, m) that adds rows up by cluster."""
    from scipy.sparse import csr_array

    starts = np.arange(len(labels) + 1)
    return csr_array((weights, labels, starts), shape=(len(labels), n)).T
