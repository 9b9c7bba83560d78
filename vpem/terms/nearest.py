"""The nearest of some centres."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem._core.assign import nearest_rows
from vpem._core.missing import marginal_diag
from vpem._core.threads import one_blas_thread
from vpem.checks import Floats, row_blocks
from vpem.terms.features import FeatureTerms
from vpem.terms.matrix import Arranges
from vpem.terms.missing import MissingTerms
from vpem.terms.scaling import Scaling
from vpem.terms.terms import StartTerms

FEWEST_ROWS = 10
"""By fewer it is not told what is usual: one of them may be the one that is far away."""

MOST_ROWS = 1000
"""By more it is not told better."""


def weighed(distances: NDArray[np.float64], row_weights: NDArray[np.float64] | None) -> float:
    """Sum of squared distances (M,) times row weights."""
    return float(distances.sum() if row_weights is None else distances @ row_weights)


def distances_within(
    terms: FeatureTerms, centres: NDArray[np.float64], labels: NDArray[np.int32], rows: slice
) -> NDArray[np.float64]:
    """Squared distances of some rows to the centres (K, d) of their clusters, hub by hub: (B, m).

    Centres are in block order, and ``labels`` (M,) are clusters of all rows.
    """
    off = terms.rows.read(rows) - centres[labels[rows]]
    if isinstance(terms, MissingTerms):
        off *= terms.observed[rows]
    found = np.empty((terms.blocks.n_blocks, len(off)))
    for own, (begin, end) in zip(found, pairwise(terms.blocks.offsets.tolist()), strict=True):
        np.einsum("mj,mj->m", off[:, begin:end], off[:, begin:end], out=own)
    return found


def diagonals(terms: StartTerms) -> NDArray[np.float64]:
    """Squared distance (B,) of opposite corners of a box around all rows, in each hub."""
    blocks = terms.blocks
    ends = np.full((2, blocks.n_features), -np.inf)
    for rows in terms.chunks(blocks.n_features):
        data = terms.rows.read(rows)
        np.fmax(ends, [data.max(axis=0), (-data).max(axis=0)], out=ends)
    widths = np.maximum(ends.sum(axis=0), 0.0) ** 2
    return np.bincount(blocks.block_of, widths, blocks.n_blocks).astype(np.float64)


def usual_squares(rows: Floats) -> NDArray[np.float64]:
    """Median squared distance (d,) of rows (m, d) from their median, of those that are away at all.

    A few values that lie far away do not change it. It is 0 where nothing can be told.
    """
    found = np.zeros(rows.shape[1])
    for feature, column in enumerate(rows.T):
        there = column[np.isfinite(column)]
        if len(there) >= FEWEST_ROWS:
            off = (there - np.median(there)) ** 2
            found[feature] = np.median(off[off > 0]) if off.any() else 0.0
    return found


def spread_rows(n_rows: int) -> NDArray[np.intp]:
    """Return numbers of rows, spread evenly, by which `usual_squares` are told."""
    return np.linspace(0, n_rows - 1, min(n_rows, MOST_ROWS)).astype(np.intp)


def squares_of_observed(
    rows: Floats, observed: NDArray[np.uint8], points: NDArray[np.float64], n_threads: int
) -> Floats:
    """Squared distances by what is there of rows (m, d) to points (L, d), shape (m, L)."""
    width = rows.shape[1]
    out = np.empty((1, len(rows), len(points)), dtype=rows.dtype)
    ones, ends = np.ones((1, width)), np.array([0, width], dtype=np.intp)
    known = np.ascontiguousarray(np.where(observed, rows, 0).astype(rows.dtype, copy=False))
    marginal_diag(
        known, observed, ends, np.ascontiguousarray(points, dtype=np.float64), ones,
        np.zeros_like(ones), out, n_threads,
    )  # fmt: skip
    found: Floats = out[0]
    return found


def nearest(
    X: Floats | Arranges,
    centres: NDArray[np.float64],
    scaling: Scaling,
    n_threads: int,
    observed: NDArray[np.uint8] | None = None,
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """Nearest centre (M,) of each row and its squared distance (M,), some rows at a time.

    Rows (M, d) are in the units of the centres (K, d), of which the first of several is taken;
    distances are in those of ``scaling``. Values count where ``observed`` (M, d) is 1; None: all
    that are not NaN.
    """
    labels, distances = np.full(len(X), -1, dtype=np.int32), np.empty(len(X))
    places = np.ascontiguousarray(scaling.apply(centres), dtype=np.float64)
    with one_blas_thread():
        for start, part in row_blocks(X):
            rows = np.ascontiguousarray(scaling.apply(part))
            if rows.dtype not in (np.float32, np.float64):
                rows = rows.astype(np.float64)
            end = start + len(rows)
            there = None if observed is None else observed[start:end]
            if there is None and np.isnan(rows).any():
                there = np.ascontiguousarray(~np.isnan(rows), dtype=np.uint8)
            if there is not None:
                found = squares_of_observed(rows, there, places, n_threads)
                labels[start:end] = found.argmin(axis=1)
                distances[start:end] = found.min(axis=1)
                continue
            nearest_rows(rows, places, labels[start:end], distances[start:end], n_threads)
    return labels, distances
