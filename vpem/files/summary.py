"""Each feature of a dataset in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Matrix, row_blocks


@dataclass(frozen=True)
class FeatureSummary:
    """Statistics of each feature over its finite values, arrays of shape (n_features,).

    ``sd`` has divisor n. A feature is ``constant`` if its finite values are all equal; where
    there are none, the statistics are nan. ``non_finite`` counts what was left out, ``missing``
    what of it is NaN.
    """

    mean: NDArray[np.float64]
    sd: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    constant: NDArray[np.bool_]
    non_finite: NDArray[np.intp]
    missing: NDArray[np.intp]


def summarize_features(X: Matrix) -> FeatureSummary:
    """Return statistics of each feature of ``X`` (M, d), by two passes in float64."""
    n_samples, n_features = X.shape
    used = np.zeros(n_features, dtype=np.intp)
    missing = np.zeros(n_features, dtype=np.intp)
    total, squares = np.zeros(n_features), np.zeros(n_features)
    low, high = np.full(n_features, np.inf), np.full(n_features, -np.inf)
    with np.errstate(all="ignore"):
        for _, part in row_blocks(X):
            finite = np.isfinite(part)
            used += finite.sum(axis=0)
            missing += np.isnan(part).sum(axis=0)
            total += np.where(finite, part, 0.0).sum(axis=0, dtype=np.float64)
            low = np.minimum(low, np.where(finite, part, np.inf).min(axis=0))
            high = np.maximum(high, np.where(finite, part, -np.inf).max(axis=0))
        mean = np.where(used > 0, total / used, np.nan)
        for _, part in row_blocks(X):
            away = np.where(np.isfinite(part), part - mean, 0.0)
            squares += (away * away).sum(axis=0)
        sd = np.where(used > 0, np.sqrt(squares / used), np.nan)
    low, high = np.where(used > 0, low, np.nan), np.where(used > 0, high, np.nan)
    return FeatureSummary(mean, sd, low, high, low == high, n_samples - used, missing)
