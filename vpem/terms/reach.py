"""How far rows reach, as powers of two that all workers know: sums of them then fit fixed point."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem.terms.points import Points
from vpem.terms.scaling import Scaling

Vector = NDArray[np.float64]

WHOLE_BITS = 31
"""Of a number in fixed point, which has 32 more behind the point, and a sign."""

MOST_NATS = 2.0**24
"""Log-likelihood of a row, without its sign, that a mean over all rows may have."""


def exponents_of(bounds: Any, n_parties: int) -> NDArray[np.int64]:
    """Return the powers of two in units of which sums (P,) are as fine as they can be.

    No sum, nor any of the ``n_parties`` parts of it, is beyond ``bounds`` (P,).
    """
    _, found = np.frexp(np.asarray(bounds, dtype=np.float64) * (2.0 * n_parties))
    exponents: NDArray[np.int64] = found.astype(np.int64) - WHOLE_BITS
    return exponents


@dataclass(frozen=True)
class Reach:
    """Where the rows of all workers lie, by what masked sums have told all of them.

    ``points`` are about the mean of all rows and as wide as they spread; in the place of rows where
    one would have to be shown. ``lightest`` is a power of two where weights are not all 1: no row
    of positive weight has less; so is ``radius``, but for units: no row is farther from the mean in
    a feature.
    """

    n_parties: int  # workers, N
    n_rows: int  # used, of all workers
    mass: float  # what all rows weigh
    lightest: float
    points: Points
    radius: Vector  # (d,)
    constant: NDArray[np.bool_]  # (d,) one value, as far as can be told
    there: Vector | None = None  # (d,) part of the weight with a value

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
