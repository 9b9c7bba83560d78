"""Variational Bayes over features: each hub's expected terms, and the posterior of its block.

Given responsibilities the posterior of a mixture is one of the weights times one of each hub, and
given the posterior the responsibilities are those of a sum over hubs: coordinate ascent of the
evidence lower bound takes the same sums as EM. The divergence of a hub's posterior from its prior
travels in its terms, an equal part of it in every row, so that what a sum finds is the bound.
"""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from typing import Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from vpem.errors import NumericalError, Setting
from vpem.terms.conjugate import ConjugateTerms, PriorFactors
from vpem.terms.covariances import Factors, covariance_shape
from vpem.terms.density import Density
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Mixture
from vpem.terms.priors import Beliefs, Prior, wishart_sizes
from vpem.terms.statistics import Statistics, enough_rows
from vpem.terms.variational_mixture import VariationalMixture, over_steps

Vector = NDArray[np.float64]


class VariationalTerms(ConjugateTerms):
    """Local terms under a posterior, of data split by features over hubs.

    Statistics are those of EM, and `update` gives the posterior that they and the prior make.
    Components may be empty: their posterior is the prior. Made by `of`.

    Attributes
    ----------
    beliefs : Beliefs
        What the prior is made of.
    prior : Prior
        In block order and units of fitting; there is none before `about`, `knowing` or `resuming`.
    """

    beliefs: Beliefs
    prior: Prior
    least_rows = 0.0
    """A component without rows has not collapsed."""
    _prior_log_dets: Vector

    @classmethod
    def of(cls, plain: FeatureTerms, beliefs: Beliefs) -> Self:
        """Return the variational terms of the rows that plain terms have, without a prior yet."""
        made = cls.of_plain(plain)
        made.beliefs, made.least_rows = beliefs, cls.least_rows
        return made

    def about(self, sample: Mixture) -> Self:
        """Return these terms under the prior about one component that is fitted to all rows."""
        return self.under(self.beliefs.prior(sample, self.total_weight))

    def knowing(self, statistics: Statistics) -> Self:
        """Return these terms under the prior about statistics of all rows in one component."""
        return self.about(self._maximised(statistics))

    def resuming(self, mixture: Density) -> Self:
        """Return these terms under the prior that a saved posterior had."""
        assert isinstance(mixture, VariationalMixture)
        return self.under(mixture.prior)

    def under(self, prior: Prior) -> Self:
        """Return these terms under a prior, whose covariance is positive definite in every hub."""
        made = copy(self)
        made.prior, made._sample_covariance = prior, prior.covariances
        made._prior_log_dets = self._log_dets_of_prior(prior.means, prior.covariances)
        return made

    def begun(self, start: Mixture) -> VariationalMixture:
        """Return a posterior with the parameters of a mixture for its means.

        Its components have as many rows as their mixing weights say.
        """
        if isinstance(start, VariationalMixture):
            return start
        counts = self.total_weight * start.weights
        return self._posterior(start, counts, np.broadcast_to(counts, self._shape(start)).copy())

    def blank(self, n_components: int) -> VariationalMixture:
        """Return a posterior of so many components with everything but parameters."""
        plain = FeatureTerms.blank(self, n_components)
        one = covariance_shape(self.blocks, self.covariance_type, 1)
        nothing = np.zeros(self.blocks.n_features), np.zeros(one)
        sizes = wishart_sizes(self.blocks, self.covariance_type)
        prior, seen = self.beliefs.with_known(sizes, *nothing), np.zeros(self._shape(plain))
        return VariationalMixture.of(plain, plain.weights, seen, prior)

    def _shape(self, mixture: Mixture) -> tuple[int, int]:
        return self.blocks.n_blocks, mixture.n_components

    def _posterior(self, means: Mixture, counts: Vector, seen: Vector) -> VariationalMixture:
        plain = replace(means, weights=self.prior.weights(counts))
        return VariationalMixture.of(plain, counts, seen, self.prior)

    # ---- E-step --------------------------------------------------------------------------------

    def _expected(
        self, mixture: VariationalMixture, plain: Factors, dtype: DTypeLike
    ) -> PriorFactors:
        """Factors of expected log-densities, in which each row has its part of the divergence."""
        shares = np.zeros(self.blocks.n_blocks)
        if not plain.failed.any():
            shares = 2 * self.divergences(mixture, plain) / self._weights_of_hubs
        log_dets = plain.log_dets - mixture.offsets.T + shares
        inverse = plain.inverse
        if self._is_tied:
            inverse = self._repeated(np.asarray(inverse, np.float64), mixture.n_components)
        return self._with_shares(replace(plain, inverse=inverse), log_dets, dtype, plain)

    @property
    def _weights_of_hubs(self) -> Vector | float:
        """Weight of the rows of which each hub has something."""
        return self.total_weight

    def divergences(self, mixture: VariationalMixture, plain: Factors) -> Vector:
        """Divergence (B,) of each hub's posterior from its prior, in nats.

        ``sum_k KL(q(Lambda) || p(Lambda)) + E KL(q(mu | Lambda) || p(mu | Lambda))``, of Wishart
        and of normal distributions (Bishop 2006, appendix B). With ``L = plain.log_dets``, P and
        ``nu_0`` the prior's, C the mixture's covariance, it takes
        ``tr(P C^-1) + beta_0 (m - m_0)' C^-1 (m - m_0)``.
        """
        from scipy.special import digamma, gammaln

        prior, d = self.prior, self.blocks.widths[:, None]
        nu, nu_0 = mixture.degrees_of_freedom, prior.degrees_of_freedom[:, None]
        beta, copies = mixture.mean_precisions, mixture.n_copies
        many = mixture.n_components // copies
        log_det = plain.log_dets.T.astype(np.float64)
        wishart = 0.5 * nu * log_det - 0.5 * nu_0 * self._prior_log_dets[:, None]
        wishart += 0.5 * d * (nu * np.log(nu / 2) + nu_0 * np.log(2))
        wishart += over_steps(gammaln, nu_0, mixture) - over_steps(gammaln, nu, mixture)
        log_precision = over_steps(digamma, nu, mixture) + d * np.log(2 / nu) - log_det
        wishart += 0.5 * (nu - nu_0) * log_precision - 0.5 * d * nu
        normal = 0.5 * d * (prior.mean_precision / beta - 1 + np.log(beta / prior.mean_precision))
        pairs = self._repeated(many * prior.covariances, copies)
        self._add_squares(pairs, mixture.means - prior.means, prior.mean_precision)
        traces = self._over_hubs(self._lower_precisions(plain) * pairs)
        return np.asarray(many * wishart.sum(axis=1) + normal.sum(axis=1) + 0.5 * traces)

    def sweep(
        self,
        mixture: Mixture,
        factors: Factors,
        mix: Vector,
        statistics: Statistics | None = None,
    ) -> Vector:
        """Take the sum ``mix @ Q`` and all that depends on it in one pass over the rows.

        Tied covariances have K terms, and as many moments, of which the sum is one.
        """
        if statistics is None or not self._is_tied:
            return FeatureTerms.sweep(self, mixture, factors, mix, statistics)
        k, second = mixture.n_components, statistics.second
        each = replace(statistics, second=self._repeated(np.zeros_like(second), k))
        found = FeatureTerms.sweep(self, mixture, factors, mix, each)
        if second.ndim == 2:
            second += each.second.sum(axis=0)
            return found
        for (*_, view), (*_, own) in zip(
            self._banded(second, 1), self._banded(each.second, k), strict=True
        ):
            view += own.sum(axis=1, keepdims=True)
        return found

    # ---- M-step --------------------------------------------------------------------------------

    def update(self, statistics: Statistics) -> VariationalMixture:
        """Posterior of the statistics: Bishop 2006, equations (10.58) to (10.63), hub by hub.

        As scikit-learn's: the inverse scale matrix is divided by the degrees of freedom, diagonal
        ones are its diagonal, spherical ones their mean, and tied ones the mean over components.
        """
        plain, seen = self._maximised(statistics), self._seen(statistics)
        prior, k = self.prior, len(statistics.first)
        beta = prior.mean_precision + seen
        share = self._told(seen / beta)
        means = prior.means + share * (plain.means - prior.means)
        found = self._posterior(replace(plain, means=means), statistics.counts, seen)
        copies = found.n_copies
        inverse = plain.covariances.copy()
        per_copy = seen.mean(axis=1, keepdims=True) if self._is_tied else seen
        times = prior.mean_precision * seen / beta / (k // copies)
        self._scale_hubs(inverse, self._told(per_copy))
        self._add_squares(inverse, plain.means - prior.means, self._told(times))
        inverse += self._repeated(prior.covariances, copies)
        if self.covariance_type.endswith("spherical"):
            inverse = self._averaged(inverse)
        self._scale_hubs(inverse, self._told(1 / found.degrees_of_freedom))
        return replace(found, covariances=inverse)

    def _seen(self, statistics: Statistics) -> Vector:
        """Effective rows of which each hub has something, (B, K)."""
        shape = (self.blocks.n_blocks, statistics.counts.shape[1])
        return np.broadcast_to(statistics.counts, shape).copy()

    def keep(
        self, mixture: Mixture, before: Mixture, hubs: NDArray[np.bool_]
    ) -> VariationalMixture:
        """Return the posterior in which these hubs (B,) have what they had before."""
        assert isinstance(mixture, VariationalMixture)
        assert isinstance(before, VariationalMixture)
        means, shape = FeatureTerms.keep(self, mixture, before, hubs), self._shape(mixture)
        silent = hubs[:, None]
        counts = np.where(silent, np.broadcast_to(before.counts, shape), mixture.counts)
        seen = np.where(silent, before.seen, mixture.seen)
        return self._posterior(means, counts, seen)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics for which `update` gives a posterior, about its means.

        Their first moments are ``beta_0 (m - m_0)``, their second ones ``nu C - P - beta_0 (m -
        m_0)(m - m_0)'``.
        """
        assert isinstance(mixture, VariationalMixture)
        made, prior = self.empty(mixture.means, n_roots), self.prior
        made.shifts, away = mixture.means, mixture.means - prior.means
        made.counts += mixture.counts
        made.first += prior.mean_precision * away
        copies = mixture.n_copies
        many = mixture.n_components // copies
        made.second += mixture.covariances
        self._scale_hubs(made.second, self._told(mixture.degrees_of_freedom))
        made.second -= self._repeated(prior.covariances, copies)
        made.second *= many
        self._add_squares(made.second, away, -prior.mean_precision)
        made.scale(weight / float(mixture.counts[0].sum()))
        return made

    def enough(self, counts: Vector) -> NDArray[np.bool_]:
        """Whether there are enough rows (R, K) a component for an M-step, on average."""
        widest = 1 if self._is_diagonal else self.widest
        return np.asarray(counts.mean(axis=1) >= enough_rows(widest))

    def start(self, centres: Vector) -> VariationalMixture:
        """Equal weights, means at ``centres`` (K, d), every covariance the prior one."""
        return self.begun(FeatureTerms.start(self, centres))

    def reseeded(self, mixture: Mixture, component: int, centre: Vector, weight: float) -> Mixture:
        """Raise NumericalError: under a proper prior no component can fail."""
        raise NumericalError(
            f"the posterior covariance of component {component} is not positive definite; try a "
            "larger ", Setting("reg_covar"), ", or scaled features",
        )  # fmt: skip
