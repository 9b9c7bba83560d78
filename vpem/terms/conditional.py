"""Missing values by what is there: their conditional law under a Gaussian mixture, hub by hub."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from vpem.terms.mixture import Mixture

__all__ = ["fill_gaps"]

Matrix = NDArray[np.float64]


def fill_gaps(
    mixture: Mixture, values: Matrix, shares: Sequence[Matrix], noise: Matrix | None = None
) -> Matrix:
    """Return the same values with no gaps; whatever was there stays.

    Of hub b, with the responsibilities g of all hubs together, a row's missing values become

        sum_k g_k (mu_mk + S_mok S_ook^-1 (x_o - mu_ok)),

    or, where there is noise, a draw from the component of which the responsibility is 1.

    Parameters
    ----------
    mixture : Mixture
        The law.
    values : ndarray of shape (m, d)
        In the user's order and units; NaN where a value is missing.
    shares : sequence of ndarray of shape (m, K)
        Responsibilities of the rows, as each hub has them.
    noise : ndarray of shape (m, d), optional
        Standard normal numbers.
    """
    scaled, found = mixture.scaling.apply(values), values.copy()
    noise = None if noise is None else mixture.blocks.arrange(noise, np.float64)
    for b, columns in enumerate(mixture.blocks.features):
        place = slice(mixture.blocks.offsets[b], mixture.blocks.offsets[b + 1])
        drawn = None if noise is None else noise[:, place]
        own = _filled(mixture, b, scaled[:, columns], shares[b], drawn)
        units = mixture.scaling.of(columns)
        gaps = np.isnan(values[:, columns])
        found[:, columns] = np.where(gaps, units.undo(own), values[:, columns])
    return found


def _filled(mixture: Mixture, b: int, own: Matrix, shares: Matrix, noise: Matrix | None) -> Matrix:
    """Fill the gaps of one hub's values (m, d_b), all of them in its order and units."""
    means, there = mixture.block(b)[1], ~np.isnan(own)
    covariances = mixture.dense(b)
    lacking = np.flatnonzero(~there.all(axis=1))
    if not len(lacking):
        return own
    found = own.copy()
    found[~there] = 0.0
    patterns, number = np.unique(there[lacking], axis=0, return_inverse=True)
    order = np.argsort(number.ravel(), kind="stable")
    groups = np.split(lacking[order], np.cumsum(np.bincount(number.ravel()))[:-1])
    for pattern, rows in zip(patterns, groups, strict=True):
        seen, gaps = np.flatnonzero(pattern), np.flatnonzero(~pattern)
        both, n = np.concatenate([seen, gaps]), len(seen)
        for k in np.flatnonzero(shares[rows].any(axis=0)):
            # One factor has what explains the gaps, and below it what is left of them.
            lower = np.linalg.cholesky(covariances[k][both[:, None], both])
            some = rows if noise is None else rows[shares[rows, k] > 0]
            away = own[some[:, None], seen] - means[k, seen]
            known = solve_triangular(lower[:n, :n], away.T, lower=True) if n else away.T
            expected = means[k, gaps] + (lower[n:, :n] @ known).T
            if noise is not None:
                expected += noise[some[:, None], gaps] @ lower[n:, n:].T
            found[some[:, None], gaps] += shares[some, k, None] * expected
    return found
