"""Gaussian mixture: the latent of an individual is its component, drawn from responsibilities."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from itertools import pairwise
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem.checks import check_int, check_number, check_rows
from vpem.errors import InputError, Setting
from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Counts, SaemModel, Vector
from vpem.saem.models.normal import (
    LOG_2_PI,
    log_normal,
    triangle_names,
)
from vpem.saem.models.tables import table_of
from vpem.saem.streams import Stream
from vpem.terms.matrices import lower_half, symmetric
from vpem.terms.points import root_of
from vpem.terms.scaling import FLOOR, deviations_of

LEAST_WEIGHT = 1e-6


class GmmModel(SaemModel):
    """Mixture of K normal laws with covariances of their own.

    Parameters are the mixing weights, the means and the lower triangles of the covariances;
    statistics of each component are 1, y and the lower triangle of ``y y^T`` (about the values'
    middle) where the individual is in it, else 0. Latents are discrete: the sampler is ``exact``.

    Parameters
    ----------
    individuals : Individuals
        All with the same number of rows: the features.
    n_components : int
        K.
    rows : sequence of int, optional
        Individuals whose values are the first means; evenly spaced ones by default.
    reg_covar : float, optional
        Added to variances; 1e-6 of the variance of each item over all individuals by default.
    items : sequence of float, optional
        The items (features), of which individuals may then lack some
        (`vpem.saem.models.gmm_missing`). By default those that all have.
    """

    latents = ("component",)
    discrete = True

    def __init__(
        self,
        individuals: Individuals,
        n_components: int,
        rows: Sequence[int] | None = None,
        reg_covar: float | None = None,
        items: Sequence[float] | None = None,
    ) -> None:
        self.individuals = individuals
        self.n_components = check_int("n_components", n_components, least=1)
        if reg_covar is not None:
            check_number("reg_covar", reg_covar, least=0)
        self._y, numbers = table_of(individuals, items)
        self.rows = rows
        self.shift = self._mean(self._y)
        self._x = self._y - self.shift
        d = len(numbers)
        self.variances = deviations_of(self.shift, self._mean(np.square(self._x))) ** 2
        self.variances[self.variances == 0] = 1.0
        self.floor = FLOOR * self.variances if reg_covar is None else np.full(d, float(reg_covar))
        names = tuple(f"{item:g}" for item in numbers)
        K = self.n_components
        self.parameters = (
            *(f"weight {k}" for k in range(K)),
            *(f"mean {k} {name}" for k in range(K) for name in names),
            *(f"{name} {k}" for k in range(K) for name in triangle_names(names)),
        )
        ends = np.cumsum([0, K, K * d, K * d * (d + 1) // 2])
        self.pieces = tuple(slice(int(a), int(b)) for a, b in pairwise(ends))

    def _mean(self, values: Vector) -> Vector:
        """Mean of values (n, d) over all individuals, (d,)."""
        found: Vector = self.individuals.mean(values)
        return found

    def take(self, which: NDArray[np.intp]) -> Self:
        """Return the same model of some of the individuals."""
        part = copy(self)
        part.individuals = self.individuals.take(which)
        part._y, part._x = self._y[which], self._x[which]
        return part

    def unpack(self, theta: Vector) -> tuple[Vector, Vector, Vector]:
        """Return weights (K,), means (K, d) and covariances (K, d, d)."""
        K, d = self.n_components, self._y.shape[1]
        lower = theta[self.pieces[2]].reshape(K, -1)
        covariances = np.stack([symmetric(one, d) for one in lower])
        return theta[:K], theta[self.pieces[1]].reshape(K, d), covariances

    def start(self) -> tuple[Vector, Vector]:
        """Means at some individuals' values, the covariance of all, and equal weights.

        Where sums are masked means are along the axis on which all vary most.
        """
        K, data = self.n_components, self.individuals
        n = data.number[0]
        if n <= K:
            raise InputError(f"{K} components need more individuals than {n}")
        rows = np.linspace(0, n - 1, K).astype(int) if self.rows is None else self.rows
        rows = check_rows(rows, K, n)
        middle = data.mean(self._y)
        covariance = data.products(self._y - middle) * (1 / data.everyone[0])
        if data.masked and self.rows is not None:
            raise InputError(
                "rows to start at would be shown to all by the devices that hold them; leave them "
                "out, or ", Setting("secure_sum"),
            )  # fmt: skip
        if data.masked:
            # Nobody's values are shown: along the axis on which all vary most.
            axis = root_of(np.asarray(covariance))[:, -1]
            chosen = middle + ndtri((np.arange(K) + 0.5) / K)[:, None] * axis
        else:
            chosen = data.of(self._y, rows)
        covariance = covariance + np.diag(self.floor)
        lower = np.tile(lower_half(covariance), K)
        theta = np.concatenate([np.full(K, 1 / K), chosen.ravel(), lower])
        z = self._log_joint(theta).argmax(axis=1).astype(np.float64)
        return theta, z[:, None]

    def _log_joint(self, theta: Vector) -> Vector:
        """``log pi_k + log N(y; mu_k, Sigma_k)``, (n, K)."""
        weights, means, covariances = self.unpack(theta)
        return np.stack(
            [
                np.log(weight) + log_normal(self._y, mean, covariance)
                for weight, mean, covariance in zip(weights, means, covariances, strict=True)
            ],
            axis=1,
        )

    def responsibilities(self, theta: Vector) -> Vector:
        """Probability of each component given the values, (n, K)."""
        joint = self._log_joint(theta)
        odds = np.exp(joint - joint.max(axis=1, keepdims=True))
        found: Vector = odds / odds.sum(axis=1, keepdims=True)
        return found

    def draw(self, theta: Vector, stream: Stream, n_chains: int) -> Vector:
        """Draw components from their responsibilities, (chains, n, 1)."""
        below = np.cumsum(self.responsibilities(theta), axis=1)[:, :-1]
        found: Vector = (stream.uniforms(n_chains, 1) > below).sum(axis=-1, keepdims=True) * 1.0
        return found

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the complete density of each individual, (chains, n)."""
        joint = self._log_joint(theta)
        return joint[np.arange(self.n), z[..., 0].astype(np.intp)]

    def gradient(self, z: Vector, theta: Vector) -> Vector:
        """Components have no gradient."""
        raise InputError("the components of a mixture have no gradient; take the sampler exact")

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, P)."""
        return self.expected((z == np.arange(self.n_components)).mean(axis=0))

    def expected(self, shares: Vector) -> Vector:
        """Statistic (n, P) of shares (n, K) in the components: responsibilities, in EM."""
        products = lower_half(self._x[:, :, None] * self._x[:, None, :])
        parts = [shares]
        for values in (self._x, products):
            each = shares[:, :, None] * values[:, None, :]
            parts.append(each.reshape(len(shares), shares.shape[1] * values.shape[1]))
        return np.concatenate(parts, axis=1)

    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Weights, means and covariances, each raised to be valid."""
        K, d = self.n_components, self._y.shape[1]
        units = np.sqrt(np.outer(self.variances, self.variances))
        sizes = np.maximum(total[self.pieces[0]], LEAST_WEIGHT * counts.individuals)
        means = total[self.pieces[1]].reshape(K, d) / sizes[:, None]
        lower = total[self.pieces[2]].reshape(K, -1) / sizes[:, None]
        out = []
        for k in range(K):
            covariance = symmetric(lower[k], d) - np.outer(means[k], means[k])
            values, vectors = np.linalg.eigh(covariance / units)
            raised = (vectors * np.maximum(values, 0.0)) @ vectors.T * units
            out.append(lower_half((raised + raised.T) / 2 + np.diag(self.floor)))
        return np.concatenate([sizes / sizes.sum(), (means + self.shift).ravel(), *out])

    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """Complete log-likelihood of a total of statistics."""
        weights, means, covariances = self.unpack(theta)
        K, d = self.n_components, self._y.shape[1]
        sizes = total[self.pieces[0]]
        sums = total[self.pieces[1]].reshape(K, d)
        lower = total[self.pieces[2]].reshape(K, -1)
        found = 0.0
        for k in range(K):
            mean = means[k] - self.shift
            scatter = symmetric(lower[k], d) - np.outer(sums[k], mean) - np.outer(mean, sums[k])
            scatter += sizes[k] * np.outer(mean, mean)
            constant = d * LOG_2_PI + np.linalg.slogdet(covariances[k])[1] - 2 * np.log(weights[k])
            inner = np.sum(np.linalg.inv(covariances[k]) * scatter)
            found -= 0.5 * float(sizes[k] * constant + inner)
        return found

    def constraints(self, theta: Vector) -> Vector:
        """Weights add up to 1."""
        sums: Vector = (np.arange(len(theta)) < self.n_components)[None].astype(np.float64)
        return sums

    def marginal(self, theta: Vector) -> Vector:
        """Log-likelihood of each individual: the sum over components."""
        joint = self._log_joint(theta)
        most = joint.max(axis=1)
        found: Vector = most + np.log(np.exp(joint - most[:, None]).sum(axis=1))
        return found
