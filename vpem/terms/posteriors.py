"""What a mixture says of rows: densities and responsibilities, some of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem._core.normalise import normalise
from vpem._core.threads import one_blas_thread, thread_count
from vpem.checks import Floats, Matrix, as_array, check_finite
from vpem.errors import InputError, check_choice
from vpem.settings import MISSINGS
from vpem.terms.missing_patterns import check_missing

if TYPE_CHECKING:
    from vpem.terms.density import Density


CHUNK_VALUES = 1 << 20
"""Values of the largest temporary array when a mixture is evaluated."""


def posteriors(
    mixture: Density, X: Matrix, missing: str = "refuse"
) -> Iterator[tuple[slice, NDArray[np.float64], NDArray[np.float64]]]:
    """Responsibilities (m, K) and log-likelihoods (m,) of the assembled mixture, chunk by chunk.

    Rows (M, d) are in the user's order and units; missing values are refused or marginalized.
    """
    check_choice("missing", missing, MISSINGS)
    X = X if hasattr(X, "runs") else as_array("the data", X)
    if X.ndim != 2 or X.shape[1] != mixture.n_features:
        got = f"{X.shape[1]}" if X.ndim == 2 else f"an array of {X.ndim} dimensions"
        raise InputError(f"the model has {mixture.n_features} features, the data have {got}")
    size = max(64, CHUNK_VALUES // (max(mixture.blocks.n_blocks, 1) * mixture.n_components))
    with one_blas_thread():
        for start in range(0, len(X), size):
            rows = slice(start, min(start + size, len(X)))
            terms, constant = local_terms(mixture, X, rows, missing)
            sums = terms.sum(axis=0, keepdims=True)
            responsibilities, log_likelihoods = normalised(mixture, sums)
            yield rows, responsibilities, log_likelihoods + constant


def local_terms(
    mixture: Density, X: Matrix, rows: slice, missing: str
) -> tuple[Floats, NDArray[np.float64] | float]:
    """Terms (B, m, K) of each block for some rows, and what their density has besides, (m,)."""
    part = np.asarray(X[rows], dtype=np.float64)
    there = np.isfinite(part)
    if not there.all() and (missing == "refuse" or np.isinf(part).any()):
        (check_finite if missing == "refuse" else check_missing)(X)
    return mixture.terms_of(part, there)


def normalised(mixture: Density, sums: Floats) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Responsibilities (m, K) and log-densities (m,) of the sum (1, m, K) of all blocks' terms."""
    log_weights = mixture.assembled_log_weights[None, :]
    responsibilities = np.empty_like(sums)
    log_likelihoods = np.empty(sums.shape[:2])
    normalise(sums, log_weights, responsibilities, log_likelihoods, thread_count(None))
    return responsibilities[0], log_likelihoods[0]
