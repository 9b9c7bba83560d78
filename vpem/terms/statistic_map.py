"""The M-step of FedEM: from a mean statistic to a mixture, whatever noise has made of it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vpem.checks import Floats
from vpem.errors import InputError, NumericalError, Setting
from vpem.network.partition import Blocks
from vpem.terms.covariances import is_diagonal, is_tied
from vpem.terms.matrices import are_positive, symmetric, white_units
from vpem.terms.mixture import Mixture
from vpem.terms.scaling import FLOOR as RIDGE
from vpem.terms.scaling import Scaling
from vpem.terms.statistics import MissingStatistics, Statistics

Vector = NDArray[np.float64]

FLOOR = 1e-4
"""Least variance in any direction, relative to the features' own variances, where statistics are
noisy: noise can ask for less, or for a negative one."""

LEAST = 1e-12
"""The same where they are exact, for what rounding has left without variance."""

RESTS = 1 + 1e-6
"""In floors, up to which a variance that was raised to one has remained there."""

EMPTY = 1e-10
"""Rows that a component has at least, where statistics are exact."""


@dataclass(frozen=True)
class Moments:
    """What all workers know of the data.

    Attributes
    ----------
    scaling : Scaling
        How the units of fitting, y, come from the user's; y is about the mean.
    second : ndarray of shape (d, d)
        ``mean y y^T`` over all rows, each weighing as in the algorithm's means. Where values are
        missing they are filled by the mean, and have the variance of those that are there.
    there : ndarray of shape (d,) or None
        Share of the rows that have a value of each feature; None: all have all.
    """

    scaling: Scaling
    second: Vector
    there: Vector | None = None


class StatisticMap:
    """The map from a mean statistic to the parameters of a Gaussian mixture.

    With a covariance a component the statistic is ``(mean g_k, mean g_k y, mean g_k y y^T)``, of
    symmetric matrices the lower half; for "diag" ``mean g_k y^2`` and for "spherical"
    ``mean g_k |y|^2``. With one covariance for all, or a known one, it is ``(mean g_k,
    mean g_k y)``: ``mean y y^T`` does not depend on parameters and is known from the setup
    (Dieuleveut et al. 2021, F.1). y is in the units of fitting, which are about the mean.

    Where values are missing, full matrices are of what is expected of the rows given what is there,
    and one covariance for all has ``mean y y^T`` besides, which then depends on parameters. With
    diagonal ones a component's means and variances are of the values that are there, and ``mean
    g_k o`` comes second, o 1 where a value is there.

    Parameters
    ----------
    blocks : Blocks
        All features in one block.
    covariance_type : str
        One of `vpem.settings.COVARIANCE_TYPES`.
    n_components : int
        K.
    moments : Moments
        What all know of the data.
    n_rows : float
        How many rows there are; where rows weigh more than 1, what they weigh.
    reg_covar : float or ndarray of shape (d,)
        Added to variances, in units of fitting; for spheres one number.
    known : ndarray of shape (d, d) or (K, d, d), optional
        Covariances in the user's units that are not estimated; the covariance type is then "tied"
        or "full".
    floor : float
        Least variance in any direction, relative to the features' own variances. 0: statistics are
        exact, and only those that no rows can have are projected.

    Raises
    ------
    InputError
        If the covariances given are not positive definite, or of another shape.
    NumericalError
        If a feature is constant and ``reg_covar`` is 0.

    Attributes
    ----------
    size : int
        Numbers of a statistic, P.
    pieces : tuple of slice
        Weights, first moments, second moments of each component: each has a scale of its own where
        statistics are quantized.
    counts, seen, first, squares : slice
        Where the parts of a statistic are; ``seen`` and ``squares`` may be empty.
    radius : float
        Distance beyond which no mean lies, in the metric of the covariance of all rows.
    """

    def __init__(
        self,
        blocks: Blocks,
        covariance_type: str,
        n_components: int,
        moments: Moments,
        *,
        n_rows: float,
        reg_covar: float | Vector = RIDGE,
        known: ArrayLike | None = None,
        floor: float = FLOOR,
    ) -> None:
        self.blocks = blocks
        self.covariance_type = covariance_type
        self.n_components = n_components
        self.n_features = d = blocks.n_features
        self.moments = moments
        self.scaling, self.second = moments.scaling, moments.second
        self.n_rows = n_rows
        self.reg_covar = reg_covar = np.broadcast_to(reg_covar, (d,))
        self.floor = floor
        self.radius = np.inf
        self._is_tied, self.is_diagonal = is_tied(covariance_type), is_diagonal(covariance_type)
        self.is_spherical = covariance_type.endswith("spherical")
        self._own_variances = np.diagonal(self.second) + reg_covar
        if not (self._own_variances > 0).all():
            raise NumericalError(
                f"feature {int(np.argmin(self._own_variances))} is constant, so that its variance "
                "is none; try a larger ",
                Setting("reg_covar"),
            )
        matrix = self.second + np.diag(reg_covar)
        self._white = white_units(matrix)
        self._metric = np.linalg.pinv(matrix, hermitian=True)
        self._known = None if known is None else self._take_known(known)
        self._lower = np.tril_indices(d)
        self._lay_out()
        self._of_all_rows = self.second_moments(self._observed_second())

    def _lay_out(self) -> None:
        """Say where the parts of a statistic are."""
        k, d, misses = self.n_components, self.n_features, self.moments.there is not None
        widths = [k, k * d]
        if misses and self.is_diagonal:
            widths.insert(1, k * d)
        n_first = len(widths)
        each = 1 if self.is_spherical else d if self.is_diagonal else d * (d + 1) // 2
        if self._known is None and not self._is_tied:
            widths += [each] * k if each > 1 else [k]
        elif self._known is None and misses and not self.is_diagonal:
            widths.append(each)
        ends = np.cumsum([0, *widths]).tolist()
        self.pieces = tuple(slice(*pair) for pair in pairwise(ends))
        self.size = int(ends[-1])
        self.counts, self.first = self.pieces[0], self.pieces[n_first - 1]
        self.seen = slice(k, self.first.start)
        self.squares = slice(self.first.stop, self.size)
        self._has_seen, self._has_squares = n_first > 2, self.size > self.first.stop

    def _observed_second(self) -> Vector:
        """``mean y y^T`` of what is there, where each feature is of its own values."""
        there = self.moments.there
        if there is None or not self.is_diagonal:
            return self.second
        return self.second * there

    def second_moments(self, matrix: Vector) -> Vector:
        """Return what a component's piece of the statistic has of second moments (d, d)."""
        if self.is_spherical:
            return np.array([np.trace(matrix)])
        return np.diagonal(matrix) if self.is_diagonal else matrix[self._lower]

    def bounds(self, off: Vector) -> Vector:
        """Bounds (P,) of a mean statistic of rows that are no farther off (d,) than that."""
        k = self.n_components
        found = [np.ones(k), np.tile(off, k)]
        if self._has_squares:
            found.append(np.tile(self.second_moments(np.outer(off, off)), k))
        return np.concatenate(found)

    def squared_norms(self, points: Vector) -> Vector:
        """Squared lengths of points (m, d), in the metric of the data's covariance."""
        found: Vector = np.einsum("ij,ij->i", points @ self._metric, points)
        return np.maximum(found, 0.0)

    def packed(self, statistics: Statistics) -> Vector:
        """Lay out sums over rows (P,), of moments about zero, which are about shifts."""
        about, first = statistics.shifts, statistics.first
        n = statistics.counts[0]
        parts, per_feature = [n], n[:, None]
        if self._has_seen:
            assert isinstance(statistics, MissingStatistics)
            per_feature = statistics.seen
            parts.append(per_feature.ravel())
        raw = first + per_feature * about
        parts.append(raw.ravel())
        if self._has_squares:
            parts.append(self._raw_squares(statistics.second, about, first, raw).ravel())
        return np.concatenate(parts)

    def _raw_squares(self, second: Vector, about: Floats, first: Vector, raw: Vector) -> Vector:
        """Second moments about zero, of those about shifts."""
        k, d = self.n_components, self.n_features
        if self.is_diagonal:
            squares: Vector = second.reshape(k, d) + about * (first + raw)
            return squares.sum(axis=1) if self.is_spherical else squares
        left, right = self._lower
        squares = second.reshape(-1, d, d)[:, left, right]
        # Symmetric all the same: t' = t + n m, so that m t^T + t' m^T is its transpose.
        if not self._is_tied:
            return squares + about[:, left] * first[:, right] + raw[:, left] * about[:, right]
        moved = about[:, left] * first[:, right] + raw[:, left] * about[:, right]
        squares = squares + moved.sum(axis=0)
        return squares

    # ---- the M-step ------------------------------------------------------------------------------

    def maximize(self, statistic: Vector) -> tuple[Mixture, int]:
        """Mixture of a statistic (P,), and how many of its parts had to be projected.

        * A weight below that of one row is raised to it, by so much of all rows together: a
          component that noise has emptied comes back as a wide one. With ``floor`` 0 only one of
          no rows. So is the weight of what a component has of one feature.
        * A mean farther out than any row, in the metric of the data's covariance, is drawn in.
        * Of a covariance with variances (in any direction) below ``floor`` times the features'
          own, these are raised to that; where there are negative ones, as noise of that size makes
          them, to the size of the most negative. With ``floor`` 0 only those are raised.
        """
        k, d = self.n_components, self.n_features
        least = max(EMPTY, min(1.0, self.floor * max(self.n_rows, 1 / FLOOR))) / self.n_rows
        n = np.where(statistic[:k] < least, 1.0 / self.n_rows, statistic[:k])
        missing = n - statistic[:k]
        weights = n / n.sum()
        squares, seen, projected = self._completed(statistic, missing, least)
        means = statistic[self.first].reshape(k, d) / (n[:, None] if seen is None else seen)
        distances = np.sqrt(self.squared_norms(means))
        outside = distances > self.radius * (1 + 1e-9)
        means[outside] *= (self.radius / distances[outside])[:, None]
        projected += int((missing > 0).sum() + outside.sum())
        if self._known is not None:
            covariances = self._known
        elif self.is_diagonal:
            variances = self._variances(squares, n, weights, means, seen)
            covariances, raised = self._raise_variances(variances)
            projected += raised
        else:
            matrices = self._matrices(squares, n, weights, means)
            matrices, raised = self._raise(matrices + np.diag(self.reg_covar))
            covariances = matrices.ravel()
            projected += raised
        return self._mixture(weights, means, covariances), projected

    def _completed(
        self, statistic: Vector, missing: Vector, least: float
    ) -> tuple[Vector, Vector | None, int]:
        """Squares, and weights of features (K, d), once components have enough of all rows."""
        k, d = self.n_components, self.n_features
        squares, there = statistic[self.squares], self.moments.there
        if squares.size and self._is_tied:
            squares = squares + missing.sum() * self._of_all_rows
        elif squares.size:
            squares = squares + np.outer(missing, self._of_all_rows).ravel()
        if there is None or not self.is_diagonal:
            return squares, None, 0
        seen = statistic[self.seen].reshape(k, d) + missing[:, None] * there
        extra = np.where(seen < least, 1.0 / self.n_rows - seen, 0.0)
        if squares.size:
            more = extra * np.diagonal(self.second)
            squares = squares + (more.sum(axis=1) if self.is_spherical else more.ravel())
        return squares, seen + extra, int((extra > 0).any(axis=1).sum())

    def start(self, means: Vector) -> Mixture:
        """Equal weights, means (K, d) in units of fitting, every covariance that of all rows."""
        k = self.n_components
        if self._known is not None:
            covariances = self._known
        else:
            one = self.second + np.diag(self.reg_covar)
            copies = 1 if self._is_tied else k
            if self.is_diagonal:
                own = np.diagonal(one)
                own = np.full_like(own, self._over_features(own)) if self.is_spherical else own
                covariances = np.repeat(own[None], copies, axis=0)
            else:
                covariances = np.tile(one.ravel(), copies)
        return self._mixture(np.full(k, 1.0 / k), np.array(means, dtype=np.float64), covariances)

    def _mixture(self, weights: Vector, means: Vector, covariances: Vector) -> Mixture:
        made = Mixture(
            self.blocks, self.covariance_type, weights[None], means, covariances, self.scaling
        )
        if made.factors.failed.any():
            raise NumericalError(
                "a covariance is not positive definite although its variances were raised: "
                "features are constant or linearly dependent; try a larger ",
                Setting("reg_covar"),
            )
        return made

    def _over_features(self, variances: Vector) -> Any:
        """Mean over the values that are there of variances of their features (..., d)."""
        there = self.moments.there
        if there is None:
            return variances.mean(axis=-1)
        return variances @ there / there.sum()

    def _variances(
        self, squares: Vector, n: Vector, weights: Vector, means: Vector, seen: Vector | None
    ) -> Vector:
        """Variances (copies, d), or (copies, 1) of spherical covariances, without ``reg_covar``."""
        k, d = self.n_components, self.n_features
        if self._is_tied:
            shares = weights if seen is None else seen / seen.sum(axis=0)
            drop = weights @ means**2 if seen is None else (shares * means**2).sum(axis=0)
            variances: Vector = (np.diagonal(self.second) - drop)[None]
            return self._over_features(variances)[:, None] if self.is_spherical else variances
        if seen is None:
            if self.is_spherical:
                variances = (squares / n - (means**2).sum(axis=1))[:, None] / d
                return variances
            variances = squares.reshape(k, d) / n[:, None] - means**2
            return variances
        if self.is_spherical:
            found: Vector = (squares - (seen * means**2).sum(axis=1)) / seen.sum(axis=1)
            return found[:, None]
        variances = squares.reshape(k, d) / seen - means**2
        return variances

    def _raise_variances(self, variances: Vector) -> tuple[Vector, int]:
        """Raise small variances (copies, d), or (copies, 1), and count components with such."""
        if self.is_spherical:
            variances = np.repeat(variances, self.n_features, axis=1)
        own = self._own_variances
        own_or_mean = self._over_features(own) if self.is_spherical else own
        ratios = (variances + self.reg_covar) / own_or_mean
        smallest = ratios.min(axis=1, keepdims=True)
        least = np.maximum(self.floor or LEAST, -smallest)
        low = (smallest[:, 0] < self.floor) | (smallest[:, 0] <= 0)
        variances = variances + self.reg_covar
        variances[low] = (np.maximum(ratios, least) * own_or_mean)[low]
        return variances, int(low.sum())

    def _matrices(self, squares: Vector, n: Vector, weights: Vector, means: Vector) -> Vector:
        """Full covariances (copies, d, d), without ``reg_covar``."""
        d = self.n_features
        if self._is_tied:
            second = symmetric(squares / n.sum(), d) if squares.size else self.second
            return (second - (weights * means.T) @ means)[None]
        matrices = symmetric(squares.reshape(self.n_components, -1) / n[:, None], d)
        matrices -= means[:, :, None] * means[:, None, :]
        return matrices

    def _raise(self, matrices: Vector) -> tuple[Vector, int]:
        """Raise small eigenvalues of matrices (n, d, d), in units in which the data are white."""
        if self.floor == 0 and are_positive(matrices):
            return matrices, 0
        into, back = self._white
        white = into @ matrices @ into.T
        if not are_positive(white - self.floor * np.eye(len(into))):
            values, vectors = np.linalg.eigh(white)
            small = ((values < self.floor) | (values <= 0)).any(axis=1)
            least = np.maximum(self.floor or LEAST, -values[small, :1])
            values = np.maximum(values[small], least)
            roots = back @ (vectors[small] * np.sqrt(values)[:, None])
            matrices[small] = roots @ roots.swapaxes(1, 2)
            return matrices, int(small.sum())
        return matrices, 0

    def at_floor(self, mixture: Mixture) -> NDArray[np.bool_]:
        """Which components (K,) have variances that are raised to the floor of noisy statistics."""
        most = self.floor * RESTS
        if self.is_diagonal:
            own = self._own_variances
            smallest = (mixture.covariances / own).min(axis=1)
            if self.is_spherical:
                smallest = mixture.covariances.min(axis=1) / self._over_features(own)
        else:
            (matrices,), (into, _) = mixture.covariance_blocks, self._white
            smallest = np.linalg.eigvalsh(into @ matrices @ into.T)[:, 0]
        return np.broadcast_to(smallest <= most, self.n_components)

    def _take_known(self, known: ArrayLike) -> Vector:
        """Covariances that the user knows, in the units of fitting."""
        given = np.asarray(known, dtype=np.float64)
        k, d = self.n_components, self.n_features
        wanted = {"tied": (d, d), "full": (k, d, d)}.get(self.covariance_type)
        if given.shape != wanted:
            raise InputError(
                f"known covariances are of shape ({d}, {d}) with covariance type tied or "
                f"({k}, {d}, {d}) with full, got shape {given.shape} with {self.covariance_type}"
            )
        given = given / np.outer(self.scaling.scale, self.scaling.scale)
        good = np.isfinite(given).all() and np.allclose(given, given.swapaxes(-1, -2))
        if not good or np.linalg.eigvalsh(given).min() <= 0:
            raise InputError("known covariances must be symmetric and positive definite")
        return given.ravel()
