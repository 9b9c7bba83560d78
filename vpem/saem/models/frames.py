"""Columns that a fit is made in: as unrelated as the model lets them be, and of the same size.

A slope and an intercept whose estimates are all but one (years, say, far from 0) are found slowly
in turn, and what draws tell of them cancels. So columns of rows X, and covariates C of individuals,
are taken about what other columns say of them: ``X W`` and ``C V`` have mean squares of 1. Where
``phi = B c`` are the coefficients of X, those of ``X W`` are ``W^-1 phi = (W^-1 B V^-T) (V^T c)``:
the model is the same, and its parameters are linear in those of the other. A fixed coefficient of
a column that is another, whose coefficient varies, times a covariate of the individual is an effect
of that covariate: it moves with the latents, and not against them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vpem.saem.individuals import Individuals
from vpem.saem.models.model import Vector

SAME = 1e-10
"""Share of a column's square that others leave, below which it says nothing beside them."""
FLAT = 1e-24
"""Share of it that the mean leaves, below which a column is constant but for rounding."""
ROUNDING = 1e-12
"""To which a column is another times a covariate."""
PASSES = 2
"""The second for what rounding left."""


@dataclass(frozen=True)
class Frame:
    """Columns instead of those of the user.

    Attributes
    ----------
    columns : callable
        The user's columns (N, m) of individuals.
    kept : ndarray of shape (k,)
        Which of these stay columns of rows.
    moved : tuple of (int, int)
        Which are the second times a covariate of the individual.
    rows : ndarray of shape (m, k)
        W: how columns make those that stay, of the ones that stay and then of ``moved``.
    people : ndarray of shape (L, L)
        V: likewise, of the covariates, those of ``moved`` last.
    """

    columns: Callable[[Individuals], Vector]
    kept: NDArray[np.intp]
    moved: tuple[tuple[int, int], ...]
    rows: Vector
    people: Vector

    def design(self, at: Individuals) -> Vector:
        """Return the columns (N, k) of individuals' rows."""
        order = np.append(self.kept, [j for j, _ in self.moved]).astype(np.intp)
        return _mixed(self.columns(at)[:, order], self.rows)

    def covariates(self, own: Vector, at: Individuals) -> Vector:
        """Return the covariates (n, L) of individuals, of whom the user's are ``own``."""
        more = [_share(at, self.columns(at), *pair) for pair in self.moved]
        return _mixed(np.column_stack([own, *more]), self.people)


def framed(
    data: Individuals,
    columns: Callable[[Individuals], Vector],
    people: Vector,
    mask: NDArray[np.bool_],
    random: NDArray[np.intp],
    full: bool,
) -> Frame:
    """Choose columns for a model; all devices add up what that takes.

    ``columns`` gives columns (N, m) of the individuals' rows, or none, (N, 0); ``people`` (n, L)
    are covariates, the first 1, and ``mask`` (m, L) says which coefficients there are. Coefficients
    of the columns ``random`` (q,) vary; ``full``: with all covariances, without which they cannot
    be mixed.
    """
    X = columns(data)
    varies = np.isin(np.arange(len(mask)), random)
    moved = []
    for j in np.flatnonzero(~varies & ~mask[:, 1:].any(axis=1)) if X.shape[1] else ():
        for k in random:
            share: Vector = _share(data, X, int(j), int(k))[data.individual_of]
            left = X[:, j] - share * X[:, k]
            apart = (np.abs(left) > ROUNDING * np.abs(X[:, j])).any()
            if not data.largest(np.array([apart], np.uint8))[0]:
                moved.append((int(j), int(k)))
                break
    kept = np.setdiff1d(np.arange(len(mask)), [j for j, _ in moved])
    there = np.pad(mask, ((0, 0), (0, len(moved))))
    for place, (_, k) in enumerate(moved):
        there[k, mask.shape[1] + place] = True
    there, varies = there[kept], varies[kept]
    # Whether a column may be taken about another: that one's coefficient then depends on all that
    # its own does.
    may = (there[:, None] <= there).all(axis=2) & (~varies[:, None] | (varies & full))
    n, m, W = len(kept), len(mask), np.eye(len(mask))
    if X.shape[1]:
        alone = ~varies & ~there[:, 1:].any(axis=1)
        every = np.zeros((m, m), dtype=np.bool_)
        every[:n, :n], every[:n, n:], every[n:, 0] = may, alone[:, None], True
        order = np.append(kept, [j for j, _ in moved]).astype(np.intp)
        W = _unrelated(data.mean_of_rows, X[:, order], every)[:, :n]
    C = np.column_stack([people, *[_share(data, X, *pair) for pair in moved]])
    V = _unrelated(data.mean, C, (there.T[:, None] <= there.T).all(axis=2))
    return Frame(columns, kept, tuple(moved), W, V)


def _share(at: Individuals, X: Vector, j: int, k: int) -> Vector:
    """By what (n,) the first row of each individual's column k that is not 0 makes its column j."""
    known = np.flatnonzero(X[:, k] != 0)
    found = np.zeros(at.n_individuals)
    who, first = np.unique(at.individual_of[known], return_index=True)
    found[who] = X[known[first], j] / X[known[first], k]
    return found


def _unrelated(mean: Callable[[Vector], Vector], columns: Vector, may: NDArray[np.bool_]) -> Vector:
    """Return the matrix (m, m) that makes columns unrelated, as far as they may be mixed.

    Means are taken off before products are added up: these would tell nothing else of years.
    """
    found, places = np.eye(len(may)), np.arange(len(may))
    sizes, first = mean(columns**2), mean(columns[:, :1] * columns)
    found[0, 1:] = np.where(may[1:, 0], -first[1:] / first[0], 0.0)
    flat = mean(_mixed(columns, found) ** 2) <= FLAT * sizes
    found[0, 1:][flat[1:]] = 0.0
    may = may & ~flat[:, None] & ~flat
    for _ in range(PASSES):
        now = _mixed(columns, found)
        squares = mean(now[:, :, None] * now[:, None, :])
        step = np.eye(len(may))
        for j in places:
            about = may[j] & (~may[:, j] | (places < j)) & (places != j)
            right, left = squares[about, j], squares[j, j]
            taken = np.linalg.lstsq(squares[np.ix_(about, about)], right, rcond=None)[0]
            if left - right @ taken > SAME * left:
                left -= right @ taken
                step[about, j] = -taken
            step[:, j] /= np.sqrt(left) if left > 0 else 1.0
        found = found @ step
    return found


def _mixed(columns: Vector, by: Vector) -> Vector:
    """Columns (N, m) times a matrix, each row by itself: the same whoever else is there."""
    found = np.zeros((len(columns), by.shape[1]))
    for i, j in zip(*np.nonzero(by), strict=True):
        found[:, j] += columns[:, i] * by[i, j]
    return found
