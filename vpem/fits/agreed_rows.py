"""What workers find out about their rows together by masked sums, before all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.files.matrix import FileMatrix
from vpem.fits.fedem_moments import HeldPart
from vpem.fits.local_rows import LocalRows
from vpem.network.partition import Blocks
from vpem.sums.counted import add_vectors
from vpem.sums.powers import powers_above
from vpem.sums.sum import Sum
from vpem.terms.matrices import lower_half, symmetric
from vpem.terms.matrix import arrange_rows
from vpem.terms.points import Points, root_of
from vpem.terms.reach import Reach, exponents_of
from vpem.terms.scaling import Scaling

Vector = NDArray[np.float64]

ROUNDED = 2.0**-48
"""Of the largest value of a feature, below which differences may be of rounding alone."""

WIDE = 1024
"""Features beyond which covariances are left out, which are only to draw points by."""


def parts_of(
    X: Floats | FileMatrix, here: LocalRows, row_weights: Vector | None = None
) -> list[HeldPart]:
    """Rows of each worker of this process, in the user's units, and their weights (m,)."""
    width = X.shape[1]
    blocks = Blocks((np.arange(width),), (0,), ((0,),))
    rows = arrange_rows(X, blocks, Scaling.none(width), np.float64)
    if row_weights is None:
        return [
            HeldPart(rows.part(run), None, float(run.stop - run.start)) for run in here.own_runs
        ]
    weights = [row_weights[run] for run in here.own_runs]
    return [
        HeldPart(rows.part(run), own, float(own.sum()))
        for run, own in zip(here.own_runs, weights, strict=True)
    ]


def agree_on_rows(
    parts: Sequence[HeldPart],
    total: Sum,
    n_rows: int,
    width: int,
    *,
    misses: bool = False,
    weighted: bool = False,
) -> Reach:
    """Find out where the used rows of all workers lie, by a counted and masked sum.

    It takes the powers of two that values of each feature are below, the mean, the powers of two of
    how far from it rows lie, and second moments about it; where rows have weights, powers of two of
    the heaviest and the lightest, and what all weigh. Of a feature that rows miss these are of the
    values that are there.
    """
    n = total.holders.n_agents
    mass, lightest = _weights(parts, total, n_rows) if weighted else (float(n_rows), 1.0)
    largest = powers_above(total, _sizes(parts, np.zeros(width)))
    sums = np.zeros((len(parts), 2 * width if misses else width))
    for own, part in zip(sums, parts, strict=True):
        if part.mass:
            own[:] = part.mass * part.means(None, misses=misses)
    bounds = np.concatenate([largest, np.ones(sums.shape[1] - width)])
    found = add_vectors(total, sums, "setup", exponents_of(mass * bounds, n))[0] / mass
    there = found[width:] if misses else None
    centre = found if there is None else found[:width] / np.where(there > 0, there, 1.0)
    apart = powers_above(total, _sizes(parts, centre))
    least = np.where(largest > 0, ROUNDED * largest, ROUNDED)
    radius, nothing = np.maximum(apart, least), Points(centre, np.zeros(width))
    reach = Reach(n, n_rows, mass, lightest, nothing, radius, apart <= least, there)
    return replace(reach, points=Points(centre, _root(parts, total, reach)))


def _weights(parts: Sequence[HeldPart], total: Sum, n_rows: int) -> tuple[float, float]:
    """What all rows weigh, and a power of two that none of positive weight is below."""
    ends = np.zeros((len(parts), 2))
    for own, part in zip(ends, parts, strict=True):
        if part.weights is not None and part.mass:
            heavy = part.weights[part.weights > 0]
            own[:] = heavy.max(), 1.0 / heavy.min()
    heaviest, inverse = powers_above(total, ends)
    masses = np.array([part.mass for part in parts]).reshape(-1, 1)
    units = exponents_of([n_rows * heaviest], total.holders.n_agents)
    return float(add_vectors(total, masses, "setup", units)[0, 0]), 1.0 / float(inverse)


def _sizes(parts: Sequence[HeldPart], about: Vector) -> Vector:
    """Largest distance (n, d) from a point of each worker's rows, in each feature."""
    found = np.zeros((len(parts), len(about)))
    for own, part in zip(found, parts, strict=True):
        for rows, weights in part.runs():
            some = rows if weights is None else rows[weights > 0]
            np.fmax(own, np.fmax.reduce(np.abs(some - about), axis=0, initial=0.0), out=own)
    return found


def _root(parts: Sequence[HeldPart], total: Sum, reach: Reach) -> Vector:
    """Root (d, d) of the covariance of all rows, or deviations (d,) of many features."""
    centre, width = reach.points.centre, len(reach.radius)
    wide = width > WIDE
    values = np.zeros((len(parts), width if wide else width * (width + 1) // 2))
    for own, part in zip(values, parts, strict=True):
        if not part.mass:
            continue
        if wide:
            for rows, weights in part.runs():
                squares = np.nan_to_num(rows - centre) ** 2
                own += squares.sum(axis=0) if weights is None else weights @ squares
        else:
            own[:] = lower_half(part.squares(centre))
    bounds = reach.radius**2 if wide else lower_half(np.outer(reach.radius, reach.radius))
    found = add_vectors(total, values, "setup", reach.exponents(bounds))[0] / reach.mass
    there = 1.0 if reach.there is None else np.where(reach.there > 0, reach.there, 1.0)
    if wide:
        deviations: Vector = np.sqrt(np.maximum(found, 0.0) / there)
        return deviations
    covariance = symmetric(found, width)
    # Values that are missing vary as those that are there do.
    np.fill_diagonal(covariance, np.diagonal(covariance) / there)
    return root_of(covariance)


def units_by_reach(reach: Reach, hubs: Blocks | None = None) -> Scaling:
    """Return features about their means in their own standard deviations; see `Scaling.by`."""
    deviations = np.where(reach.constant, 0.0, np.sqrt(reach.points.variances))
    return Scaling.by(reach.points.centre, deviations, hubs)
