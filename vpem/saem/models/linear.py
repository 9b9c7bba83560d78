"""Random intercept and slopes: ``y = a_i + b_i t + e``, the coefficients normal."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray

from vpem._core.latents import Lines
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Counts, SaemModel, Vector
from vpem.saem.models.normal import (
    LEAST,
    LOG_2_PI,
    floored,
    gradient_normal,
    is_floored,
    known_scale,
    log_normal,
    log_normal_total,
    products,
    quadratic,
    scatter_of,
    times,
    triangle_names,
)
from vpem.terms.matrices import lower_half, symmetric

__all__ = ["LinearModel"]

MOST_SLOPES = 16
"""Latents that the kernel takes."""


class LinearModel(SaemModel):
    """Linear mixed model with a full covariance: ``y_i = X_i z_i + e``, ``z_i ~ N(beta, Omega)``.

    Parameters are beta, the lower triangle of Omega, and the residual variance; statistics are
    ``z``, the lower triangle of ``z z^T``, both about a shift that does not change (so that little
    cancels where statistics are compressed), and the residual sum of squares.

    Parameters
    ----------
    individuals : Individuals
        With at least two rows each.
    slopes : sequence of str
        Covariates with a random slope besides the intercept; ``"time"`` is the time.
    shift : ndarray of shape (q,), optional
        By default the mean of individuals' least squares.

    Raises
    ------
    InputError
        If an individual has one row, or a covariate is missing.
    """

    normal_rows = True

    def __init__(
        self,
        individuals: Individuals,
        slopes: Sequence[str] = ("time",),
        shift: Vector | None = None,
    ) -> None:
        if shift is None:
            individuals.need_rows(2)
        self.individuals = individuals
        self.slopes = tuple(slopes)
        columns = self._columns(individuals)
        q = len(columns)
        names = ["slope" if name == "time" else f"slope of {name}" for name in self.slopes]
        self.latents = ("intercept", *names)
        self.parameters = (*self.latents, *triangle_names(self.latents), "residual variance")
        ends = np.cumsum([q, q * (q + 1) // 2, 1])
        self.pieces = (slice(0, ends[0]), slice(ends[0], ends[1]), slice(ends[1], ends[2]))
        X = np.stack(columns, axis=-1)
        about = individuals.values - individuals.mean_of_rows(individuals.values)
        self._size = float(individuals.mean_of_rows(about**2))
        self._floor = LEAST * self._size  # of variances, in the values' units
        widths = individuals.mean_of_rows(X**2)
        self._floors: Vector = self._floor / np.where(widths > 0, widths, 1.0)
        # Squares about each individual's least squares: nothing cancels.
        self._cross = np.empty((self.n, q, q))
        for i in range(q):
            for j in range(q):
                self._cross[:, i, j] = individuals.sums(columns[i] * columns[j])
        cuts = individuals.first[1:]
        each = zip(np.split(X, cuts)[:-1], np.split(individuals.values, cuts)[:-1], strict=True)
        self._own = np.array([_least_squares(*own) for own in each]).reshape(self.n, q)
        fitted = sum(
            self._own[individuals.individual_of, i] * column for i, column in enumerate(columns)
        )
        self.shift: Vector = individuals.mean(self._own) if shift is None else shift
        self._left = individuals.sums((individuals.values - fitted) ** 2)

    def _columns(self, at: Individuals) -> list[Vector]:
        """Columns (N,) of the design: the intercept, the slopes."""
        columns = [np.ones(at.n_rows)]
        for name in self.slopes:
            columns.append(at.times if name == "time" else at.covariate(name))
        return columns

    def take(self, which: NDArray[np.intp]) -> LinearModel:
        """Return the same model of some of the individuals."""
        part = copy(self)
        part.individuals = self.individuals.take(which)
        part._cross, part._own, part._left = (
            one[which] for one in (self._cross, self._own, self._left)
        )
        return part

    def unpack(self, theta: Vector) -> tuple[Vector, Vector, float]:
        """Return beta (q,), Omega (q, q) and the residual variance."""
        q = len(self.latents)
        return theta[:q], symmetric(theta[q:-1], q), float(theta[-1])

    def start(self) -> tuple[Vector, Vector]:
        """Each individual's least squares, and what follows from them."""
        known_scale(self.individuals.values, self._size, self.individuals.source)
        z: Vector = self._own.copy()
        return self.maximize(self.individuals.total(self.statistics(z[None])), self.counts), z

    def _squares(self, z: Vector) -> Vector:
        """Residual sums of squares (chains, n)."""
        found: Vector = self._left + quadratic(z - self._own, self._cross)
        return found

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the complete density of each individual, (chains, n)."""
        beta, omega, variance = self.unpack(theta)
        constant = self.individuals.counts * (LOG_2_PI + np.log(variance))
        rows: Vector = constant + self._squares(z) / variance
        return log_normal(z, beta, omega) - 0.5 * rows

    def gradient(self, z: Vector, theta: Vector) -> Vector:
        """Gradient of `log_complete` in the latents, (chains, n, q)."""
        beta, omega, variance = self.unpack(theta)
        return gradient_normal(z, beta, omega) - times(self._cross, z - self._own) / variance

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, P)."""
        found: Vector = self.statistics_by_chain(z).mean(axis=0)
        return found

    def statistics_by_chain(self, z: Vector) -> Vector:
        """First and second moments, and the residual sum of squares, (chains, n, P)."""
        return np.concatenate([products(z - self.shift), self._squares(z)[..., None]], axis=-1)

    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Moments of the coefficients, and the mean residual square."""
        apart, scatter = scatter_of(total[:-1], counts.individuals, len(self.latents))
        omega = floored(scatter, self._floors)
        variance = max(total[-1] / counts.rows, self._floor)
        return np.concatenate([self.shift + apart, lower_half(omega), [variance]])

    def holds(self, total: Vector, counts: Counts) -> bool:
        """Whether coefficients and residuals have such moments."""
        _, scatter = scatter_of(total[:-1], counts.individuals, len(self.latents))
        left = float(total[-1]) / counts.rows
        return left >= self._floor and not is_floored(scatter, self._floors)

    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """Complete log-likelihood of a total of statistics."""
        beta, omega, variance = self.unpack(theta)
        latent = log_normal_total(total[:-1], counts.individuals, beta - self.shift, omega)
        rows = counts.rows * (LOG_2_PI + np.log(variance))
        return float(latent - 0.5 * rows - 0.5 * total[-1] / variance)

    def posterior(self, theta: Vector) -> tuple[Vector, Vector]:
        """Means and covariances of the coefficients given the rows."""
        beta, omega, variance = self.unpack(theta)
        prior = np.linalg.inv(omega)
        covariances = np.asarray(np.linalg.inv(prior + self._cross / variance), np.float64)
        own = times(self._cross, self._own) / variance
        means = times(covariances, times(prior, np.broadcast_to(beta, own.shape)) + own)
        return means, covariances

    def population(self, theta: Vector) -> tuple[Vector, Vector]:
        """Mean and covariance of the coefficients."""
        return self.unpack(theta)[:2]

    def curve(self, z: Vector, at: Individuals) -> Vector:
        """Lines (chains, N)."""
        of_rows = z[..., at.individual_of, :]
        found = np.zeros(of_rows.shape[:-1])
        for i, column in enumerate(self._columns(at)):
            found += of_rows[..., i] * column
        return found

    def row_sds(self, z: Vector, theta: Vector, at: Individuals) -> Vector:
        """The residual sd, the same for all rows."""
        return np.full((len(z), at.n_rows), np.sqrt(theta[-1]))

    def kernels(self, theta: Vector) -> Lines | None:
        """Law of the coefficients, of few enough."""
        if len(self.latents) > MOST_SLOPES:
            return None
        beta, omega, variance = self.unpack(theta)
        mean = np.tile(beta, (self.n, 1))
        return Lines(mean, np.linalg.inv(omega), self._own, self._cross, variance)

    def marginal(self, theta: Vector) -> Vector:
        """Log-likelihood of each individual: Bayes' rule at the posterior mean."""
        means, covariances = self.posterior(theta)
        complete = self.log_complete(means[None], theta)[0]
        found: Vector = complete + 0.5 * (
            len(self.latents) * LOG_2_PI + np.linalg.slogdet(covariances)[1]
        )
        return found


def _least_squares(X: Vector, y: Vector) -> Vector:
    """Coefficients (q,) of the smallest size in units of the columns."""
    units = np.sqrt(np.mean(X**2, axis=0))
    units = np.where(units > 0, units, 1.0)
    found: Vector = np.linalg.lstsq(X / units, y, rcond=None)[0] / units
    return found
