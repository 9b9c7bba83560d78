"""The NumPy twins of the kernels in `assign`: what they compute, written to be read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "assign_features",
    "distances_to",
    "follow_rows",
    "inertias_of",
    "measure_rows",
    "nearest_rows",
]


def nearest_rows(
    rows: NDArray[Any],
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    n_threads: int,
) -> None:
    """Find the nearest centres of rows, and their squared distances.

    ``label_m = argmin_k ||x_m - c_k||^2``, the first of several that are equally near.

    The kernel compares ``||c||^2 - 2 x.c`` about the mean of the centres, of some rows at a time.
    Where the two least differ by less than this can lose to rounding, it compares the distances
    themselves, summed in double precision feature by feature: a label does not depend on how rows
    are cut in tiles, or on which worker holds them.

    Parameters
    ----------
    rows : ndarray of shape (M, d)
        The rows, in single or double precision.
    centres : ndarray of shape (K, d)
        The centres; K is at least 1.
    labels : ndarray of shape (M,)
        On return the nearest centres.
    distances : ndarray of shape (M,)
        On return the squared distances to them.
    n_threads : int
        Threads of the kernel; nothing depends on it.
    """
    every = np.empty((len(centres), len(rows)))
    distances_to(rows, centres, every, n_threads)
    labels[:] = every.argmin(axis=0)
    distances[:] = every[labels, np.arange(len(rows))]


def follow_rows(
    rows: NDArray[Any],
    weights: NDArray[np.float64],
    bounds: NDArray[np.intp],
    centres: NDArray[np.float64],
    before: NDArray[np.float64],
    about: NDArray[np.float64],
    labels: NDArray[np.int32],
    upper: NDArray[np.float32],
    lower: NDArray[np.float32],
    totals: NDArray[np.float64],
    changes: NDArray[np.intp],
    n_threads: int,
) -> None:
    """Assign the rows of workers after their centres have moved, and keep their clusters' sums.

    Labels are those of `nearest_rows`. A row is not looked at where its bounds, moved as far as the
    centres have (Hamerly, SDM 2010), leave no doubt: ``upper_m + |move of its centre|`` is below
    ``lower_m - max |move of another|``, or below half the distance from its centre to the nearest
    other. What single precision loses goes to the safe side.

    Parameters
    ----------
    rows : ndarray of shape (M, d)
        The rows, worker by worker, in single or double precision.
    weights : ndarray of shape (M,) or (0,)
        Weight of each row; empty: all rows alike.
    bounds : ndarray of shape (N + 1,)
        Where each worker's rows begin, and M. A worker may have none.
    centres : ndarray of shape (R, K, d)
        One set for all workers (R is 1), or one for each; K is at least 1.
    before : ndarray of shape (R, K, d)
        The centres that the bounds are about.
    about : ndarray of shape (d,)
        A point near the rows, the same in every call.
    labels : ndarray of shape (M,)
        What they were; on return what they are. Where they were looked at before they count.
    upper, lower : ndarray of shape (M,)
        The distance of each row to its centre is at most the one, to any other at least the other.
        Before a row is looked at first they are NaN and 0; then it enters the totals.
    totals : ndarray of shape (N, 2, K + K d + 1)
        Of each worker: counts ``sum_m w_m`` and sums ``sum_m w_m x_m`` of its clusters, and
        ``sum_m w_m ||x_m - about||^2``, each as the sum of two numbers. Rows that change their
        cluster leave the one and enter the other.
    changes : ndarray of shape (N,)
        Added to: how many labels are others than they were.
    n_threads : int
        Threads of the kernel; nothing depends on it.
    """
    n_centres, width = centres.shape[1:]
    for worker, (begin, end) in enumerate(pairwise(bounds)):
        own, some = rows[begin:end].astype(np.float64), slice(begin, end)
        places = centres[min(worker, len(centres) - 1)]
        found, off = np.empty(len(own), dtype=np.int32), np.empty(len(own))
        nearest_rows(rows[some], places, found, off, n_threads)
        heavy = weights[some] if len(weights) else np.ones(len(own))
        fresh, changed = np.isnan(upper[some]), found != labels[some]
        counts, sums = np.zeros(n_centres), np.zeros((n_centres, width))
        for enters, who in ((1, changed | fresh), (-1, changed & ~fresh)):
            clusters = (found if enters == 1 else labels[some])[who]
            np.add.at(counts, clusters, enters * heavy[who])
            np.add.at(sums, clusters, enters * heavy[who, None] * own[who])
        squares = heavy[fresh] @ ((own[fresh] - about) ** 2).sum(axis=1)
        totals[worker, 0] += np.concatenate([counts, sums.ravel(), [squares]])
        every = np.empty((n_centres, len(own)))
        distances_to(rows[some], places, every, n_threads)
        every[found, np.arange(len(own))] = np.inf
        labels[some], upper[some] = found, np.sqrt(off)
        lower[some] = np.sqrt(every.min(axis=0, initial=np.inf))
        changes[worker] += changed.sum()


def inertias_of(
    totals: NDArray[np.float64],
    about: NDArray[np.float64],
    centres: NDArray[np.float64],
    inertias: NDArray[np.float64],
) -> None:
    """Inertias of workers' rows by their moments.

    ``Q - sum_k g_k.(2 (s_k - n_k a) - n_k g_k)``, where ``g_k = c_k - a``: Q the squares about a,
    n and s the counts and sums. The kernel has about twice the digits of a number.

    Parameters
    ----------
    totals : ndarray of shape (N, 2, K + K d + 1)
        As `follow_rows` leaves them.
    about : ndarray of shape (d,)
        As there.
    centres : ndarray of shape (R, K, d)
        One set for all workers (R is 1), or one for each.
    inertias : ndarray of shape (N,)
        On return ``sum_m w_m ||x_m - c_label||^2``.
    """
    n_centres, width = centres.shape[1:]
    for worker, parts in enumerate(totals.sum(axis=1)):
        counts, sums = parts[:n_centres], parts[n_centres:-1].reshape(n_centres, width)
        far = centres[min(worker, len(centres) - 1)] - about
        off = 2 * (sums - counts[:, None] * about) - counts[:, None] * far
        inertias[worker] = parts[-1] - (far * off).sum()


def measure_rows(
    rows: NDArray[Any],
    weights: NDArray[np.float64],
    bounds: NDArray[np.intp],
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    inertias: NDArray[np.float64],
    n_threads: int,
) -> None:
    """Squared distances of rows to the centres of their clusters, and their sums.

    Parameters
    ----------
    rows, weights, bounds, centres
        As for `follow_rows`.
    labels : ndarray of shape (M,)
        Cluster of each row.
    distances : ndarray of shape (M,)
        On return ``||x_m - c_label||^2``.
    inertias : ndarray of shape (N,)
        Added to: their weighted sum over each worker's rows.
    n_threads : int
        Threads of the kernel; nothing depends on it.
    """
    for worker, (begin, end) in enumerate(pairwise(bounds)):
        places = centres[min(worker, len(centres) - 1)]
        off = rows[begin:end].astype(np.float64) - places[labels[begin:end]]
        distances[begin:end] = (off**2).sum(axis=1)
        heavy = weights[begin:end] if len(weights) else np.ones(end - begin)
        inertias[worker] += heavy @ distances[begin:end]


def distances_to(
    rows: NDArray[Any],
    points: NDArray[np.float64],
    out: NDArray[np.float64],
    n_threads: int,
) -> None:
    """Squared distances of all rows to a few points, ``out_lm = ||x_m - p_l||^2``.

    Parameters
    ----------
    rows : ndarray of shape (M, d)
        The rows, in single or double precision.
    points : ndarray of shape (L, d)
        The points.
    out : ndarray of shape (L, M)
        On return the squared distances, computed in double precision and without cancellation.
    n_threads : int
        Threads of the kernel.
    """
    for point, found in zip(points, out, strict=True):
        found[:] = ((rows.astype(np.float64) - point) ** 2).sum(axis=1)


def assign_features(
    rows: NDArray[Any],
    observed: NDArray[np.uint8],
    weights: NDArray[np.float64],
    offsets: NDArray[np.intp],
    centres: NDArray[np.float64],
    mix: NDArray[np.float64],
    labels: NDArray[np.int32],
    counts: NDArray[np.float64],
    sums: NDArray[np.float64],
    there: NDArray[np.float64],
    first: NDArray[np.float64],
    least: NDArray[np.float64],
    changes: NDArray[np.intp],
    n_threads: int,
) -> None:
    """Assign rows to their nearest centres by differences that hubs have, in every root's eyes.

    Hub b has ``D_bmk = ||x_m - c_k||^2 - ||x_m - c_1||^2`` over its features of a row that are
    there, and root r the sum ``S_rmk = sum_b C_rb D_bmk``: ``label_rm = argmin_k S_rmk``, the first
    of several. Each root adds up its own features of the rows of a cluster.

    Parameters
    ----------
    rows : ndarray of shape (M, d)
        The rows, hub by hub, in single or double precision.
    observed : ndarray of shape (M, d) or (0, d)
        1 where a value is there; empty: all are.
    weights : ndarray of shape (M,) or (0,)
        Weight of each row; empty: all rows alike.
    offsets : ndarray of shape (B + 1,)
        Where the features of each hub begin, and d.
    centres : ndarray of shape (K, d)
        Of each hub's features as its root knows them; K is at least 1.
    mix : ndarray of shape (R, B)
        The sum, C; R is 1, or B where every hub has a root that finds a sum of its own.
    labels : ndarray of shape (R, M)
        What they were; on return what they are.
    counts : ndarray of shape (R, K)
        Added to.
    sums : ndarray of shape (K, d)
        Added to.
    there : ndarray of shape (K, d)
        Weight of what is there; added to where values are missing.
    first : ndarray of shape (B,)
        Added to: ``sum_m w_m ||x_m - c_1||^2`` over each hub's features.
    least : ndarray of shape (R,)
        Added to: ``sum_m w_m min_k S_rmk``.
    changes : ndarray of shape (R,)
        Added to: how many labels are others than they were.
    n_threads : int
        Threads of the kernel; nothing depends on it.
    """
    seen = observed.astype(np.float64) if len(observed) else np.ones(rows.shape)
    heavy = weights if len(weights) else np.ones(len(rows))
    known = np.where(seen > 0, rows.astype(np.float64), 0.0)
    squares = seen[:, None] * (known[:, None] - centres) ** 2
    local = np.array([squares[:, :, a:b].sum(axis=2) for a, b in pairwise(offsets)])
    first += local[:, :, 0] @ heavy
    found = np.tensordot(mix, local - local[:, :, :1], axes=1)
    for root, (own, differences) in enumerate(zip(labels, found, strict=True)):
        nearest = differences.argmin(axis=1).astype(labels.dtype)
        least[root] += heavy @ differences.min(axis=1)
        changes[root] += (nearest != own).sum()
        own[:] = nearest
        hard = heavy[:, None] * (nearest[:, None] == np.arange(len(centres)))
        counts[root] += hard.sum(axis=0)
        columns = slice(0, rows.shape[1])
        if len(mix) > 1:
            columns = slice(int(offsets[root]), int(offsets[root + 1]))
        sums[:, columns] += hard.T @ known[:, columns]
        if len(observed):
            there[:, columns] += hard.T @ seen[:, columns]
