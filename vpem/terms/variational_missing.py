"""Variational Bayes where values are missing: they are latent, as the components are.

Of a row a hub has something of, what it lacks is normal given the rest, by the inverse of the
expected precision matrix; that is integrated out exactly. A row of which a hub has nothing says
nothing of its parameters.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem.checks import Floats
from vpem.errors import InputError, Setting
from vpem.prior_settings import MAP
from vpem.terms.conjugate import ConjugateMissingTerms, PriorFactors
from vpem.terms.covariances import Factors, is_diagonal, is_independent
from vpem.terms.features import FeatureTerms
from vpem.terms.missing import MissingTerms
from vpem.terms.mixture import Mixture
from vpem.terms.priors import Beliefs
from vpem.terms.statistics import MissingStatistics, Statistics
from vpem.terms.variational import VariationalTerms
from vpem.terms.variational_mixture import VariationalMixture

Vector = NDArray[np.float64]


class VariationalMissingTerms(VariationalTerms, ConjugateMissingTerms):
    """Local terms under a posterior of data that miss values; made by `of`.

    Covariances are full or tied, or of one feature a hub: rows are counted hub by hub, but features
    of a diagonal block are seen in different numbers of rows.
    """

    @property
    def _weights_of_hubs(self) -> Vector:
        """Weight of the rows of which each hub has something."""
        return np.maximum(self.share * self.total_weight, np.finfo(np.float64).tiny)

    def local(self, factors: Factors, rows: slice) -> Floats:
        """Expected terms of each hub for what it has of these rows, shape (B, m, K)."""
        assert isinstance(factors, PriorFactors)
        terms = MissingTerms.local(self, factors.plain, rows)
        more = (factors.log_dets - factors.plain.log_dets).T
        offsets = self.blocks.offsets
        for b, own in enumerate(terms):
            there = self.observed[rows, offsets[b] : offsets[b + 1]].any(axis=1)
            own += np.outer(there, more[b]).astype(own.dtype)
        return terms

    def sweep(
        self,
        mixture: Mixture,
        factors: Factors,
        mix: Vector,
        statistics: Statistics | None = None,
    ) -> Vector:
        """Take the sum ``mix @ Q`` and all that depends on it, chunk by chunk."""
        return MissingTerms.sweep(self, mixture, factors, mix, statistics)

    _sweep_complete = VariationalTerms.sweep

    def summarize_by(
        self, statistics: Statistics, responsibilities: Floats, rows: slice, factors: Factors,
        varying: Floats | None = None,
    ) -> None:  # fmt: skip
        """Add rows, missing values as ``factors`` at the posterior means expect them."""
        plain = getattr(factors, "plain", factors)
        MissingTerms.summarize_by(self, statistics, responsibilities, rows, plain, varying)

    def _about_means(self, mixture: Mixture, weight: float, n_roots: int) -> MissingStatistics:
        """Statistics for which `update` gives a posterior, about its means."""
        assert isinstance(mixture, VariationalMixture)
        made = VariationalTerms._about_means(self, mixture, weight, n_roots)
        assert isinstance(made, MissingStatistics)
        made.seen += mixture.seen * (weight / float(mixture.counts[0].sum()))
        return made

    def _seen(self, statistics: Statistics) -> Vector:
        assert isinstance(statistics, MissingStatistics)
        return statistics.seen.copy()


def variational_terms(plain: FeatureTerms, beliefs: Beliefs) -> VariationalTerms:
    """Return the variational terms of the rows that plain terms have.

    Values may not be missing of features that share a diagonal hub.
    """
    if not isinstance(plain, MissingTerms):
        return VariationalTerms.of(plain, beliefs)
    if is_diagonal(plain.covariance_type) and plain.widest > 1:
        alone = "give each feature an agent of its own, which changes nothing else, or "
        raise InputError(
            Setting("weight_concentration_prior_type", beliefs.kind), " counts rows hub by hub, "
            f"but features of a hub with {plain.covariance_type} covariances are seen in different "
            f"numbers of rows; {alone if is_independent(plain.covariance_type) else ''}take ",
            Setting("weight_concentration_prior_type", MAP), " or ",
            Setting("covariance_type", "full"),
        )  # fmt: skip
    return VariationalMissingTerms.of(plain, beliefs)
