"""EM with factors that hubs share: two sums an iteration, one of which is small.

First hubs add up G, what each knows of a component's factors (q x q numbers), then of every row c
and u (q + 1 numbers a component). See `vpem.terms.loadings` for what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vpem._core.normalise import differences
from vpem.checks import Floats
from vpem.steps.em import iterate
from vpem.steps.local_steps import LocalSteps
from vpem.steps.reinitialise import REINITIALISED_BYTES
from vpem.steps.runs import Run
from vpem.steps.summing import FARTHEST, scalars_of_rows, summed
from vpem.sums.adding import farthest
from vpem.sums.sum import Sum
from vpem.sums.units import add_numbers
from vpem.terms.covariances import Factors
from vpem.terms.factors import FactorStatistics, FactorTerms
from vpem.terms.loadings import LoadedFactors, Posterior
from vpem.terms.mixture import Mixture
from vpem.terms.statistics import Statistics
from vpem.terms.terms import Terms


def numbers_of_a_row(n_components: int, n_factors: int) -> int:
    """Numbers of a row in a message: u of each component, and how c differ from the first."""
    return n_components * (n_factors + 1) - 1


def numbers_of_a_component(n_factors: int) -> int:
    """Numbers of a component in a message: the lower half of G."""
    return n_factors * (n_factors + 1) // 2


def fit(terms: FactorTerms, total: Sum, start: Mixture, **how: Any) -> Run:
    """Fit a mixture with factors by EM; see `vpem.steps.em.fit`."""
    return iterate(_OverFactors(terms, total), [start], **how)


def posterior_of(total: Sum, factors: LoadedFactors, kind: str) -> Posterior:
    """Sum what hubs know of the factors: what all of them know, as each root finds it.

    ``kind`` says what for, as in `vpem.sums.sum.Sum.begin`.
    """
    n_hubs, k, q, _ = factors.grams.shape
    lower = np.tril_indices(q)
    own = factors.grams[:, :, *lower].reshape(n_hubs, k * numbers_of_a_component(q))
    sums = add_numbers(total, own, kind)
    grams = np.zeros((len(sums), k, q, q))
    grams[:, :, *lower] = sums.reshape(len(sums), k, numbers_of_a_component(q))
    grams[:, :, lower[1], lower[0]] = grams[:, :, *lower]
    return Posterior.of(grams)


@dataclass
class _OverFactors:
    """The E-step of hubs that hold features with factors in common (`vpem.steps.em.EStep`)."""

    whole: FactorTerms
    total: Sum
    local: LocalSteps | None = None
    reinitialised_bytes = REINITIALISED_BYTES
    over_rows = False

    def __post_init__(self) -> None:
        self.roots: Sequence[Terms] = [self.whole]

    def expect(
        self, mixtures: Sequence[Mixture], factors: Sequence[Factors], kind: str
    ) -> tuple[NDArray[np.float64], list[Statistics]]:
        terms, total, mixture, made = self.whole, self.total, mixtures[0], factors[0]
        assert isinstance(made, LoadedFactors)
        statistics = None if kind == "check" else terms.empty_factors(mixture, total.n_roots)
        posterior = posterior_of(total, made, kind)
        n_numbers = numbers_of_a_row(mixture.n_components, terms.n_factors)
        total.begin(kind, terms.n_samples, n_numbers, terms.itemsize, 1)
        if total.mix is not None:
            found = terms.sweep_factors(mixture, made, posterior, total.mix, statistics)
        else:
            found = self._by_chunks(mixture, made, posterior, statistics)
        log_likelihood = total.roots.join(found + terms.log_constant)
        return log_likelihood, [] if statistics is None else [statistics]

    def _by_chunks(
        self,
        mixture: Mixture,
        factors: LoadedFactors,
        posterior: Posterior,
        statistics: FactorStatistics | None,
    ) -> NDArray[np.float64]:
        """Take a sum that is no fixed matrix: log-likelihood (R,) without the constant."""
        terms, total = self.whole, self.total
        numbers = Numbers(terms, total, mixture, partial(terms.local, factors), terms.itemsize)
        found = np.zeros(total.n_roots)
        for rows, apart, onto in numbers:
            found += terms.take(mixture, factors, posterior, apart, onto, rows, statistics)
        return found - 0.5 * numbers.firsts


class Numbers:
    """Sums of c and u of every row, of a sum that has begun, chunk by chunk.

    Iterating yields runs of rows, how the sums C differ from the first, (R, m, K), which has 0, and
    the sums U, (R, m, K q), root by root.

    Parameters
    ----------
    terms, total
        Whose rows, and how they are summed.
    mixture : Mixture
        Has K components and q factors.
    local : callable
        c and u of each hub of this process for some rows, (B, m, K + K q).
    itemsize : int
        Bytes of a number.
    """

    def __init__(
        self,
        terms: Terms,
        total: Sum,
        mixture: Mixture,
        local: Callable[[slice], Floats],
        itemsize: int,
    ) -> None:
        self.terms, self.total, self.n_components = terms, total, mixture.n_components
        self.width = numbers_of_a_row(mixture.n_components, mixture.n_factors)
        self._numbers, self._limit = local, farthest(total.holders, FARTHEST[itemsize])
        self._scalars = scalars_of_rows(terms, total)

    @property
    def firsts(self) -> NDArray[np.float64]:
        """Sum of C of the first component over all rows, times row weights, (R,), at the end."""
        return self._scalars.found[:, 0]

    def __iter__(self) -> Iterator[tuple[slice, Floats, Floats]]:
        k = self.n_components
        for rows, sums in summed(self.terms, self.total, self.width, self._local, self._scalars):
            apart = np.zeros((*sums.shape[:2], k), dtype=sums.dtype)
            apart[:, :, 1:] = sums[:, :, : k - 1]
            yield rows, apart, np.ascontiguousarray(sums[:, :, k - 1 :])

    def _local(self, rows: slice) -> Floats:
        numbers, k, weights = self._numbers(rows), self.n_components, self.terms.row_weights
        _bring_nearer(numbers, k, self._limit)
        apart = np.empty((*numbers.shape[:2], k - 1), dtype=numbers.dtype)
        own = np.empty(0) if weights is None else weights[rows]
        firsts = np.zeros(len(numbers))
        c = np.ascontiguousarray(numbers[:, :, :k])
        differences(c, own, apart, firsts, np.inf, self.terms.n_threads)
        self._scalars.own[:, 0] += firsts
        return np.concatenate([apart, numbers[:, :, k:]], axis=2)


def _bring_nearer(numbers: Floats, n_components: int, limit: float) -> None:
    """Move rows in place that are too far from a component for their numbers to be added.

    They are on their way to its mean then: c falls by the square of what u does, so that neither
    outweighs the other.
    """
    far = np.abs(numbers).max(axis=(1, 2), initial=0.0) > limit
    for b in np.flatnonzero(far):
        own = numbers[b]
        u = own[:, n_components:].reshape(len(own), n_components, -1)
        c = own[:, :n_components]
        most = np.maximum(np.sqrt(np.maximum(c, 0.0) / limit), np.abs(u).max(axis=2) / limit)
        share = 1.0 / np.maximum(most, 1.0)
        u *= share[..., None]
        c *= share**2
