"""Units in which one scale fits a whole statistic of a mixture: the data are white in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.terms.matrices import lower_half, symmetric, white_units

if TYPE_CHECKING:
    from vpem.terms.statistic_map import StatisticMap


Vector = NDArray[np.float64]


class Whitening:
    """Takes statistics of y to those of ``A y``, and back; both are linear.

    With ``A = C^(-1/2)``, C the second moments of the data about which all know, the statistic's
    numbers are alike in size whatever the units of the features and however they depend on each
    other. A quantizer's one scale then does not drown the directions in which the data vary little,
    which are those that a covariance's inverse is made of. With diagonal covariances, whose
    statistic has no products of features, A is diagonal; with spherical ones it is a number.
    """

    def __init__(self, layout: StatisticMap) -> None:
        self.layout = layout
        self.n_features = d = layout.n_features
        # The same ridge as the model's: a constant feature has a unit too.
        matrix = layout.second + np.diag(layout.reg_covar)
        deviations = np.sqrt(np.diagonal(matrix))
        if layout.is_spherical:
            deviations = np.full(d, np.sqrt(np.diagonal(matrix).mean()))
        if layout.is_diagonal:
            self._into, self._back = np.diag(1 / deviations), np.diag(deviations)
            return
        self._into, self._back = white_units(matrix)

    def into(self, statistics: Vector) -> Vector:
        """Statistics (m, P) of the white data."""
        return self._moved(statistics, self._into)

    def back(self, statistics: Vector) -> Vector:
        """Statistics (m, P) in the units of fitting, of those of the white data."""
        return self._moved(statistics, self._back)

    def _moved(self, statistics: Vector, matrix: Vector) -> Vector:
        m, k, d, layout = len(statistics), self.layout.n_components, self.n_features, self.layout
        out = statistics.copy()
        first = statistics[:, layout.first].reshape(m, k, d)
        out[:, layout.first] = (first @ matrix.T).reshape(m, k * d)
        squares = statistics[:, layout.squares]
        if squares.size == 0:
            return out
        if layout.is_spherical:
            out[:, layout.squares] = squares * matrix[0, 0] ** 2
        elif layout.is_diagonal:
            scaled = squares.reshape(m, k, d) * np.diagonal(matrix) ** 2
            out[:, layout.squares] = scaled.reshape(m, k * d)
        else:
            half = d * (d + 1) // 2
            full = symmetric(squares.reshape(m, squares.shape[1] // half, half), d)
            out[:, layout.squares] = lower_half(matrix @ full @ matrix.T).reshape(squares.shape)
        return out
