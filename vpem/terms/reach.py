"""How far rows reach, as powers of two that all workers know: sums of them then fit fixed point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.terms.points import Points
from vpem.terms.scaling import Scaling

__all__ = ["MOST_NATS", "Reach", "exponents_of"]

Vector = NDArray[np.float64]

WHOLE_BITS = 31
"""Of a number in fixed point, which has 32 more behind the point, and a sign."""

MOST_NATS = 2.0**24
"""Log-likelihood of a row, without its sign, that a mean over all rows may have."""


def exponents_of(bounds: Any, n_parties: int) -> NDArray[np.int64]:
    """Return the powers of two in units of which sums (P,) are as fine as they can be.

    Parameters
    ----------
    bounds : ndarray of shape (P,)
        What no sum, nor any party's part of it, is beyond; not negative.
    n_parties : int
        Of how many parts sums are.
    """
    _, found = np.frexp(np.asarray(bounds, dtype=np.float64) * (2.0 * n_parties))
    exponents: NDArray[np.int64] = found.astype(np.int64) - WHOLE_BITS
    return exponents


@dataclass(frozen=True)
class Reach:
    """Where the rows of all workers lie, by what masked sums have told all of them.

    Parameters
    ----------
    n_parties : int
        Workers, N.
    n_rows : int
        Rows that are used, of all workers.
    mass : float
        What all rows weigh.
    lightest : float
        No row of positive weight has less; a power of two where weights are not all 1.
    points : Points
        About the mean of all rows and as wide as they spread; in the place of rows where one would
        have to be shown.
    radius : ndarray of shape (d,)
        No row is farther from the mean in a feature; a power of two, but for units.
    constant : ndarray of shape (d,)
        Whether all rows have one value of a feature, as far as can be told.
    there : ndarray of shape (d,) or None
        Part of the rows' weight that has a value of each feature; None: all have all.
    """

    n_parties: int
    n_rows: int
    mass: float
    lightest: float
    points: Points
    radius: Vector
    constant: NDArray[np.bool_]
    there: Vector | None = None

    @property
    def alike(self) -> Reach:
        """The same for sums in which every row counts as one."""
        return replace(self, mass=float(self.n_rows))

    def scaled(self, scaling: Scaling) -> Reach:
        """Return the same in other units, those of `Scaling.apply`."""
        if scaling.is_none:
            return self
        return replace(self, points=self.points.scaled(scaling), radius=self.radius / scaling.scale)

    def off(self, points: Vector) -> Vector:
        """How far any row may be from points (..., d), in each feature."""
        return self.radius + np.abs(points - self.points.centre)

    def of_clusters(self, centres: Vector, between: list[Vector]) -> NDArray[np.int64]:
        """Return exponents of what is summed of clusters about centres (K, d).

        Weights, numbers ``between`` of which these are the bounds in a row, the inertia, and how
        many rows changed.
        """
        farthest = (self.off(centres) ** 2).sum(axis=1).max()
        own = self.exponents(np.ones(len(centres)), *between, farthest)
        return np.append(own, self.alike.exponents(1.0))

    def exponents(self, *bounds: Any) -> NDArray[np.int64]:
        """Return exponents of sums over rows, in whose rows nothing is beyond these bounds."""
        flat = np.concatenate([np.ravel(np.asarray(one, dtype=np.float64)) for one in bounds])
        return exponents_of(self.mass * flat, self.n_parties)
