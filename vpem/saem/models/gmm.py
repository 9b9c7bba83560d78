"""Gaussian mixture: the latent of an individual is its component, drawn from responsibilities.

Features that some individuals lack are latents too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Self

import numpy as np

from vpem.checks import Doubles, Indices, Mask, check_int, check_number, check_rows
from vpem.errors import InputError, Setting
from vpem.saem import special
from vpem.saem.individuals import Individuals, Streams
from vpem.saem.models.model import (
    LOG_2_PI,
    Counts,
    SaemModel,
    log_normal,
    slices_of,
    triangle_names,
)
from vpem.terms.units import FLOOR, deviations_of, lower_half, root_of, symmetric

LEAST_WEIGHT = 1e-6


class GmmModel(SaemModel):
    """Mixture of K normal laws with covariances of their own.

    Parameters are the mixing weights, the means and the lower triangles of the covariances;
    statistics of each component are 1, y and the lower triangle of ``y y^T`` (about the values'
    middle) where the individual is in it, else 0. Latents are discrete: the sampler is ``exact``.
    Rows of an individual are its features. Where some lack features, missing at random, latents are
    all values too: those that are missing are drawn from their normal law given the component and
    the others, and statistics are those of the completed values.
    """

    latents = ("component",)
    discrete = True

    def __init__(
        self,
        individuals: Individuals,
        n_components: int,
        rows: Sequence[int] | None = None,  # whose values are the first means; None: evenly spaced
        reg_covar: float | None = None,  # added to variances; None: 1e-6 of each item's variance
        items: Sequence[float] | None = None,  # some may lack these; None: what all have
    ) -> None:
        self.individuals, self.gaps = individuals, individuals.lack(items)
        self.n_components = check_int("n_components", n_components, least=1)
        if reg_covar is not None:
            check_number("reg_covar", reg_covar, least=0)
        self._y, numbers = individuals.matrix(items)
        self.rows = rows
        self.shift = self._mean(self._y)
        self._x = self._y - self.shift
        d = len(numbers)
        self.n_imputed = d if self.gaps else 0
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
        self.pieces = slices_of(K, K * d, K * d * (d + 1) // 2)

    def _mean(self, values: Doubles) -> Doubles:
        """Mean of values (n, d) over all individuals who have the item, (d,)."""
        mean: Doubles
        if self.gaps:
            seen = ~np.isnan(values)
            n = np.maximum(self.individuals.total(seen.astype(np.float64)), 1.0)
            mean = self.individuals.total(np.where(seen, values, 0.0)) / n
        else:
            mean = self.individuals.mean(values)
        return mean

    def take_individuals(self, which: Indices) -> Self:
        part = copy(self)
        part.individuals = self.individuals.take(which)
        part._y, part._x = self._y[which], self._x[which]
        return part

    def unpack(self, theta: Doubles) -> tuple[Doubles, Doubles, Doubles]:
        """Return weights (K,), means (K, d) and covariances (K, d, d)."""
        K, d = self.n_components, self._y.shape[1]
        lower = theta[self.pieces[2]].reshape(K, -1)
        covariances = np.stack([symmetric(one, d) for one in lower])
        return theta[:K], theta[self.pieces[1]].reshape(K, d), covariances

    def start(self) -> tuple[Doubles, Doubles]:
        """Means at some individuals' values, the covariance of all, and equal weights.

        Where sums are masked means are along the axis on which all vary most.
        """
        if self.gaps:  # with means instead of what is missing
            whole = copy(self)
            whole.gaps, whole._y = False, np.where(np.isnan(self._y), self.shift, self._y)
            theta, component = whole.start()
            return theta, np.concatenate([component, whole._y], axis=1)
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
            chosen = middle + special.ndtri((np.arange(K) + 0.5) / K)[:, None] * axis
        elif data.together is None:
            chosen = self._y[rows]
        else:
            chosen = data.together.select_values(self._y, rows)
        covariance = covariance + np.diag(self.floor)
        lower = np.tile(lower_half(covariance), K)
        theta = np.concatenate([np.full(K, 1 / K), chosen.ravel(), lower])
        z = self._log_joint(theta).argmax(axis=1).astype(np.float64)
        return theta, z[:, None]

    def _patterns(self) -> Iterator[tuple[Indices, Mask]]:
        """Individuals that have the same features, and which (d,)."""
        known, place = np.unique(~np.isnan(self._y), axis=0, return_inverse=True)
        for number, seen in enumerate(known):
            yield np.flatnonzero(place.ravel() == number), seen

    def _of_whole(self, y: Doubles, theta: Doubles) -> Doubles:
        """``log pi_k + log N(y; mu_k, Sigma_k)`` of values (..., n, d), (..., n, K)."""
        return np.stack(
            [
                np.log(weight) + log_normal(y, mean, covariance)
                for weight, mean, covariance in zip(*self.unpack(theta), strict=True)
            ],
            axis=-1,
        )

    def _log_joint(self, theta: Doubles) -> Doubles:
        """Logarithm of the density of each component and the features that are there, (n, K)."""
        if not self.gaps or not np.isnan(self._y).any():
            return self._of_whole(self._y, theta)
        weights, means, covariances = self.unpack(theta)
        log_joint = np.empty((self.n, self.n_components))
        for who, seen in self._patterns():
            y = self._y[np.ix_(who, seen)]
            for k, covariance in enumerate(covariances):
                part = log_normal(y, means[k, seen], covariance[np.ix_(seen, seen)])
                log_joint[who, k] = np.log(weights[k]) + part
        return log_joint

    def responsibilities(self, theta: Doubles) -> Doubles:
        from scipy.special import softmax  # takes long to load

        return np.asarray(softmax(self._log_joint(theta), axis=1), np.float64)

    def covariances(self, theta: Doubles) -> Doubles:
        return self.unpack(theta)[2]

    def draw(self, theta: Doubles, stream: Streams, n_chains: int) -> Doubles:
        """Draw components, (chains, n, 1), and what is missing given them, (chains, n, 1 + d)."""
        uniforms = stream.uniforms(n_chains, 1 + self.n_imputed)
        below = np.cumsum(self.responsibilities(theta), axis=1)[:, :-1]
        component = (uniforms[..., :1] > below).sum(axis=-1)
        z = np.empty((n_chains, self.n, 1 + self.n_imputed))
        z[..., 0] = component
        if not self.gaps:
            return z
        z[..., 1:] = self._y
        _, means, covariances = self.unpack(theta)
        normals = special.ndtri(uniforms[..., 1:])
        for who, seen in self._patterns():
            lost = np.flatnonzero(~seen)
            for k, covariance in enumerate(covariances if len(lost) else ()):
                inner = covariance[np.ix_(seen, seen)]
                slope = np.linalg.solve(inner, covariance[np.ix_(seen, lost)])
                left = covariance[np.ix_(lost, lost)] - covariance[np.ix_(lost, seen)] @ slope
                unit = np.sqrt(self.variances[lost])  # the same draws in any units
                values, vectors = np.linalg.eigh((left + left.T) / 2 / np.outer(unit, unit))
                root = unit[:, None] * vectors * np.sqrt(np.maximum(values, 0.0))
                apart = self._y[np.ix_(who, seen)] - means[k, seen]
                chains, place = np.nonzero(component[:, who] == k)
                noise = normals[chains[:, None], who[place, None], lost]
                drawn = np.tile(means[k, lost], (len(chains), 1))
                for i in range(len(slope)):
                    drawn += apart[place, i, None] * slope[i]
                for i in range(len(lost)):
                    drawn += noise[:, i, None] * root[:, i]
                z[chains[:, None], who[place, None], 1 + lost] = drawn
        return z

    def log_complete(self, z: Doubles, theta: Doubles) -> Doubles:
        joint = self._of_whole(z[..., 1:], theta) if self.gaps else self._log_joint(theta)
        every = np.broadcast_to(joint, (*z.shape[:-1], self.n_components))
        return np.take_along_axis(every, z[..., :1].astype(np.intp), axis=-1)[..., 0]

    def gradient(self, z: Doubles, theta: Doubles) -> Doubles:
        raise InputError("the components of a mixture have no gradient; take the sampler exact")

    def statistics(self, z: Doubles) -> Doubles:
        if not self.gaps:
            return self.expected((z == np.arange(self.n_components)).mean(axis=0))
        sums = np.zeros((self.n, self.size))
        for one in z:
            shares = (one[:, :1] == np.arange(self.n_components)).astype(np.float64)
            sums += self.expected(shares, one[:, 1:] - self.shift)
        return sums / len(z)

    def expected(self, shares: Doubles, x: Doubles | None = None) -> Doubles:
        """Statistic (n, P) of shares (n, K) in the components: responsibilities, in EM.

        Values x (n, d) are about the shift, by default those of the individuals.
        """
        x = self._x if x is None else x
        products = lower_half(x[:, :, None] * x[:, None, :])
        parts = [shares]
        for values in (x, products):
            each = shares[:, :, None] * values[:, None, :]
            parts.append(each.reshape(len(shares), shares.shape[1] * values.shape[1]))
        return np.concatenate(parts, axis=1)

    def maximize(self, total: Doubles, counts: Counts) -> Doubles:
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

    def log_density(self, total: Doubles, counts: Counts, theta: Doubles) -> float:
        weights, means, covariances = self.unpack(theta)
        K, d = self.n_components, self._y.shape[1]
        sizes = total[self.pieces[0]]
        sums = total[self.pieces[1]].reshape(K, d)
        lower = total[self.pieces[2]].reshape(K, -1)
        logs, inverses = np.linalg.slogdet(covariances)[1], np.linalg.inv(covariances)
        log_density = 0.0
        for k in range(K):
            mean = means[k] - self.shift
            cross = sums[k][:, None] * mean
            scatter = symmetric(lower[k], d) - cross - cross.T
            scatter += sizes[k] * (mean[:, None] * mean)
            constant = d * LOG_2_PI + logs[k] - 2 * np.log(weights[k])
            inner = np.sum(inverses[k] * scatter)
            log_density -= 0.5 * float(sizes[k] * constant + inner)
        return log_density

    def constraints(self, theta: Doubles) -> Doubles:
        """Weights add up to 1."""
        sums: Doubles = (np.arange(len(theta)) < self.n_components)[None].astype(np.float64)
        return sums

    def marginal(self, theta: Doubles) -> Doubles:
        joint = self._log_joint(theta)
        most = joint.max(axis=1)
        log_sum: Doubles = most + np.log(np.exp(joint - most[:, None]).sum(axis=1))
        return log_sum
