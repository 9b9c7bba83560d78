"""EM steps of every root on its own block, between one sum and the next.

A root knows the sum and its own terms, and so the rest of it: what all others add. While they stay
as they are it can go on by itself. Mixing weights, which all roots share, stay too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vpem._core.normalise import differences
from vpem.checks import Floats
from vpem.steps.summing import FARTHEST
from vpem.terms.covariances import Factors
from vpem.terms.mixture import Mixture
from vpem.terms.terms import Terms


class LocalSteps:
    """Steps of the roots of this process.

    Parameters
    ----------
    terms : Terms
        What each hub adds to the sum.
    n_hubs, n_components : int
        Hubs of this process, B, and components, K.
    least : float
        Effective samples of a component below which a root takes no step.

    Attributes
    ----------
    rest : ndarray of shape (B, M, K - 1)
        What the others add at every row, less what they add for the first component. The E-step of
        the sum (`vpem.steps.em.log_likelihood`) writes it.
    """

    def __init__(self, terms: Terms, n_hubs: int, n_components: int, least: float) -> None:
        self.terms, self.n_hubs, self.least = terms, n_hubs, least
        dtype = np.float32 if terms.itemsize == 4 else np.float64
        self.rest: Floats = np.zeros((n_hubs, terms.n_samples, n_components - 1), dtype=dtype)

    def take(self, mixture: Mixture, factors: Factors, n_steps: int) -> tuple[Mixture, Factors]:
        """Take some steps from an M-step; returns parameters and their factors."""
        for _ in range(n_steps):
            mixture, factors = self._one(mixture, factors)
        return mixture, factors

    def _one(self, mixture: Mixture, factors: Factors) -> tuple[Mixture, Factors]:
        terms = self.terms
        statistics = terms.empty(mixture.means, self.n_hubs)
        for rows in terms.chunks(2 * self.n_hubs * mixture.n_components):
            sums = self.rest[:, rows] + self._own(factors, rows)
            responsibilities, _ = terms.responsibilities(mixture, sums, rows)
            terms.summarize(statistics, responsibilities, rows)
        updated = terms.update(statistics).weighing(mixture)
        made = terms.prepare(updated)
        # A component that would collapse in one hub alone is the next sum's to judge.
        few = (statistics.counts < self.least).any(axis=1)
        stays = np.logical_or(few, made.failed.any(axis=0))
        if stays.any():
            updated = terms.keep(updated, mixture, stays).weighing(mixture)
            made = terms.prepare(updated)
        return updated, made

    def _own(self, factors: Factors, rows: slice) -> Floats:
        """How each hub's own terms differ from those of the first component."""
        numbers = np.ascontiguousarray(self.terms.local(factors, rows))
        out = np.empty((*numbers.shape[:2], numbers.shape[2] - 1), dtype=numbers.dtype)
        nothing: NDArray[np.float64] = np.empty(0)
        limit = FARTHEST[numbers.itemsize]
        differences(numbers, nothing, out, np.zeros(len(numbers)), limit, self.terms.n_threads)
        return out
