"""Steps of scoring: coefficients of a curve and variances of its rows, by an expansion.

The log-density of the rows given the latents is expanded about the parameters of the moment, with
expected information in place of the second derivative. For parameters that do not vary between
individuals this is the M-step. For those that do it is a second one: their means may move with
the latents, which stay where they are about them (Yu and Meng 2011 call the first augmentation
sufficient and this one ancillary). EM by the first is slow where rows say little about each
individual's parameter, by the second where they say much. The two steps added up are one of
Newton's, where all rows say alike: the covariance of an estimate of a mean is that of the latents,
over the individuals, and the inverse information of the rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError
from vpem.saem.models.model import Vector
from vpem.saem.models.outcomes import Outcomes
from vpem.saem.models.population import Population
from vpem.terms.matrices import symmetric

WIDEST = 1.0
"""Longest step of a coefficient on a logarithmic scale in one iteration."""
FACTOR = 16.0
"""Most by which a variance changes in one iteration."""
SMALLEST = 1e-9
"""Least eigenvalue of the information, in units of the parameters."""


class Scoring(NamedTuple):
    """What is expanded: all coefficients of means, then variances that have no statistic.

    Attributes
    ----------
    rows, columns : ndarray of shape (c,)
        Entries of B that the coefficients are.
    fixed, near : ndarray of shape (c,)
        Whether they are of a parameter that does not vary, and one on a logarithmic scale (or of
        a predictor of logits or logarithms).
    scored : list of int
        Standard deviations whose variances are expanded.
    floors : ndarray
        Least variances.
    """

    rows: NDArray[np.intp]
    columns: NDArray[np.intp]
    fixed: NDArray[np.bool_]
    near: NDArray[np.bool_]
    scored: list[int]
    floors: Vector

    @staticmethod
    def of(population: Population, scales: tuple[str, ...], outcomes: Outcomes) -> Scoring:
        """Take all coefficients of a population, of parameters on these scales."""
        rows, columns = population.places
        linked = not outcomes.parameters  # predictors of logits, or of logarithms of means
        near = np.array([linked or scale != "identity" for scale in scales])[rows]
        fixed = np.isin(rows, population.fixed)
        return Scoring(rows, columns, fixed, near, outcomes.scored, outcomes.floors)

    @property
    def size(self) -> int:
        """Numbers that are expanded, s."""
        return len(self.rows) + len(self.scored)

    def at(self, B: Vector, sds: Vector) -> Vector:
        """Where it is (s,): coefficients that are fixed, no move of the others, and variances."""
        held = np.where(self.fixed, B[self.rows, self.columns], 0.0)
        return np.concatenate([held, sds[self.scored] ** 2])

    def statistics(
        self,
        f: Vector,
        slopes: Vector,
        outcomes: Outcomes,
        law: Population,
        at: Vector,
        sds: Vector,
    ) -> list[Vector]:
        """Coefficients of the expansion: (chains, n, s) and (chains, n, s (s + 1) / 2).

        Of curves f (chains, N) with slopes (chains, N, m), about ``at`` (s,).
        """
        k = len(self.scored)
        # Parameters and variances, and by what a coefficient is multiplied in each.
        where = np.concatenate([self.rows, slopes.shape[-1] + np.arange(k)])
        by = np.concatenate([law.design[:, self.columns], np.ones((len(law.design), k))], axis=1)
        one, other = np.tril_indices(self.size)
        with np.errstate(all="ignore"):
            score, info = outcomes.expansion(f, slopes, sds)
            ends = np.sort([where[one], where[other]], axis=0)
            second = info[..., ends[1], ends[0]] * (by[:, one] * by[:, other])
            first = score[..., where] * by + symmetric(second, self.size) @ at
        if not np.isfinite(second).all():
            raise NumericalError(
                "a curve has no value at simulated parameters; take another start or error"
            )
        return [first, second]

    def step(self, B: Vector, score: Vector, half: Vector, at: Vector) -> tuple[Vector, Vector]:
        """Coefficients B (m, L) after a step, and variances.

        Coefficients that are fixed count for nothing. ``score`` (s,) and ``half`` (s (s + 1) / 2,)
        are a total of statistics; the expansion is about ``at`` (s,), from where steps may not be
        too long.
        """
        info = symmetric(half, self.size)
        sizes = np.sqrt(np.maximum(np.diag(info), 0.0))
        known = sizes > 0
        units = np.where(known, sizes, 1.0)
        # What is fixed moves given the latents, and means of these given what is fixed: chains
        # that follow slowly would be left behind by a step of both along a ridge.
        given = np.append(self.fixed, np.ones(len(self.scored), dtype=np.bool_))
        alone = np.where(given[:, None] == given, info / np.outer(units, units), 0.0)
        c = len(self.rows)
        widest = np.where(self.near, WIDEST, np.inf)
        least = np.concatenate([-widest, np.maximum(at[c:] / FACTOR, self.floors) - at[c:]])
        most = np.concatenate([widest, at[c:] * (FACTOR - 1)])
        apart = (score - info @ at) / units
        step = _within(alone, apart, known, least * units, np.maximum(most, least) * units) / units
        B = B.copy()
        B[self.rows, self.columns] = step[:c] + np.where(
            self.fixed, at[:c], B[self.rows, self.columns]
        )
        return B, np.maximum(at[c:] + step[c:], self.floors)


def _within(
    matrix: Vector, right: Vector, free: NDArray[np.bool_], least: Vector, most: Vector
) -> Vector:
    """Solve equations (s, s) of what is free within bounds; what meets one stays, others follow."""
    step, free = np.zeros(len(right)), free.copy()
    while free.any():
        values, vectors = np.linalg.eigh(matrix[np.ix_(free, free)])
        values = np.maximum(values, SMALLEST * max(float(values[-1]), 1.0))
        left = right[free] - matrix[np.ix_(free, ~free)] @ step[~free]
        step[free] = vectors @ ((vectors.T @ left) / values)
        over = free & ((step < least) | (step > most))
        step = np.where(over, np.clip(step, least, most), step)
        if not over.any():
            break
        free &= ~over
    return step
