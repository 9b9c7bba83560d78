"""Lines and planes whose coefficients vary between individuals, or do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from vpem._core.latents import Lines
from vpem.errors import InputError, check_choice
from vpem.saem.individuals import Individuals
from vpem.saem.models.integrated import Integrated, integrated
from vpem.saem.models.model import Counts, Vector
from vpem.saem.models.normal import (
    LEAST,
    LOG_2_PI,
    crossed,
    gradient_normal,
    known_scale,
    log_normal,
    quadratic,
    times,
)
from vpem.saem.models.population import Population, Varying, columns_of, effect_of, words_of
from vpem.terms.matrices import lower_half, symmetric

MOST_SLOPES = 16
"""Latents that the kernel takes."""


class LinearModel(Varying):
    """Linear mixed model: ``y_i = Z_i z_i + X_i b + e`` with ``z_i ~ N(B c_i, Omega)``.

    Coefficients z vary between individuals, coefficients b do not. Parameters are the means of z,
    b, effects of covariates on means, the lower triangle of Omega, and the residual variance.
    Statistics are those of `Population`, ``X^T e`` (and ``X^T X``) where there is a b, and the
    residual sum of squares; residuals are about a first b and z about a first mean, so that little
    cancels where statistics are compressed.

    Parameters
    ----------
    individuals : Individuals
        Whose rows.
    slopes : sequence of str
        Columns besides the intercept; ``"time"`` is the time, others are covariates, and
        ``"time:x"`` is a product.
    random : sequence of str, optional
        Columns whose coefficients vary, of ``"intercept"`` and slopes, by names of columns or of
        coefficients. None: all.
    effects : sequence of str
        Covariates that a mean depends on: ``"intercept:sex"``; see
        `vpem.saem.models.population.effects_of`.
    covariance : {"full", "diagonal"}
        Of the coefficients that vary.
    error : {"constant"}
        Others are for `vpem.saem.models.curves.GeneralizedLinearModel`.
    shift : ndarray of shape (m, L) or float, optional
        Where the coefficients of means begin; by default the mean of individuals' least squares.

    Raises
    ------
    InputError
        If a covariate is missing, or no coefficient varies.
    """

    normal_rows = True

    def __init__(
        self,
        individuals: Individuals,
        slopes: Sequence[str] = ("time",),
        random: Sequence[str] | None = None,
        effects: Sequence[str] = (),
        covariance: str = "full",
        error: str = "constant",
        shift: Vector | float | None = None,
    ) -> None:
        self.individuals, self.slopes = individuals, tuple(slopes)
        names = ["slope" if name == "time" else f"slope of {name}" for name in self.slopes]
        short = ("intercept", *self.slopes)
        latents = ("intercept", *names)
        called = dict(zip(short, latents, strict=True))
        asked = [called.get(one, one) for one in (short if random is None else random)]
        for one in asked:
            check_choice("random coefficient", one, (*short, *latents))
        self.law = Population(
            individuals, latents, asked, [effect_of(one, called) for one in effects], covariance
        )
        fixed = [one for one, name in called.items() if name not in asked and any(
            effect.parameter == name for effect in self.law.effects)]  # fmt: skip
        if fixed:
            raise InputError(
                f"effects are of coefficients that vary, and {fixed[0]} does not; take a product "
                f"with the covariate as a slope, such as {fixed[0]}:x"
            )
        self.latents = self.law.latents
        self.parameters = (*self.law.coefficients, *self.law.spreads, "residual variance")
        pf = len(self.law.fixed)
        sizes = [*self.law.sizes, pf, pf * (pf + 1) // 2, 1]
        self._slices = [slice(*map(int, one)) for one in pairwise(np.cumsum([0, *sizes]))]
        self.pieces = tuple(one for one in self._slices if one.stop > one.start)
        design = self.columns(individuals)
        about = individuals.values - individuals.mean_of_rows(individuals.values)
        self._size = float(individuals.mean_of_rows(about**2))
        self.least = LEAST * self._size  # of variances, in the values' units
        widths = individuals.mean_of_rows(design**2)[self.law.random]
        self._floors: Vector = self.least / np.where(widths > 0, widths, 1.0)
        self._prepare(design, shift)

    @classmethod
    def reads(cls, options: Mapping[str, object]) -> tuple[str, ...]:
        """Covariates of slopes and effects."""
        slopes, effects = (words_of(options.get(name)) for name in ("slopes", "effects"))
        parts = [part.partition("=")[0] for name in slopes for part in name.split(":")]
        columns = [part for part in parts if part != "time"]
        return tuple(dict.fromkeys([*columns, *columns_of(effects)]))

    def _prepare(self, design: Vector, shift: Vector | float | None) -> None:
        """Take squares about a first b and each individual's least squares: nothing cancels."""
        data, law = self.individuals, self.law
        Z, X = design[:, law.random], design[:, law.fixed]
        law.shift[:] = 0.0 if shift is None else shift
        if shift is None and X.shape[1]:
            sums = [data.total(crossed(data, one, two)) for one, two in (
                (design, design), (design, data.values[:, None]))]  # fmt: skip
            law.shift[law.fixed, 0] = _solved(sums[0], sums[1][:, 0])[law.fixed]
        rest = data.values - X @ law.shift[law.fixed, 0]
        self._cross, self._both = crossed(data, Z, Z), crossed(data, Z, X)
        self._among = crossed(data, X, X)
        cuts = data.first[1:]
        each = zip(np.split(Z, cuts)[:-1], np.split(rest, cuts)[:-1], strict=True)
        self._own = np.array([_least_squares(*own) for own in each]).reshape(self.n, Z.shape[1])
        self._turn: Vector = np.linalg.pinv(self._cross) @ self._both
        left = rest - np.einsum("nq,nq->n", self._own[data.individual_of], Z)
        self._left = data.sums(left**2)
        self._along = crossed(data, X, rest[:, None])[..., 0]
        if shift is None:
            law.shift[law.random, 0] = data.mean(self._own)

    def columns(self, at: Individuals) -> Vector:
        """Columns (N, m) of the design: the intercept, the slopes."""
        return np.stack([np.ones(at.n_rows), *map(at.product, self.slopes)], axis=-1)

    def take(self, which: NDArray[np.intp]) -> LinearModel:
        """Return the same model of some of the individuals."""
        part = copy(self)
        part.individuals, part.law = self.individuals.take(which), self.law.take(which)
        for name in ("_cross", "_both", "_among", "_own", "_turn", "_left", "_along"):
            setattr(part, name, getattr(self, name)[which])
        return part

    def unpack(self, theta: Vector) -> tuple[Vector, Vector, float]:
        """Return coefficients B (m, L), Omega (q, q) and the residual variance."""
        return *self.law.unpack(theta), float(theta[-1])

    def _apart(self, B: Vector) -> Vector:
        """How far coefficients b (r,) are from the first."""
        found: Vector = (B - self.law.shift)[self.law.fixed, 0]
        return found

    def start(self) -> tuple[Vector, Vector]:
        """Each individual's least squares, and what follows from them."""
        known_scale(self.individuals.values, self._size, self.individuals.source)
        z: Vector = self._own.copy()
        return self.maximize(self.individuals.total(self.statistics(z[None])), self.counts), z

    def _squares(self, z: Vector, away: Vector) -> Vector:
        """Residual sums of squares (chains, n) of coefficients b so far ``away`` (r,)."""
        found: Vector = self._left + quadratic(z - self._own, self._cross)
        if len(away):
            found = found - 2 * (self._residual(z) @ away) + self._among @ away @ away
        return found

    def _residual(self, z: Vector) -> Vector:
        """Products ``X^T e`` (chains, n, r) of residuals about the first b."""
        found: Vector = self._along - np.einsum("nqr,cnq->cnr", self._both, z)
        return found

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the complete density of each individual, (chains, n)."""
        B, omega, variance = self.unpack(theta)
        constant = self.individuals.counts * (LOG_2_PI + np.log(variance))
        rows: Vector = constant + self._squares(z, self._apart(B)) / variance
        return log_normal(z, self.law.means(B)[:, self.law.random], omega) - 0.5 * rows

    def _fitted(self, B: Vector) -> Vector:
        """Least squares (n, q) of each individual, given the coefficients b."""
        away = self._apart(B)
        return self._own - self._turn @ away if len(away) else self._own

    def gradient(self, z: Vector, theta: Vector) -> Vector:
        """Gradient of `log_complete` in the latents, (chains, n, q)."""
        B, omega, variance = self.unpack(theta)
        mean = self.law.means(B)[:, self.law.random]
        own = times(self._cross, z - self._fitted(B)) / variance
        return gradient_normal(z, mean, omega) - own

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, P)."""
        found: Vector = self.statistics_by_chain(z).mean(axis=0)
        return found

    def statistics_by_chain(self, z: Vector) -> Vector:
        """Moments, products of the fixed columns, and the residual sum of squares."""
        parts = [self.law.statistics(z)]
        if len(self.law.fixed):
            among = lower_half(self._among)
            parts += [self._residual(z), np.broadcast_to(among, (len(z), *among.shape))]
        return np.concatenate([*parts, self._squares(z, np.zeros(0))[..., None]], axis=-1)

    def _taken_apart(self, total: Vector) -> tuple[Vector, Vector, Vector, float]:
        """Split a total: of latents, ``X^T e`` (r,), ``X^T X`` (r, r), and squares."""
        along, among, _ = self._slices[-3:]
        r = along.stop - along.start
        return total[: along.start], total[along], symmetric(total[among], r), float(total[-1])

    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Moments of the coefficients, least squares of the fixed, and the mean residual square."""
        latent, along, among, squares = self._taken_apart(total)
        near = None if self.theta is None else self.law.unpack(self.theta)[1]
        B, omega, _ = self.law.maximize(latent, counts.individuals, self._floors, near)
        away = _solved(among, along)
        B[self.law.fixed, 0] += away
        left = (squares - along @ away) / counts.rows
        return np.concatenate([self.law.pack(B, omega), [max(left, self.least)]])

    def holds(self, total: Vector, counts: Counts) -> bool:
        """Whether coefficients and residuals have such moments."""
        latent, along, among, squares = self._taken_apart(total)
        left = (squares - along @ _solved(among, along)) / counts.rows
        fine = self.law.maximize(latent, counts.individuals, self._floors)[2]
        return bool(left >= self.least) and fine

    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """Complete log-likelihood of a total of statistics."""
        latent, along, among, squares = self._taken_apart(total)
        B, omega, variance = self.unpack(theta)
        away = self._apart(B)
        squares += float(away @ among @ away - 2 * along @ away)
        found = self.law.log_density(latent, counts.individuals, B, omega)
        rows = counts.rows * (LOG_2_PI + np.log(variance)) + squares / variance
        return float(found - 0.5 * rows)

    def posterior(self, theta: Vector) -> tuple[Vector, Vector]:
        """Means and covariances of the coefficients given the rows."""
        means, covariances, _, _ = self._given(theta)
        return means, covariances

    def _given(self, theta: Vector) -> tuple[Vector, Vector, Vector, Vector]:
        """Means and covariances of the coefficients, and what likelihoods have beside residuals.

        By a root of Omega, which needs no inverse where times are far from 0. The third (n, q) is
        the means in its units, the fourth (n, q, q) the residual variance and what is explained.
        """
        B, omega, variance = self.unpack(theta)
        root, mean = np.linalg.cholesky(omega), self.law.means(B)[:, self.law.random]
        inner = variance * np.eye(len(root)) + root.T @ self._cross @ root
        inverse = np.linalg.inv(inner)
        units = times(inverse, times(root.T, times(self._cross, self._fitted(B) - mean)))
        return mean + times(root, units), variance * (root @ inverse @ root.T), units, inner

    def curve(self, z: Vector, at: Individuals) -> Vector:
        """Lines (chains, N)."""
        columns, of_rows = self.columns(at).T, z[..., at.individual_of, :]
        found = np.zeros(of_rows.shape[:-1])
        for i, row in enumerate(self.law.random):
            found += of_rows[..., i] * columns[row]
        if len(self.law.fixed):
            assert self.theta is not None, "fixed coefficients are those of about(theta)"
            B = self.law.unpack(self.theta)[0]
            for row in self.law.fixed:
                found += B[row, 0] * columns[row]
        return found

    def row_sds(self, z: Vector, theta: Vector, at: Individuals) -> Vector:
        """The residual sd, the same for all rows."""
        return np.full((len(z), at.n_rows), np.sqrt(theta[-1]))

    def kernels(self, theta: Vector) -> Lines | None:
        """Law of the coefficients, of few enough."""
        if len(self.latents) > MOST_SLOPES:
            return None
        B, omega, variance = self.unpack(theta)
        means = np.ascontiguousarray(self.law.means(B)[:, self.law.random])
        return Lines(means, np.linalg.inv(omega), self._fitted(B), self._cross, variance)

    def marginal(self, theta: Vector) -> Vector:
        """Log-likelihood of each individual, its coefficients integrated out."""
        B, _, variance = self.unpack(theta)
        means, _, units, inner = self._given(theta)
        squares = self._squares(means[None], self._apart(B))[0] / variance + (units**2).sum(axis=1)
        logs = (self.individuals.counts - units.shape[1]) * np.log(variance)
        found: Vector = -0.5 * (
            self.individuals.counts * LOG_2_PI + logs + np.linalg.slogdet(inner)[1] + squares
        )
        return found

    def integrated(self, theta: Vector, best: bool = True) -> Integrated | None:
        """What formulas say; None where columns do not tell coefficients apart."""
        return integrated(self, theta, best)


def _solved(matrix: Vector, right: Vector) -> Vector:
    """Solve equations of a symmetric matrix, units aside; the smallest solution of several."""
    sizes = np.sqrt(np.maximum(np.diag(matrix), 0.0))
    units = np.where(sizes > 0, sizes, 1.0)
    found: Vector = np.linalg.pinv(matrix / np.outer(units, units), hermitian=True) @ (
        right / units
    )
    return found / units


def _least_squares(X: Vector, y: Vector) -> Vector:
    """Coefficients (q,) of the smallest size in units of the columns."""
    units = np.sqrt(np.mean(X**2, axis=0))
    units = np.where(units > 0, units, 1.0)
    found: Vector = np.linalg.lstsq(X / units, y, rcond=None)[0] / units
    return found
