"""Conjugate priors of a Gaussian mixture, and EM to the mode of the posterior under one.

Weights are Dirichlet and hubs normal-Wishart (`Prior`). For the mode, as mclust's `priorControl`
has it (`MapTerms`), a hub's covariance is inverse Wishart and its mean normal given that, variances
that stand alone are inverse gamma, and mixing weights have no prior (Fraley and Raftery 2007). The
density of the prior travels in the terms of its hub, an equal part of it in every row, so that what
a sum finds is the penalised log-likelihood, which EM never lowers.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike

from vpem.checks import Doubles, Floats, Indices
from vpem.errors import InputError, NumericalError, Setting
from vpem.network.partition import Blocks
from vpem.settings import MAP
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, factorise
from vpem.terms.statistics import Statistics

DIRICHLET = "dirichlet_distribution"
"""Prior of mixing weights, by scikit-learn's name."""


@dataclass(frozen=True)
class Prior:
    """The prior of a mixture.

    A hub's precision matrix is Wishart with ``degrees_of_freedom`` and the inverse scale matrix
    ``covariances``; its mean, given the precision, is normal about ``means``. The prior covariance
    of a component that sees no row is thus ``covariances / degrees_of_freedom``.
    """

    kind: str
    """"dirichlet_distribution", or "dirichlet_process": sticks of Beta(1, concentration) broken K
    times."""
    concentration: float  # of the mixing weights; the less, the fewer components are in use
    mean_precision: float  # rows that the prior mean is worth
    degrees_of_freedom: Doubles  # (B,) of each hub, above its number of features less one
    means: Doubles  # (d,) in block order and units of fitting
    covariances: Doubles  # shaped as those of a mixture of one component

    def concentrations(self, counts: Doubles) -> Doubles:
        """Parameters of the weights' posterior (R, C, K), given effective rows (R, K).

        C is 1 for a Dirichlet distribution; the two of each Beta distribution for a process.
        """
        if self.kind == DIRICHLET:
            return (self.concentration + counts)[:, None]
        after = np.zeros_like(counts)
        after[:, :-1] = np.cumsum(counts[:, :0:-1], axis=1)[:, ::-1]
        return np.stack([1.0 + counts, self.concentration + after], axis=1)

    def log_weights(self, counts: Doubles) -> Doubles:
        """Expected logarithms of the mixing weights (R, K), given effective rows (R, K)."""
        from scipy.special import digamma

        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(digamma(concentrations[:, 0]) - digamma(concentrations.sum(axis=2)))
        taken, left = digamma(concentrations).swapaxes(0, 1)
        whole = digamma(concentrations.sum(axis=1))
        before = np.zeros_like(counts)
        before[:, 1:] = np.cumsum(left - whole, axis=1)[:, :-1]
        return np.asarray(taken - whole + before)

    def weights(self, counts: Doubles) -> Doubles:
        """Expected mixing weights (R, K), given effective rows (R, K); they add up to 1."""
        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            return np.asarray(concentrations[:, 0] / concentrations.sum(axis=2))
        taken, left = (concentrations / concentrations.sum(axis=1, keepdims=True)).swapaxes(0, 1)
        before = np.ones_like(counts)
        before[:, 1:] = np.cumprod(left, axis=1)[:, :-1]
        weights = taken * before
        return np.asarray(weights / weights.sum(axis=1, keepdims=True))

    def divergence(self, counts: Doubles) -> Doubles:
        """Kullback-Leibler divergence (R,) of the weights' posterior from the prior, in nats."""
        from scipy.special import betaln, digamma, gammaln

        concentrations = self.concentrations(counts)
        if self.kind == DIRICHLET:
            of_dirichlet, k = concentrations[:, 0], counts.shape[1]
            normal = gammaln(of_dirichlet.sum(axis=1)) - gammaln(of_dirichlet).sum(axis=1)
            normal -= gammaln(k * self.concentration) - k * gammaln(self.concentration)
            return np.asarray(normal + (counts * self.log_weights(counts)).sum(axis=1))
        taken, left = concentrations.swapaxes(0, 1)
        parts = betaln(1.0, self.concentration) - betaln(taken, left)
        parts += (taken - 1) * digamma(taken) + (left - self.concentration) * digamma(left)
        parts += (1 + self.concentration - taken - left) * digamma(taken + left)
        return np.asarray(parts.sum(axis=1))


def wishart_sizes(blocks: Blocks, covariance_type: str) -> Indices:
    """Features (B,) whose precision matrix has one distribution: a hub's, or each its own."""
    of_hub = blocks.widths.clip(1)
    return np.ones_like(of_hub) if covariance_type.endswith("diag") else of_hub


def check_prior(kind: str, weight: float, freedom: Doubles, sizes: Indices) -> None:
    """Refuse a prior beside rows of little weight, or of too few degrees of freedom (B,)."""
    if not weight > 1:
        raise InputError(
            Setting("weight_concentration_prior_type", kind), " counts what rows weigh against a "
            f"prior that is worth whole rows, but all rows together weigh {weight:g}; multiply "
            "their weights, or leave it out",
        )  # fmt: skip
    few = np.flatnonzero(freedom <= sizes - 1)
    if len(few):
        given, most = float(freedom[few[0]]), int(sizes.max()) - 1
        raise InputError(
            Setting("degrees_of_freedom_prior", given), " must be above the number of features of "
            f"the widest hub less 1, {most}: a Wishart distribution has no fewer",
        )  # fmt: skip


class ConjugateTerms(FeatureTerms):
    """What terms under a conjugate prior have in common; ``reg_covar`` is in the prior."""

    is_proper = True
    _plain: FeatureTerms
    _expected: Callable[..., Factors]
    """Makes factors of log-densities, in which each row has its part of the prior's, of plain
    ones."""

    @classmethod
    def from_terms(cls, plain: FeatureTerms, **given: Any) -> Self:
        """Return such terms of the rows that plain terms have, with a prior yet to be found.

        What is ``given`` of it are attributes of these terms.
        """
        terms = object.__new__(cls)
        terms.__dict__.update(plain.__dict__, _plain=plain, **given)
        terms.reg_covar = np.zeros_like(plain.reg_covar)
        terms._sample_covariance = None
        return terms

    def prepare(self, mixture: Mixture) -> Factors:
        """Factor every block, for terms that have the prior's part in them."""
        self.latest = plain = factorise(mixture, np.float64)
        return self._expected(mixture, plain, np.float64 if self.misses else self.rows.dtype)

    def _maximised(self, statistics: Statistics) -> Mixture:
        """Parameters without the prior, of whatever has been seen at all."""
        if statistics.seen is None:
            return FeatureTerms.update(self, statistics)
        return self._updated(statistics)

    def _log_dets_of_prior(self, means: Doubles, covariances: Doubles) -> Doubles:
        """Log-determinants (B,) of the prior scale matrices; NumericalError where there is none."""
        one = self.mixture(np.ones((1, 1)), means[None], covariances)
        factors = factorise(one, np.float64)
        if factors.failed.any():
            raise NumericalError(
                "the prior covariance of a hub is not positive definite: its features are "
                "constant or linearly dependent; try a larger ", Setting("reg_covar"),
            )  # fmt: skip
        return np.asarray(factors.log_dets[0])

    def _with_shares(
        self, factors: Factors, log_dets: Floats, dtype: DTypeLike, plain: Factors
    ) -> Factors:
        """Return factors with these log-determinants (C, B), in the precision of the data."""
        means, inverse, dets = (
            np.ascontiguousarray(part, dtype=dtype)
            for part in (factors.means, factors.inverse, log_dets)
        )
        return Factors(means, inverse, dets, plain.failed, plain.covariances, without_prior=plain)

    def _scale_hubs(self, covariances: Doubles, factors: Doubles) -> None:
        """Multiply what is shaped as covariances by (n_copies, d), alike within full hubs."""
        if self._is_diagonal:
            covariances *= factors
            return
        for columns, count, width, view in self._banded(covariances, len(factors)):
            of_hubs = factors[:, columns].reshape(len(factors), count, width)[..., 0]
            view *= of_hubs.T[..., None, None]

    def _add_squares(self, covariances: Doubles, away: Doubles, times: Doubles | float) -> None:
        """Add ``times (K, d)`` the squares of ``away (K, d)`` to what is shaped as covariances."""
        heavy = times * away
        if self._is_diagonal:
            squares = heavy * away
            covariances += squares.sum(axis=0) if self._is_tied else squares
            return
        k = len(away)
        for columns, count, width, view in self._banded(covariances, 1 if self._is_tied else k):
            of_hubs, weighed = (
                part[:, columns].reshape(k, count, width).swapaxes(0, 1) for part in (away, heavy)
            )
            if self._is_tied:
                view[:, 0] += weighed.swapaxes(1, 2) @ of_hubs
            else:
                view += weighed[..., None] * of_hubs[:, :, None]


class MapTerms(ConjugateTerms):
    """Local terms of which the M-step finds the mode under a prior about all rows.

    The prior mean is that of all rows, which is 0 in units of fitting, and the scale matrix P part
    of `sample_covariance`. Of ``c`` components that share a covariance, and with x_k and S_k of the
    rows of a component,

        m_k = n_k x_k / (kappa + n_k),
        C = (P + sum_k (n_k S_k + kappa n_k / (kappa + n_k) x_k x_k')) / (a + c + sum_k n_k),

    where ``a`` is nu + d + 1 of a hub of d features, nu + 2 of a variance, (nu + 2) / d of a sphere
    whose P has a d-th of the scale of its variance on the diagonal.
    """

    pull: float  # kappa, rows that the prior mean is worth
    freedom: Doubles  # (B,) degrees of freedom nu of each hub
    scale: Doubles  # (B,) of each hub, in sample covariances
    _scales: Doubles
    """Prior scale matrices, shaped as the covariances of one component."""
    _log_dets: Doubles
    """Of these, (B,)."""
    _power: Doubles
    """``a`` of each hub, (B,); with c the power of a covariance's determinant in the prior's
    density, times -2."""

    def sample(self) -> Mixture:
        """Return the mixture of one component that is fitted to all rows, without the prior."""
        return self._plain.sample()

    def knowing(self, statistics: Statistics) -> Self:
        """Return these terms under the prior about statistics of all rows in one component."""
        return self.with_sample_covariance(self._plain.update(statistics).covariances)

    def with_sample_covariance(self, covariances: Doubles) -> Self:
        """Return these terms under the prior about this sample covariance."""
        terms, blocks, weight = copy(self), self.blocks, self.total_weight
        terms._sample_covariance = covariances
        sizes, widths = wishart_sizes(blocks, self.covariance_type), blocks.widths.clip(1)
        check_prior(MAP, weight, self.freedom, sizes)
        factors, terms._power = self.scale * weight / (weight - 1), self.freedom + sizes + 1
        if self.covariance_type.endswith("spherical"):
            # One variance: its density is that of each feature to this power, d times.
            factors, terms._power = factors / widths, (self.freedom + 2) / widths
        terms._scales = covariances.copy()
        self._scale_hubs(terms._scales, self.blocks.of_feature(factors[:, None]))
        terms._log_dets = self._log_dets_of_prior(np.zeros(blocks.n_features), terms._scales)
        return terms

    # ---- E-step --------------------------------------------------------------------------------

    def _expected(self, mixture: Mixture, plain: Factors, dtype: DTypeLike) -> Factors:
        """Factors of log-densities, in which each row has its part of the prior's."""
        shared = plain.log_dets
        if not plain.failed.any():
            shared = shared - 2 * self._log_densities(mixture, plain) / self.total_weight
        return self._with_shares(plain, shared, dtype, plain)

    def local(self, factors: Factors, rows: slice) -> Floats:
        terms = super().local(factors, rows)
        if self.misses:
            terms += self._shares(factors)[:, None, None].astype(terms.dtype)
        return terms

    def _shares(self, factors: Factors) -> Floats:
        """What each row has of the prior in the terms of each hub, (B,)."""
        shares: Floats = (factors.log_dets - factors.plain.log_dets)[0]
        return shares

    def _determinants(self, statistics: Statistics, mixture: Mixture, factors: Factors) -> Doubles:
        """Log-determinants (B,) of hubs' covariances, and the prior's part of these rows."""
        if not self.misses:
            return super()._determinants(statistics, mixture, factors)
        determinants = super()._determinants(statistics, mixture, factors.plain)
        return np.asarray(determinants + statistics.counts[0].sum() * self._shares(factors))

    def _log_densities(self, mixture: Mixture, plain: Factors) -> Doubles:
        """Log-density (B,) of each hub's parameters under the prior, less that at its mode."""
        copies = mixture.n_copies
        power, d = self._power + mixture.n_components // copies, self.blocks.widths
        pairs = self._repeated(self._scales, copies)
        self._add_squares(pairs, mixture.means, self.pull)
        densities = power * plain.log_dets.sum(axis=0)
        densities += self._over_hubs(self._lower_precisions(plain) * pairs)
        densities -= copies * power * (self._log_dets - d * np.log(power) + d)
        return np.asarray(-0.5 * densities)

    def log_prior(self, mixture: Mixture) -> float:
        """Log-density of all hubs' parameters under the prior, less that at its mode, in nats."""
        return self.add_up(self._log_densities(mixture, factorise(mixture, np.float64)))

    # ---- M-step --------------------------------------------------------------------------------

    def update(self, statistics: Statistics, row: float | None = None) -> Mixture:
        """Mode of the posterior of the statistics, which is sound however few rows there are."""
        plain, n = self._maximised(statistics), statistics.per_feature(self.blocks)
        share, covariances = n / (self.pull + n), plain.covariances.copy()
        self._scale_hubs(covariances, n.sum(axis=0, keepdims=True) if self._is_tied else n)
        self._add_squares(covariances, plain.means, self.pull * share)
        covariances += self._repeated(self._scales, plain.n_copies)
        if self.covariance_type.endswith("spherical"):
            covariances = self._averaged(covariances)
        self._scale_hubs(covariances, 1 / self._divisors(statistics, plain))
        return replace(plain, means=share * plain.means, covariances=covariances)

    def _divisors(self, statistics: Statistics, like: Mixture) -> Doubles:
        """What sums of squares of each feature (n_copies, d) are divided by."""
        n = statistics.per_feature(self.blocks)
        divisors = n.sum(axis=0, keepdims=True) if self._is_tied else n
        power = self._power + like.n_components // like.n_copies
        divisors = divisors + power[self.blocks.block_of]
        return self._averaged(divisors) if self.covariance_type.endswith("spherical") else divisors

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics for which `update` gives a mixture, about its means."""
        statistics = super()._about_means(mixture, weight, n_roots)
        statistics.first += self.pull * mixture.means
        statistics.second[...] = mixture.covariances
        self._scale_hubs(statistics.second, self._divisors(statistics, mixture))
        statistics.second -= self._repeated(self._scales, mixture.n_copies)
        self._add_squares(statistics.second, mixture.means, -self.pull)
        return statistics
