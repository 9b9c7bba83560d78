"""Units: what each agent divides its own features by before fitting, and how it is undone.

Where no row may be shown, all agents draw alike `Points` in the place of rows, and how far rows
reach is known to all as powers of two (`Reach`): sums of them then fit fixed point.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Doubles, Floats, Indices, Mask, Matrix, row_blocks
from vpem.errors import Setting, VpemWarning
from vpem.network.partition import Blocks
from vpem.terms.decomposed import IN_UNITS

FLOOR = 1e-6
"""What ``auto`` adds to variances of features in their own standard deviations."""

TENFOLD = 10.0
"""Ratio of standard deviations from which on what depends on units is said to."""

Add = Callable[[Doubles], Doubles]
"""Adds what every process with rows has found of its own."""

WHOLE_BITS = 31
"""Of a number in fixed point, which has 32 more behind the point, and a sign."""

MOST_NATS = 2.0**24
"""Log-likelihood of a row, without its sign, that a mean over all rows may have."""

Kind = TypeVar("Kind", bound=np.generic)
Values = TypeVar("Values", Doubles, Floats)


def alone(values: Doubles) -> Doubles:
    """Return the sum where one process has all rows."""
    return values


class RunningMoments:
    """Means and squares about them of rows that come a run at a time: one pass is enough."""

    def __init__(self, n_features: int) -> None:
        self.weight = 0.0  # shares of all rows that have come
        # Of each feature (d,), by these shares: its mean, and the sum of squares about it.
        self.mean, self.squares = np.zeros(n_features), np.zeros(n_features)

    def add_rows(self, rows: Floats, share: Doubles) -> None:
        """Add rows (m, d) of some shares (m,) of all."""
        self.add_moments(*self.of_rows(rows, share))

    @staticmethod
    def of_rows(rows: Floats, share: Doubles) -> tuple[float, Doubles, Doubles]:
        """Return what rows weigh, their mean, and squares about it; 0 where they weigh nothing."""
        of_all = float(share.sum())
        if of_all <= 0:
            return 0.0, np.zeros(rows.shape[1]), np.zeros(rows.shape[1])
        own_mean = share @ rows.astype(np.float64, copy=False) / of_all
        away = rows - own_mean
        return of_all, own_mean, share @ np.square(away, out=away)

    def add_moments(self, of_all: float, own_mean: Doubles, squares: Doubles) -> None:
        """Add what `of_rows` returns of some rows to those before."""
        if of_all > 0:
            step = own_mean - self.mean
            self.squares += squares
            self.squares += np.square(step) * (self.weight * of_all / (self.weight + of_all))
            self.mean += step * (of_all / (self.weight + of_all))
            self.weight += of_all

    def joined(self, add: Add = alone, part: float = 1.0) -> tuple[Doubles, Doubles]:
        """Return means and standard deviations (d,) over the rows of all processes.

        ``part`` of all is what the shares of this process's rows are of.
        """
        weight = part * self.weight
        shift = add(weight * self.mean)
        variance = part * self.squares + weight * np.square(self.mean - shift)
        return shift, deviations_of(shift, add(variance))


def deviations_of(means: Doubles, variances: Doubles) -> Doubles:
    """Return standard deviations (d,), 0 of those that may be of rounding alone."""
    deviations = np.sqrt(variances)
    return np.where(deviations > 1e-12 * np.abs(means), deviations, 0.0)


def spreads_apart(deviations: Doubles) -> float:
    """Return the ratio of the largest standard deviation to the least that is none."""
    positive = deviations[deviations > 0]
    return float(positive.max() / positive.min()) if positive.size else 1.0


@dataclass(frozen=True)
class Scaling:
    """A shift and a scale (d,) a feature, each computed by the agent that holds it.

    In the user's order: fitted values are ``(x - shift) / scale``.
    """

    shift: Doubles
    scale: Doubles

    @classmethod
    def none(cls, n_features: int) -> Scaling:
        """The scaling that changes nothing."""
        return cls(np.zeros(n_features), np.ones(n_features))

    @classmethod
    def standard(
        cls, X: Matrix, row_weights: Doubles | None, add: Add = alone, hubs: Blocks | None = None
    ) -> Scaling:
        """Centre each feature and divide it by its standard deviation.

        A constant feature keeps the scale 1. ``add`` adds sums over rows of all processes; ``hubs``
        is as for `by`.
        """
        own_total = float(len(X)) if row_weights is None else float(row_weights.sum())
        total = add(np.array([own_total]))[0]
        moments = RunningMoments(X.shape[1])
        for start, part in row_blocks(X):
            weights = (
                np.ones(len(part)) if row_weights is None else row_weights[start:][: len(part)]
            )
            moments.add_rows(part, weights / total)
        return cls.standardize(*moments.joined(add), hubs)

    @classmethod
    def standardize(
        cls, means: Doubles, deviations: Doubles, hubs: Blocks | None = None
    ) -> Scaling:
        """Centre features of these means and divide them by standard deviations (d,), if not 0.

        With ``hubs`` those of a hub are divided by one number, so that a sphere stays one; warns
        where they differ so much that the largest alone is what is seen of it.
        """
        if hubs is not None:
            apart = max(
                (spreads_apart(deviations[columns]) for columns in hubs.features), default=1.0
            )
            if apart >= TENFOLD:
                warnings.warn(
                    VpemWarning(
                        f"standard deviations of features in one hub differ {apart:,.0f}-fold, and "
                        "this kind of covariance depends on their units: the largest decides; "
                        "try ",
                        Setting("scale", "standard"),
                    ),
                    stacklevel=2,
                )
            squares = np.square(deviations)[hubs.order]
            common: Doubles = np.sqrt(sum_features(hubs, squares) / np.maximum(hubs.widths, 1))
            deviations = common[hubs.block_of][hubs.position]
        return cls(means, np.where(deviations == 0, 1.0, deviations))

    @property
    def is_none(self) -> bool:
        return not self.shift.any() and bool((self.scale == 1).all())

    def take_features(self, columns: Sequence[int] | Indices) -> Scaling:
        """The units of some of the features."""
        return Scaling(self.shift[columns], self.scale[columns])

    def apply(self, X: Values) -> Values:
        """Scale rows of shape (..., d)."""
        if self.is_none:
            return X
        with np.errstate(over="ignore", invalid="ignore"):
            scaled = X - self.shift
            scaled /= self.scale
        return scaled

    def undo(self, X: Doubles) -> Doubles:
        """Return scaled rows of shape (..., d) to the user's units."""
        if self.is_none:
            return X
        with np.errstate(over="ignore", invalid="ignore"):
            return X * self.scale + self.shift


def power_transform(values: Doubles, exponent: float) -> Doubles:
    """Transform values by Yeo and Johnson (2000): a power for each sign, 1 changes nothing.

    ``((x + 1)^p - 1) / p`` from 0 on, and ``-((1 - x)^(2 - p) - 1) / (2 - p)`` below, with
    logarithms where a power is 0.
    """
    if exponent == 1:
        return values
    sizes, powers = np.log1p(np.abs(values)), np.where(values < 0, 2.0 - exponent, exponent)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        moved = np.where(powers == 0, sizes, np.expm1(powers * sizes) / powers)
    return np.copysign(moved, values)


def power_inverse(moved: Doubles, exponent: float) -> Doubles:
    """Undo `power_transform`; infinite where no value is transformed so far."""
    powers = np.where(moved < 0, 2.0 - exponent, exponent)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        logs = np.log1p(np.maximum(powers * np.abs(moved), -1.0)) / powers
        sizes = np.expm1(np.where(powers == 0, np.abs(moved), logs))
    return np.copysign(sizes, moved)


def power_rows(X: Matrix, exponents: Doubles) -> tuple[Doubles, Doubles]:
    """Transform rows (M, d) by exponents (d,); return also logarithms (M,) of the derivative.

    They take log-densities to the units of X. Missing values add nothing; those that become too
    large are infinite.
    """
    moved = np.array(X[:], dtype=np.float64)
    slopes = np.zeros(len(moved))
    for column in np.flatnonzero(exponents != 1):
        values, exponent = moved[:, column], float(exponents[column])
        logs = (exponent - 1) * np.copysign(np.log1p(np.abs(values)), values)
        slopes += np.where(np.isnan(values), 0.0, logs)
        moved[:, column] = power_transform(values, exponent)
    return moved, slopes


def power_rows_back(X: Matrix, exponents: Doubles) -> Doubles:
    """Undo the transform of rows (M, d), as `power_inverse` does."""
    undone = np.array(X[:], dtype=np.float64)
    for column in np.flatnonzero(exponents != 1):
        undone[:, column] = power_inverse(undone[:, column], float(exponents[column]))
    return undone


def power_exponent(values: Doubles) -> float:
    """Return the exponent at which one feature (m,) is nearest to normal, by its likelihood.

    1, which changes nothing, of a feature that is constant or has no such exponent.
    """
    from scipy.stats import yeojohnson_normmax

    there = values[~np.isnan(values)].astype(np.float64)
    if len(there) < 3 or np.ptp(there) == 0:
        return 1.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        exponent = float(yeojohnson_normmax(there))
        moved = power_transform(there, exponent)
        sound = np.isfinite(exponent) and np.isfinite(moved).all()
        return exponent if sound and np.std(moved) > 1e-9 * np.abs(moved).max() else 1.0


def sum_features(blocks: Blocks, values: Doubles) -> Doubles:
    """Sum what features (d,) have, in block order, over each hub (B,)."""
    return np.bincount(blocks.block_of, values, blocks.n_blocks).astype(np.float64, copy=False)


def sharing(
    blocks: Blocks, covariance_type: str, scale: str, are_bounded: bool = False
) -> Blocks | None:
    """Return the hubs whose features share a unit, for `Scaling.by`: where shapes depend on it.

    So do those of which the ratio of eigenvalues is bounded.
    """
    depends = covariance_type.endswith("spherical") or covariance_type in IN_UNITS or are_bounded
    return blocks if scale == "none" and depends else None


def floor_of(reg_covar: float | str) -> float:
    """What is added to a variance, of features whose units it is in."""
    return FLOOR if isinstance(reg_covar, str) else reg_covar


def floors_of(reg_covar: float | str, scale: str, units: Scaling) -> Doubles:
    """What is added to variances (d,), in units of fitting and the order of the data.

    A number is in the units that were set: the data's, or standard deviations.
    """
    as_given = isinstance(reg_covar, str) or scale == "standard"
    return floor_of(reg_covar) / (np.ones(len(units.scale)) if as_given else units.scale**2)


def root_of(covariance: Doubles) -> Doubles:
    """Return a root (d, d) of a covariance, of which rounding may have made directions negative.

    Features may be in units of any size.
    """
    deviations = np.sqrt(np.maximum(np.diagonal(covariance), 0.0))
    units = np.where(deviations > 0, deviations, 1.0)
    values, vectors = np.linalg.eigh(covariance / np.outer(units, units))
    return np.asarray(deviations[:, None] * vectors * np.sqrt(np.maximum(values, 0.0)))


@dataclass(frozen=True)
class Points:
    """Points about a centre (d,), each of which has a number below zero and follows from it."""

    centre: Doubles
    root: Doubles  # standard deviation (d,) of each feature, or a root (d, d) of the covariance

    def draw_points(self, numbers: Indices) -> Doubles:
        """Return points (L, d); the same number is the same point anywhere."""
        width = len(self.centre)
        normals = np.empty((len(numbers), width))
        for place, number in enumerate(numbers.tolist()):
            if number >= 0:
                raise ValueError("rows stay where they are: points have numbers below zero")
            normals[place] = np.random.default_rng(-number).standard_normal(width)
        return self.centre + self._spread(normals)

    def near(self, rng: np.random.Generator, about: Doubles, sizes: Doubles) -> Doubles:
        """Draw a point near each of some (L, d): so far off, in parts of the spread (L,)."""
        normals = rng.standard_normal((len(about), len(self.centre)))
        return about + sizes[:, None] * self._spread(normals)

    @property
    def variances(self) -> Doubles:
        """Variance of each feature (d,)."""
        squares = self.root**2
        return squares if squares.ndim == 1 else squares.sum(axis=1)

    def _spread(self, normals: Doubles) -> Doubles:
        return np.asarray(normals * self.root if self.root.ndim == 1 else normals @ self.root.T)


def exponents_of(bounds: ArrayLike, n_parties: int) -> NDArray[np.int64]:
    """Return the powers of two in units of which sums (P,) are as fine as they can be.

    No sum, nor any of the ``n_parties`` parts of it, is beyond ``bounds`` (P,).
    """
    _, exponent = np.frexp(np.asarray(bounds, dtype=np.float64) * (2.0 * n_parties))
    exponents: NDArray[np.int64] = exponent.astype(np.int64) - WHOLE_BITS
    return exponents


@dataclass(frozen=True)
class Reach:
    """Where the rows of all workers lie, as masked sums have shown to all of them.

    ``points`` are about the mean of all rows and as wide as they spread; they replace rows where
    one would have to be shown. ``lightest`` is a power of two where weights are not all 1: no row
    of positive weight has less; so is ``radius``, but for units: no row is farther from the mean in
    a feature.
    """

    n_parties: int  # workers, N
    n_rows: int  # used, of all workers
    mass: float  # what all rows weigh
    lightest: float
    points: Points
    radius: Doubles  # (d,)
    constant: Mask  # (d,) one value, up to rounding
    there: Doubles | None = None  # (d,) part of the weight with a value

    def scaled(self, scaling: Scaling) -> Reach:
        """Return the same in other units, those of `Scaling.apply`."""
        if scaling.is_none:
            return self
        shift, scale, points = scaling.shift, scaling.scale, self.points
        root = points.root / (scale if points.root.ndim == 1 else scale[:, None])
        points = Points((points.centre - shift) / scale, root)
        return replace(self, points=points, radius=self.radius / scale)

    def off(self, points: Doubles) -> Doubles:
        """How far any row may be from points (..., d), in each feature."""
        return self.radius + np.abs(points - self.points.centre)

    def exponents(self, *bounds: ArrayLike) -> NDArray[np.int64]:
        """Return exponents of sums over rows, in whose rows nothing is beyond these bounds."""
        flat = np.concatenate([np.ravel(np.asarray(one, dtype=np.float64)) for one in bounds])
        return exponents_of(self.mass * flat, self.n_parties)


_places = lru_cache(maxsize=64)(np.tril_indices)
"""Rows and columns of a lower half of a width: SAEM needs them thousands of times."""


def lower_half(matrices: NDArray[Kind]) -> NDArray[Kind]:
    """Entries on and below the diagonal of matrices (..., d, d), shape (..., d (d + 1) / 2)."""
    rows, columns = _places(matrices.shape[-1])
    return matrices[..., rows, columns]


@lru_cache(maxsize=64)
def _in_half(width: int) -> Indices:
    """Where (d, d) entries of a symmetric matrix are in its lower half."""
    ends = np.sort(np.indices((width, width)), axis=0)
    return np.asarray(ends[1] * (ends[1] + 1) // 2 + ends[0])


def symmetric(half: Doubles, width: int) -> Doubles:
    """Symmetric matrices (..., d, d) of their lower halves."""
    return np.take(half, _in_half(width), axis=-1)


def are_positive(matrices: Doubles) -> bool:
    """Whether all of these matrices (n, d, d) are positive definite."""
    try:
        np.linalg.cholesky(matrices)
    except np.linalg.LinAlgError:
        return False
    return True
