"""Points that all agents draw alike, in the place of rows that nobody may show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.terms.scaling import Scaling


def root_of(covariance: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a root (d, d) of a covariance, of which rounding may have made directions negative.

    Features may be in units of any size.
    """
    deviations = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    units = np.where(deviations > 0, deviations, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(units, units))
    root: NDArray[np.float64] = deviations[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
    return root


class Points:
    """Points about a centre (d,), each of which has a number below zero and follows from it.

    ``root`` is the standard deviation (d,) of each feature, or a root (d, d) of the covariance.
    """

    def __init__(self, centre: NDArray[np.float64], root: NDArray[np.float64]) -> None:
        self.centre, self.root = centre, root

    def take(self, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return points (L, d); the same number is the same point anywhere."""
        width = len(self.centre)
        normals = np.empty((len(numbers), width))
        for place, number in enumerate(numbers.tolist()):
            if number >= 0:
                raise ValueError("rows stay where they are: points have numbers below zero")
            normals[place] = np.random.default_rng(-number).standard_normal(width)
        return self.centre + self._spread(normals)

    def near(
        self, rng: np.random.Generator, about: NDArray[np.float64], sizes: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        """Draw a point near each of some (L, d): so far off, in parts of the spread (L,)."""
        normals = rng.standard_normal((len(about), len(self.centre)))
        return about + sizes[:, None] * self._spread(normals)

    def scaled(self, scaling: Scaling) -> Points:
        """Return the same in other units, those of `Scaling.apply`."""
        units = scaling.scale if self.root.ndim == 1 else scaling.scale[:, None]
        return Points((self.centre - scaling.shift) / scaling.scale, self.root / units)

    @property
    def variances(self) -> NDArray[np.float64]:
        """Variance of each feature (d,)."""
        squares = self.root**2
        return squares if squares.ndim == 1 else squares.sum(axis=1)

    def _spread(self, normals: NDArray[np.float64]) -> NDArray[np.float64]:
        spread: NDArray[np.float64] = (
            normals * self.root if self.root.ndim == 1 else normals @ self.root.T
        )
        return spread
