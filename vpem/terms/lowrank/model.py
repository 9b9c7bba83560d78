"""FedMissEM's statistic and M-step: copies of a matrix, filled in, and their low-rank matrix.

    minimize  sum psi(theta) - <S, theta> + ridge/2 (|U|^2 + |V|^2),   theta = U V^T of rank r

Balanced factors make the penalty ``ridge`` times the sum of theta's singular values. For the
Gaussian law this is one singular value decomposition, soft-thresholded at the ridge and cut off at
rank r. For the other laws two kinds of steps take turns, neither of which ever raises the
objective: a step along the gradient followed by such a soft-thresholding (a majorizer where psi''
is bounded, with a line search where it is not), and Newton steps for the rows of one factor with
the other held, which are convex problems of r unknowns each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np

from vpem.checks import Doubles, Indices
from vpem.errors import NumericalError
from vpem.network.schema import Array, As, Schema, State, Stateful, record, save
from vpem.terms.lowrank.observations import EntryLaw, Observations

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

SLACK = 5.0
"""By what copies are multiplied, and the ridge divided, where observers have intercepts and the
curvature of a law is not that of theta alone: so that M-steps never go too far. It bounds what
intensities and odds of an observer are relative to those of theta."""

OUTSIDE = 1e-9
"""How far a mean may lie outside its law's domain before this counts as projected."""


@dataclass(frozen=True)
class LowRank:
    """A matrix ``theta = U V^T`` by balanced factors: ``U^T U = V^T V`` is diagonal, decreasing.

    U (I, r) are factors of the rows, V (J, r) of the columns; the largest number of each column of
    V, by magnitude, is positive.
    """

    U: Doubles
    V: Doubles

    @cached_property
    def theta(self) -> Doubles:
        """The matrix, shape (I, J)."""
        theta: Doubles = self.U @ self.V.T
        return theta

    @property
    def singular_values(self) -> Doubles:
        """Of theta, largest first, shape (r,)."""
        squares: Doubles = (self.V**2).sum(axis=0)
        return squares

    @property
    def penalty(self) -> float:
        """``(|U|^2 + |V|^2) / 2``."""
        return 0.5 * float((self.U**2).sum() + (self.V**2).sum())

    @classmethod
    def balanced(cls, U: Doubles, V: Doubles) -> LowRank:
        """Return the same matrix by balanced factors."""
        left, upper = np.linalg.qr(U)
        right, lower = np.linalg.qr(V)
        a, s, b = np.linalg.svd(upper @ lower.T)
        return _factored(left @ a, s, right @ b.T, U.shape[1])


def _factored(left: Doubles, s: Doubles, right: Doubles, rank: int) -> LowRank:
    """Factors of ``left diag(s) right^T``, padded with zeros up to the rank."""
    place = np.abs(right).argmax(axis=0)
    sign = np.where(right[place, np.arange(len(s))] < 0, -1.0, 1.0)
    root = np.sqrt(s)
    U, V = left * (root * sign), right * (root * sign)
    if rank > len(s):
        padding = ((0, 0), (0, rank - len(s)))
        U, V = np.pad(U, padding), np.pad(V, padding)
    return LowRank(U, V)


def shrink(matrix: Doubles, threshold: float, rank: int) -> LowRank:
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
    elif not matrix.any():
        left, s, right = np.eye(len(matrix), rank), np.zeros(rank), np.eye(rank, matrix.shape[1])
    else:
        from scipy.sparse.linalg import ArpackError, svds

        # A start that no singular vector is at right angles to, the same in every run.
        first = np.random.default_rng(0).standard_normal(small)
        try:
            left, s, right = svds(matrix, k=rank, v0=first, tol=0)
            order = np.argsort(-s)
            left, s, right = left[:, order], s[order], right[order]
        except ArpackError:  # values too near each other for its iterations
            left, s, right = np.linalg.svd(matrix, full_matrices=False)
    shrunk = np.maximum(s[:rank] - threshold, 0.0)
    return _factored(left[:, :rank], shrunk, right[:rank].T, rank)


def objective(law: EntryLaw, point: LowRank, statistic: Doubles, ridge: float) -> float:
    """Return what the M-step minimizes; infinite where it cannot be computed."""
    with np.errstate(over="ignore", invalid="ignore"):
        fit = float((law.cumulant(point.theta) - statistic * point.theta).sum())
    value = fit + ridge * point.penalty
    return value if np.isfinite(value) else np.inf


def descend(law: EntryLaw, statistic: Doubles, ridge: float, start: LowRank) -> LowRank:
    """Do the M-step of a law other than the Gaussian, from a start of the same rank.

    ``statistic`` (I, J) has means of the entries, in the law's domain; the ridge is above 0. The
    objective never rises. It ends at a point from which neither kind of step lowers it by much, or
    at what `MOST_TURNS` turns of both have reached: the next M-step goes on from there.
    """
    point, value, rank = start, objective(law, start, statistic, ridge), start.U.shape[1]
    for _ in range(MOST_TURNS):
        before, theta = value, point.theta
        # Down the gradient and soft-threshold: directions that the factors lack can come in.
        mean, curvature = law.slopes(theta)
        slope = mean - statistic
        bound = max(float(curvature.max()), 1e-8)
        for _ in range(MOST_HALVINGS):
            moved = shrink(theta - slope / bound, ridge / bound, rank)
            moved_value = objective(law, moved, statistic, ridge)
            change = moved.theta - theta
            foretold = float((slope * change).sum()) + 0.5 * bound * float((change**2).sum())
            foretold += ridge * (moved.penalty - point.penalty)
            # The majorizer is at most what it was at the old point: this never raises the
            # objective.
            if moved_value <= value + min(foretold, 0.0):
                point, value = moved, moved_value
                break
            bound *= 2.0
        for _ in range(NEWTON_SWEEPS):
            U = fit_rows(law, point.U, point.V, statistic, ridge)
            V = fit_rows(law, point.V, U, statistic.T, ridge)
            moved = LowRank.balanced(U, V)
            moved_value = objective(law, moved, statistic, ridge)
            fall = value - moved_value
            if not fall > 0:
                break
            point, value = moved, moved_value
            if fall <= SETTLED * abs(value):
                break
        if before - value <= SETTLED * max(abs(before), 1.0):
            break
    return point


def fit_rows(
    law: EntryLaw,
    U: Doubles,
    V: Doubles,
    statistic: Doubles,
    ridge: float,
    weights: Doubles | None = None,
    n_steps: int = 1,
) -> Doubles:
    """Take Newton steps for every row of U (I, r), with V (J, r) held; no row's objective rises.

    ``statistic`` (I, J) has means of the entries; of ``weights`` (I, J) 0 leaves one out. The ridge
    is above 0.
    """
    n, rank = U.shape
    pairs = (V[:, :, None] * V[:, None, :]).reshape(len(V), -1)
    ones = np.ones(1) if weights is None else weights

    def losses(rows: Doubles, part: Indices | slice) -> Doubles:
        theta = rows @ V.T
        shares = ones if weights is None else weights[part]
        with np.errstate(over="ignore", invalid="ignore"):
            fit = (shares * (law.cumulant(theta) - statistic[part] * theta)).sum(axis=1)
        objectives: Doubles = fit + 0.5 * ridge * (rows**2).sum(axis=1)
        return np.where(np.isfinite(objectives), objectives, np.inf)

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


class ImputationModel(Stateful):
    """Imputation as a `vpem.steps.fedem_sums.StatisticModel`; theta has a rank and a ridge.

    ``n_copies`` are copies of the matrix of which the observers saw parts: at least as many as
    observers saw any one entry, or what their weights of it add up to. ``n_roots`` keep a
    statistic: where an M-step is a descent each sets out from where its last one ended, and so does
    that of the mean of them, which the next number stands for. With a ``shrinkage`` every observer
    has an intercept ``a`` of its own: its entries have ``theta + a``, and ``shrinkage a^2 / 2``
    is added to what is minimized. It is found by its own entries whenever it is needed, and leaves
    the observer in no message. ``parts`` are what observers of this
    process saw (None: all), of each of which ``add_up`` sums a number, over all processes. No value
    is beyond ``most``, as all know where sums are masked. ``start`` (I J,) is the statistic of
    theta = 0.
    """

    def __init__(
        self,
        observations: Observations,
        law: EntryLaw,
        rank: int,
        ridge: float,
        n_copies: float,
        *,
        n_roots: int = 1,
        parts: Sequence[Observations] | None = None,
        add_up: Callable[[Doubles], float] = np.sum,
        most: float | None = None,
        shrinkage: float | None = None,
    ) -> None:
        self.shrinkage = shrinkage
        self.observations, self.law, self.rank, self.ridge = observations, law, rank, ridge
        self.n_copies = n_copies
        self.shape = observations.shape
        self.size = self.shape[0] * self.shape[1]
        self.pieces: tuple[slice, ...] = (slice(0, self.size),)
        self.counts = self.masses = observations.counts  # (n,): an entry weighs 1
        self.start = law.mean(np.zeros(self.size))
        # Observers n, copies c: each has n/c entries' worth of news where it saw one.
        self._slack = 1.0 if shrinkage is None or law.name == "gaussian" else SLACK
        self._share = observations.n_observers / n_copies / self._slack
        self.bounds: Doubles | None = None
        self.is_judged = True
        self.least_batch = 1
        if most is not None:
            # What is foretold goes beyond what was seen, but not far.
            largest = 2.0 * (1.0 + self._share) * max(most, float(np.abs(self.start).max()), 1.0)
            self.bounds = np.full(self.size, largest)
        zero = LowRank(*(np.zeros((length, rank)) for length in self.shape))
        self._points = [zero] * (1 if n_roots == 1 else n_roots + 1)
        self._known: tuple[LowRank, Doubles] | None = None
        self._add_up = add_up
        self._parts = parts = [observations] if parts is None else parts
        self._seen, self._total = np.zeros((2, len(parts), self.size))
        self._base, masses = np.zeros((2, len(parts)))
        for one, part in enumerate(parts):
            self._seen[one], self._total[one] = (sums.ravel() for sums in part.sums())
            places, values, weights = part.entries(range(part.n_observers))
            base = law.base(values)
            if law.name == "gaussian":
                # Squares of what is left of a mean: those of the data themselves would cancel.
                mean = self._total[one] / np.where(self._seen[one] > 0, self._seen[one], 1.0)
                self._total[one], base = mean, law.base(values - mean[places])
            self._base[one] = (base if weights is None else weights * base).sum()
            masses[one] = 0.0 if weights is None else weights.sum()
        self.total_weight: float = observations.n_entries
        if observations.weights is not None:
            self.total_weight = add_up(masses)

    def draw(
        self, worker: int, count: int, rng: np.random.Generator, replace: bool = False
    ) -> Indices:
        """Draw so many entries of an observer's, fewer than it saw: different ones, or not."""
        drawn: Indices = rng.choice(int(self.counts[worker]), count, replace=replace, shuffle=False)
        return drawn

    def expect(self, worker: int, parameters: LowRank, rows: Indices | None) -> Doubles:
        """Fill an observer's copy (I J,): what it saw, and elsewhere what the parameters foretell.

        ``rows`` are some of the entries that it saw, which stand for all of them (None: all). Where
        the observer lives in another process it is zeros.
        """
        places = self.observations.places[worker]
        if not len(places):
            return np.zeros(self.size)
        # Expectations of all entries (I J,) are kept from one observer's turn to the next.
        if self._known is None or self._known[0] is not parameters:
            self._known = (parameters, self.law.mean(parameters.theta.ravel()))
        means = self._known[1]
        filled = means.copy()
        values = self.observations.values[worker]
        expected = means[places]
        if self.shrinkage is not None:
            a = self.intercept(self.observations, worker, parameters)
            expected = self.law.mean(parameters.theta.ravel()[places] + a)
        share: Any = self._share
        if self.observations.weights is not None:
            share = share * self.observations.weights[worker]
        if rows is not None:
            share = share * (len(places) / len(rows))
            share = share[rows] if isinstance(share, np.ndarray) else share
            places, values, expected = places[rows], values[rows], expected[rows]
        np.add.at(filled, places, share * (values - expected))
        return filled

    def intercept(self, observations: Observations, observer: int, parameters: LowRank) -> float:
        """Find an observer's intercept by its own entries; 0 where there are none."""
        if self.shrinkage is None or not len(observations.places[observer]):
            return 0.0
        weights = None if observations.weights is None else observations.weights[observer]
        theta = parameters.theta.ravel()[observations.places[observer]]
        a = self.law.intercept(observations.values[observer], theta, self.shrinkage, weights)
        most = np.inf if self.law.name == "gaussian" else float(np.log(SLACK))
        return min(max(a, -most), most)  # the loss is convex

    def maximize(self, statistic: Doubles, root: int = 0) -> tuple[LowRank, int]:
        """Fit theta to a statistic (I J,); means outside the law's domain are moved to its edge."""
        low, high = self.law.domain
        outside = (statistic < low - OUTSIDE) | (statistic > high + OUTSIDE)
        filled = np.clip(statistic, low, high).reshape(self.shape)
        if self.law.name == "gaussian":
            point = shrink(filled, self.ridge * self.law.dispersion, self.rank)
        else:
            point = descend(self.law, filled, self.ridge / self._slack, self._points[root])
            self._points[root] = point
        return point, int(outside.sum())

    def traced(self, parameters: LowRank) -> State:
        return cast(State, save(self.parameters_schema(), parameters))

    def parameters_schema(self) -> As:
        rows, columns = self.shape
        factors = {"U": Array("f8", (rows, self.rank)), "V": Array("f8", (columns, self.rank))}
        return record(LowRank, factors)

    def schema(self) -> dict[str, Schema]:
        """Where M-steps that are descents set out from."""

        def factors(name: str, length: int) -> As:
            return As(
                Array("f8", (len(self._points), length, self.rank)),
                lambda points: np.stack([getattr(point, name) for point in points]),
                lambda every: [
                    replace(point, **{name: one})
                    for point, one in zip(self._points, every, strict=True)
                ],
                "_points",
            )

        return {name: factors(name, length) for name, length in zip("UV", self.shape, strict=True)}

    def log_likelihood(self, parameters: LowRank) -> float:
        """Log-likelihood of all entries seen together, in nats."""
        theta = parameters.theta.ravel()
        if self.shrinkage is not None:
            return float(self._add_up(np.array([
                sum(self._of_observer(part, one, parameters)[0] for one in range(part.n_observers))
                for part in self._parts
            ])))  # fmt: skip
        # Part by part: a product with all at once rounds by how many there are in this process.
        pairs = list(zip(self._total, self._seen, strict=True))
        if self.law.name == "gaussian":
            fit = np.array([-0.5 * (seen @ (mean - theta) ** 2) for mean, seen in pairs])
        else:
            cumulant = self.law.cumulant(theta)
            fit = np.array([total @ theta - seen @ cumulant for total, seen in pairs])
        return float(self._add_up(fit / self.law.dispersion + self._base))

    def _of_observer(
        self, part: Observations, observer: int, parameters: LowRank
    ) -> tuple[float, float]:
        """Log-likelihood of what one observer saw, and the square of its intercept."""
        places, values, weights = part.entries([observer])
        if not len(places):
            return 0.0, 0.0
        a = self.intercept(part, observer, parameters)
        theta = parameters.theta.ravel()[places] + a
        if self.law.name == "gaussian":
            each = self.law.base(values - theta)
        else:
            each = values * theta - self.law.cumulant(theta) + self.law.base(values)
        return float(each.sum() if weights is None else weights @ each), a * a

    def objective(self, parameters: LowRank) -> float:
        """Penalized log-likelihood an entry seen: EM never lowers it."""
        penalty = self.n_copies * self.ridge * parameters.penalty
        if self.shrinkage is not None:
            squares = [
                sum(self._of_observer(part, one, parameters)[1] for one in range(part.n_observers))
                for part in self._parts
            ]
            penalty += 0.5 * self.shrinkage * float(self._add_up(np.array(squares)))
        return (self.log_likelihood(parameters) - penalty) / self.total_weight
