"""Missing values by what is there: their conditional law under a Gaussian mixture, hub by hub."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from vpem.terms.mixture import Mixture

Matrix = NDArray[np.float64]


def fill_gaps(
    mixture: Mixture, values: Matrix, shares: Mapping[int, Matrix], noise: Matrix | None = None
) -> Matrix:
    """Return values (m, d), in the user's order and units, without the gaps of some hubs.

    ``shares`` are responsibilities g (m, K) of the rows, by hub. What a hub lacks of a row becomes

        sum_k g_k (mu_mk + S_mok S_ook^-1 (x_o - mu_ok)),

    or where all are 0 but one, with standard normal noise (m, d), a draw from that component.
    """
    from scipy.linalg import solve_triangular

    scaled, found = mixture.scaling.apply(values), values.copy()
    noise = np.zeros(values.shape) if noise is None else noise
    for b, own in shares.items():
        columns, means, covariances = (
            mixture.blocks.features[b],
            mixture.block(b)[1],
            mixture.dense(b),
        )
        part, there = scaled[:, columns], ~np.isnan(scaled[:, columns])
        filled, drawn = np.where(there, part, 0.0), noise[:, columns]
        lacking = np.flatnonzero(~there.all(axis=1))
        patterns, number = np.unique(there[lacking], axis=0, return_inverse=True)
        order, counts = np.argsort(number.ravel(), kind="stable"), np.bincount(number.ravel())
        groups = np.split(lacking[order], np.cumsum(counts)[:-1])
        for pattern, rows in zip(patterns, groups, strict=False):
            seen, gaps = np.flatnonzero(pattern), np.flatnonzero(~pattern)
            both, n = np.concatenate([seen, gaps]), len(seen)
            for k in np.flatnonzero(own[rows].any(axis=0)):
                # One factor has what explains the gaps, and below it what is left of them.
                lower = np.linalg.cholesky(covariances[k][both[:, None], both])
                some = rows[own[rows, k] > 0]
                known = (part[some[:, None], seen] - means[k, seen]).T
                known = solve_triangular(lower[:n, :n], known, lower=True) if n else known
                left = lower[n:, n:] @ drawn[some[:, None], gaps].T
                expected = means[k, gaps] + (lower[n:, :n] @ known + left).T
                filled[some[:, None], gaps] += own[some, k, None] * expected
        filled = mixture.scaling.of(columns).undo(filled)
        found[:, columns] = np.where(there, values[:, columns], filled)
    return found
