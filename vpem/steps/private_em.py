"""EM over rows of which all hear noisy statistics only: a start, and so many iterations.

Every release is one sum with noise (`vpem.sums.noisy.Noisy`); all that is computed from it is
known to all, and costs nothing more. The statistics are of residuals about the components as they
are known, in units of their own spread, so that the noise is measured by what is fitted and not by
the bounds (in the spirit of Park, Foulds, Chaudhuri and Welling, *DP-EM*, 2017, whose statistics
are about zero, and of Biswas, Dong, Kamath and Ullman, *CoinPress*, 2020, who clip about an
estimate).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError
from vpem.steps.private_start import LEAST_SPREAD, MOST_SPREAD, find_start, spread_of
from vpem.steps.releases import Releases
from vpem.terms.residuals import Parts, Residuals

Vector = NDArray[np.float64]

SHARES = {"histograms": 0.1, "moments": 0.1, "sketch": 0.2}
"""What the three releases of the start have of the budget; iterations share the rest."""

FEWEST = 0.02
"""Share of the rows of a component of average size that every component has at least."""

FARTHEST = 3.0
"""Standard deviations that a mean goes in one step at most."""

SHRINKS, GROWS = 0.1, 10.0
"""By which a variance changes in one step at most."""


def shares_of(n_iter: int, n_components: int) -> list[float]:
    """Return what each release has of the budget: those of the start, then each iteration."""
    names = ("histograms", "moments") if n_components == 1 else tuple(SHARES)
    start = [SHARES[name] for name in names]
    return [*start, *[(1 - sum(start)) / n_iter] * n_iter]


def length_of(iteration: int, n_iter: int) -> float:
    """Return the length of the step of an iteration, from 1, of so many: see `run_private`."""
    return 1 / max(1, iteration - n_iter // 2 + 1)


def run_private(
    releases: Releases,  # as many multipliers as `shares_of` has shares
    layout: Residuals,
    n_samples: int,  # M of all workers, public
    n_iter: int,
    *,
    hard: bool = False,  # k-means, where there is one spread
    seed: Sequence[int] = (0,),  # of the search in the sketch
    shared: Callable[[Parts], Parts] = lambda parts: parts,  # returns the first process's start
    callback: Callable[[int], None] | None = None,  # given each iteration
) -> Parts:
    """Fit a mixture by so many noisy sums; the result is in bounded units.

    In the first half of the iterations steps are whole; in the second they are a half, a third and
    so on of the way, so that what is found is a mean over these iterations, and so is their noise:
    a fit of more iterations is hardly noisier than one of few.
    """
    parts = shared(find_start(releases, layout, n_samples, np.random.default_rng(list(seed))))
    parts = replace(parts, hard=hard)
    for iteration in range(1, n_iter + 1):
        message, _ = releases.take(
            layout.deviations(),
            lambda worker, now=parts: releases.rows.residuals(worker, now, layout),  # type: ignore[misc]
            "estep",
        )
        parts = step(parts, layout, message, n_samples, length_of(iteration, n_iter))
        if callback is not None:
            callback(iteration)
    return parts


# ---- M-step --------------------------------------------------------------------------------------


def step(parts: Parts, layout: Residuals, message: Vector, n_samples: int, length: float) -> Parts:
    """Take an M-step of noisy statistics (P,), repaired where no rows could have them.

    It goes the part ``length`` of the way from ``parts``, which the statistics are about.
    """
    if not np.isfinite(message).all():
        raise NumericalError("a noisy sum is not finite")
    counts, firsts, seconds = layout.unpacked(message)
    k = layout.n_components
    counts = np.maximum(counts, FEWEST * n_samples / k)
    weights = (1 - length) * parts.weights + length * counts / counts.sum()
    counts = counts / counts.sum() * n_samples
    steps = length * firsts / counts[:, None]
    norms = np.linalg.norm(steps, axis=1, keepdims=True)
    steps *= FARTHEST / np.maximum(norms, FARTHEST)
    moved = [_apply(spread, one) for spread, one in zip(parts.spreads, steps, strict=True)]
    means = np.clip(parts.means + np.stack(moved), -1, 1)
    if layout.copies == 1:
        squares = _squares(steps, layout, counts / n_samples).sum(axis=0, keepdims=True)
        changes = length * seconds / n_samples - squares
        one = _changed(parts.spreads[0], changes[0], parts.is_spherical)
        spreads = np.repeat(one[None], k, axis=0)
        return replace(parts, weights=weights, means=means, spreads=spreads)
    changes = length * seconds / counts.reshape(-1, *[1] * (seconds.ndim - 1))
    changes = changes - _squares(steps, layout, np.ones(k))
    every = [
        _changed(spread, change, parts.is_spherical)
        for spread, change in zip(parts.spreads, changes, strict=True)
    ]
    return replace(parts, weights=weights, means=means, spreads=np.stack(every))


def _apply(spread: Vector, step: Vector) -> Vector:
    """Return a step of a mean in bounded units."""
    return spread * step if spread.ndim == 1 else spread @ step


def _squares(steps: Vector, layout: Residuals, weights: Vector) -> Vector:
    """What moves of means (K, d) take from second moments, times weights (K,)."""
    if layout.shape == "full":
        products: Vector = np.einsum("k,ki,kj->kij", weights, steps, steps)
        return products
    squares: Vector = weights[:, None] * np.square(steps)
    if layout.shape == "spherical":
        squares = np.repeat(squares.mean(axis=1, keepdims=True), squares.shape[1], axis=1)
    return squares


def _changed(spread: Vector, change: Vector, is_spherical: bool) -> Vector:
    """Return the spread of a covariance ``L (I + change) L'``, its eigenvalues within bounds."""
    if spread.ndim == 1:
        variances = np.square(spread) * np.clip(1 + change, SHRINKS, GROWS)
        found: Vector = np.clip(np.sqrt(variances), LEAST_SPREAD, MOST_SPREAD)
        return np.full_like(found, found.mean()) if is_spherical else found
    values, vectors = np.linalg.eigh(np.eye(len(spread)) + change)
    inner = (vectors * np.clip(values, SHRINKS, GROWS)) @ vectors.T
    return spread_of(spread @ inner @ spread.T)
