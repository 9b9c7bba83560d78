"""Bi-factor analysis of individuals that lack some items, which are integrated out."""

from __future__ import annotations

import numpy as np

from vpem.saem.models.bifactor import BifactorModel
from vpem.saem.models.model import Counts, Vector
from vpem.saem.models.normal import LOG_2_PI, times

LEAST_SEEN = 1e-6
"""Least number of individuals that have an item, of all of them, that a statistic may say."""


class IncompleteBifactorModel(BifactorModel):
    """`BifactorModel` of items that are missing at random.

    Given the factors items are independent, so that an item that is missing drops out of the
    density. Those who have an item are others for every item: statistics are the squares of the
    factors, and of each item, over those who have it, how many there are, the moments of its two
    factors up to the second, ``y_j``, ``y_j z_0``, ``y_j z_g(j)`` and ``y_j^2``.
    """

    def _moments(self) -> tuple[Vector, Vector]:
        """Mean and variance of each item over those who have it, (d,)."""
        seen = ~np.isnan(self._y)
        n = np.maximum(self.individuals.total(seen.astype(np.float64)), LEAST_SEEN)
        means: Vector = self.individuals.total(np.where(seen, self._y, 0.0)) / n
        apart = np.where(seen, self._y - means, 0.0)
        return means, self.individuals.total(apart**2) / n

    def _lengths(self, q: int, d: int) -> list[int]:
        """Numbers of the pieces of a statistic."""
        return [q, *([d] * 10)]

    def start(self) -> tuple[Vector, Vector]:
        """Factors by means of the standardised items that are there, as `BifactorModel.start`."""
        data = self.individuals
        means, spread = self._scale()
        seen = ~np.isnan(self._y)
        rest = np.where(seen, (self._y - means) / spread, 0.0)
        z = np.empty((self.n, 1 + self.n_groups))
        z[:, 0] = rest.sum(axis=1) / np.maximum(seen.sum(axis=1), 1)
        size = max(float(np.sqrt(data.variance(z[:, 0]))), 1e-12)
        z[:, 0] /= size
        rest = np.where(seen, rest - size * z[:, :1], 0.0)
        for g in range(self.n_groups):
            mine = self.groups == g
            z[:, 1 + g] = rest[:, mine].sum(axis=1) / np.maximum(seen[:, mine].sum(axis=1), 1)
            z[:, 1 + g] /= max(float(np.sqrt(data.variance(z[:, 1 + g]))), 1e-12)
        return self.maximize(data.total(self.statistics(z[None])), self.counts), z

    def _residuals(self, z: Vector, theta: Vector) -> Vector:
        """Residuals (chains, n, d); zero where an item is missing."""
        return np.nan_to_num(super()._residuals(z, theta), nan=0.0, posinf=np.inf, neginf=-np.inf)

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the density of what is there and the factors, (chains, n)."""
        variances = theta.reshape(4, -1)[3]
        each = self._residuals(z, theta) ** 2 / variances
        constants = np.where(np.isnan(self._y), 0.0, np.log(variances) + LOG_2_PI)
        latent = (z**2 + LOG_2_PI).sum(axis=-1)
        found: Vector = -0.5 * ((each + constants).sum(axis=-1) + latent)
        return found

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, P)."""
        seen = (~np.isnan(self._y)).astype(np.float64)
        y = np.where(seen > 0, self._y - self.shift, 0.0)
        mean, squares = z.mean(axis=0), (z**2).mean(axis=0)
        mine = 1 + self.groups
        cross = (z[..., :1] * z[..., mine]).mean(axis=0)
        group = mean[:, mine]
        parts = (
            squares, seen, seen * mean[:, :1], seen * group, seen * squares[:, :1], seen * cross,
            seen * squares[:, mine], y, y * mean[:, :1], y * group, y**2,
        )  # fmt: skip
        return np.concatenate(parts, axis=1)

    def maximize(self, total: Vector, counts: Counts) -> Vector:
        """Regress every item on its two factors over those who have it, as `BifactorModel`."""
        seen, *parts = (total[piece] for piece in self.pieces[1:])
        n = np.maximum(seen, LEAST_SEEN * counts.individuals)
        a, c, aa, ac, cc, y, ya, yc, squares = (part / n for part in parts)
        out = np.empty((4, len(n)))
        for j in range(len(n)):
            moments = np.array([[1.0, a[j], c[j]], [a[j], aa[j], ac[j]], [c[j], ac[j], cc[j]]])
            values, vectors = np.linalg.eigh(moments)
            values = np.maximum(values, 1e-8 * max(float(np.abs(values).max()), 1e-12))
            right = np.array([y[j], ya[j], yc[j]])
            found = vectors @ ((vectors.T @ right) / values)
            out[:3, j] = found
            out[3, j] = max(squares[j] - found @ right, self._floors[j])
        out[0] += self.shift
        return out.ravel()

    def holds(self, total: Vector, counts: Counts) -> bool:
        """Whether residuals have such moments, and factors of those who have each item."""
        seen, a, c, aa, _, cc, *_ = (total[piece] for piece in self.pieces[1:])
        left = self.maximize(total, counts).reshape(4, -1)[3]
        spread = np.minimum(aa * seen - a**2, cc * seen - c**2)
        return bool((left > self._floors).all() and (seen > 0).all() and (spread > 0).all())

    def log_density(self, total: Vector, counts: Counts, theta: Vector) -> float:
        """Complete log-likelihood of a total of statistics."""
        means, loadings, variances = self.unpack(theta)
        means = means - self.shift
        general, group = loadings[:, 0], theta.reshape(4, -1)[2]
        latent, seen, a, c, aa, ac, cc, y, ya, yc, squares = (total[piece] for piece in self.pieces)
        rest = squares - 2 * (means * y + general * ya + group * yc) + seen * means**2
        rest = rest + 2 * means * (general * a + group * c)
        rest = rest + general**2 * aa + 2 * general * group * ac + group**2 * cc
        items = seen * (LOG_2_PI + np.log(variances)) + rest / variances
        constant = counts.individuals * len(latent) * LOG_2_PI
        return float(-0.5 * (items.sum() + latent.sum() + constant))

    def posterior(self, theta: Vector) -> tuple[Vector, Vector]:
        """Means and covariances of the factors given the items that are there."""
        means, loadings, variances = self.unpack(theta)
        q = loadings.shape[1]
        weighed = loadings / variances[:, None]
        precision = np.tile(np.eye(q), (self.n, 1, 1))
        right = np.zeros((self.n, q))
        for j in range(len(means)):
            seen = ~np.isnan(self._y[:, j])
            precision += seen[:, None, None] * np.outer(weighed[j], loadings[j])
            right += np.where(seen, self._y[:, j] - means[j], 0.0)[:, None] * weighed[j]
        precision = (precision + precision.transpose(0, 2, 1)) / 2
        covariances: Vector = np.asarray(np.linalg.inv(precision), np.float64)
        return times(covariances, right), covariances

    def marginal(self, theta: Vector) -> Vector:
        """Log-likelihood of each individual: Bayes' rule at the posterior mean."""
        means, covariances = self.posterior(theta)
        complete = self.log_complete(means[None], theta)[0]
        found: Vector = complete + 0.5 * (
            means.shape[1] * LOG_2_PI + np.linalg.slogdet(covariances)[1]
        )
        return found
