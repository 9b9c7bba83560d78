"""Gaussian mixture of individuals that lack some features: these are latents too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from vpem.saem.individuals import Individuals
from vpem.saem.models.gmm import GmmModel
from vpem.saem.models.model import Vector
from vpem.saem.models.normal import log_normal
from vpem.saem.streams import Stream
from vpem.terms.matrices import lower_half


class IncompleteGmmModel(GmmModel):
    """`GmmModel` of features that are missing at random.

    Latents of an individual are its component and, beside it, its values: those that are missing
    are drawn from their normal law given the component and the others. Statistics are those of the
    completed values.
    """

    def __init__(
        self,
        individuals: Individuals,
        n_components: int,
        rows: Sequence[int] | None = None,
        reg_covar: float | None = None,
        items: Sequence[float] | None = None,
    ) -> None:
        super().__init__(individuals, n_components, rows, reg_covar, items)
        self.n_imputed = self._y.shape[1]

    def _mean(self, values: Vector) -> Vector:
        """Mean of values (n, d) over those who have the item, (d,)."""
        seen = ~np.isnan(values)
        n = np.maximum(self.individuals.total(seen.astype(np.float64)), 1.0)
        found: Vector = self.individuals.total(np.where(seen, values, 0.0)) / n
        return found

    def start(self) -> tuple[Vector, Vector]:
        """As `GmmModel.start`, with means instead of what is missing."""
        whole = copy(self)
        whole._y = np.where(np.isnan(self._y), self.shift, self._y)
        theta, component = GmmModel.start(whole)
        return theta, np.concatenate([component, whole._y], axis=1)

    def _patterns(self) -> Iterator[tuple[NDArray[np.intp], NDArray[np.bool_]]]:
        """Individuals that have the same features, and which (d,)."""
        known, place = np.unique(~np.isnan(self._y), axis=0, return_inverse=True)
        for number, seen in enumerate(known):
            yield np.flatnonzero(place.ravel() == number), seen

    def _log_joint(self, theta: Vector) -> Vector:
        """``log pi_k + log N`` of the features that are there, (n, K)."""
        if not np.isnan(self._y).any():
            return super()._log_joint(theta)
        weights, means, covariances = self.unpack(theta)
        found = np.empty((self.n, self.n_components))
        for who, seen in self._patterns():
            y = self._y[np.ix_(who, seen)]
            for k, covariance in enumerate(covariances):
                part = log_normal(y, means[k, seen], covariance[np.ix_(seen, seen)])
                found[who, k] = np.log(weights[k]) + part
        return found

    def draw(self, theta: Vector, stream: Stream, n_chains: int) -> Vector:
        """Draw components, and what is missing given them: (chains, n, 1 + d)."""
        _, means, covariances = self.unpack(theta)
        d = self._y.shape[1]
        uniforms = stream.uniforms(n_chains, 1 + d)
        below = np.cumsum(self.responsibilities(theta), axis=1)[:, :-1]
        component = (uniforms[..., :1] > below).sum(axis=-1)
        z = np.empty((n_chains, self.n, 1 + d))
        z[..., 0], z[..., 1:] = component, self._y
        normals = ndtri(uniforms[..., 1:])
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

    def log_complete(self, z: Vector, theta: Vector) -> Vector:
        """Logarithm of the density of component and completed values, (chains, n)."""
        weights, means, covariances = self.unpack(theta)
        joint = [
            np.log(weight) + log_normal(z[..., 1:], mean, covariance)
            for weight, mean, covariance in zip(weights, means, covariances, strict=True)
        ]
        found: Vector = np.choose(z[..., 0].astype(np.intp), joint)
        return found

    def statistics(self, z: Vector) -> Vector:
        """Statistic of each individual, the mean over chains, (n, P)."""
        found = np.zeros((self.n, self.size))
        for one in z:
            shares = (one[:, :1] == np.arange(self.n_components)).astype(np.float64)
            x = one[:, 1:] - self.shift
            parts = [shares]
            for values in (x, lower_half(x[:, :, None] * x[:, None, :])):
                each = shares[:, :, None] * values[:, None, :]
                parts.append(each.reshape(self.n, self.n_components * values.shape[1]))
            found += np.concatenate(parts, axis=1)
        return found / len(z)
