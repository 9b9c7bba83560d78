"""The posterior of a Gaussian mixture: distributions of its parameters, hub by hub."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.network.schema import Array
from vpem.terms.covariances import covariance_shape, is_independent
from vpem.terms.mixture import Mixture
from vpem.terms.priors import Prior

if TYPE_CHECKING:
    from vpem.network.schema import Schema, State


Vector = NDArray[np.float64]

LEAST_USED = 0.5
"""Effective rows from which on a component is in use."""


@dataclass(frozen=True)
class VariationalMixture(
    Mixture, facts="{n_in_use} of {n_components:component} in use, {n_features:feature}"
):
    """A variational posterior of a mixture whose covariances are block-diagonal over hubs.

    It is a Dirichlet distribution, or process, of the mixing weights, times a normal-Wishart
    distribution of each hub's mean and precision matrix in each component (Bishop 2006, section
    10.2; Blei and Jordan 2006). ``weights`` and ``means`` are posterior means; ``covariances`` are
    the inverse expected precision matrices. All follows from the prior and from how many rows
    a component has.

    Diagonal precisions are gamma distributions, independent of each other: they do not depend on
    which features share a hub. Spherical ones are a Wishart distribution of a hub's features whose
    scale matrix is such, and where they are tied all components have one: as scikit-learn has them.

    Parameters
    ----------
    blocks, covariance_type, weights, means, covariances, scaling
        As of `vpem.Mixture`.
    counts : ndarray of shape (R, K)
        Effective rows of each component, as each root finds them.
    seen : ndarray of shape (B, K)
        Effective rows of which a hub has something; those of its root where no value is missing.
    prior : Prior
        In block order and units of fitting.
    """

    counts: Vector
    seen: Vector
    prior: Prior
    is_proper = True

    @classmethod
    def of(cls, plain: Mixture, counts: Vector, seen: Vector, prior: Prior) -> Self:
        """Return a posterior whose means a mixture has."""
        return cls(
            plain.blocks, plain.covariance_type, plain.weights, plain.means, plain.covariances,
            plain.scaling, counts, seen, prior,
        )  # fmt: skip

    @property
    def plain(self) -> Mixture:
        """The mixture at the posterior means."""
        return Mixture(
            self.blocks, self.covariance_type, self.weights, self.means, self.covariances,
            self.scaling,
        )  # fmt: skip

    @property
    def prior_mixture(self) -> Mixture:
        """One component with the prior's means and scale matrices."""
        prior = self.prior
        return Mixture(
            self.blocks, self.covariance_type, np.ones((1, 1)), prior.means[None],
            prior.covariances, self.scaling,
        )  # fmt: skip

    def of_hubs(
        self, plain: Mixture, prior: Mixture, counts: Vector, seen: Vector, freedom: Vector
    ) -> VariationalMixture:
        """Return the posterior of other hubs.

        ``plain``, ``prior`` (as `prior_mixture`), ``counts`` (R, K), ``seen`` (B, K) and the
        prior's degrees of freedom (B,) are of these hubs.
        """
        own = replace(
            self.prior, degrees_of_freedom=freedom, means=prior.means[0],
            covariances=prior.covariances,
        )  # fmt: skip
        return VariationalMixture.of(plain, counts, seen, own)

    def arrays(self) -> State:
        """Parameters and prior as arrays."""
        own = {"counts": self.counts, "seen": self.seen}
        known = {"prior_means": self.prior.means, "prior_covariances": self.prior.covariances}
        return Mixture.arrays(self) | own | known

    def schema(self, n_roots: int = 1) -> Schema:
        """Say what `arrays` must be."""
        k, one = self.n_components, covariance_shape(self.blocks, self.covariance_type, 1)
        plain = Mixture.schema(self, n_roots)
        assert isinstance(plain, dict)
        return plain | {
            "counts": Array("f8", ((1, n_roots), k), least=0),
            "seen": Array("f8", (self.blocks.n_blocks, k), least=0),
            "prior_means": Array("f8", (self.n_features,)),
            "prior_covariances": Array("f8", one),
        }

    def having(self, arrays: State) -> VariationalMixture:
        """Return a posterior like this one with other parameters, and another prior."""
        own = dict(arrays)
        means, covariances = own.pop("prior_means"), own.pop("prior_covariances")
        return replace(self, **own, prior=replace(self.prior, means=means, covariances=covariances))

    @property
    def concentrations(self) -> Vector:
        """Parameters of the posterior of the weights, (R, C, K); see `Prior.concentrations`."""
        return self.prior.concentrations(self.counts)

    @property
    def mean_precisions(self) -> Vector:
        """Rows that a hub's mean of a component is worth, (B, K)."""
        return self.prior.mean_precision + self.seen

    @property
    def degrees_of_freedom(self) -> Vector:
        """Degrees of freedom of a hub's Wishart distribution, (B, n_copies)."""
        seen = self.seen.mean(axis=1, keepdims=True) if self.is_tied else self.seen
        return self.prior.degrees_of_freedom[:, None] + seen

    @property
    def in_use(self) -> NDArray[np.bool_]:
        """Components (K,) that have at least `LEAST_USED` rows, by the mean over roots."""
        found: NDArray[np.bool_] = self.counts.mean(axis=0) >= LEAST_USED
        return found

    @property
    def n_in_use(self) -> int:
        """Number of components in use."""
        return int(self.in_use.sum())

    @cached_property
    def offsets(self) -> Vector:
        """By how much a hub's term at the posterior means differs from the expected one, (B, K).

        ``E log|Lambda| + log|C| - d_b / beta`` with the mean precision ``beta``, C the inverse of
        the expected precision matrix, and ``E log|Lambda| = sum_i psi((nu + 1 - i) / 2) + d_b log
        (2 / nu) - log|C|``.
        """
        from scipy.special import digamma

        widths, own = self.blocks.widths[:, None], self.degrees_of_freedom
        logs = over_steps(digamma, own, self) + widths * np.log(2 / own)
        return np.asarray(logs - widths / self.mean_precisions)

    @cached_property
    def log_weights(self) -> Vector:
        """Expected logarithms of the mixing weights, as each root holds them, (R, K).

        The divergence of the weights' posterior is taken off, an equal part of it from every row:
        so sums over all rows have it, and responsibilities do not depend on it.
        """
        rows = self.counts.sum(axis=1, keepdims=True)
        logs = self.prior.log_weights(self.counts)
        return np.asarray(logs - self.prior.divergence(self.counts)[:, None] / rows)

    @property
    def assembled_log_weights(self) -> Vector:
        """Expected logarithms (K,), given the mean of what the roots found."""
        return self.prior.log_weights(self.counts.mean(axis=0, keepdims=True)).ravel()

    @property
    def assembled_weights(self) -> Vector:
        """Expected mixing weights (K,), given the mean of what the roots found."""
        return self.prior.weights(self.counts.mean(axis=0, keepdims=True)).ravel()

    def weighing(self, other: Mixture) -> VariationalMixture:
        """Return the same posterior with another one's mixing weights."""
        assert isinstance(other, VariationalMixture)
        return replace(self, weights=other.weights, counts=other.counts)

    @property
    def shares(self) -> Vector:
        """What of the mixing weights is extrapolated: rows, and what the prior adds, (R, K)."""
        found = self.counts + self.prior.concentration
        return np.asarray(found / found.sum(axis=1, keepdims=True))

    def at(self, shares: Vector, means: Vector, covariances: Vector) -> VariationalMixture:
        """Return the posterior at another point: as many rows in all, but no less than none."""
        more = self.prior.concentration
        rows = self.counts.sum(axis=1, keepdims=True)
        counts = np.maximum(shares * (rows + self.n_components * more) - more, 0.0)
        counts *= rows / counts.sum(axis=1, keepdims=True)
        some = self.counts > 0
        ratio = np.where(some, counts, 1.0) / np.where(some, self.counts, 1.0)
        seen = np.where(some, self.seen * ratio, counts)
        weights = self.prior.weights(counts)
        return replace(
            self, weights=weights, means=means, covariances=covariances, counts=counts, seen=seen
        )

    def terms_of(self, values: Vector, there: NDArray[np.bool_]) -> tuple[Floats, Vector | float]:
        """Expected terms (B, m, K) of each block, and what their log-density has besides."""
        terms, constant = self.plain.terms_of(values, there)
        for own, offsets, columns in zip(terms, self.offsets, self.blocks.features, strict=True):
            own -= np.outer(there[:, columns].any(axis=1), offsets)
        return terms, constant

    def permuted(self, order: NDArray[np.intp]) -> Mixture:
        """Return the posterior means with the components in another order.

        Sticks of a Dirichlet process are broken in one order.
        """
        return self.plain.permuted(order)

    def marginal(self, features: Sequence[int]) -> Mixture:
        """Return the mixture of some of the features at the posterior means."""
        return self.plain.marginal(features)


def over_steps(function: np.ufunc, own: Vector, mixture: Mixture) -> Vector:
    """Sum ``function((nu + 1 - i) / 2)`` over i = 1 ... d_b, for nu (B, C) of each block.

    Diagonal precisions are independent gammas: of each feature i is 1.
    """
    blocks = mixture.blocks
    steps = np.arange(blocks.n_features) - blocks.offsets[blocks.block_of]
    if is_independent(mixture.covariance_type):
        steps[:] = 0
    found = np.zeros(own.shape)
    np.add.at(found, blocks.block_of, function((own[blocks.block_of] - steps[:, None]) / 2))
    return found
