"""Rows that a fit uses: of positive weight, and with a value; told of to all, or to nobody."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vpem.checks import check_weights
from vpem.errors import InputError, VpemWarning

if TYPE_CHECKING:
    from vpem.fits.local_rows import LocalRows


NOTHING_USED = "no row that is used has a value; give data with some"


def weighed(
    scores: NDArray[np.float64], there: NDArray[np.bool_], sample_weight: Any = None
) -> tuple[float, float]:
    """Return the weighted sum of the scores of rows, and the weight of those with a value."""
    weights = np.ones(len(scores))
    if sample_weight is not None:
        weights = check_weights(np.asarray(sample_weight), len(scores))
    used = float(weights[there].sum())
    if used == 0:
        raise InputError(NOTHING_USED)
    return float(weights @ scores), used


def _without_blank(blank: NDArray[np.bool_], sample_weight: Any) -> NDArray[np.float64]:
    """Return weights (M,) in which rows of which nobody has a value, told of, have none."""
    n_samples = len(blank)
    if sample_weight is None:
        sample_weight = np.ones(n_samples)
    weights = np.where(blank, 0.0, check_weights(sample_weight, n_samples))
    if not weights.any():
        raise InputError(NOTHING_USED)
    _warn_of_blank(int(blank.sum()), n_samples)
    return weights


def _warn_of_blank(count: int, n_samples: int) -> None:
    warnings.warn(
        f"{count} of {n_samples} rows have no value at all and take no part; the "
        "log-likelihood per sample is of the others",
        VpemWarning,
        stacklevel=5,
    )


@dataclass
class Used:
    """Rows that are used: their weights, their numbers (None: all), how many of all; here, too."""

    weights: NDArray[np.float64] | None
    kept: NDArray[np.intp] | None
    n_rows: int
    own: NDArray[np.intp] | None


def used_of_all(
    blank: NDArray[np.bool_], sample_weight: Any, n_samples: int, here: LocalRows | None
) -> Used:
    """Rows of positive weight that have a value, of which all are told."""
    weights = sample_weight
    if sample_weight is not None and here is not None:
        weights = here.everyones(sample_weight)
    if blank.any():
        weights = _without_blank(blank, weights)
    if weights is None:
        return Used(None, None, n_samples, None)
    weights = check_weights(weights, n_samples)
    kept = np.flatnonzero(weights > 0)
    own = kept if here is None else np.flatnonzero(weights[here.numbers] > 0)
    weighs = None if sample_weight is None else weights[kept]
    if len(kept) == n_samples:
        return Used(weighs, None, n_samples, None)
    return Used(weighs, kept, len(kept), own)


def used_here(
    blank: NDArray[np.bool_], weights: NDArray[np.float64] | None, misses: bool, here: LocalRows
) -> Used:
    """Rows of this process of positive weight that have a value; nobody is told whose they are."""
    used = np.ones(here.rows.stop - here.rows.start, dtype=np.bool_)
    if weights is None and not misses:
        return Used(None, None, here.n_samples, None)
    if misses:
        used = ~blank
        n_blank = here.n_samples - here.count(used)
        if n_blank:
            _warn_of_blank(n_blank, here.n_samples)
    if weights is not None:
        used = used & (weights > 0)
    n_used = here.count(used)
    if not n_used:
        raise InputError(NOTHING_USED)
    own = None if used.all() else np.flatnonzero(used)
    return Used(None if weights is None else weights[used], own, n_used, own)
