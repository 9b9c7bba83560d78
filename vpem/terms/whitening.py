"""Units in which one scale fits a whole statistic of a mixture: the data are white in them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vpem.terms.matrices import lower_half, symmetric, white_units

if TYPE_CHECKING:
    from vpem.terms.mixture_statistics import MixtureStatistics

__all__ = ["Whitening"]

Vector = NDArray[np.float64]


class Whitening:
    """Takes statistics of y to those of ``A y``, and back; both are linear.

    With ``A = C^(-1/2)``, C the second moments of the data about which all know, the statistic's
    numbers are alike in size whatever the units of the features and however they depend on each
    other. A quantizer's one scale then does not drown the directions in which the data vary little,
    which are those that a covariance's inverse is made of. With diagonal covariances, whose
    statistic has no products of features, A is diagonal; with spherical ones it is a number.

    Parameters
    ----------
    model : MixtureStatistics
        Whose statistics, and whose second moments.
    """

    def __init__(self, model: MixtureStatistics) -> None:
        self.n_components = model.n_components
        self.n_features = d = model.n_features
        kind = model.covariance_type
        self._is_spherical = kind.endswith("spherical")
        self._is_diagonal = self._is_spherical or kind.endswith("diag")
        # The same ridge as the model's: a constant feature has a unit too.
        matrix = model.second + model.reg_covar * np.eye(d)
        deviations = np.sqrt(np.diagonal(matrix))
        if self._is_spherical:
            deviations = np.full(d, np.sqrt(np.diagonal(matrix).mean()))
        if self._is_diagonal:
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
        m, k, d = len(statistics), self.n_components, self.n_features
        end = k + k * d
        out = statistics.copy()
        out[:, k:end] = (statistics[:, k:end].reshape(m, k, d) @ matrix.T).reshape(m, k * d)
        squares = statistics[:, end:]
        if squares.size == 0:
            return out
        if self._is_spherical:
            out[:, end:] = squares * matrix[0, 0] ** 2
        elif self._is_diagonal:
            scaled = squares.reshape(m, k, d) * np.diagonal(matrix) ** 2
            out[:, end:] = scaled.reshape(m, -1)
        else:
            full = symmetric(squares.reshape(m, k, -1), d)
            out[:, end:] = lower_half(matrix @ full @ matrix.T).reshape(m, -1)
        return out
