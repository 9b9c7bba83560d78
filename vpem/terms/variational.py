"""Variational Bayes over features: each hub's expected terms, and the posterior of its block.

Given responsibilities the posterior of a mixture is one of the weights times one of each hub, and
given the posterior the responsibilities are those of a sum over hubs: coordinate ascent of the
evidence lower bound takes the same sums as EM. The divergence of a hub's posterior from its prior
travels in its terms, an equal part of it in every row, so that what a sum finds is the bound.

Missing values are latent, as the components are. Of a row a hub has something of, what it lacks is
normal given the rest, by the inverse of the expected precision matrix; that is integrated out
exactly. A row of which a hub has nothing says nothing of its parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, ClassVar, Self, cast

import numpy as np
from numpy.typing import DTypeLike

from vpem.checks import Doubles, Floats, Indices, Mask
from vpem.errors import InputError, NumericalError, Setting
from vpem.network.schema import Array, Schema, State
from vpem.settings import MAP
from vpem.terms.density import Density
from vpem.terms.features import FeatureTerms
from vpem.terms.mixture import Factors, Mixture, block_views, is_diagonal
from vpem.terms.priors import ConjugateTerms, Prior, check_prior, wishart_sizes
from vpem.terms.statistics import Statistics
from vpem.terms.units import sum_features

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
    the inverse expected precision matrices. All follows from the prior and from how many rows a
    component has.

    Diagonal precisions are gamma distributions, independent of each other: they do not depend on
    which features share a hub. Spherical ones are a Wishart distribution of a hub's features whose
    scale matrix is such, and where they are tied all components have one: as scikit-learn has them.
    """

    counts: Doubles  # (R, K) effective rows of each component, as each root finds them
    seen: Doubles  # (B, K) of which a hub has something; of its root where it can miss nothing
    prior: Prior  # in block order and units of fitting
    is_proper = True
    named: ClassVar[dict[str, str]] = Mixture.named | {
        "counts": "roots", "seen": "hubs", "prior_means": "features", "prior_covariances": "block",
        "freedom": "hubs",
    }  # fmt: skip

    @property
    def prior_mixture(self) -> Mixture:
        """One component with the prior's means and scale matrices."""
        one = {"means": self.prior.means[None], "covariances": self.prior.covariances}
        return Mixture(**self.common | one | {"weights": np.ones((1, 1))})

    def arrays(self) -> State:
        own = {name: getattr(self, name) for name in (*Mixture.named, "counts", "seen")}
        return own | {"prior_means": self.prior.means, "prior_covariances": self.prior.covariances}

    def schema(self, n_roots: int = 1) -> dict[str, Schema]:
        k = self.n_components
        return {
            **super().schema(n_roots),
            "counts": Array("f8", ((1, n_roots), k), least=0),
            "seen": Array("f8", (self.blocks.n_blocks, k), least=0),
        }

    def hub_arrays(self) -> State:
        return self.arrays() | {"freedom": self.prior.degrees_of_freedom}

    def having(self, arrays: State, **others: Any) -> VariationalMixture:
        """Return a posterior like this one with other parameters, and another prior."""
        prior = replace(
            self.prior, means=arrays["prior_means"], covariances=arrays["prior_covariances"],
            degrees_of_freedom=arrays.get("freedom", self.prior.degrees_of_freedom),
        )  # fmt: skip
        own = {name: arrays[name] for name in (*Mixture.named, "counts", "seen")}
        return replace(self, **own, prior=prior, **others)

    def reported(self) -> State:
        kind = self.prior.kind
        return {"weight_concentration_prior_type": kind, "in_use": self.in_use.tolist()}

    @property
    def concentrations(self) -> Doubles:
        """Parameters of the posterior of the weights, (R, C, K); see `Prior.concentrations`."""
        return self.prior.concentrations(self.counts)

    @property
    def mean_precisions(self) -> Doubles:
        """Rows that a hub's mean of a component is worth, (B, K)."""
        return self.prior.mean_precision + self.seen

    @property
    def degrees_of_freedom(self) -> Doubles:
        """Degrees of freedom of a hub's Wishart distribution, (B, n_copies)."""
        seen = self.seen.mean(axis=1, keepdims=True) if self.is_tied else self.seen
        return self.prior.degrees_of_freedom[:, None] + seen

    @property
    def in_use(self) -> Mask:
        """Components (K,) that have at least `LEAST_USED` rows, by the mean over roots."""
        in_use: Mask = self.counts.mean(axis=0) >= LEAST_USED
        return in_use

    @property
    def n_in_use(self) -> int:
        return int(self.in_use.sum())

    @cached_property
    def offsets(self) -> Doubles:
        """By how much a hub's term at the posterior means differs from the expected one, (B, K).

        ``E log|Lambda| + log|C| - d_b / beta`` with the mean precision ``beta``, C the inverse of
        the expected precision matrix, and ``E log|Lambda| = sum_i psi((nu + 1 - i) / 2) + d_b log
        (2 / nu) - log|C|``.
        """
        from scipy.special import digamma

        widths, dof = self.blocks.widths[:, None], self.degrees_of_freedom
        logs = over_steps(digamma, dof, self) + widths * np.log(2 / dof)
        return np.asarray(logs - widths / self.mean_precisions)

    @cached_property
    def log_weights(self) -> Doubles:
        """Expected logarithms of the mixing weights, as each root holds them, (R, K).

        The divergence of the weights' posterior is taken off, an equal part of it from every row:
        so sums over all rows have it, and responsibilities do not depend on it.
        """
        rows = self.counts.sum(axis=1, keepdims=True)
        logs = self.prior.log_weights(self.counts)
        return np.asarray(logs - self.prior.divergence(self.counts)[:, None] / rows)

    @property
    def assembled_log_weights(self) -> Doubles:
        """Expected logarithms (K,), given the mean of what the roots found."""
        return self.prior.log_weights(self.counts.mean(axis=0, keepdims=True)).ravel()

    @property
    def assembled_weights(self) -> Doubles:
        """Expected mixing weights (K,), given the mean of what the roots found."""
        return self.prior.weights(self.counts.mean(axis=0, keepdims=True)).ravel()

    @property
    def shares(self) -> Doubles:
        """What of the mixing weights is extrapolated: rows, and what the prior adds, (R, K)."""
        concentrations = self.counts + self.prior.concentration
        return np.asarray(concentrations / concentrations.sum(axis=1, keepdims=True))

    def replace_parameters(
        self, shares: Doubles, means: Doubles, covariances: Doubles
    ) -> VariationalMixture:
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

    def terms_of(self, values: Doubles, there: Mask) -> tuple[Floats, Doubles | float]:
        """Expected terms (B, m, K) of each block, and what their log-density has besides."""
        terms, constant = self.plain.terms_of(values, there)
        for term, offsets, columns in zip(terms, self.offsets, self.blocks.features, strict=True):
            term -= np.outer(there[:, columns].any(axis=1), offsets)
        return terms, constant

    def permuted(self, order: Indices) -> Mixture:
        """Return the posterior means with the components in another order.

        Sticks of a Dirichlet process are broken in one order.
        """
        return self.plain.permuted(order)

    def marginal(self, features: Sequence[int]) -> Mixture:
        """Return the mixture of some of the features at the posterior means."""
        return self.plain.marginal(features)


def over_steps(function: np.ufunc, dof: Doubles, mixture: Mixture) -> Doubles:
    """Sum ``function((nu + 1 - i) / 2)`` over i = 1 ... d_b, for nu (B, C) of each block.

    Diagonal precisions are independent gammas: of each feature i is 1.
    """
    blocks = mixture.blocks
    steps = np.arange(blocks.n_features) - blocks.offsets[blocks.block_of]
    if mixture.covariance_type.endswith("diag"):
        steps[:] = 0
    sums = np.zeros(dof.shape)
    np.add.at(sums, blocks.block_of, function((dof[blocks.block_of] - steps[:, None]) / 2))
    return sums


class VariationalTerms(ConjugateTerms):
    """Local terms under a posterior, of data split by features over hubs.

    Statistics are those of EM, and `update` gives the posterior that they and the prior make.
    Components may be empty: their posterior is the prior. Made by `from_terms`; means and
    covariances of the prior are found by `centre_prior`, `knowing` or `resuming`. Where values are
    missing covariances are full or tied, or of one feature a hub: rows are counted hub by hub, but
    features of a diagonal block are seen in different numbers of rows.
    """

    prior: Prior
    scale: float  # of the prior scale matrix, in sample covariances
    floors: Doubles  # (d,) added to its diagonal, in block order and units of fitting
    least_rows = 0.0
    """A component without rows has not collapsed."""
    counting = staticmethod(np.mean)  # components may be empty
    _prior_log_dets: Doubles

    def centre_prior(self, sample: Mixture) -> Self:
        """Return these terms under the prior about one component that is fitted to all rows.

        Nothing is added to the covariance of ``sample``.
        """
        prior, weight, blocks = self.prior, self.total_weight, self.blocks
        sizes = wishart_sizes(blocks, self.covariance_type)
        check_prior(prior.kind, weight, prior.degrees_of_freedom, sizes)
        covariances = self.scale * (weight / (weight - 1)) * sample.covariances
        if self._is_diagonal:
            covariances += self.floors
        else:
            views = block_views(covariances, blocks.widths, 1)
            for view, (a, b) in zip(views, pairwise(blocks.offsets), strict=True):
                view += np.diag(self.floors[a:b])
        return self.under(replace(prior, means=sample.means[0], covariances=covariances))

    def informed_by(self, plain: FeatureTerms) -> Self:
        one = copy(plain)
        one.reg_covar = np.zeros_like(plain.reg_covar)
        return self.centre_prior(one.sample())

    def knowing(self, statistics: Statistics) -> Self:
        """Return these terms under the prior about statistics of all rows in one component."""
        return self.centre_prior(self._maximised(statistics))

    def resuming(self, mixture: Density) -> Self:
        """Return these terms under the prior that a saved posterior had."""
        return self.under(cast(VariationalMixture, mixture).prior)

    def under(self, prior: Prior) -> Self:
        """Return these terms under a prior, whose covariance is positive definite in every hub."""
        terms = copy(self)
        terms.prior, terms._sample_covariance = prior, prior.covariances
        terms._prior_log_dets = self._log_dets_of_prior(prior.means, prior.covariances)
        return terms

    def begun(self, start: Mixture) -> VariationalMixture:
        """Return a posterior with the parameters of a mixture for its means.

        Its components have as many rows as their mixing weights say.
        """
        if start.is_proper:
            return cast(VariationalMixture, start)
        counts = self.total_weight * start.weights
        seen = np.broadcast_to(counts, (self.blocks.n_blocks, start.n_components)).copy()
        weighed = start.common | {"weights": self.prior.weights(counts)}
        return VariationalMixture(**weighed, counts=counts, seen=seen, prior=self.prior)

    def blank(self, n_components: int) -> VariationalMixture:
        plain = FeatureTerms.blank(self, n_components)
        seen = np.zeros((self.blocks.n_blocks, n_components))
        return VariationalMixture(**plain.common, counts=plain.weights, seen=seen, prior=self.prior)

    # ---- E-step --------------------------------------------------------------------------------

    def _expected(self, mixture: VariationalMixture, plain: Factors, dtype: DTypeLike) -> Factors:
        """Factors of expected log-densities, in which each row has its part of the divergence.

        That is of each hub's posterior from its prior, in nats:
        ``sum_k KL(q(Lambda) || p(Lambda)) + E KL(q(mu | Lambda) || p(mu | Lambda))``, of Wishart
        and of normal distributions (Bishop 2006, appendix B). With ``L = plain.log_dets``, P and
        ``nu_0`` the prior's, C the mixture's covariance, it takes
        ``tr(P C^-1) + beta_0 (m - m_0)' C^-1 (m - m_0)``.
        """
        from scipy.special import digamma, gammaln

        shares = np.zeros(self.blocks.n_blocks)
        if not plain.failed.any():
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
            normal = (
                0.5 * d * (prior.mean_precision / beta - 1 + np.log(beta / prior.mean_precision))
            )
            pairs = self._repeated(many * prior.covariances, copies)
            self._add_squares(pairs, mixture.means - prior.means, prior.mean_precision)
            traces = self._over_hubs(self._lower_precisions(plain) * pairs)
            divergences = many * wishart.sum(axis=1) + normal.sum(axis=1) + 0.5 * traces
            share = self.share
            if self.misses and self._is_diagonal:  # of features that are alone in their hubs
                share = sum_features(self.blocks, np.asarray(share))
            of_hubs = np.maximum(share * self.total_weight, np.finfo(np.float64).tiny)
            shares = 2 * divergences / of_hubs
        log_dets = plain.log_dets - mixture.offsets.T + shares
        inverse = plain.inverse
        if self._is_tied:
            inverse = self._repeated(np.asarray(inverse, np.float64), mixture.n_components)
        return self._with_shares(replace(plain, inverse=inverse), log_dets, dtype, plain)

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Expected terms of each hub for what it has of these rows, shape (B, m, K)."""
        terms = super().local(factors, rows)
        if self.gaps is not None:
            more, offsets = (factors.log_dets - factors.plain.log_dets).T, self.blocks.offsets
            for b, term in enumerate(terms):
                there = self.gaps.observed[rows, offsets[b] : offsets[b + 1]].any(axis=1)
                term += np.outer(there, more[b]).astype(term.dtype)
        return terms

    def sweep_complete(
        self, mixture: Mixture, factors: Factors, mix: Doubles, statistics: Statistics | None
    ) -> Doubles:
        """`sweep` rows that miss nothing.

        Tied covariances have K terms, and as many moments, of which the sum is one.
        """
        if statistics is None or not self._is_tied:
            return super().sweep_complete(mixture, factors, mix, statistics)
        k, second = mixture.n_components, statistics.second
        each = replace(statistics, second=self._repeated(np.zeros_like(second), k))
        log_likelihoods = super().sweep_complete(mixture, factors, mix, each)
        if second.ndim == 2:
            second += each.second.sum(axis=0)
            return log_likelihoods
        for (*_, view), (*_, of_components) in zip(
            self._banded(second, 1), self._banded(each.second, k), strict=True
        ):
            view += of_components.sum(axis=1, keepdims=True)
        return log_likelihoods

    # ---- M-step --------------------------------------------------------------------------------

    def update(self, statistics: Statistics, row: float | None = None) -> VariationalMixture:
        """Posterior of the statistics: Bishop 2006, equations (10.58) to (10.63), hub by hub.

        However few rows there are, it is sound. As scikit-learn's: the inverse scale matrix is
        divided by the degrees of freedom, diagonal ones are its diagonal, spherical ones their
        mean, and tied ones the mean over components.
        """
        plain, prior, k = self._maximised(statistics), self.prior, len(statistics.first)
        seen = np.broadcast_to(statistics.counts, (self.blocks.n_blocks, k)).copy()
        if statistics.seen is not None:  # of hubs, or of features that are alone in theirs
            wide = self.blocks.widths > 0
            seen[wide] = statistics.seen.T if self._is_diagonal else statistics.seen[wide]
        beta = prior.mean_precision + seen
        share = self.blocks.of_feature(seen / beta)
        means = prior.means + share * (plain.means - prior.means)
        moved = plain.common | {"weights": prior.weights(statistics.counts), "means": means}
        posterior = VariationalMixture(**moved, counts=statistics.counts, seen=seen, prior=prior)
        copies = posterior.n_copies
        inverse = plain.covariances.copy()
        per_copy = seen.mean(axis=1, keepdims=True) if self._is_tied else seen
        times = prior.mean_precision * seen / beta / (k // copies)
        self._scale_hubs(inverse, self.blocks.of_feature(per_copy))
        self._add_squares(inverse, plain.means - prior.means, self.blocks.of_feature(times))
        inverse += self._repeated(prior.covariances, copies)
        if self.covariance_type.endswith("spherical"):
            inverse = self._averaged(inverse)
        self._scale_hubs(inverse, self.blocks.of_feature(1 / posterior.degrees_of_freedom))
        return replace(posterior, covariances=inverse)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> Statistics:
        """Statistics for which `update` gives a posterior, about its means.

        Their first moments are ``beta_0 (m - m_0)``, their second ones ``nu C - P - beta_0 (m -
        m_0)(m - m_0)'``.
        """
        mixture = cast(VariationalMixture, mixture)
        statistics, prior = self.empty(mixture.means, n_roots), self.prior
        statistics.shifts, away = mixture.means, mixture.means - prior.means
        statistics.counts += mixture.counts
        statistics.first += prior.mean_precision * away
        copies = mixture.n_copies
        many = mixture.n_components // copies
        statistics.second += mixture.covariances
        self._scale_hubs(statistics.second, self.blocks.of_feature(mixture.degrees_of_freedom))
        statistics.second -= self._repeated(prior.covariances, copies)
        statistics.second *= many
        self._add_squares(statistics.second, away, -prior.mean_precision)
        statistics.scale(weight / float(mixture.counts[0].sum()))
        if statistics.seen is not None:
            seen = mixture.seen * (weight / float(mixture.counts[0].sum()))
            statistics.seen += self.blocks.of_feature(seen) if self._is_diagonal else seen
        return statistics

    def start(self, centres: Doubles) -> VariationalMixture:
        """Equal weights, means at ``centres`` (K, d), every covariance the prior one."""
        return self.begun(FeatureTerms.start(self, centres))

    def reseeded(self, mixture: Mixture, component: int, centre: Doubles, weight: float) -> Mixture:
        """Raise NumericalError: under a proper prior no component can fail."""
        raise NumericalError(
            f"the posterior covariance of component {component} is not positive definite; try a "
            "larger ", Setting("reg_covar"), ", or scaled features",
        )  # fmt: skip


def variational_terms(
    plain: FeatureTerms,
    kind: str,
    concentration: float,
    mean_precision: float,
    freedom: float | None,
    scale: float,
) -> VariationalTerms:
    """Return the variational terms of the rows that plain terms have, under a `Prior`.

    Its degrees of ``freedom`` are those of every hub (None: as many as it has features). Values may
    not be missing of features that share a diagonal hub.
    """
    if plain.misses and is_diagonal(plain.covariance_type) and plain.widest > 1:
        alone = "give each feature an agent of its own, which changes nothing else, or "
        alone = alone if plain.covariance_type.endswith("diag") else ""
        raise InputError(
            Setting("weight_concentration_prior_type", kind), " counts rows hub by hub, "
            f"but features of a hub with {plain.covariance_type} covariances are seen in different "
            f"numbers of rows; {alone}take ",
            Setting("weight_concentration_prior_type", MAP), " or ",
            Setting("covariance_type", "full"),
        )  # fmt: skip
    degrees = wishart_sizes(plain.blocks, plain.covariance_type).astype(np.float64)
    if freedom is not None:
        degrees[:] = freedom
    one = Mixture.blank(plain.blocks, plain.covariance_type, 1)
    prior = Prior(kind, concentration, mean_precision, degrees, one.means[0], one.covariances)
    return VariationalTerms.from_terms(
        plain, prior=prior, scale=scale, floors=plain.reg_covar, least_rows=0.0
    )
