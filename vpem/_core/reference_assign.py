"""The NumPy twins of the kernels in `assign`: what they compute, written to be read."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign_rows", "distances_to"]


def assign_rows(
    rows: NDArray[Any],
    weights: NDArray[np.float64],
    bounds: NDArray[np.intp],
    centres: NDArray[np.float64],
    labels: NDArray[np.int32],
    distances: NDArray[np.float64],
    counts: NDArray[np.float64],
    sums: NDArray[np.float64],
    inertias: NDArray[np.float64],
    changes: NDArray[np.intp],
    n_threads: int,
) -> None:
    """Assign the rows of workers to their nearest centres and add them to their clusters' sums.

    ``label_m = argmin_k ||x_m - c_k||^2``, the first of several that are equally near;
    ``counts_k += sum_m w_m`` and ``sums_k += sum_m w_m x_m`` over a worker's rows m of label k.

    The kernel compares ``||c||^2 - 2 x.c``, from one product of matrices a tile of rows, about the
    mean of the centres. Where the two least differ by less than this can lose to rounding, it
    compares the distances themselves, summed in double precision feature by feature: a label does
    not depend on how rows are cut in tiles, or on which worker holds them.

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
    labels : ndarray of shape (M,)
        What they were; on return what they are.
    distances : ndarray of shape (M,)
        On return the squared distance of each row to its centre.
    counts : ndarray of shape (N, K)
        Added to.
    sums : ndarray of shape (N, K, d)
        Added to.
    inertias : ndarray of shape (N,)
        Added to: ``sum_m w_m ||x_m - c_label||^2``.
    changes : ndarray of shape (N,)
        Added to: how many labels are others than they were.
    n_threads : int
        Threads of the kernel; nothing depends on it.
    """
    for worker, (begin, end) in enumerate(pairwise(bounds)):
        own = rows[begin:end]
        every = np.empty((centres.shape[1], len(own)))
        distances_to(own, centres[min(worker, len(centres) - 1)], every, n_threads)
        found = every.argmin(axis=0).astype(labels.dtype)
        changes[worker] += (found != labels[begin:end]).sum()
        labels[begin:end] = found
        distances[begin:end] = every[found, np.arange(len(own))]
        heavy = weights[begin:end] if len(weights) else np.ones(len(own))
        np.add.at(counts[worker], found, heavy)
        np.add.at(sums[worker], found, heavy[:, None] * own.astype(np.float64))
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
