"""Units: what each agent divides its own features by before fitting, and how it is undone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats, Matrix, row_blocks
from vpem.errors import Setting, VpemWarning
from vpem.network.partition import Blocks

FLOOR = 1e-6
"""What ``auto`` adds to variances of features in their own standard deviations."""

TENFOLD = 10.0
"""Ratio of standard deviations from which on what depends on units is said to."""

Add = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""Adds what every process with rows has found of its own."""


def alone(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sum where one process has all rows."""
    return values


class RunningMoments:
    """Means and squares about them of rows that come a run at a time: one pass is enough.

    Parameters
    ----------
    n_features : int
        d.

    Attributes
    ----------
    weight : float
        Shares of all rows that have come.
    mean, squares : ndarray of shape (d,)
        Of each feature, by these shares: its mean, and the sum of squares about it.
    """

    def __init__(self, n_features: int) -> None:
        self.weight, self.mean, self.squares = 0.0, np.zeros(n_features), np.zeros(n_features)

    def take(self, rows: Floats, share: NDArray[np.float64]) -> None:
        """Add rows (m, d) of some shares (m,) of all."""
        of_all = share.sum()
        if of_all > 0:
            # Of some rows about their own mean, and then with those before.
            own_mean = share @ rows.astype(np.float64, copy=False) / of_all
            step = own_mean - self.mean
            self.squares += share @ np.square(rows - own_mean)
            self.squares += np.square(step) * (self.weight * of_all / (self.weight + of_all))
            self.mean += step * (of_all / (self.weight + of_all))
            self.weight += of_all

    def joined(
        self, add: Add = alone, part: float = 1.0
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return means and standard deviations (d,) over the rows of all processes.

        ``part`` of all is what the shares of this process's rows are of.
        """
        weight = part * self.weight
        shift = add(weight * self.mean)
        variance = part * self.squares + weight * np.square(self.mean - shift)
        return shift, deviations_of(shift, add(variance))


def deviations_of(
    means: NDArray[np.float64], variances: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return standard deviations (d,), 0 of those that may be of rounding alone."""
    found = np.sqrt(variances)
    return np.where(found > 1e-12 * np.abs(means), found, 0.0)


def spreads_apart(deviations: NDArray[np.float64]) -> float:
    """Return the ratio of the largest standard deviation to the least that is none."""
    own = deviations[deviations > 0]
    return float(own.max() / own.min()) if own.size else 1.0


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
        cls,
        X: Matrix,
        row_weights: NDArray[np.float64] | None,
        add: Add = alone,
        hubs: Blocks | None = None,
    ) -> Scaling:
        """Centre each feature and divide it by its standard deviation.

        A constant feature keeps the scale 1. ``add`` adds sums over rows of all processes; ``hubs``
        is as for `by`.
        """
        own_total = float(len(X)) if row_weights is None else float(row_weights.sum())
        total = add(np.array([own_total]))[0]
        moments = RunningMoments(X.shape[1])
        for start, part in row_blocks(X):
            own = np.ones(len(part)) if row_weights is None else row_weights[start:][: len(part)]
            moments.take(part, own / total)
        return cls.by(*moments.joined(add), hubs)

    @classmethod
    def by(
        cls,
        means: NDArray[np.float64],
        deviations: NDArray[np.float64],
        hubs: Blocks | None = None,
    ) -> Scaling:
        """Centre features of these means and divide them by standard deviations (d,), if not 0.

        With ``hubs`` those of a hub are divided by one number, so that a sphere stays one; warns
        where they differ so much that the largest alone is what is seen of it.
        """
        if hubs is not None:
            apart = max((spreads_apart(deviations[own]) for own in hubs.features), default=1.0)
            if apart >= TENFOLD:
                warnings.warn(
                    VpemWarning(
                        f"standard deviations of features in one hub differ {apart:,.0f}-fold, and "
                        "a spherical covariance takes all for one: the largest decides; try ",
                        Setting("scale", "standard"),
                    ),
                    stacklevel=2,
                )
            squares = np.square(deviations)[hubs.order]
            total = np.bincount(hubs.block_of, squares, hubs.n_blocks)
            common: NDArray[np.float64] = np.sqrt(total / np.maximum(hubs.widths, 1))
            deviations = common[hubs.block_of][hubs.position]
        return cls(means, np.where(deviations == 0, 1.0, deviations))

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


def sharing(blocks: Blocks, covariance_type: str, scale: str) -> Blocks | None:
    """Return the hubs whose features share a unit, for `Scaling.by`: where shapes depend on it."""
    return blocks if scale == "none" and covariance_type.endswith("spherical") else None


def floor_of(reg_covar: float | str) -> float:
    """Return what is added to a variance, of features whose units it is in."""
    return FLOOR if isinstance(reg_covar, str) else reg_covar


def floors_of(reg_covar: float | str, scale: str, units: Scaling) -> NDArray[np.float64]:
    """Return what is added to variances (d,), in units of fitting and the order of the data.

    A number is in the units that were asked for: the data's, or standard deviations.
    """
    as_given = isinstance(reg_covar, str) or scale == "standard"
    return floor_of(reg_covar) / (np.ones(len(units.scale)) if as_given else units.scale**2)
