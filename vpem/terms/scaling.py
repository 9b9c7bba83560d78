"""Units: what each agent divides its own features by before fitting, and how it is undone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Matrix, row_blocks

__all__ = ["Add", "Scaling", "alone"]

Add = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Adds what every process with rows has found of its own."""


def alone(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum where one process has all rows."""
    return values


@dataclass(frozen=True)
class Scaling:
    """A shift and a scale a feature, each computed by the agent that holds it.

    Parameters
    ----------
    shift, scale : ndarray of shape (d,)
        In the user's order: fitted values are ``(x - shift) / scale``.
    """

    shift: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def none(cls, n_features: int) -> Scaling:
        """Return the scaling that changes nothing."""
        return cls(np.zeros(n_features), np.ones(n_features))

    @classmethod
    def standard(
        cls, X: Matrix, row_weights: NDArray[np.float64] | None, add: Add = alone
    ) -> Scaling:
        """Centre each feature and divide it by its standard deviation.

        Parameters
        ----------
        X : ndarray of shape (M, d)
        row_weights : ndarray of shape (M,) or None
            Weight of each row; None: all alike.
        add : callable
            Adds sums over rows of all processes.

        Returns
        -------
        Scaling
            A constant feature keeps the scale 1.
        """
        own_total = float(len(X)) if row_weights is None else float(row_weights.sum())
        total = add(np.array([own_total]))[0]
        weight, mean, squares = 0.0, np.zeros(X.shape[1]), np.zeros(X.shape[1])
        for start, part in row_blocks(X):
            # Of some rows about their own mean, and then with those before: one pass is enough.
            own = np.ones(len(part)) if row_weights is None else row_weights[start:][: len(part)]
            share = own / total
            of_all = share.sum()
            if of_all > 0:
                own_mean = share @ part.astype(np.float64, copy=False) / of_all
                step = own_mean - mean
                squares += share @ np.square(part - own_mean)
                squares += np.square(step) * (weight * of_all / (weight + of_all))
                mean += step * (of_all / (weight + of_all))
                weight += of_all
        shift = add(weight * mean)
        variance = squares + weight * np.square(mean - shift)
        scale = np.sqrt(add(variance))
        magnitude = np.maximum(np.abs(shift), 1.0)
        scale = np.where(scale > 1e-12 * magnitude, scale, 1.0)
        return cls(shift, scale)

    @property
    def is_none(self) -> bool:
        """Whether nothing is changed."""
        return not self.shift.any() and bool((self.scale == 1).all())

    def of(self, columns: Sequence[int] | NDArray[np.intp]) -> Scaling:
        """Return the units of some of the features."""
        return Scaling(self.shift[columns], self.scale[columns])

    @overload
    def apply(self, X: NDArray[np.float64]) -> NDArray[np.float64]: ...

    @overload
    def apply(self, X: Floats) -> Floats: ...

    def apply(self, X: Floats) -> Floats:
        """Scale rows of shape (..., d)."""
        if self.is_none:
            return X
        with np.errstate(over="ignore", invalid="ignore"):
            return (X - self.shift) / self.scale

    def undo(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scaled rows of shape (..., d) to the user's units."""
        if self.is_none:
            return X
        with np.errstate(over="ignore", invalid="ignore"):
            return X * self.scale + self.shift
