"""Matrices of low rank, and the M-step of imputation: the one that suits given statistics best.

    minimize  sum psi(theta) - <S, theta> + ridge/2 (|U|^2 + |V|^2),   theta = U V^T of rank r

Balanced factors make the penalty ``ridge`` times the sum of theta's singular values. For the
Gaussian law this is one singular value decomposition, soft-thresholded at the ridge and cut off at
rank r. For the other laws two kinds of steps take turns, neither of which ever raises the
objective: a step along the gradient followed by such a soft-thresholding (a majorizer where
psi'' is bounded, with a line search where it is not), and Newton steps for the rows of one factor
with the other held, which are convex problems of r unknowns each.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from vpem.errors import NumericalError
from vpem.terms.lowrank.laws import Law

Matrix = NDArray[np.float64]

SMALL = 200
"""Rows or columns up to which all singular values are found, and not the largest alone."""

MOST_HALVINGS = 40
"""Of a step in a line search; then the step is not taken."""

ENOUGH = 1e-4
"""Share of the decrease foretold by the slope that a Newton step must reach."""

SETTLED = 1e-8
"""Relative decrease of the objective in a turn below which the M-step is done."""

MOST_TURNS = 3
NEWTON_SWEEPS = 2


@dataclass(frozen=True)
class LowRank:
    """A matrix ``theta = U V^T`` by balanced factors: ``U^T U = V^T V`` is diagonal, decreasing.

    Parameters
    ----------
    U : ndarray of shape (I, r)
        Factors of the rows.
    V : ndarray of shape (J, r)
        Factors of the columns. The largest number of each column, by magnitude, is positive.
    """

    U: Matrix
    V: Matrix

    @cached_property
    def theta(self) -> Matrix:
        """The matrix, shape (I, J)."""
        found: Matrix = self.U @ self.V.T
        return found

    @property
    def singular_values(self) -> Matrix:
        """Of theta, largest first, shape (r,)."""
        found: Matrix = (self.V**2).sum(axis=0)
        return found

    @property
    def penalty(self) -> float:
        """``(|U|^2 + |V|^2) / 2``."""
        return 0.5 * float((self.U**2).sum() + (self.V**2).sum())

    @classmethod
    def zeros(cls, n_rows: int, n_columns: int, rank: int) -> LowRank:
        """Return the matrix of zeros."""
        return cls(np.zeros((n_rows, rank)), np.zeros((n_columns, rank)))

    @classmethod
    def balanced(cls, U: Matrix, V: Matrix) -> LowRank:
        """Return the same matrix by balanced factors."""
        left, upper = np.linalg.qr(U)
        right, lower = np.linalg.qr(V)
        a, s, b = np.linalg.svd(upper @ lower.T)
        return _factored(left @ a, s, right @ b.T, U.shape[1])


def _factored(left: Matrix, s: Matrix, right: Matrix, rank: int) -> LowRank:
    """Factors of ``left diag(s) right^T``, padded with zeros up to the rank."""
    place = np.abs(right).argmax(axis=0)
    sign = np.where(right[place, np.arange(len(s))] < 0, -1.0, 1.0)
    root = np.sqrt(s)
    U, V = left * (root * sign), right * (root * sign)
    if rank > len(s):
        padding = ((0, 0), (0, rank - len(s)))
        U, V = np.pad(U, padding), np.pad(V, padding)
    return LowRank(U, V)


def shrink(matrix: Matrix, threshold: float, rank: int) -> LowRank:
    """Soft-threshold the singular values of a matrix (I, J) and keep the largest.

    The minimum of ``|theta - matrix|^2 / 2 + threshold sum sigma(theta)`` over theta of that rank.
    """
    if not np.isfinite(matrix).all():
        raise NumericalError(
            "a parameter is no longer finite; try scaled data, a smaller rank or a larger ridge"
        )
    small = min(matrix.shape)
    if small <= SMALL or 10 * rank > small:
        left, s, right = np.linalg.svd(matrix, full_matrices=False)
    else:
        left, s, right = _largest(matrix, rank)
    kept = np.maximum(s[:rank] - threshold, 0.0)
    return _factored(left[:, :rank], kept, right[:rank].T, rank)


def _largest(matrix: Matrix, rank: int) -> tuple[Matrix, Matrix, Matrix]:
    """Find the largest singular values and their vectors, to rounding."""
    from scipy.sparse.linalg import ArpackError, svds

    if not matrix.any():
        return np.eye(len(matrix), rank), np.zeros(rank), np.eye(rank, matrix.shape[1])
    # A start that no singular vector is at right angles to, the same in every run.
    first = np.random.default_rng(0).standard_normal(min(matrix.shape))
    try:
        left, s, right = svds(matrix, k=rank, v0=first, tol=0)
    except ArpackError:  # values too near each other for its iterations
        return np.linalg.svd(matrix, full_matrices=False)
    order = np.argsort(-s)
    return left[:, order], s[order], right[order]


def objective(law: Law, point: LowRank, statistic: Matrix, ridge: float) -> float:
    """Return what the M-step minimizes; infinite where it cannot be computed."""
    with np.errstate(over="ignore", invalid="ignore"):
        fit = float((law.cumulant(point.theta) - statistic * point.theta).sum())
    found = fit + ridge * point.penalty
    return found if np.isfinite(found) else np.inf


def descend(law: Law, statistic: Matrix, ridge: float, start: LowRank) -> LowRank:
    """Do the M-step of a law other than the Gaussian, from a start of the rank wanted.

    ``statistic`` (I, J) has means of the entries, in the law's domain; the ridge is above 0. The
    objective never rises. It ends at a point from which neither kind of step lowers it by much, or
    at what `MOST_TURNS` turns of both have reached: the next M-step goes on from there.
    """
    point, value = start, objective(law, start, statistic, ridge)
    for _ in range(MOST_TURNS):
        before = value
        point, value = _threshold_step(law, point, value, statistic, ridge)
        for _ in range(NEWTON_SWEEPS):
            U = fit_rows(law, point.U, point.V, statistic, ridge)
            V = fit_rows(law, point.V, U, statistic.T, ridge)
            moved = LowRank.balanced(U, V)
            found = objective(law, moved, statistic, ridge)
            fall = value - found
            if not fall > 0:
                break
            point, value = moved, found
            if fall <= SETTLED * abs(value):
                break
        if before - value <= SETTLED * max(abs(before), 1.0):
            break
    return point


def _threshold_step(
    law: Law, point: LowRank, value: float, statistic: Matrix, ridge: float
) -> tuple[LowRank, float]:
    """Go down the gradient and soft-threshold; directions that the factors lack can come in."""
    theta = point.theta
    mean, curvature = law.slopes(theta)
    slope = mean - statistic
    bound = max(float(curvature.max()), 1e-8)
    rank = point.U.shape[1]
    for _ in range(MOST_HALVINGS):
        moved = shrink(theta - slope / bound, ridge / bound, rank)
        found = objective(law, moved, statistic, ridge)
        change = moved.theta - theta
        foretold = float((slope * change).sum()) + 0.5 * bound * float((change**2).sum())
        foretold += ridge * (moved.penalty - point.penalty)
        # The majorizer is at most what it was at the old point, so this never raises the objective.
        if found <= value + min(foretold, 0.0):
            return moved, found
        bound *= 2.0
    return point, value


def fit_rows(
    law: Law,
    U: Matrix,
    V: Matrix,
    statistic: Matrix,
    ridge: float,
    weights: Matrix | None = None,
    n_steps: int = 1,
) -> Matrix:
    """Take Newton steps for every row of U (I, r), with V (J, r) held; no row's objective rises.

    ``statistic`` (I, J) has means of the entries; of ``weights`` (I, J) 0 leaves one out. The ridge
    is above 0.
    """
    n, rank = U.shape
    pairs = (V[:, :, None] * V[:, None, :]).reshape(len(V), -1)
    ones = np.ones(1) if weights is None else weights

    def losses(rows: Matrix, part: NDArray[np.intp] | slice) -> Matrix:
        theta = rows @ V.T
        shares = ones if weights is None else weights[part]
        with np.errstate(over="ignore", invalid="ignore"):
            fit = (shares * (law.cumulant(theta) - statistic[part] * theta)).sum(axis=1)
        found: Matrix = fit + 0.5 * ridge * (rows**2).sum(axis=1)
        return np.where(np.isfinite(found), found, np.inf)

    for _ in range(n_steps):
        theta = U @ V.T
        mean, curvature = law.slopes(theta)
        slope = (ones * (mean - statistic)) @ V + ridge * U
        second = ((ones * curvature) @ pairs).reshape(n, rank, rank)
        second += ridge * np.eye(rank)
        step = np.linalg.solve(second, slope[:, :, None])[:, :, 0]
        fall = (slope * step).sum(axis=1)
        before = losses(U, slice(None))
        moved = U.copy()
        waiting = np.flatnonzero(fall > 0)
        size = 1.0
        for _ in range(MOST_HALVINGS):
            tried = U[waiting] - size * step[waiting]
            good = losses(tried, waiting) <= before[waiting] - ENOUGH * size * fall[waiting]
            moved[waiting[good]] = tried[good]
            waiting = waiting[~good]
            if not len(waiting):
                break
            size *= 0.5
        if np.array_equal(moved, U):
            break
        U = moved
    return U
