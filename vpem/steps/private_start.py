"""Where a private fit of rows starts: found in noisy sums, in which one may search at no cost.

Histograms of each feature give its centre and width; second moments in these units the directions
in which rows differ most; a histogram over two or three of these (the *sketch*), in which centres
are searched for from as many starts as one likes, the components.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from vpem.steps.releases import Releases
from vpem.terms.residuals import Parts, Residuals

Vector = NDArray[np.float64]

N_BINS = 32
"""Of the histogram of a feature."""

REACH = 3.0
"""Standard deviations that a sketch goes from its centre."""

MOST_BINS = 64
"""Of a direction of the sketch."""

SEARCHES, STEPS = 20, 50
"""Starts in the sketch, and steps of each."""

CLEARLY = 800
"""Rows a standard deviation of a cell's noise, from which on a sketch has three directions."""

CLEAR = 2.0
"""Standard deviations of the noise above which a cell counts."""

LEAST_WEIGHT = 0.3
"""The same of the start, where it is too early to give up a component."""

LEAST_SPREAD, MOST_SPREAD = 1e-4, 1.0
"""Standard deviations of components, in half the width of the bounds."""


def find_start(
    releases: Releases, layout: Residuals, n_samples: int, rng: np.random.Generator
) -> Parts:
    """Find where to start, by the releases of the start."""
    centre, covariance = _overall(releases, n_samples)
    k, kind = layout.n_components, layout.kind
    if k == 1:
        return Parts(np.ones(1), centre[None], _spreads(covariance[None], kind), kind)
    scale = np.sqrt(np.diag(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(scale, scale))
    q, n_bins = shape_of_sketch(n_samples, releases.multipliers[0], len(centre))
    values, vectors = values[::-1][:q], vectors[:, ::-1][:, :q]
    directions = vectors / scale[:, None] / np.sqrt(values)
    counts, noise = releases.take(
        np.ones(n_bins**q),
        lambda worker: releases.rows.sketch(worker, centre, directions, n_bins, REACH),
        "setup",
        whole=True,
    )
    weights, centres, inner = search_sketch(counts, noise, n_bins, q, k, rng)
    weights = np.maximum(weights, LEAST_WEIGHT / k)
    axes = scale[:, None] * vectors * np.sqrt(values)
    # Outside of the sketch all components spread as the rows do, in it as they do there.
    outside = covariance - axes @ axes.T
    covariances = outside + np.einsum("iq,kqr,jr->kij", axes, inner, axes)
    means = np.clip(centre + centres @ axes.T, -1, 1)
    if layout.copies == 1:
        covariances[:] = np.tensordot(weights / weights.sum(), covariances, axes=1)
    return Parts(weights / weights.sum(), means, _spreads(covariances, kind), kind)


def shape_of_sketch(n_samples: int, multiplier: float, n_features: int) -> tuple[int, int]:
    """Return the directions of a sketch, and the cells of each: of few rows, or much noise, few."""
    cells = 9 * sqrt(n_samples / multiplier)
    q = min(n_features, 3 if cells > 9 * sqrt(CLEARLY) else 2)
    return q, int(np.clip(round(cells ** (1 / q)), 4, MOST_BINS))


def n_values_of_start(n_samples: int, multipliers: Sequence[float], layout: Residuals) -> int:
    """Return how many noisy numbers the releases of a start have, by the multipliers of all."""
    d = layout.n_features
    found = N_BINS * d + Residuals("full", 1, d).size
    if layout.n_components > 1:
        q, n_bins = shape_of_sketch(n_samples, multipliers[2], d)
        found += n_bins**q
    return found


def _spreads(covariances: Vector, kind: str) -> Vector:
    """Return the spreads of covariances (K, d, d) for a covariance type."""
    spreads = np.stack([spread_of(one) for one in covariances])
    if kind in ("full", "tied"):
        return spreads
    variances = np.einsum("kij,kij->ki", spreads, spreads)
    if kind.endswith("spherical"):
        variances[:] = variances.mean(axis=1, keepdims=True)
    found: Vector = np.sqrt(variances)
    return found


def _overall(releases: Releases, n_samples: int) -> tuple[Vector, Vector]:
    """Centre (d,) and covariance (d, d) of all rows, by two releases."""
    rows, d = releases.rows, releases.rows.n_features
    counts, noise = releases.take(
        np.full(d * N_BINS, sqrt(d)),
        lambda worker: rows.histograms(worker, N_BINS).ravel(),
        "setup",
        whole=True,
    )
    centre, width = _widths(counts.reshape(d, N_BINS), noise * sqrt(d))
    one, layout = Parts(np.ones(1), centre[None], width[None], "diag"), Residuals("full", 1, d)
    message, noise = releases.take(
        layout.deviations(), lambda worker: rows.residuals(worker, one, layout), "setup"
    )
    _, firsts, seconds = layout.unpacked(message)
    shift = np.clip(firsts[0] / n_samples, -1, 1)
    values, vectors = np.linalg.eigh(np.eye(d) + seconds[0] / n_samples - np.outer(shift, shift))
    # Below this an eigenvalue of the noise alone may lie.
    lowest = max(0.01, noise * layout.scales[2] * sqrt(d) / n_samples)
    correlation = (vectors * np.maximum(values, lowest)) @ vectors.T
    return np.clip(centre + width * shift, -1, 1), correlation * np.outer(width, width)


def _widths(counts: Vector, noise: float) -> tuple[Vector, Vector]:
    """Mean and standard deviation (d,) of features, by noisy histograms (d, n_bins)."""
    n_bins = counts.shape[1]
    places = (np.arange(n_bins) + 0.5) * (2 / n_bins) - 1
    clear = np.where(counts > CLEAR * noise, counts, 0.0)
    known = clear.sum(axis=1) > 0
    shares = np.where(known[:, None], clear, np.maximum(counts, 0) + 1e-9)
    shares /= shares.sum(axis=1, keepdims=True)
    centre = shares @ places
    variance = (shares * np.square(places - centre[:, None])).sum(axis=1) - (2 / n_bins) ** 2 / 12
    return centre, np.sqrt(np.maximum(variance, (1 / n_bins) ** 2))


def search_sketch(
    counts: Vector, noise: float, n_bins: int, q: int, k: int, rng: np.random.Generator
) -> tuple[Vector, Vector, Vector]:
    """Search the noisy counts of a sketch for components, from many starts.

    Returned are weights (K,), centres (K, q) and covariances (K, q, q) of the best that was found.
    """
    width = 2 * REACH / n_bins
    middles = (np.arange(n_bins) + 0.5) * width - REACH
    cells = np.stack(np.meshgrid(*[middles] * q, indexing="ij"), axis=-1).reshape(-1, q)
    clear = np.where(counts > CLEAR * noise, counts, 0.0)
    if (clear > 0).sum() <= k:
        clear = np.maximum(counts, 0.0) + 1e-9
    used = clear > 0
    cells, clear = cells[used], clear[used] / clear.sum()
    found = [_searched(cells, clear, k, width, rng) for _ in range(SEARCHES)]
    return max(found, key=lambda one: one[0])[1:]


def _searched(
    cells: Vector, shares: Vector, k: int, width: float, rng: np.random.Generator
) -> tuple[float, Vector, Vector, Vector]:
    """EM on weighted cells from centres drawn among them; with the log-likelihood."""
    q = cells.shape[1]
    floor = np.eye(q) * (width**2 / 12 + 0.02)
    centres = cells[rng.choice(len(cells), k, p=shares)] + 0.05 * rng.normal(size=(k, q))
    weights, spreads = np.full(k, 1 / k), np.tile(0.3 * np.eye(q), (k, 1, 1))
    found = -np.inf
    for _ in range(STEPS):
        factors = np.linalg.cholesky(spreads)
        apart = cells[None] - centres[:, None]
        z = np.linalg.solve(factors, apart.transpose(0, 2, 1))
        logs = np.log(weights) - np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(axis=1)
        logs = logs[:, None] - 0.5 * np.square(z).sum(axis=1)
        highest = logs.max(axis=0)
        of_cells = highest + np.log(np.exp(logs - highest).sum(axis=0))
        own = np.exp(logs - of_cells) * shares
        found, counts = float(shares @ of_cells), own.sum(axis=1) + 1e-9
        weights = counts / counts.sum()
        centres = own @ cells / counts[:, None]
        apart = cells[None] - centres[:, None]
        spreads = np.einsum("kc,kci,kcj->kij", own, apart, apart) / counts[:, None, None] + floor
    return found, weights, centres, spreads


def spread_of(covariance: Vector) -> Vector:
    """Return the Cholesky factor of a covariance whose eigenvalues are moved within bounds."""
    values, vectors = np.linalg.eigh((covariance + covariance.T) / 2)
    inside = (vectors * np.clip(values, LEAST_SPREAD**2, MOST_SPREAD**2)) @ vectors.T
    found: Vector = np.linalg.cholesky(inside)
    return found
